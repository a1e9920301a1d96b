"""`veen mirror`: attests signed entries of a source hub, or copies its events, in a stream of a target hub.

Everything of the source is verified before anything is forwarded (F1): the signatures of author and hub, I1 to I3, and
that the log continues the history that this mirror and this client saw before. A source that contradicts itself stops
the mirror with both signed statements. Entries that the source has erased are forwarded as a record of a gap.

The target's log is the state: a run finishes the work of an interrupted one, reads the records of its own key there,
and continues behind them. So a run may be killed at any point and started again, without loss and without duplicates.

Index of a copied stream: the originals that the target has, on disk and not in memory.

The log of the target is the state, and this is an index of it: originals with a copy there, and the positions up to
which both streams were read, with their roots. It belongs to two hubs, two streams and the keys whose copies count. If
these differ, or a log has another root, it starts empty and both streams are read from the first entry.

A bridge between two hubs that are both online: it copies streams repeatedly (001 spec-4 §6, K8S-11, K8S-12).

Each pass is `mirroring.copy_stream` for every stream of the keyring that a selector names. The target's log is the
state: after any crash and any number of restarts, an event of the source is in the target once, in the order of the
source, under the keys of the stream. A source that contradicts verified history ends the bridge.
"""

import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from veen.client.client import Client
from veen.client.errors import ClientError, Divergence, HubRefused, UnknownStream
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.read.reading import Entry
from veen.client.read.streams import ErasedRange, is_pruned, read_kept_label
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.client.transport.calls import is_not_found
from veen.core.errors import FormatError, StatedError, VerifyError
from veen.core.event import COPY_SCHEMA, MAX_VIA, copy_body, origin_passed_on
from veen.core.labels import label_of, routing_key_of, schema_id, stream_id_of
from veen.core.objects.captoken import CapToken
from veen.core.objects.evidence import Equivocation, Statement
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import TAG_BYTES
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
from veen.core.wire import Bytes32, Form, Uint, Wire
from veen.overlays.operations.mirror import MIRROR, FederationMirror, attest, hub_identifier

