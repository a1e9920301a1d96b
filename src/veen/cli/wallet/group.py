"""`veen wallet`: accounts on a log (WAL). Here what writes; `view` has what reads."""

import os
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from veen.cli.shared.command import CliSession
from veen.cli.shared.nouns import NounGroup, Outgoing, Parameter
from veen.cli.shared.overlay_commands import drafted
from veen.cli.shared.overlay_values import HEX32, json_value
from veen.cli.shared.values import MOMENT
from veen.cli.wallet.args import Ledgers, ledger_options, owner_of, wallet_of

if TYPE_CHECKING:
    from veen.overlays.framework.body import Draft

_U64: Final = (1 << 64) - 1
_AMOUNT: Final = argument("amount", type=click.IntRange(0, _U64))
_REF: Final = option("--ref", help="An outside reference: the same one counts once.")
_REASON: Final = option("--reason", help="Why: it stands in the log.")
_WAIT_SECONDS: Final = 1.5

wallet: Final = NounGroup(
    "wallet",
    """Accounts on a log: every balance can be recomputed by anyone who can read it.

    A WALLET is its id, 64 hex digits, or OWNER:CURRENCY, where OWNER is `me`, a card (veen1…) or a ctx_id. Amounts are
    integers in the smallest unit of the currency.
    """,
    writes=[
        option("--ts", type=MOMENT, help="The time in the message; default: now."),
        option("--force", is_flag=True, help="Send it even if it would have no effect as things stand."),
        ledger_options,
    ],
    others={
        "balance": ("veen.cli.wallet.view:balance", "What a wallet holds, or all wallets."),
        "bridge": ("veen.cli.wallet.bridge:bridge", "Copy wallet events to another hub, each once."),
        "history": ("veen.cli.wallet.view:history", "Everything that happened to a wallet."),
        "statement": (
            "veen.cli.wallet.view:statement",
            "What happened to a wallet in a period, with proofs if wanted.",
        ),
        "verify": ("veen.cli.wallet.view:verify", "Fold all wallets again and prove every line of one."),
    },
)


# --- how a wallet event is sent --------------------------------------------------------------------------------

Event = tuple[Callable[[], "Draft"], Mapping[str, Any]]  # the draft, and facts to print
Drafting = Callable[..., Event]


def _event(verb: str, short: str, *parameters: Parameter) -> Callable[[Drafting], Drafting]:
    """A row of the table for an event of one wallet, which is the first argument."""

    def add(drafting: Drafting) -> Drafting:
        @wallet.write(verb, short, argument("name", metavar="WALLET"), *parameters, text=drafting.__doc__)
        def _send(
            session: CliSession, name: str, ts: int | None, force: bool, ledgers: Ledgers, **values: Any
        ) -> Outgoing:
            wallet_id = wallet_of(session, ledgers, name)
            if "to" in values:
                values["to"] = wallet_of(session, ledgers, values["to"])
            draft, facts = drafting(wallet_id, ts=_now(ts), **values)
            return _outgoing(session, ledgers, wallet_id, draft, facts, force=force)

        return drafting

    return add


def _outgoing(
    session: CliSession,
    ledgers: Ledgers,
    wallet_id: bytes,
    draft: "Callable[[], Draft]",
    facts: Mapping[str, Any],
    *,
    force: bool,
    make_keys: bool = False,
    follow_up: str | None = None,
) -> Outgoing:
    stream = ledgers.stream_of(wallet_id)

    def check(message: "Draft") -> None:
        if not force:
            _check_ledger(session, ledgers, stream, message)

    return Outgoing(
        stream,
        draft,
        {"wallet_id": wallet_id, "stream": stream, **facts},
        fold=lambda: ledgers.fold(session),
        streams=sorted({*ledgers.streams(session), stream}),
        after=lambda ledger: {"balance": ledger.balance(wallet_id)},
        make_keys=make_keys,
        check=check,
        follow_up=follow_up,
    )


