"""`veen crdt`: registers, sets and counters that writers agree on without talking (CRDT0, D-88)."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from veen.cli.asof import View, view_options
from veen.cli.clictx import Session, client_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import absent, drafted, send_draft, show_folded, state_of, tell, write_options
from veen.cli.overlayvalues import HEX32, plain, printable, value_options
from veen.cli.values import MOMENT

if TYPE_CHECKING:
    pass

__all__ = ["counter", "counter_add", "counter_get", "crdt", "lww", "lww_get", "lww_set", "orset"]
__all__ += ["orset_add", "orset_list", "orset_remove"]

_KINDS: Final = ("lww", "orset", "counter")


class _CrdtGroup(LazyGroup):
    table: ClassVar[Table] = {
        "counter": ("veen.cli.crdt:counter", "Counters that only grow, summed over writers."),
        "lww": ("veen.cli.crdt:lww", "Registers, the last write wins."),
        "orset": ("veen.cli.crdt:orset", "Sets in which an add survives a remove that did not see it."),
        "snapshot": ("veen.cli.crdtsnapshot:snapshot", "Keep a state with the checkpoint it belongs to, or check one."),
    }


class _LwwGroup(LazyGroup):
    table: ClassVar[Table] = {
        "get": ("veen.cli.crdt:lww_get", "Print a register, or all."),
        "set": ("veen.cli.crdt:lww_set", "Write a register."),
    }


class _OrSetGroup(LazyGroup):
    table: ClassVar[Table] = {
        "add": ("veen.cli.crdt:orset_add", "Add an element."),
        "list": ("veen.cli.crdt:orset_list", "The elements that are present."),
        "remove": ("veen.cli.crdt:orset_remove", "Remove an element as far as it is known here."),
    }


class _CounterGroup(LazyGroup):
    table: ClassVar[Table] = {
        "add": ("veen.cli.crdt:counter_add", "Add to the counter."),
        "get": ("veen.cli.crdt:counter_get", "Print the counter and its shards."),
    }


@click.group(cls=_CrdtGroup)
def crdt() -> None:
    """Registers, sets and counters that writers agree on without talking to each other (CRDT0)."""


@click.group(cls=_LwwGroup)
def lww() -> None:
    """Registers by key: the write with the greatest time wins."""


@click.group(cls=_OrSetGroup)
def orset() -> None:
    """A set: an element is present while one of its adds was not removed."""


@click.group(cls=_CounterGroup)
def counter() -> None:
    """A counter that only grows: each writer counts in a shard of its own."""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# --- registers -------------------------------------------------------------------------------------------------


@click.command("set")
@click.argument("stream", type=STREAM)
@click.argument("key")
@click.argument("value")
@value_options("value", binary=True)
@click.option("--ts", type=MOMENT, help="The time of the write; default: now, on this machine.")
@click.option("--expires", type=MOMENT, help="Until when the value holds.")
@write_options
@output_options
@client_options
def lww_set(
    output: Output,
    session: Session,
    stream: str,
    key: str,
    value: bytes,
    ts: int | None,
    expires: int | None,
    cap: Path | None,
) -> None:
    """Write VALUE to the register KEY of STREAM; "-" reads it from standard input."""
    from veen.overlays import crdt as overlay

    when = int(time.time()) if ts is None else ts
    draft = drafted(lambda: overlay.lww_set(_bytes(key), value, ts=when, expires_at=expires))
    tell(output, send_draft(session, stream, draft, cap), {"stream": stream, "key": key, "ts": when})


@click.command("get")
@click.argument("stream", type=STREAM)
@click.argument("key", required=False)
@view_options
@output_options
@client_options
def lww_get(output: Output, session: Session, stream: str, key: str | None, view: View) -> None:
    """Print the register KEY of STREAM, or all registers."""
    from veen.overlays.crdt import LwwFold

    folded = state_of(session, LwwFold(), [stream], view)
    registers = [
        {"key": printable(name), "value": printable(one.value), **_hexed(one)}
        for name, one in sorted(folded.state.items())
        if key is None or name == _bytes(key)
    ]
    if key is None:
        rows = [(one["key"], one["value"], one["ts"]) for one in registers]
        data: dict[str, Any] = {"registers": registers}
        show_folded(output, folded, data, lambda: output.table(("key", "value", "ts"), rows))
        return
    if not registers:
        raise absent(f"register {key!r}", f"veen crdt lww get {stream}")
    show_folded(output, folded, registers[0], lambda: output.line(registers[0]["value"]))


def _hexed(register: Any) -> dict[str, Any]:
    return {
        "value_hex": register.value.hex(),
        "ts": register.ts,
        "msg_id": register.msg_id.hex(),
        "att_root": plain(register.att_root),
        "expires_at": register.expires_at,
    }


# --- sets ------------------------------------------------------------------------------------------------------


@click.command("add")
@click.argument("stream", type=STREAM)
@click.argument("elem")
@value_options("elem", binary=True)
@click.option("--expires", type=MOMENT, help="Until when the element stays.")
@write_options
@output_options
@client_options
def orset_add(
    output: Output, session: Session, stream: str, elem: bytes, expires: int | None, cap: Path | None
) -> None:
    """Add ELEM to the set in STREAM."""
    from veen.overlays import crdt as overlay

    add_id = os.urandom(32)
    draft = drafted(lambda: overlay.orset_add(elem, add_id=add_id, expires_at=expires))
    facts = {"stream": stream, "elem": printable(elem), "add_id": add_id}
    tell(output, send_draft(session, stream, draft, cap), facts)


@click.command("remove")
@click.argument("stream", type=STREAM)
@click.argument("elem")
@value_options("elem", binary=True)
@write_options
@output_options
@client_options
def orset_remove(output: Output, session: Session, stream: str, elem: bytes, cap: Path | None) -> None:
    """Remove ELEM from the set in STREAM: all adds of it that the log holds now. Adds made meanwhile survive."""
    from veen.overlays import crdt as overlay

    member = state_of(session, overlay.OrSetFold(), [stream], View(None, True)).state.get(elem)
    if member is None:
        raise absent(f"element {printable(elem)!r}", f"veen crdt orset list {stream}")
    draft = drafted(lambda: overlay.orset_remove(member.ids))
    facts = {"stream": stream, "elem": printable(elem), "tomb": member.ids}
    tell(output, send_draft(session, stream, draft, cap), facts)


@click.command("list")
@click.argument("stream", type=STREAM)
@view_options
@output_options
@client_options
def orset_list(output: Output, session: Session, stream: str, view: View) -> None:
    """The elements of the set in STREAM."""
    from veen.overlays.crdt import OrSetFold

    folded = state_of(session, OrSetFold(), [stream], view)
    members = [
        {"elem": printable(elem), "elem_hex": elem.hex(), **plain(member)}
        for elem, member in sorted(folded.state.items())
    ]
    rows = [(one["elem"], len(one["ids"])) for one in members]
    show_folded(output, folded, {"members": members}, lambda: output.table(("elem", "adds"), rows))


# --- counters --------------------------------------------------------------------------------------------------


@click.command("add")
@click.argument("stream", type=STREAM)
@click.argument("delta", type=click.IntRange(0, (1 << 64) - 1))
@click.option("--shard", type=HEX32, help="The shard to count in; default: your client_id.")
@write_options
@output_options
@client_options
def counter_add(
    output: Output, session: Session, stream: str, delta: int, shard: bytes | None, cap: Path | None
) -> None:
    """Add DELTA to the counter in STREAM."""
    from veen.overlays import crdt as overlay

    own = session.client().client_id if shard is None else shard
    draft = drafted(lambda: overlay.counter_add(own, delta))
    tell(output, send_draft(session, stream, draft, cap), {"stream": stream, "shard": own, "delta": delta})


@click.command("get")
@click.argument("stream", type=STREAM)
@view_options
@output_options
@client_options
def counter_get(output: Output, session: Session, stream: str, view: View) -> None:
    """Print the counter in STREAM, and its shards."""
    from veen.overlays.crdt import CounterFold, counter_value

    folded = state_of(session, CounterFold(), [stream], view)
    data = {"value": counter_value(folded.state), "shards": dict(sorted(folded.state.items()))}
    show_folded(output, folded, data, lambda: output.line(str(data["value"])))
