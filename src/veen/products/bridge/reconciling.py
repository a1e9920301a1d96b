"""Reconciliation: compares exports of one zone with imports of the other (001 products §4.7, §4.8, §5.2).

Imports are folded from the import streams into a summary whose merge is associative and commutative, so one process and
any number of Spark tasks make the same report, byte for byte. An imported event is checked without the other zone: it
carries the receipt that the origin's hub signed. The record of exports comes from bridge/online/log, or, in the
receiving zone alone, from the headers of the bundles that arrived.

    J1  every event of an import stream has exactly one origin: a receipt of the source hub, imported once
    J2  every event of a bundle that is audited as imported exists
    J3  no key that writes in the receiving zone writes in the sending zone, as far as the two audit streams show
    K1  every imported event has its bundle on bridge/online/log and on bridge/offline/log
    K2  up to `consistent_upto` both zones have the same log; entries behind it are listed
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from veen.client.identity.keyring import Keyring
from veen.core import canonical, cbor
from veen.core.crypto.ed25519 import SigningKey, verify
from veen.core.errors import VerifyError
from veen.core.hashing import Ht
from veen.core.labels import stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.verdict import Because, Coverage, Outcome, Reason, StatedBy, Verdict
from veen.io.errors import CorruptError, StorageError
from veen.io.places import open_fs
from veen.lake.log.decryption import Opener, Unread, reader_of
from veen.lake.log.prefix import Prefix, make_prefix
from veen.lake.log.slices import Slice
from veen.lake.query.engine import skip_missing
from veen.overlays.airgap.bodies import ImportedEvent, OfflineRecord, OnlineRecord, read_crossed
from veen.overlays.framework.schema import AnySchema, Issue, Typed, decode
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.bridge.runs import NO_POSITIONS, Positions, Run, gaps_of, size, union
from veen.storage.attachments import AttachmentFiles
from veen.storage.pinned import LogView

Answer = Literal["ok", "violated", "unknown"]
BridgedLabel = tuple[bytes, bytes]  # a bridge, and a label of the hub that it comes from
_FORM: Final = "agb.report.v1"
MAX_WRITERS: Final = 4_096
_BROKEN: Final = frozenset(("damaged", "malformed"))  # entries that differ from what was written


# --- imports: a monoid ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BundleSeen:
    """Events of one bundle in the import streams."""

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
            union(self.withheld, other.withheld),
            self.attachments + other.attachments,
            union(self.incomplete, other.incomplete),
        )


# Label and entry in the receiving zone, and the fault; the smallest is the first counter-example.
Fault = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Arrived:
    """A summary of import streams. `merge` is associative and commutative; `Arrived()` is its unit."""

    labels: Mapping[BridgedLabel, LabelSeen] = field(default_factory=dict)
    bundles: Mapping[bytes, BundleSeen] = field(default_factory=dict)
    writers: frozenset[bytes] = frozenset()
    entries: int = 0
    faults: int = 0  # entries that are evidence against the bridge
    first_fault: Fault | None = None
    has_more_writers: bool = False  # than `writers` lists
    unread: int = 0  # entries that could not be checked: no file, no key, or no identity of their hub
    first_unread: Fault | None = None

    def merge(self, other: "Arrived") -> "Arrived":
        firsts = [fault for fault in (self.first_fault, other.first_fault) if fault is not None]
        unread = [fault for fault in (self.first_unread, other.first_unread) if fault is not None]
        writers = self.writers | other.writers
        return Arrived(
            {
                label: self.labels.get(label, LabelSeen()).merge(other.labels.get(label, LabelSeen()))
                for label in self.labels.keys() | other.labels.keys()
            },
            {
                bundle_id: self.bundles.get(bundle_id, BundleSeen()).merge(other.bundles.get(bundle_id, BundleSeen()))
                for bundle_id in self.bundles.keys() | other.bundles.keys()
            },
            frozenset(sorted(writers)[:MAX_WRITERS]),
            self.entries + other.entries,
            self.faults + other.faults,
            min(firsts, default=None),
            self.has_more_writers or other.has_more_writers or len(writers) > MAX_WRITERS,
            self.unread + other.unread,
            min(unread, default=None),
        )

    def to_bytes(self) -> bytes:
        def runs(value: Iterable[Run]) -> list[list[int]]:
            return [list(run) for run in value]

        return cbor.encode(
            [
                [
                    [
                        bridge_id,
                        label,
                        summary.stream_id,
                        summary.epoch,
                        runs(summary.crossed.once),
                        runs(summary.crossed.twice),
                        runs(summary.withheld),
                        summary.attachments,
                        runs(summary.incomplete),
                    ]
                    for (bridge_id, label), summary in sorted(self.labels.items())
                ],
                [
                    [bundle_id, runs(summary.positions.once), runs(summary.positions.twice), list(summary.last)]
                    for bundle_id, summary in sorted(self.bundles.items())
                ],
                sorted(self.writers),
                self.entries,
                self.faults,
                None if self.first_fault is None else list(self.first_fault),
                self.has_more_writers,
                self.unread,
                None if self.first_unread is None else list(self.first_unread),
            ]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Arrived":
        labels, bundles, writers, entries, faults, first, more, unread, first_unread = cbor.decode(
            data, what="arrived", max_bytes=len(data), max_items=len(data) + 1
        )

        def runs(value: Any) -> tuple[Run, ...]:
            return tuple((begin, end) for begin, end in value)

        return cls(
            {
                (bridge_id, label): LabelSeen(
                    stream_id, epoch, Positions(runs(once), runs(twice)), runs(withheld), attachments, runs(incomplete)
                )
                for bridge_id, label, stream_id, epoch, once, twice, withheld, attachments, incomplete in labels
            },
            {
                bundle_id: BundleSeen(Positions(runs(once), runs(twice)), (last[0], last[1], last[2]))
                for bundle_id, once, twice, last in bundles
            },
            frozenset(writers),
            entries,
            faults,
            None if first is None else (first[0], first[1], first[2]),
            more,
            unread,
            None if first_unread is None else (first_unread[0], first_unread[1], first_unread[2]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """The import streams and the hub identities that verify their origins. Travels to executors without keys."""

    uri: str
    identities: tuple[HubIdentity, ...]  # of source hubs


def fold_slices(offline: Offline, keyring: Keyring, slices: Sequence[Slice]) -> Arrived:
    """Return the summary of some slices of import streams."""
    fs, opener = open_fs(offline.uri), Opener(keyring)
    identities = {identity.hub_id: identity for identity in offline.identities}
    folder = _Folder(identities, AttachmentFiles(fs))
    for part in slices:
        if part.is_missing:  # counted at once, however many entries a file name claims
            folder.unread(part.label, part.first, "the entry is missing", part.entries)
    for event in opener.events(fs, skip_missing(slices)):
        if isinstance(event, Unread):
            note = folder.fault if event.reason in _BROKEN else folder.unread
            note(event.label, event.stream_seq, f"the entry is {event.reason}")
        else:
            folder.take(event.label, event.stream_seq, event.client_id, read_crossed(event))
    return folder.done()


class _Folder:
    """Collects single events and turns them into runs at the end of a part."""

    def __init__(self, identities: Mapping[bytes, HubIdentity], store: AttachmentFiles) -> None:
        self._identities, self._store = identities, store
        self._labels: dict[BridgedLabel, tuple[bytes, int, list[int], list[int]]] = {}
        self._attachments: Counter[BridgedLabel] = Counter()
        self._incomplete: dict[BridgedLabel, list[int]] = {}
        self._bundles: dict[bytes, tuple[list[int], tuple[int, int, bytes]]] = {}
        self._writers: set[bytes] = set()
        self._entries = self._faults = self._unread = 0
        self._first: Fault | None = None
        self._first_unread: Fault | None = None

    def fault(self, label: bytes, seq: int, what: str, count: int = 1) -> None:
        self._entries += count
        self._faults += count
        place: Fault = (label.hex(), seq, what)
        self._first = place if self._first is None else min(self._first, place)

    def unread(self, label: bytes, seq: int, what: str, count: int = 1) -> None:
        self._entries += count
        self._unread += count
        place: Fault = (label.hex(), seq, what)
        self._first_unread = place if self._first_unread is None else min(self._first_unread, place)

    def take(self, label: bytes, seq: int, client_id: bytes, crossed: Any) -> None:
        if crossed is None:
            return self.fault(label, seq, "the event was not brought by a bridge")
        if isinstance(crossed, Issue):
            return self.fault(label, seq, f"{crossed.code}: {crossed.what}")
        body = crossed.body
        receipt = body.receipt
        identity = self._identities.get(body.origin_hub_id)
        if identity is None:
            return self.unread(label, seq, f"its source hub {body.origin_hub_id.hex()} is not known")
        try:
            identity.verify_receipt(receipt)
        except VerifyError as exc:
            return self.fault(label, seq, f"origin_receipt: {exc}")
        if isinstance(body, ImportedEvent) and not verify(body.origin_client, body.origin_digest, body.origin_sig):
            return self.fault(label, seq, "origin_sig is not by origin_client")
        self._entries += 1
        self._writers.add(client_id)
        key = (body.bridge_id, receipt.label)
        _, _, crossed_at, withheld_at = self._labels.setdefault(key, (body.origin_stream_id, body.origin_epoch, [], []))
        crossed_at.append(receipt.stream_seq)
        if not isinstance(body, ImportedEvent):
            withheld_at.append(receipt.stream_seq)
        elif body.attachments:
            self._attachments[key] += len(body.attachments)
            if not all(has_attachment(self._store, coid) for coid in body.attachments):
                self._incomplete.setdefault(key, []).append(receipt.stream_seq)
        positions, last = self._bundles.get(body.bundle_id, ([], (0, 0, b"")))
        positions.append(body.position)
        self._bundles[body.bundle_id] = positions, max(last, (receipt.stream_seq, receipt.hub_ts, receipt.mmr_root))
        return None

    def done(self) -> Arrived:
        return Arrived(
            {
                key: LabelSeen(
                    stream_id,
                    epoch,
                    Positions.of(crossed),
                    Positions.of(withheld).once,
                    self._attachments[key],
                    Positions.of(self._incomplete.get(key, [])).once,
                )
                for key, (stream_id, epoch, crossed, withheld) in self._labels.items()
            },
            {
                bundle_id: BundleSeen(Positions.of(positions), last)
                for bundle_id, (positions, last) in self._bundles.items()
            },
            frozenset(sorted(self._writers)[:MAX_WRITERS]),
            self._entries,
            self._faults,
            self._first,
            len(self._writers) > MAX_WRITERS,
            self._unread,
            self._first_unread,
        )


def has_attachment(store: AttachmentFiles, coid: bytes) -> bool:
    """Return True if the store has an attachment, undamaged."""
    try:
        return store.get(coid) is not None
    except (CorruptError, StorageError):
        return False


def import_prefix(uri: str, keyring: Keyring, view: LogView | None = None) -> Prefix:
    """Return the import streams that the keyring can read."""
    streams = {keys.stream_id for keys in keyring.find_matching("import/*") if keys.can_read}
    return make_prefix(uri, streams=streams, pinned=view)


def fold_imports(offline: Offline, keyring: Keyring, prefix: Prefix | None = None) -> Arrived:
    """Fold the import streams in one process, slice after slice, so that memory holds one slice."""
    arrived = Arrived()
    for part in (prefix or import_prefix(offline.uri, keyring)).slices:
        arrived = arrived.merge(fold_slices(offline, keyring, [part]))
    return arrived


# --- exports ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Exported:
    """A bundle as the sending zone recorded it."""

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
class SideLabel:
    """One log of a zone: the position read, the head and its source, and the root there."""

    zone: Literal["sending", "receiving"]
    hub_id: bytes | None
    stream_id: bytes
    stream: str | None  # its name, if the reader's keys have one
    epoch: int
    label: bytes
    head: int | None
    root: bytes
    read_upto: int
    stated_by: StatedBy
    identity: str | None  # the key that the root was checked under

    def to_json(self) -> dict[str, Any]:
        return {
            "hub_id": None if self.hub_id is None else self.hub_id.hex(),
            "stream_id": self.stream_id.hex(),
            "stream": self.stream,
            "epoch": self.epoch,
            "label": self.label.hex(),
            "head": self.head,
            "root": self.root.hex(),
            "read_upto": self.read_upto,
            "stated_by": self.stated_by.value,
        }

    def coverage(self) -> Coverage:
        return Coverage(
            log=f"{self.zone} zone: {self.stream or self.stream_id.hex()} ({self.label.hex()[:16]}…)",
            read=self.read_upto,
            head=self.head,
            stated_by=self.stated_by,
            identity=self.identity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """All inputs of a report except the imports."""

    exported: tuple[Exported, ...]
    offline: tuple[OfflineRecord, ...]
    online_known: bool  # whether `exported` is from bridge/online/log; else from bundles that arrived
    online_writers: frozenset[bytes] = frozenset()
    offline_writers: frozenset[bytes] = frozenset()
    heads: Mapping[bytes, tuple[int, bytes]] = field(default_factory=dict)  # of the source hub: last seq, and its root
    roots: Mapping[tuple[bytes, int], bytes] = field(default_factory=dict)  # of the source hub, at positions in between
    stated_by: StatedBy = StatedBy.OWN_FILES  # who states `heads`
    identities: Mapping[bytes, str] = field(default_factory=dict)  # label -> the key that `heads` were checked under
    expected: tuple[tuple[bytes, int, bytes], ...] = ()  # stream_id, epoch and label of exported streams at the source
    logs: tuple[SideLabel, ...] = ()  # audit streams, import streams and the exported labels: what was read of them
    reasons: tuple[Reason, ...] = ()  # what was found wrong while reading
    audited_since: frozenset[bytes] = frozenset()  # bundles whose audit record came after the audit stream was read
    upto: Mapping[bytes, Checkpoint] = field(default_factory=dict)  # label -> the export checkpoint that was chosen


@dataclass(frozen=True, slots=True)
class AuditLog:
    """The records of an audit stream, each with the client that wrote it, and the faults of the others."""

    records: tuple[tuple[bytes, Any], ...]
    reasons: tuple[Reason, ...]
    prefix: Prefix

    @property
    def writers(self) -> frozenset[bytes]:
        return frozenset(client_id for client_id, _ in self.records)


def audit_log(uri: str, stream: str, keyring: Keyring, schema: AnySchema, view: LogView | None = None) -> AuditLog:
    """Read an audit stream of a data directory. Unreadable records become reasons; other schemas are ignored."""
    fs, stream_id = open_fs(uri), stream_id_of(stream)
    reader_of(keyring, stream_id)  # a stream without keys must not pass as an empty one
    prefix = make_prefix(uri, streams={stream_id}, pinned=view)
    records: list[tuple[bytes, Any]] = []
    bad: Counter[str] = Counter()
    first: dict[str, int] = {}
    for part in prefix.slices:
        if part.is_missing:
            bad["missing"] += part.entries
            first.setdefault("missing", part.first)
    for event in Opener(keyring).events(fs, skip_missing(prefix.slices)):
        if isinstance(event, Unread):
            problem = event.reason
        elif event.hdr.schema != schema.id:
            continue
        else:
            record = decode(event, schema)
            if isinstance(record, Typed):
                records.append((event.client_id, record.body))
                continue
            problem = "malformed"
        bad[problem] += 1
        first.setdefault(problem, event.stream_seq)
    reasons = tuple(
        Reason(
            Because.EVIDENCE if problem == "damaged" else Because.COVERAGE,
            f"{stream}: {count} records are {problem}, the first at {first[problem]}",
        )
        for problem, count in sorted(bad.items())
    )
    return AuditLog(tuple(records), reasons, prefix)


def audit_records(uri: str, stream: str, keyring: Keyring, schema: AnySchema) -> Iterator[tuple[bytes, Any]]:
    """Return the records of an audit stream in a data directory, each with the client that wrote it."""
    return iter(audit_log(uri, stream, keyring, schema).records)


# --- the report ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BridgeReport:
    """A report. `data` is signed: canonical JSON, equal for equal logs on any machine."""

    data: dict[str, Any]

    @property
    def is_clean(self) -> bool:
        return bool(self.data["clean"])

    @property
    def verdict(self) -> Verdict:
        """The verdict of the report; `clean` means that it is good."""
        return Verdict.from_json(self.data["verdict"])

    @property
    def has_bad_evidence(self) -> bool:
        return self.verdict.value is Outcome.BAD

    def to_bytes(self) -> bytes:
        return canonical.encode(self.data)


def sign_report(report: BridgeReport, key: SigningKey) -> dict[str, Any]:
    """Return the report with a signature over Ht("veen/bridge-report", canonical JSON)."""
    signature = key.sign(Ht("veen/bridge-report", report.to_bytes()))
    return {"report": report.data, "signer_pk": key.public.hex(), "signature": signature.hex()}


def reconcile(arrived: Arrived, sides: Sides) -> BridgeReport:
    """Build the report. Pure: equal inputs give equal bytes."""
    done = _find_imported(sides)
    streams = [_stream_report(key, exported, arrived, sides, done) for key, exported in _by_bridge(sides)]
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
        "K2": _k2(streams),
    }
    verdict = _judge(arrived, sides, streams, strangers, invariants)
    return BridgeReport(
        {
            "form": _FORM,
            "online_known": sides.online_known,
            "imported_entries": arrived.entries,
            "faults": arrived.faults,
            "unread": arrived.unread,
            "logs": {
                zone: [log.to_json() for log in sides.logs if log.zone == zone] for zone in ("sending", "receiving")
            },
            "streams": streams,
            "unknown_bundles": [bundle_id.hex() for bundle_id in strangers],
            "rejected": rejected,
            "invariants": invariants,
            "clean": verdict.is_good,
            "verdict": verdict.to_json(),
        }
    )


# The kind of reason of a violated invariant: bad evidence, or less than was requested.
_WEIGHT: Final = {
    "J1": Because.EVIDENCE,
    "J2": Because.EVIDENCE,
    "J3": Because.POLICY,
    "K1": Because.COVERAGE,
    "K2": Because.EVIDENCE,
}
_WORDS: Final = {
    "J1": "an imported event has no good origin, or was imported twice",
    "J2": "a bundle is audited as imported, and events of it are not there",
    "J3": "a key writes in both zones",
    "K1": "an imported bundle is not on both audit streams",
    "K2": "the two zones have two histories",
}
_LACKS: Final = {
    "missing_bundles": "bundles that did not arrive: {}",
    "missing_events": "events that did not arrive: {}",
    "missing_attachments": "events whose attachments are not all there: {}",
    "partial": "bundles of which a part arrived: {}",
}


def _judge(
    arrived: Arrived,
    sides: Sides,
    streams: Sequence[Mapping[str, Any]],
    strangers: Sequence[bytes],
    invariants: Mapping[str, Mapping[str, Any]],
) -> Verdict:
    """Return the verdict: evidence first, then missing items, then the coverage of each log."""
    reasons = list(sides.reasons)
    for name, row in invariants.items():
        if row["verdict"] == "violated":
            reasons.append(Reason(_WEIGHT[name], f"{name}: {_WORDS[name]}: {row['first']}"))
    if arrived.first_unread is not None:
        label, seq, what = arrived.first_unread
        text = f"{arrived.unread} entries were not compared, the first at {seq} of {label}: {what}"
        reasons.append(Reason(Because.COVERAGE, text))
    if arrived.has_more_writers:
        reasons.append(Reason(Because.COVERAGE, f"J3: more than {MAX_WRITERS} keys write in the receiving zone"))
    if strangers and not sides.online_known:
        reasons.append(Reason(Because.COVERAGE, f"{len(strangers)} imported bundles are in none of the folders"))
    for stream in streams:
        reasons += [
            Reason(Because.COVERAGE, f"label {stream['label'][:16]}…: {words.format(stream[name])}")
            for name, words in _LACKS.items()
            if stream[name]
        ]
        if sides.online_known and stream["consistent_upto"]["seq"] and stream["root_matches"] is None:
            reasons.append(
                Reason(Because.COVERAGE, f"label {stream['label'][:16]}…: the root of the sending hub was not read")
            )
    if not streams:
        reasons.append(Reason(Because.COVERAGE, "the sending side records no bundle: nothing was compared"))
    rows = [log.coverage() for log in sides.logs]
    rows += [
        Coverage(
            log=f"crossed: label {stream['label'][:16]}… by bridge {stream['bridge_id'][:16]}…",
            read=stream["consistent_upto"]["seq"],
            head=stream["head"],
            stated_by=StatedBy.NOBODY if stream["head"] is None else StatedBy(stream["stated_by"]),
            identity=sides.identities.get(bytes.fromhex(stream["label"])),
        )
        for stream in streams
    ]
    return Verdict.of(rows, reasons)


def _find_imported(sides: Sides) -> set[bytes | None]:
    return {record.bundle_id for record in sides.offline if record.result in ("imported", "resumed")}


def consistent_positions(arrived: Arrived, sides: Sides) -> dict[bytes, set[int]]:
    """Return, by label of the origin, the positions up to which both zones agree: their roots can be compared."""
    done = _find_imported(sides)
    positions: dict[bytes, set[int]] = {}
    for (_, label), bundles in _by_bridge(sides):
        seq = _consistent(bundles, arrived, done)["seq"]
        if seq:
            positions.setdefault(label, set()).add(seq)
    return positions


def _by_bridge(sides: Sides) -> list[tuple[BridgedLabel, list[Exported]]]:
    """Return bundles up to the chosen checkpoints, by bridge and label; also labels without an export yet."""
    labels: dict[BridgedLabel, list[Exported]] = {}
    for bundle in sorted(sides.exported, key=lambda each: (each.stream_id, each.epoch, each.label, each.bundle_seq)):
        chosen = sides.upto.get(bundle.label)
        if chosen is None or bundle.seq_from <= chosen.upto_seq:
            labels.setdefault((bundle.bridge_id, bundle.label), []).append(bundle)
    bridges = sorted({(bundle.bridge_id, bundle.stream_id) for bundle in sides.exported})
    for stream_id, _, label in sides.expected:
        for bridge_id, exported_id in bridges:
            if exported_id == stream_id:
                labels.setdefault((bridge_id, label), [])
    return list(labels.items())


def _stream_report(
    key: BridgedLabel, bundles: Sequence[Exported], arrived: Arrived, sides: Sides, done: set[bytes | None]
) -> dict[str, Any]:
    bridge_id, label = key
    summary = arrived.labels.get(key, LabelSeen())
    chosen = sides.upto.get(label)
    ends = [bundle.seq_to if chosen is None else min(bundle.seq_to, chosen.upto_seq) for bundle in bundles]
    exported = union((bundle.seq_from, end) for bundle, end in zip(bundles, ends, strict=True) if bundle.count)
    last = exported[-1][1] if exported else 0
    numbers = union((bundle.bundle_seq, bundle.bundle_seq) for bundle in bundles)
    partial = [
        {"bundle_id": bundle.bundle_id.hex(), "events": bundle.count, "imported": count}
        for bundle in bundles
        if 0 < (count := _count(arrived, bundle.bundle_id)) < bundle.count
    ]
    absent = [bundle for bundle in bundles if bundle.bundle_id not in done and not _count(arrived, bundle.bundle_id)]
    unrecorded = gaps_of(numbers, 1, numbers[-1][1]) if numbers else ()
    # Alone, the receiving zone knows of the source what the signed bundles state.
    head, root = sides.heads.get(label, (last if bundles else None, b""))
    stated_by = sides.stated_by if label in sides.heads else StatedBy.FILE
    if chosen is not None:
        head, root, stated_by = chosen.upto_seq, chosen.mmr_root, StatedBy.CHECKPOINT
    consistent = _consistent(bundles, arrived, done)
    where = next(((s, e) for s, e, each in sides.expected if each == label), None)
    stream_id, epoch = (bundles[0].stream_id, bundles[0].epoch) if bundles else where or (b"", 0)
    return {
        "bridge_id": bridge_id.hex(),
        "stream_id": stream_id.hex(),
        "epoch": epoch,
        "label": label.hex(),
        "head": head,
        "stated_by": stated_by.value,
        "exported": _runs(exported),
        "imported": _runs(summary.crossed.once),
        "withheld": _runs(summary.withheld),
        "missing_bundles": [*(bundle.bundle_seq for bundle in absent), *_numbers(unrecorded)],
        "missing_events": _runs(gaps_of(summary.crossed.once, 1, last)),
        "attachments": summary.attachments,
        "missing_attachments": _runs(summary.incomplete),
        "duplicates": _runs(summary.crossed.twice),
        "partial": partial,
        "consistent_upto": consistent,
        "gaps_beyond": _runs(((last + 1, head),) if head is not None and head > last else ()),
        "root_matches": _matches(consistent, sides, label),
        "root_at_head_matches": _matches(consistent, sides, label) if root and consistent["seq"] == head else None,
    }


def _matches(consistent: Mapping[str, Any], sides: Sides, label: bytes) -> bool | None:
    """Return True if the source hub's own root equals that of the imported receipts; None if it cannot be compared."""
    seq = consistent["seq"]
    head, root = sides.heads.get(label, (0, b""))
    if label in sides.upto:
        head, root = sides.upto[label].upto_seq, sides.upto[label].mmr_root
    own = sides.roots.get((label, seq)) or (root if seq == head else b"")
    return bool(consistent["root"] == own.hex()) if own and seq else None


