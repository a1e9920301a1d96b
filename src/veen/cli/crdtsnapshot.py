"""`veen crdt snapshot`: a state with the CHECKPOINT that it belongs to (CRDT0.3)."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.clictx import FILE, Session, client_options
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options

if TYPE_CHECKING:
    from veen.cli.folding import Folded
    from veen.overlays.fold import AnyFold

__all__ = ["snapshot"]

_KINDS: Final = ("lww", "orset", "counter")


def _fold_of(kind: str) -> "AnyFold":
    from veen.overlays.crdt import CounterFold, LwwFold, OrSetFold
    from veen.overlays.fold import AnyFold

    folds: dict[str, type[AnyFold]] = {"lww": LwwFold, "orset": OrSetFold, "counter": CounterFold}
    return folds[kind]()


@click.command()
@click.argument("stream", type=STREAM)
@click.option("--kind", type=click.Choice(_KINDS), required=True, help="Which state.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the snapshot here.")
@click.option("--check", type=FILE, help="Check this snapshot against the log instead.")
@output_options
@client_options
def snapshot(output: Output, session: Session, stream: str, kind: str, out: Path | None, check: str | None) -> None:
    """Keep the state of STREAM at the latest CHECKPOINT of the hub, or check a state that was kept (CRDT0.3).

    A snapshot is bound to the log by the root of the checkpoint: with any other root it is refused, and so it
    is if the log folds to another state: exit code 1. It holds the state in the clear.

    \b
    veen crdt snapshot app/tags --kind orset --out tags.snapshot
    veen crdt snapshot app/tags --kind orset --check tags.snapshot
    """
    from veen.overlays.snapshot import Cut, Snapshot, SnapshotRefused

    if (out is None) == (check is None):
        raise click.UsageError("give one of --out and --check")
    fold = _fold_of(kind)
    if check is not None:
        kept = Snapshot.from_bytes(Path(check).read_bytes())
        kept.restore(fold, lambda label, seq: _root(session, stream, label, seq))
        upto = max((cut.upto_seq for cut in kept.cuts), default=0)
        if _folded(session, fold, stream, upto).state_hash != kept.state_hash:  # the root binds it, the log decides
            raise SnapshotRefused("the log folds to another state than the snapshot holds")
        data = {"stream": stream, "kind": kind, "upto_seq": upto, "state_hash": kept.state_hash.hex(), "good": True}
        output.result(data, lambda: output.fields(data.items()))
        return
    checkpoint = session.client().checkpoint(stream)
    made = Snapshot.take(fold, _folded(session, fold, stream, checkpoint.upto_seq).summary, [Cut.at(checkpoint)])
    assert out is not None  # noqa: S101 - one of the two is given
    with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(made.to_bytes())
    data = {
        "stream": stream,
        "kind": kind,
        "upto_seq": checkpoint.upto_seq,
        "mmr_root": checkpoint.mmr_root.hex(),
        "state_hash": made.state_hash.hex(),
        "file": str(out),
    }
    output.result(data, lambda: output.fields(data.items()))


def _folded(session: Session, fold: "AnyFold", stream: str, upto_seq: int) -> "Folded":
    from veen.cli.asof import AsOf
    from veen.cli.folding import fold_streams

    return fold_streams(session, fold, [stream], moment=AsOf(position=upto_seq), keep=False)


def _root(session: Session, stream: str, label: bytes, upto_seq: int) -> bytes | None:
    """The root of the reader's own log: of a receipt that fits all that the hub has proven."""
    client = session.client()
    if client.label(stream) != label:
        return None
    return client.receipt(stream, upto_seq).mmr_root
