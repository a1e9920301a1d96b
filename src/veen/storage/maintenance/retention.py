"""Retention: payloads are erased after a time, receipts perhaps later, proofs never (COMP0, D-74).

Only whole sealed chunks that were retired are erased, in steps that each leave a directory in order when cut off:

    1  receipts and heads are archived, durable beside the chunk
    2  a retention.drop record is journaled, if the store still is where the plan was: from here on it is decided
    3  the next retirement removes the chunk and marks it in the index, before the journal lets go of the record

Interrupted after 1, an archive is left that the next attempt replaces; after 2, recovery reads the record again and
does 3. A second record for the same chunk erases the archived receipts. Summaries, peaks, checkpoints, nodes and
heads stay, so every proof can still be made.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from veen.core.errors import MalformedError
from veen.core.objects.control import ControlRecord, RetentionDrop
from veen.core.tree.mmr import Mmr
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.control_state import control_records
from veen.storage.copies import archive
from veen.storage.index import ChunkRow, Index
from veen.storage.scan import ScannedEntry, chunk_items

_SUSPICIOUS_SEC: Final = 3600  # two records for a chunk within this time were hardly meant


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Retention periods in seconds after the last entry of a chunk; 0: forever."""

    payload_sec: int = 0  # Rp
    receipt_sec: int = 0  # Rr

    def __post_init__(self) -> None:
        if self.payload_sec < 0 or self.receipt_sec < 0:
            raise MalformedError("a period must not be negative", "retention")
        if self.receipt_sec and not 0 < self.payload_sec <= self.receipt_sec:
            raise MalformedError("receipts must be kept at least as long as payloads", "retention")


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Periods for all labels, with exceptions for some."""

    periods: Periods = field(default_factory=Periods)
    labels: Mapping[bytes, Periods] = field(default_factory=dict)

    def for_label(self, label: bytes) -> Periods:
        return self.labels.get(label, self.periods)


@dataclass(frozen=True, slots=True)
class Erasure:
    """One erasure step of one chunk."""

    label: bytes
    chunk: ChunkRow
    what: Literal["payloads", "receipts"]

    def record(self, dropped: int | None) -> RetentionDrop | None:
        """Return the record of this step, or None if the chunk has changed since the plan was made.

        A record does not name its step: the second one for a chunk erases its receipts. A plan comes from the index,
        which is as old as the last retirement, so `dropped` is the result of `Store.drop_level` when the record is
        written.
        """
        if dropped != self.chunk.dropped:
            return None
        return RetentionDrop(
            label=self.label,
            start_seq=self.chunk.start_seq,
            end_seq=self.chunk.end_seq,
            entry_hashes_root=self.chunk.entry_hashes_root,
        )


@dataclass(frozen=True, slots=True)
class LabelRetention:
    """Retention state of a label."""

    label: bytes
    chunks: int
    payloads_erased: int  # chunks
    receipts_erased: int
    oldest_payload_ts: int | None  # of the first entry whose payload is in a sealed chunk


def plan(index: Index, policy: RetentionPolicy, now: int) -> list[Erasure]:
    """Return the erasures that are due at `now`, oldest first in each label.

    Reads the index only, no chunk (STOR-18).
    """
    steps: list[Erasure] = []
    for label, chunk in index.list_sealed(until=now, dropped=1):
        periods = policy.for_label(label)
        period = periods.receipt_sec if chunk.dropped else periods.payload_sec
        if period and chunk.last_ts <= now - period:
            steps.append(Erasure(label, chunk, "receipts" if chunk.dropped else "payloads"))
    return steps


def prepare(fs: Fs, erasure: Erasure) -> None:
    """Carry out step 1; raise CorruptError if the chunk is damaged: nothing damaged is erased."""
    label, chunk = erasure.label, erasure.chunk
    bounds = (label, chunk.start_seq, chunk.end_seq)
    if erasure.what == "receipts":
        _check(archive.items(fs, *bounds, receipts=True), erasure, layout.heads_archive(*bounds))
        return
    path = layout.chunk(*bounds)
    try:
        entries = _check(chunk_items(fs, path, label), erasure, path)
    except FileNotFoundError as exc:
        raise CorruptError(path, 0, "the file is missing") from exc
    receipts, heads = archive.make(entries)
    fs.replace(layout.receipts_archive(*bounds), receipts)
    fs.replace(layout.heads_archive(*bounds), heads)


def _check(items: Iterable[ScannedEntry], erasure: Erasure, path: str) -> list[ScannedEntry]:
    """Return all entries of the chunk; raise CorruptError unless they match its row."""
    entries, hashes = [], Mmr()
    for item in items:
        entries.append(item)
        hashes.append(item.entry_hash)
    if len(entries) != erasure.chunk.end_seq - erasure.chunk.start_seq + 1:
        raise CorruptError(path, 0, f"holds {len(entries)} entries, not those that its name says")
    if hashes.root() != erasure.chunk.entry_hashes_root:
        raise CorruptError(path, 0, "its entries are not those that were sealed")
    return entries


def apply(
    fs: Fs,
    erasures: Iterable[Erasure],
    journal: Callable[[RetentionDrop], object],
    *,
    dropped: Callable[[bytes, int], int | None],
) -> list[Erasure]:
    """Carry out steps 1 and 2 for each; return those that were done now, not before.

    `dropped` is `Store.drop_level`; `journal` returns only after the record is durable and applied.
    """
    done = []
    for erasure in erasures:
        place = (erasure.label, erasure.chunk.start_seq)
        if erasure.record(dropped(*place)) is None:
            continue
        prepare(fs, erasure)
        if (record := erasure.record(dropped(*place))) is not None:
            journal(record)
            done.append(erasure)
    return done


@dataclass(frozen=True, slots=True)
class ErasedReceipts:
    """A sealed chunk whose receipts were erased, with the times of both records."""

    label: bytes
    start_seq: int
    end_seq: int
    last_ts: int  # hub_ts of its last entry
    payloads_at: int  # hub_ts of the record that erased the payloads
    receipts_at: int  # hub_ts of the record that erased the receipts

    def is_early(self, periods: Periods | None) -> bool:
        """Return True if the policy does not allow it yet; without one, if both went within an hour."""
        if periods is None:
            return self.receipts_at - self.payloads_at < _SUSPICIOUS_SEC
        return not periods.receipt_sec or self.receipts_at < self.last_ts + periods.receipt_sec


def find_erased_receipts(fs: Fs, index: Index) -> list[ErasedReceipts]:
    """Return the chunks whose receipts were erased, by label; for a hub at rest, whose journal is empty."""
    drops: dict[tuple[bytes, int], list[ControlRecord]] = {}
    for _, record in control_records(fs):
        if isinstance(record.body, RetentionDrop):
            drops.setdefault((record.body.label, record.body.start_seq), []).append(record)
    erased = []
    for label, chunk in index.list_sealed(dropped=2):
        records = drops.get((label, chunk.start_seq), [])
        if len(records) > 1:
            times = [record.hub_ts for record in records[:2]]
            erased.append(ErasedReceipts(label, chunk.start_seq, chunk.end_seq, chunk.last_ts, times[0], times[1]))
    return erased


def find_leftovers(fs: Fs, index: Index) -> list[str]:
    """Return erased files that exist again: earlier releases wrote a chunk back when they compressed it."""
    paths = []
    for label, chunk in index.list_sealed(dropped=2):
        bounds = (label, chunk.start_seq, chunk.end_seq)
        if chunk.dropped >= 1:
            paths.append(layout.chunk(*bounds))
        if chunk.dropped >= 2:
            paths.append(layout.receipts_archive(*bounds))
    return [path for path in paths if fs.exists(path)]


def show(index: Index) -> list[LabelRetention]:
    shown = []
    for row in index.labels():
        chunks = index.chunks(row.row)
        times = [chunk.first_ts for chunk in chunks if not chunk.dropped]
        shown.append(
            LabelRetention(
                label=row.label,
                chunks=len(chunks),
                payloads_erased=sum(chunk.dropped >= 1 for chunk in chunks),
                receipts_erased=sum(chunk.dropped >= 2 for chunk in chunks),
                oldest_payload_ts=min(times, default=None),
            )
        )
    return shown