def _consistent(bundles: Sequence[Exported], arrived: Arrived, done: set[bytes | None]) -> dict[str, Any]:
    """Return the end of the last bundle up to which every bundle is complete, audited on this side, and not doubled
    (K2).
    """
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


def _verdict(verdict: Answer, example: Any = None) -> dict[str, Any]:
    return {"verdict": verdict, "first": example}


def _j1(arrived: Arrived) -> dict[str, Any]:
    if arrived.first_fault is not None:
        label, seq, what = arrived.first_fault
        return _verdict("violated", {"label": label, "stream_seq": seq, "what": what})
    for (_, origin), summary in sorted(arrived.labels.items()):
        if summary.crossed.twice:
            return _verdict("violated", {"origin_label": origin.hex(), "origin_seq": summary.crossed.twice[0][0]})
    return _verdict("unknown" if arrived.unread else "ok")


def _j2(arrived: Arrived, sides: Sides, done: set[bytes | None]) -> dict[str, Any]:
    for record in sides.offline:
        if record.bundle_id in done and record.bundle_id is not None and record.result in ("imported", "resumed"):
            gaps = gaps_of(arrived.bundles.get(record.bundle_id, BundleSeen()).positions.once, 0, record.count - 1)
            if gaps and arrived.unread:  # they may be among the entries that could not be read
                return _verdict("unknown", {"bundle_id": record.bundle_id.hex(), "position": gaps[0][0]})
            if gaps:
                return _verdict("violated", {"bundle_id": record.bundle_id.hex(), "position": gaps[0][0]})
    return _verdict("ok")


def _j3(arrived: Arrived, sides: Sides) -> dict[str, Any]:
    if not sides.online_known:
        return _verdict("unknown")
    both = sorted((arrived.writers | sides.offline_writers) & sides.online_writers)
    if both:
        return _verdict("violated", {"client_id": both[0].hex()})
    return _verdict("unknown" if arrived.has_more_writers else "ok")


def _k1(arrived: Arrived, sides: Sides, recorded: set[bytes], done: set[bytes | None]) -> dict[str, Any]:
    for bundle_id in sorted(arrived.bundles):
        if bundle_id not in done and bundle_id not in sides.audited_since:
            return _verdict("violated", {"bundle_id": bundle_id.hex(), "missing": OFFLINE_LOG})
        if sides.online_known and bundle_id not in recorded:
            return _verdict("violated", {"bundle_id": bundle_id.hex(), "missing": ONLINE_LOG})
    return _verdict("ok" if sides.online_known else "unknown")


def _k2(streams: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    for stream in streams:
        if stream["root_matches"] is False:
            return _verdict("violated", {"label": stream["label"], "seq": stream["consistent_upto"]["seq"]})
    return _verdict("ok")
