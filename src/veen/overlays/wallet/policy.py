"""Policy of wallets: permitted senders, operations and currencies, set by the reader (WAL §2.2, §8; WAL-03, WAL-17).

A hub admits by stream and cannot see what a message says, so a capability for a wallet's stream lets its holder write
any of the nine events there. What of it counts is decided here, by everyone who folds, under the same policy. Two
readers with the same log, the same mirrors and the same policy hold the same balances.

Where each wallet has a stream of its own, the right to write on that stream is the right to the wallet. Where wallets
share a stream that says nothing: a key acts for an account if it is bound to the principal of the account in that
stream (D-179), or if the policy names it among the owners' keys. What is sent by any other key has no effect.

An event that this policy refuses is reported and takes nothing with it: neither its ref nor its transfer_id is used up,
and it never passes for a copy of another event (D-85, D-176).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final, Literal, Self

from veen.core.event import Event
from veen.core.hashing import tag_prefix
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.schema import Violation
from veen.overlays.framework.speaking import Voice
from veen.overlays.framework.state import DERIVED
from veen.overlays.id.ids import ctx_id_of
from veen.overlays.wallet import codes
from veen.overlays.wallet.bodies import OPERATIONS, Open, Transfer, WalletBody, wallet_stream
from veen.overlays.wallet.rules import LedgerState, Wallet, WalletOwner

DEFAULT_SKEW_SEC: Final = 300  # between the ts of an event and ts* (D-175)

Owners = Mapping[bytes, frozenset[bytes]]  # by ctx_id: the client_ids that act for the account
NO_KEYS: Final[frozenset[bytes]] = frozenset()

# The two roles of WAL §8. Close and open are the owner's; what makes or stops money is the institution's.
INSTITUTION: Final = frozenset(OPERATIONS.values())
END_USER: Final = frozenset(("open", "close", "withdraw", "transfer"))


def owners_by(keys: Mapping[bytes, Iterable[bytes]]) -> Owners:
    """Return the client_ids that act for accounts, by ctx_id, in the form of `Policy.owners`."""
    return {ctx_id: frozenset(client_ids) for ctx_id, client_ids in keys.items()}


def _check_operations(operations: frozenset[str]) -> None:
    unknown = operations - INSTITUTION
    if unknown:
        raise ValueError(f"no operations of wallets: {', '.join(sorted(unknown))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalletGrant:
    """Permission for senders, given by key or capability, to perform reserved operations."""

    operations: frozenset[str]
    clients: frozenset[bytes] = frozenset()  # client_ids
    auth_refs: frozenset[bytes] = frozenset()  # of cap_tokens: survives the rotation of the keys that use them
    wallets: frozenset[bytes] | None = None  # None: all
    principals: frozenset[bytes] | None = None  # whoever speaks for one of them (D-179)

    def __post_init__(self) -> None:
        _check_operations(self.operations)

    def covers(
        self, operation: str, client_id: bytes, auth_ref: bytes | None, wallet_id: bytes, voice: Voice | None = None
    ) -> bool:
        """Return True if a sender may do this; `voice` has the identities for which the key speaks, if it is known."""
        return (
            operation in self.operations
            and (client_id in self.clients or auth_ref in self.auth_refs or self._is_principal(client_id, voice))
            and (self.wallets is None or wallet_id in self.wallets)
        )

    def _is_principal(self, client_id: bytes, voice: Voice | None) -> bool:
        if self.principals is None:
            return False
        return client_id in self.principals if voice is None else voice.any_of(self.principals)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalletPolicy:
    """Conditions of a valid event. The default trusts the hub's admission to the stream of each wallet."""

    currencies: frozenset[str] | None = None  # None: any
    reserved: frozenset[str] = frozenset()  # operations that need a grant
    grants: tuple[WalletGrant, ...] = ()
    own_streams: bool = True  # a wallet changes on its own stream only (WAL §3.1); False: wallets share streams
    owners: Owners | None = None  # keys that need no binding; None: on shared streams only bound keys act
    trust_every_writer: bool = False  # on shared streams without owners: whoever may write may empty every wallet
    max_skew_sec: int | None = DEFAULT_SKEW_SEC  # None: a sender chooses the day that a limit counts for
    speaks: Literal["off"] | None = None  # "off": bindings of keys to principals are not read (D-179)
    # Whether an event counts only from a key that acts for the owner of the wallet, or that has a grant.
    asks_owner: bool = field(init=False, repr=False, compare=False, metadata=DERIVED)

    def __post_init__(self) -> None:
        asks_owner = self.owners is not None or not (self.own_streams or self.trust_every_writer)
        object.__setattr__(self, "asks_owner", asks_owner)
        _check_operations(self.reserved)
        if not self.own_streams and self.owners is None and not self.trust_every_writer and self.speaks == "off":
            raise ValueError(
                "wallets on a shared stream need owners where bindings are not read, or no key could act for any; "
                "say owners=…, or trust_every_writer=True where all writers are trusted"
            )
        if self.owners is not None and self.trust_every_writer:
            raise ValueError("a policy either names owners or trusts every writer")

    @classmethod
    def institutional(
        cls,
        *,
        services: Iterable[bytes] = (),
        auth_refs: Iterable[bytes] = (),
        currencies: Iterable[str] | None = None,
        max_skew_sec: int | None = DEFAULT_SKEW_SEC,
    ) -> Self:
        """Return the policy of WAL §8: end users withdraw and transfer, services of the institution do the rest."""
        grant = WalletGrant(operations=INSTITUTION, clients=frozenset(services), auth_refs=frozenset(auth_refs))
        return cls(
            currencies=None if currencies is None else frozenset(currencies),
            reserved=INSTITUTION - END_USER,
            grants=(grant,),
            max_skew_sec=max_skew_sec,
        )

    def on_shared_streams(self, owners: Owners | None = None) -> Self:
        """Return the policy for shared streams: bound keys, the keys of `owners` and keys with a grant may act."""
        return replace(self, own_streams=False, owners=owners, trust_every_writer=False)

    @property
    def reads_bindings(self) -> bool:
        """True if bindings of keys to principals affect the result."""
        asks = self.asks_owner or any(grant.principals is not None for grant in self.grants)
        return asks and self.speaks != "off"

    def check(self, event: Event, body: WalletBody, voice: Voice | None = None) -> None:
        """Raise Violation unless the sender may do this here and now. `check_owner` checks the owner of the wallet."""
        if self.own_streams and event.stream_id != wallet_stream(body.wallet_id):
            raise Violation(codes.WRONG_STREAM, f"the event is not on the stream of wallet {body.wallet_id.hex()}")
        self.check_time(body, event.ts)
        self.check_grant(body, event.client_id, event.auth_ref, voice)

    def check_time(self, body: WalletBody, now: int) -> None:
        """Raise Violation if the time in the event is far from `now`, which is ts* for a log entry (D-175)."""
        if self.max_skew_sec is not None and abs(body.ts - now) > self.max_skew_sec:
            raise Violation(codes.SKEW, f"ts {body.ts}, but the hub's time is {now}")

    def check_grant(
        self, body: WalletBody, client_id: bytes, auth_ref: bytes | None, voice: Voice | None = None
    ) -> None:
        """Raise Violation for a reserved operation without a grant, and for opening the wallet of another owner."""
        operation = OPERATIONS[type(body)]
        if operation in self.reserved and not self._is_granted(body, client_id, auth_ref, voice):
            raise Violation(codes.UNAUTHORIZED_OPERATION, f"{operation} by {client_id.hex()}")
        if type(body) is Open and self.needs_owner(body, client_id, auth_ref, voice):
            self._check_acts_for(WalletOwner(body.realm_id, body.ctx_id), body, client_id, voice)

    def needs_owner(
        self, body: WalletBody, client_id: bytes, auth_ref: bytes | None, voice: Voice | None = None
    ) -> bool:
        """Return True if the event is valid only from a key of the wallet's owner."""
        return self.asks_owner and not self._is_granted(body, client_id, auth_ref, voice)

    def owns(self, wallet: Wallet | None, client_id: bytes) -> bool:
        """Return True if the key acts for the owner of the wallet, bindings aside."""
        if not self.asks_owner:
            return True
        return wallet is not None and wallet.owner is not None and self._acts_for(wallet.owner, client_id, None)

    def check_owner(self, state: LedgerState, body: WalletBody, client_id: bytes, voice: Voice | None = None) -> None:
        """Raise Violation unless the key acts for the wallet's owner. `open` names its owner and was checked before."""
        if type(body) is Open:
            return
        wallet = state.get(body.wallet_id)
        if type(wallet) is not Wallet or wallet.owner is None:
            raise Violation(codes.UNKNOWN_WALLET, f"wallet {body.wallet_id.hex()} has not been opened")
        self._check_acts_for(wallet.owner, body, client_id, voice)

    def _check_acts_for(self, owner: WalletOwner, body: WalletBody, client_id: bytes, voice: Voice | None) -> None:
        if not self._acts_for(owner, client_id, voice):
            operation = OPERATIONS[type(body)]
            raise Violation(
                codes.UNAUTHORIZED_OPERATION,
                f"{operation} by {client_id.hex()}, which is no key of the wallet's owner {owner.ctx_id.hex()}",
            )

    def _acts_for(self, owner: WalletOwner, client_id: bytes, voice: Voice | None) -> bool:
        keys = NO_KEYS if self.owners is None else self.owners.get(owner.ctx_id, NO_KEYS)
        if client_id in keys:
            return True
        if voice is None or voice.principal is None:
            return False
        return voice.any_of(keys) or any(ctx_id_of(pk, owner.realm_id) == owner.ctx_id for pk in voice.principals)

    def check_currency(self, currency: str) -> None:
        """Raise Violation for a currency that is not in use (WAL-03). Applies to copies of trusted bridges as well."""
        if self.currencies is not None and currency not in self.currencies:
            raise Violation(codes.INVALID_CURRENCY, f"currency {currency} is not in use here")

    def _is_granted(self, body: WalletBody, client_id: bytes, auth_ref: bytes | None, voice: Voice | None) -> bool:
        operation = OPERATIONS[type(body)]
        return any(grant.covers(operation, client_id, auth_ref, body.wallet_id, voice) for grant in self.grants)


