"""paid.operation.v1: an operation and its payment as one event, and their ledger (001 spec-3 §2, D-90, D-138).

A payment moves `amount` from payer to payee, in logical order. The ledger has accounts by (account_id, currency) and
knows no wallets of WAL. Nothing is created: the sum over all accounts of a currency is 0, because money enters
circulation as the debt of an issuing account, which alone may go below zero.

An account belongs to the identity from which its id is derived, or to the configured owner. Its owner debits it, and so
does the subject of a live access.grant of the owner with a maximum_amount, on the streams of the grant.

    PAID.EXPIRED    the hub took it after expires_at of its header
    PAID.CURRENCY   the currency is empty, not allowed, or absent where there is no default unit
    PAID.DUPLICATE  the same operation with the same operation_reference was paid before
    PAID.RIGHTS     the sender may not debit the account of the payer
    PAID.AMOUNT     the sender may debit the account, but not by this much any more
    PAID.FUNDS      the balance would go below zero
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final

from veen.core import cbor
from veen.core.hashing import H
from veen.core.wire import Anything, Bytes32, Uint
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, InvalidBody, Schema, SchemaSet, Violation
from veen.overlays.framework.speaking import SpeakingKey, SpeakingRecord, Voice, principal_of
from veen.overlays.framework.state import Free, state_record
from veen.overlays.framework.typed_table import StateTable, TypedColumn
from veen.overlays.operations.access import GRANT, REVOKE, AccessGrant, AccessRevoke
from veen.overlays.operations.common import KEYS_ONLY, Operation, Speakers, account_id_of
from veen.overlays.operations.delegation import DELEGATED, NO_CAPS, Act, ActingFold, Caps


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidOperation(Operation, kind="paid.operation.v1"):
    """An operation with its payment."""

    operation_type: str
    operation_args: Anything
    payer_account: Bytes32
    payee_account: Bytes32
    amount: Uint
    currency_code: str | None = None
    operation_reference: Bytes32 | None = None
    parent_operation_id: Bytes32 | None = None
    ttl_seconds: Uint | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if self.currency_code == "":
            raise InvalidBody("PAID.CURRENCY", "currency must not be empty; omit it for the default unit")


PAID: Final = Schema(PaidOperation.KIND, PaidOperation)


def pay(body: PaidOperation, *, now: int | None = None) -> Draft:
    """Build a draft. With ttl_seconds, `now` sets expires_at of the header, which folds compare (D-90)."""
    if body.ttl_seconds is None:
        return PAID.draft(body)
    if now is None:
        raise ValueError("ttl_seconds counts from now: give the time")
    return PAID.draft(body, expires_at=now + body.ttl_seconds)


@state_record
class Paid:
    """A valid payment. Side effects of the operation are keyed by its operation_id (P2)."""

    msg_id: bytes
    client_id: bytes
    operation_type: str
    operation_args: Free
    payer: bytes
    payee: bytes
    amount: int
    currency: str
    operation_reference: bytes | None = None
    parent_operation_id: bytes | None = None
    hub_ts: int


@state_record
class Right:
    """Permission of a subject to debit an account, given by its owner."""

    granted_by: bytes  # operation_id of the grant
    grant_msg_id: bytes
    stream_ids: tuple[bytes, ...]
    currency: str | None
    maximum: int
    spent: int
    expiry_time: int


@state_record
class Rights:
    """All valid rights of one subject to one account."""

    debits: tuple[Right, ...]


@state_record
class Holder:
    """The principal whose key an account was derived from."""

    holder: bytes


@dataclass(frozen=True, slots=True)
class PaidLedger:
    """Balances, and the operations that made them."""

    balances: Mapping[tuple[bytes, str], int]  # by (account_id, currency)
    operations: Mapping[bytes, Paid]  # by operation_id

    def balance(self, account_id: bytes, currency: str) -> int:
        return self.balances.get((account_id, currency), 0)

    def sums(self) -> dict[str, int]:
        """Return the sum over all accounts of each currency. It is 0 unless money appeared or disappeared."""
        sums: dict[str, int] = {}
        for (_, currency), balance in self.balances.items():
            sums[currency] = sums.get(currency, 0) + balance
        return sums


_Key = tuple[str, bytes, bytes]
_Record = int | Paid | Rights | Holder


class PaidFold(ActingFold[_Key, _Record, PaidLedger]):
    """Fold of all accounts. Without issuing accounts nobody can spend.

    issuing     the accounts that may go below zero
    owners      account_id → identity, for accounts whose id is not derived from their owner
    currencies  the only ones that count; None: all
    default     the unit of payments that name none; None: such payments have no effect
    """

    name = "operation.paid"
    schemas = SchemaSet([PAID, GRANT, REVOKE, DELEGATED])
    KEEPS_NAMES = True
    TABLE = dict[_Key | SpeakingKey, _Record | SpeakingRecord]

    def __init__(
        self,
        *,
        issuing: Collection[bytes] = (),
        owners: Mapping[bytes, bytes] | None = None,
        currencies: Collection[str] | None = None,
        default: str | None = None,
        speakers: Speakers = KEYS_ONLY,
        caps: Caps = NO_CAPS,
        mirrors: Mirrors = NO_MIRRORS,
        speaks: bool = True,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(speakers=speakers, caps=caps, mirrors=mirrors, speaks=speaks, realms=realms)
        self._issuing, self._owners = frozenset(issuing), dict(owners or {})
        self._currencies = None if currencies is None else frozenset(currencies)
        self._default = default

    def own_settings(self) -> Any:
        currencies = None if self._currencies is None else sorted(self._currencies)
        return [sorted(self._issuing), sorted(self._owners.items()), currencies, self._default]

    def act(self, state: Table[_Key, _Record], act: Act[Any]) -> None:
        if isinstance(act.body, PaidOperation):
            self._pay(state, act)
        elif isinstance(act.body, AccessGrant):
            self._allow(state, act)
        else:
            self._disallow(state, act)

    # --- payments ----------------------------------------------------------------------------------------------

    def _pay(self, state: Table[_Key, _Record], act: Act[PaidOperation]) -> None:
        e, body = act.event, act.body
        if e.hdr.expires_at is not None and e.hub_ts > e.hdr.expires_at:
            raise Violation("PAID.EXPIRED", "the message expired before the hub admitted it")
        currency = self._currency(body.currency_code)
        used: _Key | None = None
        if body.operation_reference is not None:
            used = ("reference", body.payer_account, H(_encoding(act)))
            if used in state:
                raise Violation(
                    "PAID.DUPLICATE", "the same operation with the same operation_reference was paid before"
                )
        spent = None
        if not self._owns(state, act, body.payer_account):
            spent = self._debit_right(state, act, currency)
        unit = currency.encode()
        payer, payee = ("balance", body.payer_account, unit), ("balance", body.payee_account, unit)
        balance = _amount(state, payer)
        left = balance - body.amount
        if left < 0 and body.payer_account not in self._issuing:
            raise Violation("PAID.FUNDS", f"the amount {body.amount} exceeds the balance {balance}")
        if spent is not None:
            key, rights = spent
            state[key] = rights
        if used is not None:
            state[used] = 1
        state[payer] = left
        state[payee] = _amount(state, payee) + body.amount  # read after the debit: the two may be one account
        state["operation", act.operation_id, b""] = Paid(
            msg_id=act.msg_id,
            client_id=e.client_id,
            operation_type=body.operation_type,
            operation_args=Free(body.operation_args),
            payer=body.payer_account,
            payee=body.payee_account,
            amount=body.amount,
            currency=currency,
            operation_reference=body.operation_reference,
            parent_operation_id=body.parent_operation_id,
            hub_ts=e.hub_ts,
        )

    def _currency(self, code: str | None) -> str:
        currency = self._default if code is None else code
        if currency is None:
            raise Violation("PAID.CURRENCY", "no currency is named and there is no default unit")
        if self._currencies is not None and currency not in self._currencies:
            raise Violation("PAID.CURRENCY", f"the ledger does not allow the currency {currency}")
        return currency

    def _owns(self, state: Table[_Key, _Record], act: Act[Any], account_id: bytes) -> bool:
        voice = act.identities
        owner = self._owners.get(account_id)
        if owner is not None:
            return owner in voice
        if account_id in map(account_id_of, voice):
            return True
        holder = state.get(("holder", account_id, act.event.stream_id))
        return isinstance(holder, Holder) and holder.holder in voice

    def on_bound(self, state: Table[Any, Any], stream_id: bytes, identity: bytes, principal: bytes) -> None:
        """Make a principal the owner of its key's account, and a successor the owner of its principal's account."""
        state["holder", account_id_of(identity), stream_id] = Holder(holder=principal)

    def _right_accounts(self, state: Table[_Key, _Record], account_id: bytes, stream_id: bytes) -> tuple[bytes, ...]:
        """Return the accounts whose rights hold for an account: itself, and those of the principals that own it."""
        holder = state.get(("holder", account_id, stream_id))
        if account_id in self._owners or not isinstance(holder, Holder):
            return (account_id,)
        principal: bytes | None = holder.holder
        accounts = [account_id]
        while principal is not None:
            accounts.append(account_id_of(principal))
            principal = principal_of(state, stream_id, principal).successor
        return tuple(dict.fromkeys(accounts))

    def _debit_right(self, state: Table[_Key, _Record], act: Act[PaidOperation], currency: str) -> tuple[_Key, Rights]:
        """Return the rights of a sender who is not the owner, reduced by this debit. Raise Violation if too small."""
        body, e = act.body, act.event
        has_right = False
        accounts = self._right_accounts(state, body.payer_account, e.stream_id)
        for identity, account_id in product(sorted(act.identities.names), accounts):
            key = ("right", account_id, identity)
            rights = _rights(state, key)
            for number, right in enumerate(rights.debits):
                unit = self._default if right.currency is None else right.currency
                if e.hub_ts >= right.expiry_time or unit != currency or e.stream_id not in right.stream_ids:
                    continue
                has_right = True
                if right.spent + body.amount <= right.maximum:
                    after = replace(right, spent=right.spent + body.amount)
                    return key, Rights(debits=(*rights.debits[:number], after, *rights.debits[number + 1 :]))
        if has_right:
            raise Violation("PAID.AMOUNT", "the grant of the owner does not allow this much any more")
        raise Violation("PAID.RIGHTS", "the sender neither owns the account of the payer nor has a grant of its owner")

    # --- rights ------------------------------------------------------------------------------------------------

    def _accounts(self, voice: Voice, names: Collection[bytes]) -> list[bytes]:
        """Return the accounts of the sender: those derived from `names`, and those with a configured owner."""
        derived = (account_id_of(identity) for identity in names)
        configured = (account for account, owner in self._owners.items() if owner in voice)
        return sorted({*(account for account in derived if account not in self._owners), *configured})

    def _allow(self, state: Table[_Key, _Record], act: Act[AccessGrant]) -> None:
        """Apply a grant. Only grants of the owner with an amount concern a ledger; `AccessFold` checks the others."""
        body = act.body
        if body.maximum_amount is None:
            return
        right = Right(
            granted_by=act.operation_id,
            grant_msg_id=act.msg_id,
            stream_ids=body.allowed_stream_ids,
            currency=body.currency_code,
            maximum=body.maximum_amount,
            spent=0,
            expiry_time=body.expiry_time,
        )
        voice = act.identities
        for identity in (body.subject_identity, *voice.stored):
            self.note_name(state, identity)
        for account_id in self._accounts(voice, voice.stored):
            key = ("right", account_id, body.subject_identity)
            live = tuple(debit for debit in _rights(state, key).debits if act.event.hub_ts < debit.expiry_time)
            state[key] = Rights(debits=(*live, right))

    def _disallow(self, state: Table[_Key, _Record], act: Act[AccessRevoke]) -> None:
        """Apply a revocation. Raise Violation if an owner names none of the rights it gave: nothing is revoked."""
        body, changed, had_any = act.body, {}, False
        target = body.target_capability_reference
        accounts = self._accounts(act.identities, act.identities.names)
        subjects = self.names_of(state, act.event.stream_id, body.subject_identity)
        for account_id, subject in product(accounts, sorted(subjects)):
            key = ("right", account_id, subject)
            debits = _rights(state, key).debits
            had_any = had_any or bool(debits)
            left = tuple(debit for debit in debits if not self._is_meant(debit, target, act))
            if len(left) < len(debits):
                changed[key] = Rights(debits=left)
        if target is not None and had_any and not changed:
            raise Violation("REVOKE.UNMATCHED", "the reference names no right that the sender granted")
        for key, rights in changed.items():
            state[key] = rights

    def _is_meant(self, right: Right, target: bytes | None, act: Act[AccessRevoke]) -> bool:
        if target is None or target in (right.granted_by, right.grant_msg_id):
            return True
        cap = self.caps.find(target)
        return (
            cap is not None
            and cap.token.subject_pk == act.body.subject_identity
            and cap.token.issuer_pk in act.identities
            and cap.token.allow.stream_ids == right.stream_ids
        )

    def show(self, state: Table[_Key, _Record], as_of: int) -> PaidLedger:
        """Return the ledger. No balance depends on the time of the query."""
        balances: dict[tuple[bytes, bytes], int] = {}
        operations: dict[bytes, Paid] = {}
        for (kind, key, currency), record in self.records(state):
            if kind == "balance" and isinstance(record, int):
                balances[key, currency] = record
            elif isinstance(record, Paid):
                operations[key] = record
        return PaidLedger(
            {(account, currency.decode()): balances[account, currency] for account, currency in sorted(balances)},
            {operation_id: operations[operation_id] for operation_id in sorted(operations)},
        )


def _encoding(act: Act[PaidOperation]) -> bytes:
    """Return the canonical encoding of an operation: that of its event, with all free-form maps sorted (D-03)."""
    body = act.body
    if not act.is_delegated and cbor.is_sorted(body.operation_args) and cbor.is_sorted(body.metadata):
        return act.event.body
    return body.to_bytes_unchecked()


def _amount(state: Table[_Key, _Record], key: _Key) -> int:
    record = state.get(key, 0)
    return record if isinstance(record, int) else 0


def _rights(state: Table[_Key, _Record], key: _Key) -> Rights:
    record = state.get(key)
    return record if isinstance(record, Rights) else Rights(debits=())


STATES: Final = (
    StateTable(
        fold=PaidFold.name,
        part="balances",
        about="the balance of each account",
        columns=(
            TypedColumn("account_id", "hex", "the account"),
            TypedColumn("currency", "text", "its code"),
            TypedColumn("balance", "integer", "received less paid"),
        ),
        key=("account_id", "currency"),
        rows=lambda view: (
            {"account_id": account, "currency": currency, "balance": balance}
            for (account, currency), balance in view.balances.items()
        ),
    ),
    StateTable.of(
        PaidFold.name,
        Paid,
        {"operation_id": "hex"},
        lambda view: view.operations,
        part="operations",
        about="operations that were paid for",
        times=("hub_ts",),
    ),
)
