"""`veen wallet`: accounts on a log (WAL), as `veen.overlays.wallet.nouns` declares them; `view` has what reads."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from click import option

from veen.cli.shared.command import CliSession
from veen.cli.shared.nouns import (
    MakePlace,
    NounGroup,
    Outgoing,
    facts_of,
    follow_up_of,
    index,
    message_of,
    noun_of,
    send,
)
from veen.cli.shared.output import Output
from veen.cli.shared.values import MOMENT
from veen.cli.wallet.args import Ledgers, ledger_options

if TYPE_CHECKING:
    from veen.overlays.framework.nouns import Noun
    from veen.overlays.framework.schema import Draft

_NOUN: Final = "veen.overlays.wallet.nouns:wallet"
_WAIT_SECONDS: Final = 1.5
_KEYS: Final = option(
    "--make-keys", "keys", is_flag=True, help="Make the keys of the wallet's stream, if there are none."
)

wallet: Final = NounGroup(
    "wallet",
    index()[_NOUN]["about"],
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


def _write_event(
    name: str,
    noun: str,
    make_place: MakePlace,
    output: Output,
    session: CliSession,
    /,
    *,
    cap: Path | None,
    force: bool,
    keys: bool = False,
    **given: Any,
) -> None:
    """Send an event of a wallet, if the ledger takes it as things stand, and say whether it counts."""
    declared = noun_of(noun)
    verb, ledgers = declared.verb(name), make_place(declared, given)
    assert isinstance(ledgers, Ledgers)  # noqa: S101 - `_place` made it
    message = message_of(session, ledgers, verb, given)
    wallet_id, stream = message.values["wallet_id"], ledgers.stream_of(message)
    streams = sorted({*ledgers.streams(session), stream})

    def check(draft: "Draft") -> None:
        if not force:
            _check_ledger(session, ledgers, stream, streams, draft)

    outgoing = Outgoing(
        stream,
        lambda: message.draft,
        facts_of(verb, message, stream),
        fold=lambda: ledgers.fold(session),
        streams=streams,
        after=lambda ledger: {"balance": ledger.balance(wallet_id)},
        make_keys=keys,
        check=check,
        follow_up=follow_up_of(verb, message, stream),
    )
    send(session, outgoing, cap)


def _check_ledger(session: CliSession, ledgers: Ledgers, stream: str, streams: Sequence[str], draft: "Draft") -> None:
    """Ask the ledger first: producers must not emit what cannot count (WAL §5)."""
    from veen.cli.shared.folding import fold_streams
    from veen.client.errors import NoReaderKey
    from veen.overlays.wallet import drafts

    fold = ledgers.fold(session)
    try:
        folded = fold_streams(session, fold, streams)
        drafts.check(folded.state, draft, fold.policy, client_id=session.client().client_id, now=int(time.time()))
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


def _place(noun: "Noun", values: dict[str, Any]) -> Ledgers:
    ledgers: Ledgers = values.pop("ledgers")
    return replace(ledgers, ts=values.pop("ts"))


wallet.declare(_NOUN, _place, more=lambda verb: (_KEYS,) if verb == "open" else (), write=_write_event)
