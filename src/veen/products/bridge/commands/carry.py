"""`veen bridge inspect`, `send` and `receive`: bundles in transit. They need neither keys nor hubs."""

from pathlib import Path
from typing import Any, Final

import click

from veen.cli.shared.output import Output, output_options

_DIR: Final = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of the bridge.",
)
_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--trust",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Trust list: verify the bundle against it.",
)
@output_options
def inspect(output: Output, file: Path, trust: Path | None) -> None:
    """Show the contents of a bundle. With --trust, verify it as an importer with all earlier bundles would.

    \b
    veen bridge inspect plant-a-0f3e21aa-00000001.veenb --trust trust.toml
    """
    from veen.products.bridge.bundle import BundleReader
    from veen.products.bridge.trust import TrustList
    from veen.products.bridge.verify import judge_alone

    with file.open("rb") as source:
        reader = BundleReader(source)
        opened = sealed = attachments = 0
        for event in reader.events():
            opened += event.opening is not None
            attachments += len(event.attachments)
            sealed += event.msg is not None and event.opening is None
        header, trailer = reader.header, reader.trailer
        assert trailer is not None  # noqa: S101 - `events` ends with it
        data: dict[str, Any] = {
            "bundle_id": trailer.bundle_id.hex(),
            "bundle_id_matches": reader.bundle_id == trailer.bundle_id,
            "signature_matches": trailer.is_signed(),
            "exporter_pk": trailer.exporter_pk.hex(),
            "bridge_id": header.bridge_id.hex(),
            "bundle_seq": header.bundle_seq,
            "prev_bundle_id": header.prev_bundle_id.hex() if header.prev_bundle_id else None,
            "stream": header.stream_name or header.export_stream_id.hex(),
            "label": header.label.hex(),
            "epoch": header.epoch,
            "seq_from": header.export_seq_from,
            "seq_to": header.export_seq_to,
            "time_from": header.export_time_from,
            "time_to": header.export_time_to,
            "count": trailer.count,
            "withheld": trailer.withheld,
            "opened": opened,
            "sealed": sealed,
            "attachments": attachments,
            "source_hub_id": header.source_hub_id.hex(),
            "source_hub_pk": f"ed25519:{header.source_hub_pk.hex()}",
            "created_at": header.created_at,
        }
        if trust is not None:
            verdict = judge_alone(source, TrustList.from_toml(trust.read_text("utf-8")))
            data["target"] = verdict.target
            data["verified"] = True
    output.result(data)


@click.command()
@_DIR
@click.option("--to", "medium", type=_FOLDER, help="Directory to copy bundles to: a mounted medium.")
@click.option("--udp", "address", help="HOST:PORT of a receiver behind a one-way link.")
@click.option("--rate", type=click.FloatRange(0.01), default=64.0, help="Rate on the link, in megabits per second.")
@click.option("--rounds", type=click.IntRange(1, 16), default=2, help="Number of times each bundle is sent.")
@click.option("--redundancy", type=click.IntRange(0, 100), default=25, help="Parity, in percent of the data.")
@click.option("--keep", is_flag=True, help="Leave the bundles in the folder outgoing instead of moving them to sent.")
@output_options
def send(
    output: Output,
    directory: Path,
    medium: Path | None,
    address: str | None,
    rate: float,
    rounds: int,
    redundancy: int,
    keep: bool,
) -> None:
    """Copy the bundles in the folder outgoing to a medium, or send them over a one-way link.

    On a link nothing comes back: choose a --rate that the receiver can handle, and give the sending machine a permanent
    neighbour entry for the receiver, which cannot answer address resolution (docs/bridge.md).

    \b
    veen bridge send --dir /srv/bridge --to /media/stick
    veen bridge send --dir /srv/bridge --udp 10.77.0.2:4000 --rate 200
    """
    from veen.products.bridge.exporting import OUTGOING
    from veen.products.bridge.files import BridgeFiles, copy_bundle
    from veen.products.bridge.link import LinkOptions, LinkSender, parse_address

    if (medium is None) == (address is None):
        raise click.UsageError("give --to DIRECTORY or --udp HOST:PORT")
    files = BridgeFiles(directory, (OUTGOING, "sent"))
    sender = None
    if address is not None:
        options = LinkOptions(rate=int(rate * 125_000), rounds=rounds, redundancy=redundancy / 100)
        sender = LinkSender(parse_address(address), options)
    try:
        with output.records("bundles", ("file", "bytes", "datagrams")) as records:
            for name in files.bundles(OUTGOING):
                path = files.path(OUTGOING, name)
                datagrams = None
                if sender is not None:
                    datagrams = sender.send(path)
                elif medium is not None:
                    copy_bundle(path, medium)
                row = {"file": name, "bytes": path.stat().st_size, "datagrams": datagrams}
                records.add(row, [name, row["bytes"], "" if datagrams is None else datagrams])
                if not keep:
                    files.move(name, OUTGOING, "sent")
            records.summary({"to": address or str(medium)})
    finally:
        if sender is not None:
            sender.close()


@click.command()
@_DIR
@click.option("--from", "medium", type=_FOLDER, help="Directory to take bundles from: a mounted medium.")
@click.option("--udp", "address", help="HOST:PORT to listen at.")
@click.option("--wait", type=click.FloatRange(0.1), default=60.0, help="Exit after N seconds without a datagram.")
@output_options
def receive(output: Output, directory: Path, medium: Path | None, address: str | None, wait: float) -> None:
    """Take bundles from a medium or a one-way link into the folder incoming. They are verified by `import`.

    \b
    veen bridge receive --dir /srv/bridge --from /media/stick
    veen bridge receive --dir /srv/bridge --udp 10.77.0.2:4000 --wait 3600
    """
    from veen.products.bridge.bundle import LinkLost
    from veen.products.bridge.files import INCOMING_BOUNDS, BridgeFiles, copy_bundle, is_bundle_name
    from veen.products.bridge.importing import FOLDERS, INCOMING
    from veen.products.bridge.link import LinkReceiver, parse_address

    if (medium is None) == (address is None):
        raise click.UsageError("give --from DIRECTORY or --udp HOST:PORT")
    files = BridgeFiles(directory, FOLDERS)
    lost: list[str] = []
    with output.records("bundles", ("file", "detail")) as records:
        if medium is not None:
            for path in sorted(medium.iterdir()):
                if is_bundle_name(path.name) and path.is_file() and not path.is_symlink():
                    copy_bundle(path, files.path(INCOMING), INCOMING_BOUNDS)
                    records.add({"file": path.name, "detail": str(medium)}, [path.name, str(medium)])
        if address is not None:
            receiver = LinkReceiver(parse_address(address), files.path(INCOMING))
            output.note(f"listening at {receiver.address[0]}:{receiver.address[1]}")
            try:
                for received in receiver.receive(wait=wait):
                    name = received.path.name if received.path else None
                    records.add({"file": name, "detail": received.describe()}, [name or "lost", received.describe()])
                    if received.path is None:
                        lost.append(received.describe())
            finally:
                receiver.close()
        records.summary({"from": address or str(medium), "lost": len(lost)})
    if lost:
        raise LinkLost(f"{len(lost)} bundles did not arrive whole: {lost[0]}")
