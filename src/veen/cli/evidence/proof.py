"""`veen proof`: inclusion proofs, also as a picture (spec §5.2).

`veen receipt`: the hub's signed statement about one entry.

`veen checkpoint`: the hub's signature over a whole log, seen from the client (spec §4.4).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.files import OBJECT_FILE, hex32
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.stream_args import EPOCH, SEQ, stream_argument
from veen.cli.shared.text import short
from veen.cli.shared.verifying import HUB_PK, check_object, read_as, resolve_keys, show_checks, verify_file

if TYPE_CHECKING:
    from veen.client.read.picture import Picture
    from veen.client.verify.evidence import Proven
    from veen.core.objects.checkpoint import Checkpoint
    from veen.core.objects.receipt import Receipt

OUT = click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help=options.CBOR_OUT)

receipt = LazyGroup(
    "receipt",
    help="""Receipts: the hub's signed statement about an entry.""",
)


@receipt.verb("get", "The receipt of an entry, verified.")
@stream_argument(seq=SEQ)
@EPOCH
@OUT
@client_options
def get_receipt(
    output: Output, session: CliSession, stream: str, seq: int, epoch: int | None, out: Path | None
) -> None:
    """Show the RECEIPT of entry SEQ of STREAM: signed by the pinned hub, and consistent with earlier proofs.

    \b
    veen receipt get record/app/http 3 --out receipt.cbor
    veen receipt verify receipt.cbor
    """
    from veen.cli.shared.wire_tree import to_named

    signed = session.client().receipt(stream, seq, epoch=epoch)
    session.remember_stream(stream)
    if out is not None:
        out.write_bytes(signed.to_bytes())
    data = {**receipt_data(signed), "verified": True, "receipt": to_named(signed)}
    output.result(data, lambda: output.fields((name, value) for name, value in data.items() if name != "receipt"))
    if out is not None:
        output.next(f"veen receipt verify {out}")


def receipt_data(signed: "Receipt") -> dict[str, Any]:
    """Return the fields of a receipt by name."""
    return {
        "label": signed.label.hex(),
        "seq": signed.stream_seq,
        "msg_id": signed.leaf_hash.hex(),
        "mmr_root": signed.mmr_root.hex(),
        "hub_ts": signed.hub_ts,
        "time": when(signed.hub_ts),
        "hub_sig": signed.hub_sig.hex(),
    }


@receipt.verb("verify", "Check a receipt that you have, without a hub.")
@click.argument("file", type=OBJECT_FILE)
@HUB_PK
@click.option("--msg", type=OBJECT_FILE, help="MSG that the receipt must be for.")
@client_options
def verify_receipt(
    output: Output, session: CliSession, file: Path, trusted: tuple[bytes, ...], msg: Path | None
) -> None:
    """Check the RECEIPT in FILE ("-": standard input) against the hub's key. Nothing is asked of any hub."""
    from veen.core.objects.receipt import Receipt

    verify_file(output, session, file, Receipt, trusted, () if msg is None else (msg,))


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
    from veen.cli.shared.wire_tree import to_named

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
    from veen.cli.shared.wire_tree import to_named

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


_SIZE = click.option("--size", type=SEQ, help=options.TREE_SIZE)

proof = LazyGroup("proof", help="Inclusion proofs.")


@proof.verb("get", "The proof of an entry, verified.")
@stream_argument(seq=SEQ)
@_SIZE
@EPOCH
@OUT
@click.option("--receipt", "receipt_file", type=click.Path(dir_okay=False, path_type=Path), help=options.RECEIPT_OUT)
@client_options
def get_proof(
    output: Output,
    session: CliSession,
    stream: str,
    seq: int,
    size: int | None,
    epoch: int | None,
    out: Path | None,
    receipt_file: Path | None,
) -> None:
    """Show the inclusion proof of entry SEQ of STREAM, verified against the root that the hub signed.

    \b
    veen proof get record/app/http 3 --out proof.cbor --receipt receipt.cbor
    veen proof verify proof.cbor --with receipt.cbor
    """
    proven = _prove(session, stream, seq, size, epoch)
    if out is not None:
        out.write_bytes(proven.proof.to_bytes())
    if receipt_file is not None:
        receipt_file.write_bytes(proven.receipt.to_bytes())
    from veen.cli.shared.wire_tree import to_named

    data = {**proof_data(proven), "proof": proven.proof.to_json(), "receipt": to_named(proven.receipt)}
    output.result(data, lambda: output.fields(proof_data(proven).items()))


