"""What both zones know of the sending side: bundles in folders, identities of hubs, heads of labels."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from veen.core.errors import VeenError
from veen.core.objects.identity import HubIdentity
from veen.fs.places import open_fs
from veen.log.prefix import receipt_at
from veen.products.airgap.bundle import BundleReader
from veen.products.airgap.errors import Rejected
from veen.products.airgap.files import is_bundle_name
from veen.products.airgap.reconciling import Exported
from veen.products.airgap.trust import TrustList
from veen.products.airgap.verify import identity_of
from veen.storage.pinned import pin


def bundle_paths(folders: Sequence[Path]) -> Iterator[Path]:
    """The bundles of some folders, by name."""
    for folder in folders:
        yield from sorted(path for path in folder.iterdir() if is_bundle_name(path.name) and path.is_file())


def bundle_side(folders: Sequence[Path], trust: TrustList) -> tuple[Exported, ...]:
    """What the bundles of some folders say, as far as a trusted exporter signed them; others have no effect."""
    exported = set()
    for path in bundle_paths(folders):
        with path.open("rb") as file:
            try:
                reader = BundleReader(file)
                for _ in reader.events():
                    pass
            except Rejected:
                continue
        header, trailer = reader.header, reader.trailer
        source = trust.source_of(header.bridge_id)
        if trailer is None or source is None or reader.bundle_id != trailer.bundle_id:
            continue
        if source.trusts(trailer.exporter_pk) and trailer.is_signed():
            exported.add(
                Exported(
                    bridge_id=header.bridge_id,
                    label=header.label,
                    bundle_seq=header.bundle_seq,
                    bundle_id=trailer.bundle_id,
                    stream_id=header.export_stream_id,
                    epoch=header.epoch,
                    seq_from=header.export_seq_from,
                    seq_to=header.export_seq_to,
                    count=trailer.count,
                    withheld=trailer.withheld,
                )
            )
    return tuple(sorted(exported))


def identities_of(trust: TrustList, online: str | None, folders: Sequence[Path]) -> tuple[HubIdentity, ...]:
    """The keys of the source hubs, as far as they follow from the pins of the trust list."""
    identities: dict[bytes, HubIdentity] = {}
    headers = []
    for path in bundle_paths(folders):
        with path.open("rb") as file:
            try:
                headers.append(BundleReader(file).header)
            except Rejected:
                continue
    for header in sorted(headers, key=lambda each: each.created_at):  # the latest has all keys
        source = trust.source_of(header.bridge_id)
        if source is not None:
            try:
                identities[header.source_hub_id] = identity_of(header, source)
            except Rejected:
                continue
    if online is not None and (identity := pin(online).identity) is not None:
        pinned = {key.hub_pk for source in trust.sources for key in source.pin.keys}
        roots = {source.pin.root_pk for source in trust.sources}
        if pinned & {key.hub_pk for key in identity.keys} or roots - {None}:
            identities[identity.hub_id] = identity
    for source in trust.sources:
        try:
            identity = source.pin.identity
        except VeenError:  # a root pin knows no key yet
            continue
        identities.setdefault(identity.hub_id, identity)
    return tuple(identities[hub_id] for hub_id in sorted(identities))


def heads_of(online: str, labels: Collection[bytes]) -> dict[bytes, tuple[int, bytes]]:
    """The last entry of each label at the source hub, and the root of its receipt."""
    fs, pinned = open_fs(online), pin(online)
    heads = {}
    for label in labels:
        label_pin = pinned.labels.get(label)
        if label_pin is not None and label_pin.size:
            receipt = receipt_at(fs, label_pin.chunks, label_pin.size)
            heads[label] = label_pin.size, receipt.mmr_root if receipt else b""
    return heads
