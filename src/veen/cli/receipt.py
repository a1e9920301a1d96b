"""`veen receipt`: the hub's signed word about one entry."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.clictx import Session, client_options
from veen.cli.entries import when
from veen.cli.files import OBJECT_FILE
from veen.cli.lazy import LazyGroup, Table
from veen.cli.output import Output, output_options
from veen.cli.streamargs import EPOCH, SEQ, stream_argument
from veen.cli.verifying import HUB_PK, verify_file

if TYPE_CHECKING:
    from veen.core.receipt import Receipt

__all__ = ["OUT", "get", "receipt", "receipt_data", "verify"]

OUT = click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep it here too, as CBOR.")


class _ReceiptGroup(LazyGroup):
    table: ClassVar[Table] = {
        "get": ("veen.cli.receipt:get", "The receipt of an entry, verified."),
        "verify": ("veen.cli.receipt:verify", "Check a receipt that you have, without a hub."),
    }


@click.group(cls=_ReceiptGroup)
def receipt() -> None:
    """The hub's signed word about one entry."""


@click.command()
@stream_argument(seq=SEQ)
@EPOCH
@OUT
@output_options
@client_options
def get(output: Output, session: Session, stream: str, seq: int, epoch: int | None, out: Path | None) -> None:
    """The RECEIPT of entry SEQ of STREAM: signed by the pinned hub, and of the log that it proved before.

    \b
    veen receipt get record/app/http 3 --out receipt.cbor
    veen receipt verify receipt.cbor
    """
    found = session.client().receipt(stream, seq, epoch=epoch)
    session.remember_stream(stream)
    if out is not None:
        out.write_bytes(found.to_bytes())
    data = {**receipt_data(found), "verified": True, "receipt": found.to_json()}
    output.result(data, lambda: output.fields((name, value) for name, value in data.items() if name != "receipt"))
    if out is not None:
        output.next(f"veen receipt verify {out}")


def receipt_data(found: "Receipt") -> dict[str, Any]:
    """A receipt by names."""
    return {
        "label": found.label.hex(),
        "seq": found.stream_seq,
        "msg_id": found.leaf_hash.hex(),
        "mmr_root": found.mmr_root.hex(),
        "hub_ts": found.hub_ts,
        "time": when(found.hub_ts),
        "hub_sig": found.hub_sig.hex(),
    }


@click.command()
@click.argument("file", type=OBJECT_FILE)
@HUB_PK
@click.option("--msg", type=OBJECT_FILE, help="The MSG that it must be for.")
@output_options
@client_options
def verify(output: Output, session: Session, file: Path, trusted: tuple[bytes, ...], msg: Path | None) -> None:
    """Check the RECEIPT in FILE ("-": standard input) against the hub's key. Nothing is asked of any hub."""
    from veen.core.receipt import Receipt

    verify_file(output, session, file, Receipt, trusted, () if msg is None else (msg,))
