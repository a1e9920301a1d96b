"""`veen checkpoint`: the hub's signature over a whole log, seen from the client (spec §4.4)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.evidence.receipt import OUT
from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.files import OBJECT_FILE, hex32
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.stream_args import EPOCH, SEQ, stream_argument
from veen.cli.shared.text import short
from veen.cli.shared.verifying import HUB_PK, check_object, read_as, resolve_keys, show_checks

if TYPE_CHECKING:
    from veen.core.objects.checkpoint import Checkpoint

checkpoint = LazyGroup("checkpoint", help="Checkpoints: the hub's signatures over whole logs.")


def _data(signed: "Checkpoint") -> dict[str, Any]:
    return {
        "label": signed.label_curr.hex(),
        "epoch": signed.epoch,
        "upto_seq": signed.upto_seq,
        "mmr_root": signed.mmr_root.hex(),
        "label_prev": signed.label_prev.hex(),
        "hub_sig": signed.hub_sig.hex(),
        "witnesses": len(signed.witness_sigs or ()),
    }


@checkpoint.verb("list", "The latest checkpoint of every label of a stream.")
@stream_argument()
@client_options
def list_checkpoints(output: Output, session: CliSession, stream: str) -> None:
    """List the latest CHECKPOINT of every label of STREAM, by epoch: verified, and consistent with earlier proofs."""
    from veen.cli.shared.named import to_named

    with output.progress("asking for checkpoints"):
        signed = session.client().checkpoints(stream)
    session.remember_stream(stream)
    human = output.mode is Mode.HUMAN
    with output.records("checkpoints", ("epoch", "upto_seq", "root", "label"), (5, 8, 9, 9)) as records:
        for item in signed:
            shown = short if human else bytes.hex
            data = {**_data(item), "verified": True, "checkpoint": to_named(item)}
            records.add(data, (item.epoch, item.upto_seq, shown(item.mmr_root), shown(item.label_curr)))


@checkpoint.verb("show", "A checkpoint of a stream, verified.")
@stream_argument()
@click.option("--upto", type=SEQ, help="Number of entries to cover. Default: all.")
@EPOCH
@OUT
@client_options
def show_checkpoint(
    output: Output, session: CliSession, stream: str, upto: int | None, epoch: int | None, out: Path | None
) -> None:
    """Show a CHECKPOINT of STREAM: signed by the pinned hub, and consistent with earlier proofs.

    \b
    veen checkpoint show record/app/http --out checkpoint.cbor
    veen checkpoint verify checkpoint.cbor
    """
    from veen.cli.shared.named import to_named

    signed = session.client().checkpoint(stream, upto, epoch=epoch)
    session.remember_stream(stream)
    if out is not None:
        out.write_bytes(signed.to_bytes())
    data = {**_data(signed), "verified": True, "checkpoint": to_named(signed)}
    output.result(data, lambda: output.fields((name, value) for name, value in data.items() if name != "checkpoint"))


@checkpoint.verb("verify", "Check a checkpoint that you have, without a hub.")
@click.argument("file", type=OBJECT_FILE)
@HUB_PK
@click.option("--witness", type=hex32, multiple=True, help=options.WITNESS)
@click.option("--stream", type=STREAM, help="Stream that the CHECKPOINT must be about. Requires the hub's first key.")
@client_options
def verify_checkpoint(
    output: Output,
    session: CliSession,
    file: Path,
    trusted: tuple[bytes, ...],
    witness: tuple[bytes, ...],
    stream: str | None,
) -> None:
    """Check the CHECKPOINT in FILE ("-": standard input) against the hub's key. Nothing is asked of any hub."""
    from veen.core.checks import Given
    from veen.core.objects.checkpoint import Checkpoint

    data, obj = read_as(file, Checkpoint)
    keys = resolve_keys(session, trusted)
    checks = check_object(file, obj, Given(hub_pks=keys, witness_pks=witness))
    assert isinstance(obj, Checkpoint)  # noqa: S101 - read_as made sure
    if stream is not None:
        checks.append(_about(obj, file, keys, stream))
    show_checks(output, file, data, obj, checks)


def _about(signed: "Checkpoint", file: Path, keys: tuple[bytes, ...], stream: str) -> str:
    """Check that a checkpoint is about a stream. Labels derive from the hub's first key and the stream."""
    from veen.client.identity.keyring import StreamRef
    from veen.core.errors import VerifyError
    from veen.core.labels import hub_id_of, routing_key_of

    ref = StreamRef.parse(stream)
    if ref.stream_id is None:
        fits = signed.label_curr == ref.label
    else:
        try:
            signed.check_labels(routing_key_of(hub_id_of(keys[0])), ref.stream_id)
            fits = True
        except VerifyError:
            fits = False
    if not fits:
        raise Fail(
            "E.VERIFY",
            f"{file}: verification FAILED",
            f"it is about another stream than {stream}, or the hub has another first key",
            "give the hub's first key by --hub-pk, or the right --stream",
        )
    return f"label_curr is that of {stream} in epoch {signed.epoch}"
