"""Reconciliation: what left one zone against what arrived in the other (001 products §4.7, §4.8, §5.2).

What arrived is folded from the import streams into a summary whose merge is associative and commutative, so one process
and any number of Spark tasks make the same report, byte for byte. An imported event needs no look into the other zone
to be judged: it carries the receipt that the origin's hub signed. The record of what left comes from bridge/online/log,
or, in the receiving zone alone, from the headers of the bundles that arrived.

    J1  every event of an import stream has exactly one origin: a receipt of the source hub, imported once
    J2  every event of a bundle that is audited as imported is there
    J3  no key that writes in the receiving zone writes in the sending zone, as far as the two audit streams show
    K1  every imported event has its bundle on bridge/online/log and on bridge/offline/log
    K2  up to `consistent_upto` both zones have the same log; what lies behind is listed
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from veen.client.identity.keyring import Keyring
from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey, verify
from veen.core.errors import FormatError, VerifyError
from veen.core.hashing import Ht
from veen.core.objects.identity import HubIdentity
from veen.fs.errors import CorruptError, StorageError
from veen.fs.places import open_fs
from veen.log.decryption import Opener, Unread, reader_of
from veen.log.prefix import Prefix, make_prefix
from veen.log.slices import Slice
from veen.overlays.airgap.bodies import ImportedEvent, OfflineRecord, OnlineRecord, read_crossed
from veen.overlays.framework.decode import Issue
from veen.products.airgap.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.airgap.runs import NO_POSITIONS, Positions, Run, joined, missing, size
from veen.query import canonical
from veen.query.engine import present
from veen.storage.attachments import AttachmentFiles

Verdict = Literal["ok", "violated", "unknown"]
_FORM: Final = "agb.report.v1"
_MAX_WRITERS: Final = 4_096


# --- what arrived: a monoid ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BundleSeen:
    """Events of one bundle that stand in import streams."""

    positions: Positions = NO_POSITIONS
    last: tuple[int, int, bytes] = (0, 0, b"")  # seq, hub_ts and root of the last one, by the origin's receipt

    def merge(self, other: "BundleSeen") -> "BundleSeen":
        return BundleSeen(self.positions.merge(other.positions), max(self.last, other.last))


@dataclass(frozen=True, slots=True)
class LabelSeen:
    """Events of one label of the origin."""

    stream_id: bytes = b""
    epoch: int = 0
    crossed: Positions = NO_POSITIONS
    withheld: tuple[Run, ...] = ()
    attachments: int = 0  # that crossed
    incomplete: tuple[Run, ...] = ()  # events whose attachments are not all in the store of the receiving zone

    def merge(self, other: "LabelSeen") -> "LabelSeen":
        named = self if self.stream_id else other
        return LabelSeen(
            named.stream_id,
            named.epoch,
            self.crossed.merge(other.crossed),
            joined(self.withheld, other.withheld),
            self.attachments + other.attachments,
            joined(self.incomplete, other.incomplete),
        )


# The place in the receiving zone and what is wrong there; the smallest is the first counter-example.
Fault = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A summary of import streams. `merge` is associative and commutative; `Arrived()` is its unit."""

    labels: Mapping[bytes, LabelSeen] = field(default_factory=dict)
    bundles: Mapping[bytes, BundleSeen] = field(default_factory=dict)
    writers: frozenset[bytes] = frozenset()
    entries: int = 0
    faults: int = 0
    first_fault: Fault | None = None

    def merge(self, other: "Arrived") -> "Arrived":
        firsts = [fault for fault in (self.first_fault, other.first_fault) if fault is not None]
        return Arrived(
            {
                label: self.labels.get(label, LabelSeen()).merge(other.labels.get(label, LabelSeen()))
                for label in self.labels.keys() | other.labels.keys()
            },
            {
                bundle_id: self.bundles.get(bundle_id, BundleSeen()).merge(other.bundles.get(bundle_id, BundleSeen()))
                for bundle_id in self.bundles.keys() | other.bundles.keys()
            },
            frozenset(sorted(self.writers | other.writers)[:_MAX_WRITERS]),
            self.entries + other.entries,
            self.faults + other.faults,
            min(firsts, default=None),
        )

    def to_bytes(self) -> bytes:
        def runs(value: Iterable[Run]) -> list[list[int]]:
            return [list(run) for run in value]

        return cbor.encode(
            [
                [
                    [
                        label,
                        summary.stream_id,
                        summary.epoch,
                        runs(summary.crossed.once),
                        runs(summary.crossed.twice),
                        runs(summary.withheld),
                        summary.attachments,
                        runs(summary.incomplete),
                    ]
                    for label, summary in sorted(self.labels.items())
                ],
                [
                    [bundle_id, runs(summary.positions.once), runs(summary.positions.twice), list(summary.last)]
                    for bundle_id, summary in sorted(self.bundles.items())
                ],
                sorted(self.writers),
                self.entries,
                self.faults,
                None if self.first_fault is None else list(self.first_fault),
            ]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Arrived":
        labels, bundles, writers, entries, faults, first = cbor.decode(
            data, what="arrived", max_bytes=len(data), max_items=len(data) + 1
        )

        def runs(value: Any) -> tuple[Run, ...]:
            return tuple((begin, end) for begin, end in value)

        return cls(
            {
                label: LabelSeen(
                    stream_id, epoch, Positions(runs(once), runs(twice)), runs(withheld), attachments, runs(incomplete)
                )
                for label, stream_id, epoch, once, twice, withheld, attachments, incomplete in labels
            },
            {
                bundle_id: BundleSeen(Positions(runs(once), runs(twice)), (last[0], last[1], last[2]))
                for bundle_id, once, twice, last in bundles
            },
            frozenset(writers),
            entries,
            faults,
            None if first is None else (first[0], first[1], first[2]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """Where the import streams are, and by whose keys their origins are judged. Travels to executors without keys."""

    uri: str
    identities: tuple[HubIdentity, ...]  # of source hubs


def fold_slices(offline: Offline, keyring: Keyring, slices: Sequence[Slice]) -> Arrived:
    """The summary of some slices of import streams."""
    fs, opener = open_fs(offline.uri), Opener(keyring)
    identities = {identity.hub_id: identity for identity in offline.identities}
    folder = _Folder(identities, AttachmentFiles(fs))
    for part in slices:
        if part.is_missing:  # counted at once, however many entries a file name claims
            folder.fault(part.label, part.first, "the entry is missing", part.entries)
    for event in opener.events(fs, present(slices)):
        if isinstance(event, Unread):
            folder.fault(event.label, event.stream_seq, f"the entry is {event.reason}")
        else:
            folder.take(event.label, event.stream_seq, event.client_id, read_crossed(event))
    return folder.done()


class _Folder:
    """Gathers single events; turned into runs at the end of a part."""

    def __init__(self, identities: Mapping[bytes, HubIdentity], store: AttachmentFiles) -> None:
        self._identities, self._store = identities, store
        self._labels: dict[bytes, tuple[bytes, int, list[int], list[int]]] = {}
        self._attachments: Counter[bytes] = Counter()  # by label of the origin
        self._incomplete: dict[bytes, list[int]] = {}
        self._bundles: dict[bytes, tuple[list[int], tuple[int, int, bytes]]] = {}
        self._writers: set[bytes] = set()
        self._entries = self._faults = 0
        self._first: Fault | None = None

    def fault(self, label: bytes, seq: int, what: str, count: int = 1) -> None:
        self._entries += count
        self._faults += count
        place: Fault = (label.hex(), seq, what)
        self._first = place if self._first is None else min(self._first, place)

    def take(self, label: bytes, seq: int, client_id: bytes, crossed: Any) -> None:
        if crossed is None:
            return self.fault(label, seq, "the event was not brought by a bridge")
        if isinstance(crossed, Issue):
            return self.fault(label, seq, f"{crossed.code}: {crossed.what}")
        body = crossed.body
        receipt = body.receipt
        identity = self._identities.get(body.origin_hub_id)
        if identity is None:
            return self.fault(label, seq, f"its source hub {body.origin_hub_id.hex()} is not known")
        try:
            identity.verify_receipt(receipt)
        except VerifyError as exc:
            return self.fault(label, seq, f"origin_receipt: {exc}")
        if isinstance(body, ImportedEvent) and not verify(body.origin_client, body.origin_digest, body.origin_sig):
            return self.fault(label, seq, "origin_sig is not by origin_client")
        self._entries += 1
        self._writers.add(client_id)
        _, _, crossed_at, withheld_at = self._labels.setdefault(
            receipt.label, (body.origin_stream_id, body.origin_epoch, [], [])
        )
        crossed_at.append(receipt.stream_seq)
        if not isinstance(body, ImportedEvent):
            withheld_at.append(receipt.stream_seq)
        elif body.attachments:
            self._attachments[receipt.label] += len(body.attachments)
            if not all(has_attachment(self._store, coid) for coid in body.attachments):
                self._incomplete.setdefault(receipt.label, []).append(receipt.stream_seq)
        positions, last = self._bundles.get(body.bundle_id, ([], (0, 0, b"")))
        positions.append(body.position)
        self._bundles[body.bundle_id] = positions, max(last, (receipt.stream_seq, receipt.hub_ts, receipt.mmr_root))
        return None

    def done(self) -> Arrived:
        return Arrived(
            {
                label: LabelSeen(
                    stream_id,
                    epoch,
                    Positions.of(crossed),
                    Positions.of(withheld).once,
                    self._attachments[label],
                    Positions.of(self._incomplete.get(label, [])).once,
                )
                for label, (stream_id, epoch, crossed, withheld) in self._labels.items()
            },
            {
                bundle_id: BundleSeen(Positions.of(positions), last)
                for bundle_id, (positions, last) in self._bundles.items()
            },
            frozenset(self._writers),
            self._entries,
            self._faults,
            self._first,
        )


def has_attachment(store: AttachmentFiles, coid: bytes) -> bool:
    """Whether the store has an attachment, undamaged."""
    try:
        return store.get(coid) is not None
    except (CorruptError, StorageError):
        return False


def import_prefix(uri: str, keyring: Keyring) -> Prefix:
    """The import streams that the keyring can read."""
    streams = {keys.stream_id for keys in keyring.matching("import/*") if keys.can_read}
    return make_prefix(uri, streams=streams)


def arrived_in(offline: Offline, keyring: Keyring) -> Arrived:
    """One process: slice after slice, so that memory holds one slice."""
    arrived = Arrived()
    for part in import_prefix(offline.uri, keyring).slices:
        arrived = arrived.merge(fold_slices(offline, keyring, [part]))
    return arrived


# --- what left -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Exported:
    """A bundle, as the sending zone recorded it."""

    bridge_id: bytes
    label: bytes
    bundle_seq: int
    bundle_id: bytes
    stream_id: bytes
    epoch: int
    seq_from: int
    seq_to: int
    count: int
    withheld: int

    @classmethod
    def of(cls, record: OnlineRecord) -> "Exported":
        return cls(
            bridge_id=record.bridge_id,
            label=record.label,
            bundle_seq=record.bundle_seq,
            bundle_id=record.bundle_id,
            stream_id=record.export_stream_id,
            epoch=record.epoch,
            seq_from=record.seq_from,
            seq_to=record.seq_to,
            count=record.count,
            withheld=record.withheld,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """All that a report is made from, besides what arrived."""

    exported: tuple[Exported, ...]
    offline: tuple[OfflineRecord, ...]
    online_known: bool  # whether `exported` is from bridge/online/log; else from bundles that arrived
    online_writers: frozenset[bytes] = frozenset()
    offline_writers: frozenset[bytes] = frozenset()
    heads: Mapping[bytes, tuple[int, bytes]] = field(default_factory=dict)  # of the source hub: last seq, and its root


def audit_records(uri: str, stream: str, keyring: Keyring, body: Any) -> Iterator[tuple[bytes, Any]]:
    """The records of an audit stream in a data directory, each with the client that wrote it; others are passed by."""
    from veen.core.labels import stream_id_of

    fs, stream_id = open_fs(uri), stream_id_of(stream)
    reader_of(keyring, stream_id)  # a stream without keys must not pass as an empty one
    for event in Opener(keyring).events(fs, present(make_prefix(uri, streams={stream_id}).slices)):
        if isinstance(event, Unread):
            continue
        try:
            yield event.client_id, body.from_bytes(event.body)
        except FormatError:
            continue


def online_side(uri: str, keyring: Keyring) -> tuple[tuple[Exported, ...], frozenset[bytes]]:
    """Bundles by bridge/online/log; a record that a crash wrote twice counts once."""
    records = list(audit_records(uri, ONLINE_LOG, keyring, OnlineRecord))
    return tuple(sorted({Exported.of(record) for _, record in records})), frozenset(client for client, _ in records)


def offline_side(uri: str, keyring: Keyring) -> tuple[tuple[OfflineRecord, ...], frozenset[bytes]]:
    records = list(audit_records(uri, OFFLINE_LOG, keyring, OfflineRecord))
    return tuple(record for _, record in records), frozenset(client for client, _ in records)


# --- the report ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BridgeReport:
    """`data` is what is signed: canonical JSON, equal for equal logs whoever computes it."""

    data: dict[str, Any]

    @property
    def is_clean(self) -> bool:
        return bool(self.data["clean"])

    @property
    def has_bad_evidence(self) -> bool:
        return bool(self.data["invariants"]["J1"]["verdict"] == "violated")

    def to_bytes(self) -> bytes:
        return canonical.encode(self.data)


def signed_report(report: BridgeReport, key: SigningKey) -> dict[str, Any]:
    """The report with a signature over Ht("veen/bridge-report", canonical JSON)."""
    signature = key.sign(Ht("veen/bridge-report", report.to_bytes()))
    return {"report": report.data, "signer_pk": key.public.hex(), "signature": signature.hex()}


def reconcile(arrived: Arrived, sides: Sides) -> BridgeReport:
    """The report. Pure: two callers with equal inputs get equal bytes."""
    done = {record.bundle_id for record in sides.offline if record.result in ("imported", "resumed")}
    streams = [_stream_report(label, exported, arrived, sides, done) for label, exported in _by_label(sides.exported)]
    recorded = {exported.bundle_id for exported in sides.exported}
    strangers = sorted(bundle_id for bundle_id in arrived.bundles if bundle_id not in recorded)
    rejected = [
        {
            "bundle_id": None if record.bundle_id is None else record.bundle_id.hex(),
            "code": record.code,
            "position": record.position,
            "detail": record.detail,
        }
        for record in sides.offline
        if record.result == "rejected"
    ]
    invariants = {
        "J1": _j1(arrived),
        "J2": _j2(arrived, sides, done),
        "J3": _j3(arrived, sides),
        "K1": _k1(arrived, sides, recorded, done),
        "K2": _k2(streams, sides),
    }
    problems = any(
        stream[name]
        for stream in streams
        for name in ("missing_bundles", "missing_events", "missing_attachments", "duplicates", "partial", "gaps_beyond")
    )
    violated = any(invariant["verdict"] == "violated" for invariant in invariants.values())
    return BridgeReport(
        {
            "form": _FORM,
            "online_known": sides.online_known,
            "imported_entries": arrived.entries,
            "faults": arrived.faults,
            "streams": streams,
            "unknown_bundles": [bundle_id.hex() for bundle_id in strangers],
            "rejected": rejected,
            "invariants": invariants,
            "clean": not problems and not violated and not strangers,
        }
    )


def _by_label(exported: Sequence[Exported]) -> list[tuple[bytes, list[Exported]]]:
    labels: dict[bytes, list[Exported]] = {}
    for bundle in sorted(exported, key=lambda each: (each.stream_id, each.epoch, each.label, each.bundle_seq)):
        labels.setdefault(bundle.label, []).append(bundle)
    return list(labels.items())


def _stream_report(
    label: bytes, bundles: Sequence[Exported], arrived: Arrived, sides: Sides, done: set[bytes | None]
) -> dict[str, Any]:
    summary = arrived.labels.get(label, LabelSeen())
    exported = joined((bundle.seq_from, bundle.seq_to) for bundle in bundles if bundle.count)
    last = exported[-1][1] if exported else 0
    numbers = joined((bundle.bundle_seq, bundle.bundle_seq) for bundle in bundles)
    partial = [
        {"bundle_id": bundle.bundle_id.hex(), "events": bundle.count, "imported": count}
        for bundle in bundles
        if 0 < (count := _count(arrived, bundle.bundle_id)) < bundle.count
    ]
    absent = [bundle for bundle in bundles if bundle.bundle_id not in done and not _count(arrived, bundle.bundle_id)]
    unrecorded = missing(numbers, 1, numbers[-1][1]) if numbers else ()
    head, root = sides.heads.get(label, (last, b""))
    consistent = _consistent(bundles, arrived, done)
    return {
        "stream_id": bundles[0].stream_id.hex(),
        "epoch": bundles[0].epoch,
        "label": label.hex(),
        "exported": _runs(exported),
        "imported": _runs(summary.crossed.once),
        "withheld": _runs(summary.withheld),
        "missing_bundles": [*(bundle.bundle_seq for bundle in absent), *_numbers(unrecorded)],
        "missing_events": _runs(missing(summary.crossed.once, 1, last)),
        "attachments": summary.attachments,
        "missing_attachments": _runs(summary.incomplete),
        "duplicates": _runs(summary.crossed.twice),
        "partial": partial,
        "consistent_upto": consistent,
        "gaps_beyond": _runs(((last + 1, head),) if head > last else ()),
        "root_at_head_matches": _matches(consistent, head, root),
    }


def _matches(consistent: Mapping[str, Any], head: int, root: bytes) -> bool | None:
    """Whether the source hub's own root is that of the receipts that crossed; None where it cannot be compared."""
    if not root or consistent["seq"] != head:
        return None
    return bool(consistent["root"] == root.hex())


def _consistent(bundles: Sequence[Exported], arrived: Arrived, done: set[bytes | None]) -> dict[str, Any]:
    """The end of the last bundle up to which every bundle is whole, audited on this side, and not doubled (K2)."""
    seq, ts, root = 0, 0, b""
    for bundle in bundles:
        if bundle.bundle_id not in done or bundle.seq_from != seq + 1:
            break
        if bundle.count:
            summary = arrived.bundles.get(bundle.bundle_id, BundleSeen())
            if size(summary.positions.once) != bundle.count or summary.positions.twice:
                break
            seq, ts, root = summary.last
    return {"seq": seq, "time": ts, "root": root.hex()}


def _count(arrived: Arrived, bundle_id: bytes) -> int:
    return size(arrived.bundles.get(bundle_id, BundleSeen()).positions.once)


def _runs(runs: Iterable[Run]) -> list[list[int]]:
    return [list(run) for run in runs]


def _numbers(runs: Iterable[Run]) -> list[int]:
    return [number for first, last in runs for number in range(first, last + 1)]


def _verdict(verdict: Verdict, example: Any = None) -> dict[str, Any]:
    return {"verdict": verdict, "first": example}


def _j1(arrived: Arrived) -> dict[str, Any]:
    if arrived.first_fault is not None:
        label, seq, what = arrived.first_fault
        return _verdict("violated", {"label": label, "stream_seq": seq, "what": what})
    for origin, summary in sorted(arrived.labels.items()):
        if summary.crossed.twice:
            return _verdict("violated", {"origin_label": origin.hex(), "origin_seq": summary.crossed.twice[0][0]})
    return _verdict("ok")


def _j2(arrived: Arrived, sides: Sides, done: set[bytes | None]) -> dict[str, Any]:
    for record in sides.offline:
        if record.bundle_id in done and record.bundle_id is not None and record.result in ("imported", "resumed"):
            gaps = missing(arrived.bundles.get(record.bundle_id, BundleSeen()).positions.once, 0, record.count - 1)
            if gaps:
                return _verdict("violated", {"bundle_id": record.bundle_id.hex(), "position": gaps[0][0]})
    return _verdict("ok")


def _j3(arrived: Arrived, sides: Sides) -> dict[str, Any]:
    if not sides.online_known:
        return _verdict("unknown")
    both = sorted((arrived.writers | sides.offline_writers) & sides.online_writers)
    return _verdict("violated", {"client_id": both[0].hex()}) if both else _verdict("ok")


def _k1(arrived: Arrived, sides: Sides, recorded: set[bytes], done: set[bytes | None]) -> dict[str, Any]:
    for bundle_id in sorted(arrived.bundles):
        if bundle_id not in done:
            return _verdict("violated", {"bundle_id": bundle_id.hex(), "missing": OFFLINE_LOG})
        if sides.online_known and bundle_id not in recorded:
            return _verdict("violated", {"bundle_id": bundle_id.hex(), "missing": ONLINE_LOG})
    return _verdict("ok" if sides.online_known else "unknown")


def _k2(streams: Sequence[Mapping[str, Any]], sides: Sides) -> dict[str, Any]:
    for stream in streams:
        if stream["root_at_head_matches"] is False:
            return _verdict("violated", {"label": stream["label"], "seq": stream["consistent_upto"]["seq"]})
    return _verdict("ok")
