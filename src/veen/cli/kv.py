"""`veen kv`: values by key over a stream, the last writer wins (spec §11.4, D-84)."""

from pathlib import Path
from typing import Any, ClassVar

import click

from veen.cli.asof import View, view_options
from veen.cli.clictx import Session, client_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import absent, drafted, send_draft, show_folded, state_of, tell, write_options
from veen.cli.overlayvalues import plain, value_options
from veen.cli.text import compact
from veen.cli.values import MOMENT

__all__ = ["del_", "get", "kv", "list_", "put"]


class _KvGroup(LazyGroup):
    table: ClassVar[Table] = {
        "del": ("veen.cli.kv:del_", "Delete a key."),
        "get": ("veen.cli.kv:get", "Print the value of a key."),
        "list": ("veen.cli.kv:list_", "All keys and values."),
        "put": ("veen.cli.kv:put", "Set the value of a key."),
    }


@click.group(cls=_KvGroup)
def kv() -> None:
    """Values by key over a stream; the last writer wins, and every write stays in the log."""


_TS = click.option("--ts", type=MOMENT, help="When the write counts, if not at the time of the hub.")


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("key")
@click.argument("value")
@value_options("value")
@_TS
@click.option("--expires", type=MOMENT, help="Until when the value holds: a time, or +10m.")
@write_options
@output_options
@client_options
def put(
    output: Output,
    session: Session,
    stream: str,
    key: str,
    value: Any,
    ts: int | None,
    expires: int | None,
    cap: Path | None,
) -> None:
    """Set KEY of STREAM to VALUE; "-" reads the value from standard input.

    \b
    veen kv put app/settings colour red
    veen kv put app/settings size '{"w": 2, "h": 3}' --format json
    """
    from veen.overlays import kv as overlay

    draft = drafted(lambda: overlay.put(key, value, ts=ts, expires_at=expires))
    tell(output, send_draft(session, stream, draft, cap), {"stream": stream, "key": key, "value": value})
    output.next(f"veen kv get {stream} {key}")


@click.command("del")
@click.argument("stream", type=STREAM)
@click.argument("key")
@_TS
@write_options
@output_options
@client_options
def del_(output: Output, session: Session, stream: str, key: str, ts: int | None, cap: Path | None) -> None:
    """Delete KEY of STREAM. What it was stays in the log: ask with --as-of."""
    from veen.overlays import kv as overlay

    draft = drafted(lambda: overlay.delete(key, ts=ts))
    tell(output, send_draft(session, stream, draft, cap), {"stream": stream, "key": key})


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("key")
@view_options
@output_options
@client_options
def get(output: Output, session: Session, stream: str, key: str, view: View) -> None:
    """Print the value of KEY in STREAM, now or as of a moment.

    \b
    veen kv get app/settings colour
    veen kv get app/settings colour --as-of 120
    veen kv get app/settings colour --as-of -15m
    """
    from veen.overlays.kv import KvFold

    folded = state_of(session, KvFold(), [stream], view)
    entry = folded.state.get(key)
    if entry is None:
        raise absent(f"value under {key!r}", f"veen kv list {stream}")
    found = plain(entry)
    value = found["value"]
    text = value if isinstance(value, str) else compact(value)
    show_folded(output, folded, {"key": key, **found}, lambda: output.line(text))


@click.command("list")
@click.argument("stream", type=STREAM)
@click.option("--prefix", default="", help="Only keys that begin with this.")
@view_options
@output_options
@client_options
def list_(output: Output, session: Session, stream: str, prefix: str, view: View) -> None:
    """All keys of STREAM with their values, now or as of a moment."""
    from veen.overlays.kv import KvFold

    folded = state_of(session, KvFold(), [stream], view)
    entries = [{"key": key, **plain(entry)} for key, entry in folded.state.items() if key.startswith(prefix)]
    rows = [(one["key"], one["value"], one["ts"], one["client_id"]) for one in entries]
    show_folded(output, folded, {"entries": entries}, lambda: output.table(("key", "value", "ts", "client_id"), rows))