def _prove(session: CliSession, stream: str, seq: int, size: int | None, epoch: int | None) -> "Proven":
    if size is not None and size < seq:
        raise click.UsageError(f"a log of {size} entries has no entry {seq}")
    proven = session.client().proof(stream, seq, tree_size=size, epoch=epoch)
    session.remember_stream(stream)
    return proven


def proof_data(proven: "Proven") -> dict[str, Any]:
    """Return the fields of a proof by name."""
    return {
        "label": proven.receipt.label.hex(),
        "seq": proven.receipt.stream_seq,
        "msg_id": proven.receipt.leaf_hash.hex(),
        "tree_size": proven.tree_size,
        "root": proven.root.hex(),
        "hashes": len(proven.proof.path) + len(proven.proof.peaks_after),
        "bytes": len(proven.proof.to_bytes()),
        "verified": True,
    }


@proof.verb("show", "The proof of an entry as a picture: text, or SVG.")
@stream_argument(seq=SEQ)
@_SIZE
@EPOCH
@click.option("--tree", is_flag=True, help="Draw it as text. This is the default.")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write the drawing to FILE as SVG.")
@client_options
def show_proof(
    output: Output,
    session: CliSession,
    stream: str,
    seq: int,
    size: int | None,
    epoch: int | None,
    tree: bool,
    svg: Path | None,
) -> None:
    """Draw the proof of entry SEQ of STREAM: which hashes meet which on the way to the root.

    Every hash in the picture was computed here; there is no picture of a proof that does not hold.

    \b
    veen proof show record/app/http 3 --tree
    veen proof show record/app/http 3 --size 5 --svg proof.svg
    """
    from veen.client.read.picture import Picture, text

    proven = _prove(session, stream, seq, size, epoch)
    picture = Picture.of(proven.proof, stream_seq=seq, root=proven.root, tree_size=proven.tree_size)
    if svg is not None:
        from veen.client.read.picture import to_svg

        hub = f"hub ed25519:{session.client().pin.identity.current.hub_pk.hex()[:8]}…"
        svg.write_text(to_svg(picture, signed_by=hub), "utf-8")
    data = {**proof_data(proven), **_picture_data(picture), "svg": None if svg is None else str(svg)}

    def human() -> None:
        if tree or svg is None:
            for line in text(picture):
                output.line(line)
        where = "" if svg is None else f"; drawn in {svg}"
        output.line(
            f"verified: message {seq} of {picture.tree_size}, {picture.hashes} hashes lead to root "
            f"{proven.root.hex()}, which the hub signed{where}",
            good="verified",
        )

    output.result(data, human)


def _picture_data(picture: "Picture") -> dict[str, Any]:
    """Return the picture as data: each step of the fold, and the peaks."""
    return {
        "steps": [
            {
                "entries": step.parent.span,
                "hash": step.parent.hash.hex(),
                "sibling": step.sibling.hash.hex(),
                "sibling_entries": step.sibling.span,
                "side": "left" if step.sibling_is_left else "right",
            }
            for step in picture.steps
        ],
        "peaks": [{"entries": peak.span, "hash": peak.hash.hex()} for peak in picture.peaks],
    }


@proof.verb("verify", "Check a proof that you have, without a hub.")
@click.argument("file", type=OBJECT_FILE)
@HUB_PK
@click.option("--with", "related", type=OBJECT_FILE, multiple=True, help=options.WITH)
@click.option("--root", type=hex32, help=options.ROOT)
@_SIZE
@click.option("--seq", type=SEQ, help=options.SEQ)
@client_options
def verify_proof(
    output: Output,
    session: CliSession,
    file: Path,
    trusted: tuple[bytes, ...],
    related: tuple[Path, ...],
    root: bytes | None,
    size: int | None,
    seq: int | None,
) -> None:
    """Check the inclusion proof in FILE ("-": standard input). Nothing is asked of any hub."""
    from veen.core.tree.proof import MmrProof

    if (root is None) != (size is None):
        raise click.UsageError("--root and --size go together")
    verify_file(output, session, file, MmrProof, trusted, related, root=root, tree_size=size, stream_seq=seq)
