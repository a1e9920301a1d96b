"""`veen checkpoint`: what the hub signed about a whole log, seen from the client (spec §4.4)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.clictx import Session, client_options
from veen.cli.files import OBJECT_FILE, hex32
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Exit, Fail, Mode, Output, output_options
from veen.cli.receipt import OUT
from veen.cli.streamargs import EPOCH, SEQ, stream_argument
from veen.cli.text import short
from veen.cli.verifying import HUB_PK, read_as, told_checks, trusted_keys, verified

if TYPE_CHECKING:
    from veen.core.checkpoint import Checkpoint

__all__ = ["checkpoint", "list_", "show", "verify"]


class _CheckpointGroup(LazyGroup):
    table: ClassVar[Table] = {
        "list": ("veen.cli.checkpoint:list_", "The latest checkpoint of every label of a stream."),
        "show": ("veen.cli.checkpoint:show", "A checkpoint of a stream, verified."),
        "verify": ("veen.cli.checkpoint:verify", "Check a checkpoint that you have, without a hub."),
    }


@click.group(cls=_CheckpointGroup)
def checkpoint() -> None:
    """What the hub signed about a whole log."""


def _data(found: "Checkpoint") -> dict[str, Any]:
    return {
        "label": found.label_curr.hex(),
        "epoch": found.epoch,
        "upto_seq": found.upto_seq,
        "mmr_root": found.mmr_root.hex(),
        "label_prev": found.label_prev.hex(),
        "hub_sig": found.hub_sig.hex(),
        "witnesses": len(found.witness_sigs or ()),
    }


@click.command("list")
@stream_argument()
@output_options
@client_options
def list_(output: Output, session: Session, stream: str) -> None:
    """The latest CHECKPOINT of every label of STREAM, by epoch: verified, and one log with what was proven before."""
    with output.progress("asking for checkpoints"):
        found = session.client().checkpoints(stream)
    session.remember_stream(stream)
    human = output.mode is Mode.HUMAN
    with output.records("checkpoints", ("epoch", "upto_seq", "root", "label"), (5, 8, 9, 9)) as records:
        for one in found:
            shown = short if human else bytes.hex
            data = {**_data(one), "verified": True, "checkpoint": one.to_json()}
            records.add(data, (one.epoch, one.upto_seq, shown(one.mmr_root), shown(one.label_curr)))


@click.command()
@stream_argument()
@click.option("--upto", type=SEQ, help="Of the first so many entries; default: the latest there is.")
@EPOCH
@OUT
@output_options
@client_options
def show(output: Output, session: Session, stream: str, upto: int | None, epoch: int | None, out: Path | None) -> None:
    """A CHECKPOINT of STREAM: signed by the pinned hub, and one log with what it proved before.

    \b
    veen checkpoint show record/app/http --out checkpoint.cbor
    veen checkpoint verify checkpoint.cbor
    """
    found = session.client().checkpoint(stream, upto, epoch=epoch)
    session.remember_stream(stream)
    if out is not None:
        out.write_bytes(found.to_bytes())
    data = {**_data(found), "verified": True, "checkpoint": found.to_json()}
    output.result(data, lambda: output.fields((name, value) for name, value in data.items() if name != "checkpoint"))


@click.command()
@click.argument("file", type=OBJECT_FILE)
@HUB_PK
@click.option("--witness", type=hex32, multiple=True, help="A witness that must have signed it too. Repeatable.")
@click.option("--stream", type=STREAM, help="The stream that it must be about; needs the hub's first key.")
@output_options
@client_options
def verify(
    output: Output,
    session: Session,
    file: Path,
    trusted: tuple[bytes, ...],
    witness: tuple[bytes, ...],
    stream: str | None,
) -> None:
    """Check the CHECKPOINT in FILE ("-": standard input) against the hub's key. Nothing is asked of any hub."""
    from veen.core.checkpoint import Checkpoint
    from veen.core.checks import Given

    data, obj = read_as(file, Checkpoint)
    keys = trusted_keys(session, trusted)
    checks = verified(file, obj, Given(hub_pks=keys, witness_pks=witness))
    assert isinstance(obj, Checkpoint)  # noqa: S101 - read_as made sure
    if stream is not None:
        checks.append(_about(obj, file, keys, stream))
    told_checks(output, file, data, obj, checks)


def _about(found: "Checkpoint", file: Path, keys: tuple[bytes, ...], stream: str) -> str:
    """Labels derive from the hub's first key and the stream: whoever knows both can tell."""
    from veen.client.keyring import StreamRef
    from veen.core.errors import VerifyError
    from veen.core.labels import hub_id_of, routing_key_of

    ref = StreamRef.parse(stream)
    if ref.stream_id is None:
        fits = found.label_curr == ref.label
    else:
        try:
            found.check_labels(routing_key_of(hub_id_of(keys[0])), ref.stream_id)
            fits = True
        except VerifyError:
            fits = False
    if not fits:
        raise Fail(
            Exit.BAD_EVIDENCE,
            f"{file}: verification FAILED",
            f"it is about another stream than {stream}, or the hub's first key is another one",
            "give the hub's first key by --hub-pk, or the right --stream",
            "E.VERIFY",
        )
    return f"label_curr is that of {stream} in epoch {found.epoch}"