def _check_ledger(session: CliSession, ledgers: Ledgers, stream: str, draft: "Draft") -> None:
    """Ask the ledger first: producers must not emit what cannot count (WAL §5)."""
    from veen.cli.shared.folding import fold_streams
    from veen.client.errors import NoReaderKey
    from veen.overlays.wallet import drafts

    fold = ledgers.fold(session)
    try:
        folded = fold_streams(session, fold, sorted({*ledgers.streams(session), stream}))
        drafts.check(folded.state, draft, fold.policy, client_id=session.client().client_id, now=_now(None))
        if folded.latest - {session.client().label(stream)}:
            _wait_beyond(folded.as_of)
    except NoReaderKey:
        session.output.note(
            "no read key for this stream: the balance is unknown here, and readers will judge the event"
        )


def _wait_beyond(ts: int) -> None:
    """Let the second of the last event pass: streams within one second are ordered by their ids (D-27), so what was
    checked against a state could otherwise stand before it. A hub whose clock is ahead is not waited for."""
    until = time.monotonic() + _WAIT_SECONDS
    while int(time.time()) <= ts and time.monotonic() < until:
        time.sleep(0.02)


def _now(ts: int | None) -> int:
    return int(time.time()) if ts is None else ts


def _ref_of(text: str | None) -> bytes | None:
    """A reference as the bytes that it is in the log."""
    return None if text is None else text.encode("utf-8", "surrogateescape")


# --- payments --------------------------------------------------------------------------------------------------


@wallet.write(
    "open",
    "Open a wallet in one currency.",
    argument("currency"),
    option("--owner", help="Whose: a card (veen1…) or a ctx_id; default: yours."),
    option("--make-keys", "keys", is_flag=True, help="Make the keys of the wallet's stream, if there are none."),
)
def _open(
    session: CliSession, currency: str, owner: str | None, keys: bool, ts: int | None, force: bool, ledgers: Ledgers
) -> Outgoing:
    """Open a wallet in CURRENCY, such as EUR, for an owner in a realm.

    \b
    veen wallet open EUR --make-keys
    veen wallet open EUR --stream bank/ledger --owner veen1xyz
    """
    from veen.overlays.wallet import drafts
    from veen.overlays.wallet.ids import wallet_id_of

    ctx_id, realm_id = owner_of(session, ledgers, owner), ledgers.realm_id
    draft = drafted(
        lambda: drafts.open_wallet(realm_id=realm_id, ctx_id=ctx_id, currency=currency, created_at=_now(ts))
    )
    wallet_id = wallet_id_of(realm_id, ctx_id, currency)
    facts = {"currency": currency, "ctx_id": ctx_id, "realm_id": realm_id}
    follow_up = f"veen wallet deposit {wallet_id.hex()} AMOUNT"
    return _outgoing(
        session, ledgers, wallet_id, lambda: draft, facts, force=force, make_keys=keys, follow_up=follow_up
    )


@_event("deposit", "Money comes in from outside.", _AMOUNT, _REF)
def _deposit(wallet_id: bytes, amount: int, ref: str | None, ts: int) -> Event:
    """Money comes into WALLET from outside.

    \b
    veen wallet deposit me:EUR 10000 --ref "bank transfer 4711"
    """
    from veen.overlays.wallet import drafts

    return lambda: drafts.deposit(wallet_id, amount, ts=ts, ref=_ref_of(ref)), {"amount": amount}


@_event("withdraw", "Money goes out.", _AMOUNT, _REF)
def _withdraw(wallet_id: bytes, amount: int, ref: str | None, ts: int) -> Event:
    """Money goes out of WALLET. Exit code 6 and nothing is sent if it may not: see `veen explain WAL.FROZEN`."""
    from veen.overlays.wallet import drafts

    return lambda: drafts.withdraw(wallet_id, amount, ts=ts, ref=_ref_of(ref)), {"amount": amount}


