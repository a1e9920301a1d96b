"""How the commands of `veen wallet` write: ask the ledger first, send, and see what the log says."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.clictx import Session, client_options
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import send_draft, tell_counted, write_options
from veen.cli.values import MOMENT
from veen.cli.walletargs import Ledgers, ledger_options

if TYPE_CHECKING:
    from veen.overlays.body import Draft

__all__ = ["AMOUNT", "REF", "U64", "now", "ref_of", "send_event", "wallet_write"]

U64: Final = (1 << 64) - 1
AMOUNT: Final = click.IntRange(0, U64)
REF: Final = click.option("--ref", help="An outside reference: the same one counts once.")
_PATIENCE: Final = 1.5  # seconds

_TS = click.option("--ts", type=MOMENT, help="The time in the message; default: now.")
_FORCE = click.option("--force", is_flag=True, help="Send it even if it would count for nothing as things stand.")


def wallet_write(command: Callable[..., Any]) -> Callable[..., Any]:
    """What all nine have in common."""
    for option in (client_options, output_options, write_options, ledger_options, _FORCE, _TS):
        command = option(command)
    return command


def now(ts: int | None) -> int:
    return int(time.time()) if ts is None else ts


def send_event(
    output: Output,
    session: Session,
    ledgers: Ledgers,
    wallet_id: bytes,
    draft: "Draft",
    *,
    force: bool,
    cap: Path | None,
    facts: dict[str, Any],
) -> None:
    """Ask the ledger first (WAL §5: producers must not emit what cannot count), send, and see what the log says."""
    from veen.cli.folding import fold_streams
    from veen.client.errors import NoReaderKey
    from veen.overlays.wallet import drafts

    fold, stream = ledgers.fold(), ledgers.stream_of(wallet_id)
    streams = sorted({*ledgers.streams(session), stream})
    if not force:
        try:
            known = fold_streams(session, fold, streams)
            drafts.check(known.state, draft)
            if known.latest - {session.client().label(stream)}:
                _wait_beyond(known.as_of)
        except NoReaderKey:
            output.note("the balance is not known here: whether this counts is for readers to say")
    sent = send_draft(session, stream, draft, cap)
    tell_counted(
        output,
        session,
        sent,
        {"wallet_id": wallet_id, "stream": stream, **facts},
        fold,
        streams,
        lambda ledger: {"balance": ledger.balance(wallet_id)},
    )


def _wait_beyond(ts: int) -> None:
    """Let the second of the last event pass: streams within one second are ordered by their ids (D-27), so what was
    checked against a state could otherwise stand before it. A hub whose clock is ahead is not waited for."""
    until = time.monotonic() + _PATIENCE
    while int(time.time()) <= ts and time.monotonic() < until:
        time.sleep(0.02)


def ref_of(text: str | None) -> bytes | None:
    """A reference as the bytes that it is in the log."""
    return None if text is None else text.encode("utf-8", "surrogateescape")
