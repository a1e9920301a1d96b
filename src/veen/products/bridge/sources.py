"""Reads both zones for a reconciliation: audit streams, import streams, bundles, identities and heads.

The receiving zone's audit stream is read first, then its imports, then the sending zone. Entries added meanwhile are
therefore beyond the compared range and contradict nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from veen.client.errors import ClientError
from veen.client.identity.keyring import Keyring
from veen.core.errors import VeenError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.objects.tooling.messages import IdentityResponse
from veen.core.verdict import Because, Reason, StatedBy
from veen.io.places import open_fs
from veen.lake.log.prefix import Prefix, make_prefix, receipt_at
from veen.overlays.airgap.bodies import OFFLINE, ONLINE
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.bridge.bundle import BridgeError, BundleReader, Rejected
from veen.products.bridge.files import is_bundle_name
from veen.products.bridge.importing import IMPORTED, IMPORTING, INCOMING, WAITING
from veen.products.bridge.reconciling import (
    Arrived,
    Exported,
    Offline,
    SideLabel,
    Sides,
    audit_log,
    consistent_positions,
    fold_imports,
    import_prefix,
)
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verify import identity_of
from veen.storage.keys.identity import read_identity, read_signatures
from veen.storage.pinned import LogView, pin
from veen.verify.audit.directory import read_control

_BESIDE: Final = (INCOMING, WAITING, IMPORTING)  # folders beside `imported` that have bundles of the same bridge


def add_waiting(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders; for a folder `imported` also its siblings with bundles not imported yet."""
    beside = [
        folder.parent / name
        for folder in folders
        if folder.resolve().name == IMPORTED
        for name in _BESIDE
        if (folder.parent / name).is_dir()
    ]
    return tuple(dict.fromkeys((*folders, *beside)))