Policy = WalletPolicy  # the name in documents of earlier versions


STREAM_POLICY: Final = WalletPolicy()

_IDENTITY_TAG: Final = tag_prefix("veen/wallet-event")


@dataclass(frozen=True, slots=True)
class WalletMirrors(Mirrors):
    """Copies of wallet events: sent by a registered bridge, with the schema and the body of the original (D-176).

    Whoever names a payment as parent and comes first in logical order would otherwise void it. So from any other sender
    a parent_id means nothing, and the identity binds schema and body, which copies share byte for byte.
    """

    policy: WalletPolicy = STREAM_POLICY

    @classmethod
    def under(cls, policy: WalletPolicy, mirrors: Mirrors) -> Self:
        return cls(mirrors.bridges, mirrors.schemas, policy)

    def original_of(self, event: Event) -> bytes | None:
        return event.hdr.parent_id if event.client_id in self.bridges else None

    def identity(self, event: Event) -> bytes:
        original = self.original_of(event) or event.leaf_hash
        return sha256(_IDENTITY_TAG + original + event.hdr.schema + event.body).digest()

    def is_echo(self, event: Event, body: WalletBody) -> bool:
        """Return True for a transfer copied onto its destination's stream (WAL §5.5). Its source credits it (D-100)."""
        return (
            type(body) is Transfer
            and event.hdr.parent_id is not None
            and event.client_id not in self.bridges
            and self.policy.own_streams
            and event.stream_id == wallet_stream(body.to_wallet_id) != wallet_stream(body.wallet_id)
        )
