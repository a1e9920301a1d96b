"""`veen crdt`: registers, sets and counters that converge without coordination (CRDT0, D-88)."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from veen.cli.lazy import LazyGroup
from veen.cli.shared.as_of import AsOf, View
from veen.cli.shared.command import FILE, CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, Outgoing
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import HEX32, absent, printable, show_folded, show_rows, state_of, value_options
from veen.cli.shared.values import MOMENT
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded
    from veen.overlays.framework.fold import AnyFold

crdt: Final = LazyGroup(
    "crdt",
    help="Registers, sets and counters that converge without coordination (CRDT0).",
    table={
        "counter": ("veen.cli.overlays.crdt:counter", "Counters that only grow, summed over writers."),
        "lww": ("veen.cli.overlays.crdt:lww", "Registers, the last write wins."),
        "orset": ("veen.cli.overlays.crdt:orset", "Sets in which an add survives a remove that did not see it."),
        "snapshot": (
            "veen.cli.overlays.crdt:snapshot",
            "Keep a state with the checkpoint it belongs to, or check one.",
        ),
    },
)
_STREAM: Final = argument("stream", type=STREAM)
lww: Final = NounGroup("lww", "Registers by key: the write with the greatest time wins.", takes=[_STREAM])
orset: Final = NounGroup(
    "orset", "A set: an element is present while one of its adds was not removed.", takes=[_STREAM]
)
counter: Final = NounGroup(
    "counter", "A counter that only grows: each writer counts in a shard of its own.", takes=[_STREAM]
)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# --- registers -------------------------------------------------------------------------------------------------


@lww.write(
    "set",
    "Write a register.",
    argument("key"),
    argument("value"),
    value_options("value", binary=True),
    option("--ts", type=MOMENT, help="Time of the write. Default: now, on this machine."),
    option("--expires", type=MOMENT, help="Time at which the value expires."),
)
def _lww_set(session: CliSession, stream: str, key: str, value: bytes, ts: int | None, expires: int | None) -> Outgoing:
    """Write VALUE to the register KEY of STREAM; "-" reads it from standard input."""
    from veen.overlays.crdt import lww_set

    when = int(time.time()) if ts is None else ts
    facts = {"stream": stream, "key": key, "ts": when}
    return Outgoing(stream, lambda: lww_set(_bytes(key), value, ts=when, expires_at=expires), facts)


@lww.read("get", "Print a register, or all.", argument("key", required=False))
def _lww_get(session: CliSession, stream: str, key: str | None, view: View) -> None:
    """Print the register KEY of STREAM, or all registers."""
    from veen.overlays.crdt import LwwFold

    folded = state_of(session, LwwFold(), [stream], view)
    registers = [
        {"key": printable(name), "value": printable(register.value), **_to_row(register)}
        for name, register in sorted(folded.state.items())
        if key is None or name == _bytes(key)
    ]
    if key is None:
        show_rows(session, folded, "registers", registers, ("key", "value", "ts"))
        return
    if not registers:
        raise absent(f"register {key!r}", f"veen crdt lww get {stream}")
    show_folded(session, folded, registers[0], lambda: session.output.line(registers[0]["value"]))


def _to_row(register: Any) -> dict[str, Any]:
    return {
        "value_hex": register.value.hex(),
        "ts": register.ts,
        "msg_id": register.msg_id.hex(),
        "att_root": plain(register.att_root),
        "expires_at": register.expires_at,
    }


# --- sets ------------------------------------------------------------------------------------------------------

_ELEM: Final = (argument("elem"), value_options("elem", binary=True))


@orset.write(
    "add", "Add an element.", *_ELEM, option("--expires", type=MOMENT, help="Time at which the element expires.")
)
def _orset_add(session: CliSession, stream: str, elem: bytes, expires: int | None) -> Outgoing:
    """Add ELEM to the set in STREAM."""
    from veen.overlays.crdt import orset_add

    add_id = os.urandom(32)
    facts = {"stream": stream, "elem": printable(elem), "add_id": add_id}
    return Outgoing(stream, lambda: orset_add(elem, add_id=add_id, expires_at=expires), facts)


@orset.write("remove", "Remove an element: all adds in the log.", *_ELEM)
def _orset_remove(session: CliSession, stream: str, elem: bytes) -> Outgoing:
    """Remove ELEM from the set in STREAM: all adds of it that the log has now. Concurrent adds survive."""
    from veen.overlays.crdt import OrSetFold, orset_remove

    member = state_of(session, OrSetFold(), [stream], View(None, True)).state.get(elem)
    if member is None:
        raise absent(f"element {printable(elem)!r}", f"veen crdt orset list {stream}")
    facts = {"stream": stream, "elem": printable(elem), "tomb": member.ids}
    return Outgoing(stream, lambda: orset_remove(member.ids), facts)


@orset.read("list", "List the elements.")
def _orset_list(session: CliSession, stream: str, view: View) -> None:
    """List the elements of the set in STREAM."""
    from veen.overlays.crdt import OrSetFold

    folded = state_of(session, OrSetFold(), [stream], view)
    members = [
        {"elem": printable(elem), "elem_hex": elem.hex(), **plain(member)}
        for elem, member in sorted(folded.state.items())
    ]
    rows = [(member["elem"], len(member["ids"])) for member in members]
    show_folded(session, folded, {"members": members}, lambda: session.output.table(("elem", "adds"), rows))


# --- counters --------------------------------------------------------------------------------------------------


@counter.write(
    "add",
    "Add to the counter.",
    argument("delta", type=click.IntRange(0, (1 << 64) - 1)),
    option("--shard", type=HEX32, help="Shard to count in. Default: your client_id."),
)
def _counter_add(session: CliSession, stream: str, delta: int, shard: bytes | None) -> Outgoing:
    """Add DELTA to the counter in STREAM."""
    from veen.overlays.crdt import counter_add

    own = session.client().client_id if shard is None else shard
    return Outgoing(stream, lambda: counter_add(own, delta), {"stream": stream, "shard": own, "delta": delta})


@counter.read("get", "Print the counter and its shards.")
def _counter_get(session: CliSession, stream: str, view: View) -> None:
    """Print the counter in STREAM, and its shards."""
    from veen.overlays.crdt import CounterFold, counter_value

    folded = state_of(session, CounterFold(), [stream], view)
    data = {"value": counter_value(folded.state), "shards": dict(sorted(folded.state.items()))}
    show_folded(session, folded, data, lambda: session.output.line(str(data["value"])))


# --- snapshots -------------------------------------------------------------------------------------------------


def _fold_of(kind: str) -> "AnyFold":
    from veen.overlays.crdt import CounterFold, LwwFold, OrSetFold
    from veen.overlays.framework.fold import AnyFold

    folds: dict[str, type[AnyFold]] = {"lww": LwwFold, "orset": OrSetFold, "counter": CounterFold}
    return folds[kind]()


@click.command()
@click.argument("stream", type=STREAM)
@click.option("--kind", type=click.Choice(("lww", "orset", "counter")), required=True, help="Kind of state.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write the snapshot to.")
@click.option("--check", type=FILE, help="Snapshot to check against the log.")
@client_options
def snapshot(output: Output, session: CliSession, stream: str, kind: str, out: Path | None, check: str | None) -> None:
    """Store the state of STREAM at the latest CHECKPOINT of the hub, or check a stored state (CRDT0.3).

    A snapshot is bound to the log by the root of the checkpoint: with any other root it is refused, and so it
    is if the log folds to another state: exit code 1. It holds the state in the clear.

    \b
    veen crdt snapshot app/tags --kind orset --out tags.snapshot
    veen crdt snapshot app/tags --kind orset --check tags.snapshot
    """
    from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused

    if (out is None) == (check is None):
        raise click.UsageError("give one of --out and --check")
    fold = _fold_of(kind)
    if check is not None:
        saved = Snapshot.from_bytes(Path(check).read_bytes())
        saved.restore(fold, lambda label, seq: _root(session, stream, label, seq))
        upto = max((cut.upto_seq for cut in saved.cuts), default=0)
        if _fold_at(session, fold, stream, upto).state_hash != saved.state_hash:  # the root binds it, the log decides
            raise SnapshotRefused("the snapshot has another state than the log")
        data = {"stream": stream, "kind": kind, "upto_seq": upto, "state_hash": saved.state_hash.hex(), "good": True}
        output.result(data)
        return
    checkpoint = session.client().checkpoint(stream)
    state_at_checkpoint = Snapshot.take(
        fold, _fold_at(session, fold, stream, checkpoint.upto_seq).summary, [Cut.at(checkpoint)]
    )
    assert out is not None  # noqa: S101 - one of the two is given
    with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(state_at_checkpoint.to_bytes())
    data = {
        "stream": stream,
        "kind": kind,
        "upto_seq": checkpoint.upto_seq,
        "mmr_root": checkpoint.mmr_root.hex(),
        "state_hash": state_at_checkpoint.state_hash.hex(),
        "file": str(out),
    }
    output.result(data)


def _fold_at(session: CliSession, fold: "AnyFold", stream: str, upto_seq: int) -> "Folded":

    from veen.cli.shared.folding import fold_streams

    return fold_streams(session, fold, [stream], moment=AsOf(position=upto_seq), keep=False)


def _root(session: CliSession, stream: str, label: bytes, upto_seq: int) -> bytes | None:
    """Return the root of the reader's own log, from a receipt consistent with all that the hub has proven."""
    client = session.client()
    if client.label(stream) != label:
        return None
    return client.receipt(stream, upto_seq).mmr_root
