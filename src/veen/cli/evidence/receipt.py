"""`veen receipt`: the hub's signed statement about one entry."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.output import Output
from veen.cli.shared.stream_args import EPOCH, SEQ, stream_argument
from veen.cli.shared.verifying import HUB_PK, verify_file

if TYPE_CHECKING:
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
    from veen.cli.shared.named import to_named

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