Side = Literal["source", "target"]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS about (streams TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS cuts (
    side TEXT NOT NULL, label BLOB NOT NULL, upto_seq INTEGER NOT NULL, mmr_root BLOB, PRIMARY KEY (side, label)
);
CREATE TABLE IF NOT EXISTS copies (original BLOB PRIMARY KEY, has_origin INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gaps (label BLOB NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS gaps_by_end ON gaps (label, last);
"""
_FORGET: Final = """
BEGIN; DELETE FROM about; DELETE FROM cuts; DELETE FROM copies; DELETE FROM gaps; COMMIT;
"""


class CopyIndex:
    """The index of one copy. Without a database it is in a temporary file."""

    def __init__(self, database: sqlite3.Connection | None = None) -> None:
        self._db = sqlite3.connect("") if database is None else database
        self._db.isolation_level = None
        self._db.executescript(_SCHEMA)

    def begin(self, between: str) -> None:
        """Clear the index unless it belongs to `between`."""
        if self._db.execute("SELECT streams FROM about").fetchone() != (between,):
            self.forget()
            self._db.execute("INSERT INTO about VALUES (?)", (between,))

    def forget(self) -> None:
        self._db.executescript(_FORGET)

    def restart(self, between: str) -> None:
        """Clear the index and assign it to `between`."""
        self.forget()
        self.begin(between)

    def close(self) -> None:
        self._db.close()

    def cuts(self, side: Side) -> dict[bytes, tuple[int, bytes | None]]:
        """Return position and root, by label; no root where the payload was erased."""
        rows = self._db.execute("SELECT label, upto_seq, mmr_root FROM cuts WHERE side = ?", (side,))
        return {label: (upto, root) for label, upto, root in rows}

    def advance(self, side: Side, cuts: Mapping[bytes, tuple[int, bytes | None]]) -> None:
        """Note that these labels are read up to these positions."""
        rows = [(side, label, upto, root) for label, (upto, root) in cuts.items()]
        self._db.executemany("INSERT OR REPLACE INTO cuts VALUES (?, ?, ?, ?)", rows)

    def add_copy(self, original: bytes, *, has_origin: bool) -> None:
        """Note a copy. `has_origin`: it states the hub that its original comes from."""
        self._db.execute(
            "INSERT INTO copies VALUES (?, ?)"
            " ON CONFLICT DO UPDATE SET has_origin = max(has_origin, excluded.has_origin)",
            (original, has_origin),
        )

    def has_copy(self, original: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM copies WHERE original = ?", (original,)).fetchone() is not None

    def has_origin(self, original: bytes) -> bool:
        """Return True if a copy states that it is of this original."""
        sql = "SELECT 1 FROM copies WHERE original = ? AND has_origin"
        return self._db.execute(sql, (original,)).fetchone() is not None

    def add_gap(self, label: bytes, first: int, last: int) -> None:
        self._db.execute("INSERT INTO gaps VALUES (?, ?, ?)", (label, first, last))

    def has_gap(self, label: bytes, seq: int) -> bool:
        sql = "SELECT 1 FROM gaps WHERE label = ? AND last >= ? AND first <= ?"
        return self._db.execute(sql, (label, seq, seq)).fetchone() is not None


_BATCH: Final = 64
_RECEIPT: Final = "receipt"  # in the metadata of a statement: later proof of a contradiction


class MirrorInconsistent(VerifyError, code="E.MIRROR.INCONSISTENT"):
    """The source signs another history than the one mirrored before."""

    def __init__(self, what: str, evidence: Equivocation | None = None) -> None:
        super().__init__(what)
        self.evidence = evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorGap(Wire):
    """veen.mirror.gap.v1: entries of the source that could not be mirrored, and the reason."""

    KIND: ClassVar[str] = "veen.mirror.gap.v1"
    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = 4096

    source_hub_identifier: str
    source_label: Bytes32
    first_seq: Uint
    last_seq: Uint
    reason: str  # pruned: the source has erased it; sealed: no key of the mirror opens it
    mirror_time: Uint | None = None


GAP_SCHEMA: Final = schema_id(MirrorGap.KIND)


@dataclass(slots=True)
class MirrorReport:
    """Result of a run."""

    sent: int = 0
    existed: int = 0
    returned: int = 0  # events that come from the target, or have passed it: not sent there again
    gaps: list[tuple[bytes, int, int, str]] = field(default_factory=list)  # label, first, last, reason; of this run


@dataclass(slots=True)
class _Place:
    """Progress of a label of the source in the target: everything up to `upto` is attested or a known gap."""

    upto: int = 0
    receipt: Receipt | None = None  # of entry `upto`, if that was stated with it
    stated: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)  # seq -> leaf, root; see `_read_places`
    count: int = 0  # of statements that went further than those before


class _Outbox:
    """Sends drafts in batches; a batch is sent whole or finished by the next run."""

    def __init__(
        self,
        target: Client,
        stream: str | bytes,
        capability: CapToken | None,
        report: MirrorReport,
        on_progress: Callable[[MirrorReport], None] | None,
    ) -> None:
        self._target, self._stream, self._capability = target, stream, capability
        self._report, self._on_progress = report, on_progress
        self._drafts: list[Draft] = []

    async def add(self, draft: Draft) -> None:
        self._drafts.append(draft)
        if len(self._drafts) >= _BATCH:
            await self.flush()

    async def flush(self) -> None:
        if not self._drafts:
            return
        outcomes = await self._target.send_many(self._stream, self._drafts, capability=self._capability)
        for outcome in outcomes:
            if not isinstance(outcome, Sent):
                raise outcome
            self._report.sent += 1
        self._drafts.clear()
        if self._on_progress is not None:
            self._on_progress(self._report)


# --- reading the source ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SourceEntry:
    receipt: Receipt
    entry: Entry | None  # None: the payload is erased, the receipt is verified


@dataclass(frozen=True, slots=True)
class _Erased:
    seq: int


async def _labels(source: Client, stream: str | bytes) -> list[tuple[int, bytes]]:
    """Return epoch and label of each log of a stream, by epoch."""
    return sorted((epoch, label) for label, epoch in (await source.labels_of(stream)).items())


async def _entries(
    source: Client, stream: str | bytes, epoch: int, first: int, *, opened: bool
) -> AsyncIterator[_SourceEntry | _Erased]:
    """Yield the verified entries of one label from `first` on, including those with only a receipt left."""
    seq = first
    while True:
        try:
            async for entry in source.read(stream, epoch=epoch, from_seq=seq, open=opened):
                yield _SourceEntry(entry.receipt, entry)
                seq = entry.seq + 1
            return
        except HubRefused as exc:
            if not is_pruned(exc):
                if is_not_found(exc):
                    return  # the label has no entries, or none from here on
                raise
        # The payload of this one is erased: its receipt, with a proof under its root, if that is left.
        try:
            proven = await source.proof(stream, seq, epoch=epoch)
            yield _SourceEntry(proven.receipt, None)
        except HubRefused as exc:
            if not is_pruned(exc):
                raise
            yield _Erased(seq)
        seq += 1


def without_keys(source: Client, name: str) -> str:
    """Return the label that names a stream without known keys, at a hub whose labels do not rotate."""
    return f"label:{label_of(routing_key_of(source.hub_id), stream_id_of(name), 0).hex()}"


# --- attest ------------------------------------------------------------------------------------------------------


async def attest_stream(
    source: Client,
    target: Client,
    source_stream: str | bytes,
    target_stream: str | bytes,
    *,
    now: Callable[[], int],
    capability: CapToken | None = None,
    on_progress: Callable[[MirrorReport], None] | None = None,
) -> MirrorReport:
    """Attest every entry of the source stream in the target stream, each once. Needs no key of the source stream."""
    await target.recover(target_stream)
    places = await _read_places(target, target_stream, hub_identifier(source.hub_id), newest_only=True)
    report = MirrorReport()
    outbox = _Outbox(target, target_stream, capability, report, on_progress)
    identity_pks = tuple(key.hub_pk for key in source.pin.keys)
    for epoch, label in await _labels(source, source_stream):
        place = places.get(label, _Place())
        report.existed += place.count
        gap: list[int] = []
        # From the last stated entry on: it must be the same still.
        async for item in _entries(source, source_stream, epoch, max(place.upto, 1), opened=False):
            if isinstance(item, _Erased):
                if item.seq > place.upto:
                    gap = [gap[0] if gap else item.seq, item.seq]
                continue
            receipt = item.receipt
            if receipt.stream_seq <= place.upto:
                _check_continues(place, receipt, identity_pks)
                continue
            if gap:
                await outbox.add(_gap_draft(source.hub_id, label, gap[0], gap[1], "pruned", now()))
                report.gaps.append((label, gap[0], gap[1], "pruned"))
                gap = []
            await outbox.add(_statement(source.hub_id, item, identity_pks, target.label(target_stream), now()))
        if gap:
            await outbox.add(_gap_draft(source.hub_id, label, gap[0], gap[1], "pruned", now()))
            report.gaps.append((label, gap[0], gap[1], "pruned"))
    await outbox.flush()
    return report


def _statement(hub_id: bytes, item: _SourceEntry, hub_pks: Sequence[bytes], target_label: bytes, now: int) -> Draft:
    receipt, metadata = item.receipt, {_RECEIPT: item.receipt.to_bytes()}
    if item.entry is not None:
        draft = attest(
            item.entry.msg,
            receipt,
            hub_id=hub_id,
            hub_pks=hub_pks,
            target_label=target_label,
            mirror_time=now,
            metadata=metadata,
        )
        return Draft(body=draft.body, schema=draft.schema, parent=draft.parent_id)
    body = FederationMirror(  # the client has verified hub_sig and the proof under the receipt's root
        source_hub_identifier=hub_identifier(hub_id),
        source_label=receipt.label,
        source_stream_seq=receipt.stream_seq,
        source_leaf_hash=receipt.leaf_hash,
        source_receipt_root=receipt.mmr_root,
        target_label=target_label,
        mirror_time=now,
        metadata=metadata,
    )
    draft = MIRROR.draft(body, parent_id=receipt.leaf_hash)
    return Draft(body=draft.body, schema=draft.schema, parent=draft.parent_id)


def _check_continues(place: _Place, receipt: Receipt, hub_pks: Sequence[bytes]) -> None:
    """Raise MirrorInconsistent if the source has a different entry at the last mirrored position."""
    stated = place.stated.get(receipt.stream_seq)
    if stated is None or stated == (receipt.leaf_hash, receipt.mmr_root):
        return
    what = f"entry {receipt.stream_seq} of label {receipt.label.hex()} differs from the one that was mirrored"
    raise MirrorInconsistent(what, equivocation_of(place.receipt, receipt, hub_pks))


def equivocation_of(one: Statement | None, other: Statement, hub_pks: Sequence[bytes]) -> Equivocation | None:
    """Return both statements as proof, if the hub signed both and they contradict each other."""
    if one is None:
        return None
    for one_pk in hub_pks:
        for other_pk in hub_pks:
            try:
                return Equivocation.of(one, other, one_pk=one_pk, other_pk=other_pk)
            except VerifyError:
                continue
    return None


async def _read_places(
    target: Client, stream: str | bytes, source: str, writers: Collection[bytes] = (), *, newest_only: bool = False
) -> dict[bytes, _Place]:
    """Return the statements about a source by this mirror, or by `writers`, by label; other keys are ignored.

    With `newest_only` a place has only its newest statement, so that memory does not grow with the stream.
    """
    places: dict[bytes, _Place] = {}
    believed = writers or target.client_ids
    async for entry in _stream_entries(target, stream):
        if entry.event is None or entry.msg.client_id not in believed:
            continue
        schema = entry.event.hdr.schema
        try:
            if schema == MIRROR.id:
                record = FederationMirror.from_bytes(entry.body)
                if record.source_hub_identifier == source:
                    place = places.setdefault(record.source_label, _Place())
                    _add_statement(place, record)
                    if newest_only:
                        place.stated = {seq: hashes for seq, hashes in place.stated.items() if seq == place.upto}
            elif schema == GAP_SCHEMA:
                gap = MirrorGap.from_bytes(entry.body)
                place = places.setdefault(gap.source_label, _Place())
                if gap.source_hub_identifier == source and gap.last_seq > place.upto:
                    place.upto, place.receipt = gap.last_seq, None
        except FormatError:
            continue
    return places


async def _stream_entries(client: Client, stream: str | bytes) -> AsyncIterator[Entry]:
    """Yield every entry of a stream that can still be read, label by label."""
    for epoch, label in await _labels(client, stream):
        async for item in _readable(client, stream, epoch, label, 1):
            if isinstance(item, _SourceEntry) and item.entry is not None:
                yield item.entry


def _add_statement(place: _Place, record: FederationMirror) -> None:
    seq = record.source_stream_seq
    place.count += seq > place.upto
    place.stated[seq] = (record.source_leaf_hash, record.source_receipt_root)
    if seq <= place.upto:
        return
    raw = record.metadata.get(_RECEIPT) if isinstance(record.metadata, dict) else None
    place.upto, place.receipt = seq, None
    if isinstance(raw, bytes):
        try:
            place.receipt = Receipt.from_bytes(raw)
        except FormatError:
            place.receipt = None


def _gap_draft(hub_id: bytes, label: bytes, first: int, last: int, reason: str, now: int) -> Draft:
    gap = MirrorGap(
        source_hub_identifier=hub_identifier(hub_id),
        source_label=label,
        first_seq=first,
        last_seq=last,
        reason=reason,
        mirror_time=now,
    )
    return Draft(body=gap.to_bytes(), schema=GAP_SCHEMA)


# --- copy --------------------------------------------------------------------------------------------------------


def _index_key(
    source: Client,
    target: Client,
    source_stream: str | bytes,
    target_stream: str | bytes,
    believed: Collection[bytes],
) -> str:
    """Return everything that an index depends on: hubs, streams, reader keys and accepted writers."""
    names = [name if isinstance(name, str) else name.hex() for name in (source_stream, target_stream)]
    readers = [
        keys.reader_pk.hex()
        for client, stream in ((source, source_stream), (target, target_stream))
        for keys in client.keyring.readers(stream)
    ]
    own = sorted(key.hex() for key in target.client_ids)
    return json.dumps([source.hub_id.hex(), target.hub_id.hex(), names, own, sorted(map(bytes.hex, believed)), readers])


async def _check_index(index: CopyIndex, between: str, sides: Mapping[Side, tuple[Client, str | bytes]]) -> None:
    """Clear the index if it belongs to other streams, keys or rules, or if a log has another root at its end."""
    index.begin(between)
    for side, (client, stream) in sides.items():
        epochs = {label: epoch for epoch, label in await _labels(client, stream)}
        for label, (upto, root) in index.cuts(side).items():
            if root is None:
                continue
            try:
                receipt = await client.receipt(stream, upto, epoch=epochs[label]) if label in epochs else None
            except HubRefused as exc:
                if is_pruned(exc):
                    continue  # nothing is left to compare
                if not is_not_found(exc):
                    raise
                receipt = None
            if receipt is None or receipt.mmr_root != root:
                index.restart(between)
                return


async def copy_stream(
    source: Client,
    target: Client,
    source_stream: str | bytes,
    target_stream: str | bytes,
    *,
    now: Callable[[], int],
    capability: CapToken | None = None,
    bridges: Collection[bytes] = (),
    index: CopyIndex | None = None,
    on_progress: Callable[[MirrorReport], None] | None = None,
) -> MirrorReport:
    """Send every event of the source stream into the target stream, each once, with its origin (D-187, D-193).

    Needs a read key of the source and a write key of the target. An event that comes from the target, or has passed it,
    is not sent there again. `bridges` are keys of other bridges: their copies keep the first origin, and those in the
    target count as copied. `index` belongs to earlier runs: only newer entries are read then.
    """
    if index is None:
        index = CopyIndex()
        try:
            return await copy_stream(
                source, target, source_stream, target_stream,
                now=now, capability=capability, bridges=bridges, index=index, on_progress=on_progress,
            )  # fmt: skip
        finally:
            index.close()
    await target.recover(target_stream)
    believed = frozenset((*target.client_ids, *bridges))
    between = _index_key(source, target, source_stream, target_stream, believed)
    await _check_index(index, between, {"source": (source, source_stream), "target": (target, target_stream)})
    is_cut = await _index_copies(index, target, target_stream, hub_identifier(source.hub_id), believed)
    report = MirrorReport()
    outbox = _Outbox(target, target_stream, capability, report, on_progress)
    reached = index.cuts("source")
    for epoch, label in await _labels(source, source_stream):
        gap = _GapRun(source.hub_id, label, outbox, report, now)
        first = reached.get(label, (0, None))[0] + 1
        if is_cut and first == 1:
            first = await _first_copied(source, source_stream, epoch, label, index)
            report.existed += first - 1
        async for item in _entries(source, source_stream, epoch, first, opened=True):
            seq = item.seq if isinstance(item, _Erased) else item.receipt.stream_seq
            reached[label] = (seq, None) if isinstance(item, _Erased) else (seq, item.receipt.mmr_root)
            if not isinstance(item, _Erased) and index.has_copy(item.receipt.leaf_hash):
                report.existed += 1
                continue
            entry = None if isinstance(item, _Erased) else item.entry
            if entry is None or entry.event is None:
                if not index.has_gap(label, seq):
                    await gap.add(seq, "pruned" if entry is None else "sealed")
                continue
            await gap.end()
            draft = _copy_draft(entry, source.hub_id, target.hub_id, believed, target.limits.max_body_bytes)
            if draft is None:
                report.returned += 1
            elif draft.parent is not None and index.has_origin(draft.parent):
                report.existed += 1
            else:
                await outbox.add(draft)
        await gap.end()
    await outbox.flush()
    index.advance("source", reached)
    return report


def _copy_draft(
    entry: Entry, source_hub: bytes, target_hub: bytes, bridges: Collection[bytes], max_body_bytes: int
) -> Draft | None:
    """Return the copy of an entry; None for an event that has passed the target (D-187)."""
    event = entry.event
    assert event is not None  # noqa: S101 - the caller checked it
    is_bridge = event.client_id in bridges
    # A copy as bridges made them before names its original, and not the hub that it comes from.
    original = event.hdr.parent_id if is_bridge and event.origin is None else None
    origin = origin_passed_on(
        event.origin,
        hub_id=source_hub,
        msg_id=original or event.msg_id,
        hub_ts=event.hub_ts,
        ts=event.ts,
        is_bridge=is_bridge,
    )
    if target_hub in origin.hubs or len(origin.via) > MAX_VIA:
        return None
    body = copy_body(event.hdr.schema, event.body, origin)
    if len(body) + TAG_BYTES > max_body_bytes:  # the origin does not fit beside it: a copy as they were before
        return Draft(body=event.body, schema=event.hdr.schema, parent=origin.msg_id, expires_at=event.hdr.expires_at)
    return Draft(body=body, schema=COPY_SCHEMA, parent=origin.msg_id, expires_at=event.hdr.expires_at)


class _GapRun:
    """Consecutive entries of one label that cannot be copied: one record for all of them."""

    def __init__(
        self, hub_id: bytes, label: bytes, outbox: _Outbox, report: MirrorReport, now: Callable[[], int]
    ) -> None:
        self._hub_id, self._label, self._outbox, self._report, self._now = hub_id, label, outbox, report, now
        self._run: tuple[int, int, str] | None = None

    async def add(self, seq: int, reason: str) -> None:
        if self._run is not None and self._run[1:] == (seq - 1, reason):
            self._run = (self._run[0], seq, reason)
            return
        await self.end()
        self._run = (seq, seq, reason)

    async def end(self) -> None:
        if self._run is None:
            return
        first, last, reason = self._run
        await self._outbox.add(_gap_draft(self._hub_id, self._label, first, last, reason, self._now()))
        self._report.gaps.append((self._label, first, last, reason))
        self._run = None


async def _index_copies(
    index: CopyIndex, target: Client, stream: str | bytes, source: str, bridges: Collection[bytes]
) -> bool:
    """Add the copies in the target, by this mirror and by `bridges`, that the index does not have yet.

    Return True if copies may have been erased there that the index does not have.
    """
    is_cut, cuts = False, index.cuts("target")
    for epoch, label in await _labels(target, stream):
        before = cuts.get(label, (0, None))
        async for item in _readable(target, stream, epoch, label, before[0] + 1):
            if isinstance(item, _Erased):
                is_cut = is_cut or not before[0]
                continue
            cuts[label] = item.receipt.stream_seq, item.receipt.mmr_root
            entry = item.entry
            if entry is None or entry.event is None or entry.msg.client_id not in bridges:
                continue
            event = entry.event
            if event.hdr.schema == GAP_SCHEMA:
                try:
                    gap = MirrorGap.from_bytes(event.body)
                except FormatError:
                    continue
                if gap.source_hub_identifier == source and entry.msg.client_id in target.client_ids:
                    index.add_gap(gap.source_label, gap.first_seq, gap.last_seq)
            elif event.hdr.schema != MIRROR.id and event.hdr.parent_id is not None:
                index.add_copy(event.hdr.parent_id, has_origin=event.origin is not None)
    index.advance("target", cuts)
    return is_cut


async def _first_copied(source: Client, stream: str | bytes, epoch: int, label: bytes, index: CopyIndex) -> int:
    """Return the position of the first entry whose copy is still in the target; 1 if none of this label is.

    Copies are made in the order of the source, so all before it were copied and have been erased since.
    """
    async for item in _readable(source, stream, epoch, label, 1):
        if not isinstance(item, _Erased) and index.has_copy(item.receipt.leaf_hash):
            return item.receipt.stream_seq
    return 1


async def _readable(
    client: Client, stream: str | bytes, epoch: int, label: bytes, first: int
) -> AsyncIterator[_SourceEntry | _Erased]:
    """Yield the readable entries of one label from `first` on; an erased run is one `_Erased`."""
    async for item in read_kept_label(client, stream, epoch, label, first):
        yield _Erased(item.first) if isinstance(item, ErasedRange) else _SourceEntry(item.receipt, item)


# --- check -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MirrorCheck:
    """Comparison of a mirror's statements with the receipts of the source (MIRR-03)."""

    compared: int
    erased: int  # receipts that the source no longer has
    missing: tuple[tuple[bytes, int, int], ...]  # label, first, last: entries of the source of which nothing is stated
    coverage: tuple[Coverage, ...] = ()  # by label of the source

    @property
    def verdict(self) -> Verdict:
        """Good if every entry up to the source's head was attested, and every statement compared."""
        reasons = []
        if self.erased:
            what = f"{self.erased} statements were not compared: the source has erased its receipts"
            reasons.append(Reason(Because.COVERAGE, what))
        return Verdict.of(self.coverage, reasons)


async def check_mirror(
    source: Client,
    target: Client,
    source_stream: str | bytes,
    target_stream: str | bytes,
    *,
    writers: Collection[bytes] = (),
) -> MirrorCheck:
    """Compare every statement with the receipt of the source; MirrorInconsistent at the first that differs.

    `writers` are the keys that may state; without any, those of the target's client.
    """
    places = await _read_places(target, target_stream, hub_identifier(source.hub_id), writers)
    identity_pks = tuple(key.hub_pk for key in source.pin.keys)
    compared = erased = 0
    rows: list[Coverage] = []
    missing: list[tuple[bytes, int, int]] = []
    for epoch, label in await _labels(source, source_stream):
        place = places.get(label, _Place())
        size = (await source.checkpoint(source_stream, epoch=epoch)).upto_seq
        for seq in sorted(place.stated):
            if seq > size:
                raise MirrorInconsistent(
                    f"entry {seq} of label {label.hex()} was stated, and the source ends at {size}"
                )
            try:
                receipt = await source.receipt(source_stream, seq, epoch=epoch)
            except HubRefused as exc:
                if not is_pruned(exc):
                    raise
                erased += 1
                continue
            compared += 1
            _check_continues(place, receipt, identity_pks)
        absent = [seq for seq in range(1, size + 1) if seq not in place.stated]
        missing += _runs(label, absent)
        rows.append(
            Coverage(
                log=label.hex(),
                read=absent[0] - 1 if absent else size,
                head=size,
                stated_by=StatedBy.HUB,
                identity=f"ed25519:{identity_pks[-1].hex()}",
            )
        )
    return MirrorCheck(compared, erased, tuple(missing), tuple(rows))


def _runs(label: bytes, numbers: Sequence[int]) -> list[tuple[bytes, int, int]]:
    runs: list[tuple[bytes, int, int]] = []
    for number in numbers:
        if runs and runs[-1][2] == number - 1:
            runs[-1] = (label, runs[-1][1], number)
        else:
            runs.append((label, number, number))
    return runs


class NothingToBridge(StatedError):
    """No stream of the keyring matches the selectors of a bridge."""

    hint = (
        "Add the read keys of the streams to the bridge's keystore: `veen id keyring add`; selectors are as in core/*."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgedStream:
    """Result of one pass for one stream; `error` if it could not be copied and will be retried."""

    stream: str
    sent: int = 0
    existed: int = 0
    gaps: int = 0
    error: ClientError | None = None


def select_streams(keyring: Keyring, selectors: Sequence[str]) -> tuple[StreamKeys, ...]:
    """Return the streams that selectors such as core/* name, each once, by name. Refuse a selector without a match."""
    chosen: dict[bytes, StreamKeys] = {}
    for selector in selectors:
        matching = keyring.find_matching(selector)
        if not matching:
            raise NothingToBridge(f"no stream of the keyring matches {selector!r}")
        chosen |= {keys.stream_id: keys for keys in matching}
    readable = tuple(sorted(chosen.values(), key=lambda keys: str(keys.name)))
    for keys in readable:
        if keys.reader_sk is None:
            raise NothingToBridge(f"the keystore has no read key of {keys.name}")
    return readable


class HubBridge:
    """Copies streams from one connected client to another. Its memory only saves requests."""

    def __init__(
        self,
        source: Client,
        target: Client,
        streams: Sequence[StreamKeys],
        tokens: Sequence[CapToken] = (),
        *,
        now: Callable[[], int],
        bridges: Collection[bytes] = (),
        open_index: Callable[[str], CopyIndex] = lambda stream: CopyIndex(),
    ) -> None:
        """Set up the bridge. `open_index` opens the index that an earlier bridge left for a stream, named in hex."""
        self._source, self._target, self._streams, self._now = source, target, streams, now
        self._tokens = {
            stream_id: token
            for token in tokens
            if token.subject_pk == target.client_id
            for stream_id in token.allow.stream_ids
        }
        self.is_stale = False  # the target is no longer the hub of this connection: connect again
        self._copied: dict[bytes, Mapping[bytes, int]] = {}  # stream -> how long its logs were when all was copied
        self._indexes: dict[bytes, CopyIndex] = {}  # stream -> how far its copy is
        self._open_index = open_index
        self._bridges = frozenset(bridges)

    async def run_once(self) -> list[BridgedStream]:
        """Copy the new events of every stream. Raise Divergence if the source contradicts itself."""
        try:
            status = await self._target.status()
        except ClientError as exc:
            return [BridgedStream(stream=str(keys.name), error=exc) for keys in self._streams]
        if status.hub_pk not in {key.hub_pk for key in self._target.pin.keys}:
            self.is_stale = True  # a disposable hub was replaced, or has its next key
            return []
        return [await self._copy(keys) for keys in self._streams]

    async def _copy(self, keys: StreamKeys) -> BridgedStream:
        stream = str(keys.name)
        try:
            sizes = await self._sizes(stream)
            if self._copied.get(keys.stream_id) == sizes:
                return BridgedStream(stream=stream)
            if keys.stream_id not in self._copied:
                await self._target.recover(stream)
                await self._target.resync(stream)  # the stored numbers of the bridge may be lost
            token = self._tokens.get(keys.stream_id)
            if token is not None:
                await self._target.authorize(token)
            report = await copy_stream(
                self._source,
                self._target,
                stream,
                stream,
                now=self._now,
                capability=token,
                bridges=self._bridges,
                index=self._index(keys.stream_id),
            )
        except (Divergence, UnknownStream):
            raise
        except ClientError as exc:
            return BridgedStream(stream=stream, error=exc)
        self._copied[keys.stream_id] = sizes
        return BridgedStream(stream=stream, sent=report.sent, existed=report.existed, gaps=len(report.gaps))

    def _index(self, stream_id: bytes) -> CopyIndex:
        if stream_id not in self._indexes:
            self._indexes[stream_id] = self._open_index(stream_id.hex())
        return self._indexes[stream_id]

    async def _sizes(self, stream: str) -> dict[bytes, int]:
        """Return the number of entries of each log of a stream at the source."""
        sizes = {}
        for label, epoch in (await self._source.labels_of(stream)).items():
            try:
                sizes[label] = (await self._source.checkpoint(stream, epoch=epoch)).upto_seq
            except HubRefused as exc:
                if not is_not_found(exc):
                    raise
        return sizes
