"""`veen proof`: inclusion proofs, also as a picture (spec §5.2)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.evidence.receipt import OUT
from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.files import OBJECT_FILE, hex32
from veen.cli.shared.output import Output
from veen.cli.shared.stream_args import EPOCH, SEQ, stream_argument
from veen.cli.shared.verifying import HUB_PK, verify_file

if TYPE_CHECKING:
    from veen.client.read.picture import Picture
    from veen.client.verify.evidence import Proven

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
    from veen.cli.shared.named import to_named

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
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw it as SVG, into this file.")
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
        from veen.client.read.svg import to_svg

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