@_event(
    "transfer",
    "Money goes from one wallet to another.",
    argument("to", metavar="TO_WALLET"),
    _AMOUNT,
    option("--transfer-id", type=HEX32, help="The same one counts once; default: a new one."),
    option("--metadata", help="A JSON object that travels along; no balance depends on it."),
)
def _transfer(
    wallet_id: bytes, to: bytes, amount: int, transfer_id: bytes | None, metadata: str | None, ts: int
) -> Event:
    """Money goes from WALLET to TO_WALLET, debit and credit at once.

    \b
    veen wallet transfer me:EUR veen1xyz:EUR 3000
    """
    from veen.overlays.wallet import drafts

    more = None if metadata is None else json_value(metadata)
    if more is not None and type(more) is not dict:
        raise click.UsageError("--metadata is a JSON object")
    nonce = os.urandom(16) if transfer_id is None else None
    draft = drafted(
        lambda: drafts.transfer(wallet_id, to, amount, ts=ts, nonce=nonce, transfer_id=transfer_id, metadata=more)
    )
    transfer_id = getattr(drafts.body_of(draft), "transfer_id", None)
    return lambda: draft, {"to_wallet_id": to, "amount": amount, "transfer_id": transfer_id}


# --- what whoever keeps the books does -------------------------------------------------------------------------


@_event(
    "adjust",
    "Correct a balance, up or down.",
    argument("delta", type=click.IntRange(-_U64 - 1, _U64)),
    option("--reason", required=True, help="Why: it stands in the log."),
    _REF,
)
def _adjust(wallet_id: bytes, delta: int, reason: str, ref: str | None, ts: int) -> Event:
    """Correct the balance of WALLET by DELTA; put -- before a negative one.

    \b
    veen wallet adjust me:EUR --reason "wrong booking" -- -50
    """
    from veen.overlays.wallet import drafts

    facts = {"delta": delta, "reason": reason}
    return lambda: drafts.adjust(wallet_id, delta, ts=ts, reason=reason, ref=_ref_of(ref)), facts


def _limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its `amount`; None: no limit."""

    @argument("amount", type=click.IntRange(0, _U64), required=False)
    @option("--clear", is_flag=True, help="No limit any more.")
    @wraps(command)
    def run(*args: Any, amount: int | None, clear: bool, **kwargs: Any) -> Any:
        if (amount is None) != clear:
            raise click.UsageError("give AMOUNT, or --clear")
        return command(*args, amount=amount, **kwargs)

    return run


@_event("limit", "How much may leave a wallet in a day.", _limit_options)
def _limit(wallet_id: bytes, amount: int | None, ts: int) -> Event:
    """Let at most AMOUNT leave WALLET in a day, counted in UTC."""
    from veen.overlays.wallet import drafts

    return lambda: drafts.limit(wallet_id, amount, ts=ts), {"daily_limit": amount}


@_event("freeze", "Let nothing leave a wallet.", _REASON)
def _freeze(wallet_id: bytes, reason: str | None, ts: int) -> Event:
    """Let nothing leave WALLET; it still receives."""
    from veen.overlays.wallet import drafts

    return lambda: drafts.freeze(wallet_id, ts=ts, reason=reason), {"reason": reason}


@_event("unfreeze", "End a freeze.", _REASON)
def _unfreeze(wallet_id: bytes, reason: str | None, ts: int) -> Event:
    """End the freeze of WALLET."""
    from veen.overlays.wallet import drafts

    return lambda: drafts.unfreeze(wallet_id, ts=ts, reason=reason), {"reason": reason}


@_event("close", "Close an empty wallet for good.")
def _close(wallet_id: bytes, ts: int) -> Event:
    """Close WALLET for good: nothing enters or leaves it any more. It must be empty."""
    from veen.overlays.wallet import drafts

    return lambda: drafts.close(wallet_id, ts=ts), {}