def bundle_paths(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the bundles of some folders, by name."""
    for folder in folders:
        yield from sorted(path for path in folder.iterdir() if is_bundle_name(path.name) and path.is_file())


def bundle_side(folders: Sequence[Path], trust: TrustList) -> tuple[Exported, ...]:
    """Return the exports stated by the bundles of some folders, if a trusted exporter signed them; ignore the
    others.
    """
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
    """Return the keys of the source hubs that follow from the pins of the trust list."""
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
    if online is not None and (identity := find_identity(online, trust)) is not None:
        identities[identity.hub_id] = identity
    for source in trust.sources:
        try:
            identity = source.pin.identity
        except VeenError:  # a root pin knows no key yet
            continue
        identities.setdefault(identity.hub_id, identity)
    return tuple(identities[hub_id] for hub_id in sorted(identities))


def find_identity(online: str, trust: TrustList) -> HubIdentity | None:
    """Return the keys of the hub of a data directory that follow from a pin of the trust list, or None."""
    fs = open_fs(online)
    try:
        identity = read_identity(fs, key_map=False)
        rotations = read_control(fs, identity, verify=False).fold.rotation_records
        signatures = read_signatures(fs)
    except (VeenError, OSError):
        return None
    for source in trust.sources:
        for signature in signatures:
            try:
                return source.pin.learn(IdentityResponse.of(identity, signature), rotations).identity
            except (ClientError, VeenError):
                continue
    return None


def heads_of(
    online: str, labels: Collection[bytes], view: LogView | None = None, identity: HubIdentity | None = None
) -> dict[bytes, tuple[int, bytes]]:
    """Return the last entry of each label at the source hub, and the root of its receipt.

    With `identity` the hub must have signed the root: raise SignatureError otherwise.
    """
    view = view or pin(online)
    return {
        label: (label_pin.size, root_at(online, view, label, label_pin.size, identity))
        for label, label_pin in view.labels.items()
        if label in labels and label_pin.size
    }


def root_at(uri: str, view: LogView, label: bytes, seq: int, identity: HubIdentity | None) -> bytes:
    """Return the root after an entry, as the directory has it; empty if its receipt cannot be read."""
    receipt = receipt_at(open_fs(uri), view.labels[label].chunks, seq) if seq and label in view.labels else None
    if receipt is None:
        return b""
    if identity is not None:
        identity.verify_receipt(receipt)
    return receipt.mmr_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Zones:
    """The places of both zones."""

    offline: str
    online: str | None
    folders: tuple[Path, ...] = ()  # of bundles
    checkpoints: tuple[Checkpoint, ...] = ()  # of the sending hub: their labels are compared up to them


Fold = Callable[[Offline, Prefix], Arrived]


def read_zones(zones: Zones, keyring: Keyring, trust: TrustList, fold: Fold | None = None) -> tuple[Arrived, Sides]:
    """Read the inputs of a report, in the order that lets both zones continue meanwhile.

    `fold` reads the import streams; by default in this process.
    """
    offline, online = zones.offline, zones.online
    folders = add_waiting(zones.folders)
    audited = audit_log(offline, OFFLINE_LOG, keyring, OFFLINE)
    imports = import_prefix(offline, keyring)
    place = Offline(uri=offline, identities=identities_of(trust, online, folders))
    arrived = fold_imports(place, keyring, imports) if fold is None else fold(place, imports)
    since = audit_log(offline, OFFLINE_LOG, keyring, OFFLINE)
    names = {keys.stream_id: keys.name for keys in keyring.entries if keys.name is not None}
    logs = [*_read_logs("receiving", audited.prefix, names, None), *_read_logs("receiving", imports, names, None)]
    reasons = [*audited.reasons]
    records = tuple(record for _, record in audited.records)
    common: dict[str, Any] = {
        "offline": records,
        "offline_writers": audited.writers,
        "audited_since": frozenset(
            record.bundle_id for _, record in since.records if record.bundle_id is not None and record.code is None
        ),
    }
    common["upto"] = _verify_checkpoints(zones.checkpoints, place.identities)
    if online is None:
        sides = Sides(exported=bundle_side(folders, trust), online_known=False, logs=tuple(logs), **common)
        return arrived, replace(sides, reasons=tuple(reasons))
    view, identity = pin(online), find_identity(online, trust)
    if identity is None:
        what = f"{online} is the directory of a hub that no source of the trust list names"
        reasons.append(Reason(Because.COVERAGE, what))
    exports = audit_log(online, ONLINE_LOG, keyring, ONLINE, view)
    reasons += exports.reasons
    exported = tuple(sorted({Exported.of(record) for _, record in exports.records}))
    streams = {bundle.stream_id for bundle in exported}
    expected = make_prefix(online, streams=streams, pinned=view, roots=False)
    labels = {label_range.label for label_range in expected.labels}
    heads: dict[bytes, tuple[int, bytes]] = {}
    for label in sorted(labels | {bundle.label for bundle in exported}):
        try:
            heads |= heads_of(online, {label}, view, identity)
        except VerifyError as exc:
            reasons.append(Reason(Because.EVIDENCE, f"the sending hub's label {label.hex()}: {exc}"))
            heads[label] = view.labels[label].size, b""
        heads.setdefault(label, (0, b""))
    key = None if identity is None else f"ed25519:{identity.current.hub_pk.hex()}"
    logs += [*_read_logs("sending", exports.prefix, names, key), *_read_logs("sending", expected, names, key, heads)]
    sides = Sides(
        exported=exported,
        online_known=True,
        online_writers=exports.writers,
        heads=heads,
        identities=dict.fromkeys(heads, key) if key is not None else {},
        expected=tuple(
            (label_range.stream.stream_id or b"", label_range.stream.epoch, label_range.label)
            for label_range in expected.labels
        ),
        logs=tuple(logs),
        **common,
    )
    for label, chosen in sides.upto.items():
        head, _ = heads.get(label, (0, b""))
        if head < chosen.upto_seq:
            what = f"label {label.hex()[:16]}…: the sending hub has {head} entries, the checkpoint {chosen.upto_seq}"
            reasons.append(Reason(Because.EVIDENCE, what))
        elif (root := root_at(online, view, label, chosen.upto_seq, None)) and root != chosen.mmr_root:
            what = (
                f"label {label.hex()[:16]}…: the sending hub has another root at {chosen.upto_seq} than the checkpoint"
            )
            reasons.append(Reason(Because.EVIDENCE, what))
    roots = {}
    for label, positions in consistent_positions(arrived, sides).items():
        for seq in positions:
            try:
                roots[label, seq] = root_at(online, view, label, seq, identity)
            except VerifyError as exc:
                reasons.append(Reason(Because.EVIDENCE, f"the sending hub's label {label.hex()}, entry {seq}: {exc}"))
    return arrived, replace(sides, roots=roots, reasons=tuple(reasons))


def _verify_checkpoints(
    checkpoints: Sequence[Checkpoint], identities: Sequence[HubIdentity]
) -> dict[bytes, Checkpoint]:
    """Return the checkpoints by label. Raise BridgeError if a source hub of the trust list did not sign one of them."""
    keys = [key.hub_pk for identity in identities for key in identity.keys]
    for checkpoint in checkpoints:
        if not any(_is_signed_by(checkpoint, key) for key in keys):
            raise BridgeError(
                f"the checkpoint of label {checkpoint.label_curr.hex()} is not signed by a source of the trust list:"
                " give a checkpoint of the sending hub (veen checkpoint show STREAM --out FILE)"
            )
    labels = {checkpoint.label_curr: checkpoint for checkpoint in checkpoints}
    if len(labels) != len(checkpoints):
        raise BridgeError("two checkpoints of one label: give the one up to which to compare")
    return labels


def _is_signed_by(checkpoint: Checkpoint, hub_pk: bytes) -> bool:
    """Return True if the key signed the checkpoint."""
    try:
        checkpoint.verify(hub_pk)
    except VerifyError:
        return False
    return True


def _read_logs(
    zone: Literal["sending", "receiving"],
    prefix: Prefix,
    names: Mapping[bytes, str],
    identity: str | None,
    heads: Mapping[bytes, tuple[int, bytes]] | None = None,
) -> Iterator[SideLabel]:
    """Yield the coverage of the labels of a prefix; the directory itself states the heads."""
    for label_range in prefix.labels:
        receipt = label_range.head_receipt
        root = receipt.mmr_root if receipt is not None else b""
        absent = [part.first for part in label_range.slices if part.is_missing]
        stream_id = label_range.stream.stream_id or b""
        yield SideLabel(
            zone=zone,
            hub_id=None if prefix.identity is None else prefix.identity.hub_id,
            stream_id=stream_id,
            stream=names.get(stream_id),
            epoch=label_range.stream.epoch,
            label=label_range.label,
            head=label_range.head,
            root=heads[label_range.label][1] if heads is not None and label_range.label in heads else root,
            read_upto=min(absent) - 1 if absent else label_range.head,
            stated_by=StatedBy.OWN_FILES,
            identity=identity,
        )
