"""Plans over tables: division of a query's prefix between the typed table of recorder events and the log.

A table answers for a label as far as it is loaded, if it is proven to hold what the log gives there: the root of the
log at that position is the one in the manifest, every entry has its row, entries that are missing or erased now are so
in the table, and the keys that filled it are the reader's. Later entries, and labels without this proof, are answered
from the log. Rows and digest are the same either way.

A manifest that contradicts the log or itself raises TableDamaged.

Evidence needs receipts and signatures, which only the log has: then the table gives the positions of the matches, and
only these are read from the log.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from veen.client.identity.keyring import Keyring
from veen.core.objects.receipt import Receipt
from veen.io.local import Fs
from veen.io.places import open_fs
from veen.io.stores import TableStore
from veen.lake.log.decryption import Skips, in_order, reader_mark
from veen.lake.log.prefix import LabelRange, Prefix, receipt_at
from veen.lake.log.slices import Slice
from veen.lake.query.aggregate import Partial
from veen.lake.query.descriptor import Filter, QueryDescriptor
from veen.lake.query.engine import MatchSource
from veen.lake.query.matches import Match, MatchTally
from veen.lake.query.table_rows import EVENTS, Spans, TableTask, may_have, runs_of, within
from veen.lake.tables.errors import TableDamaged
from veen.lake.tables.index import RowCount
from veen.lake.tables.loading import check_hub
from veen.lake.tables.manifest import DataFile, TableHead, TableLog, TableState
from veen.lake.tables.parts import read_part
from veen.lake.tables.schema import NO_VALUE, definition_of
from veen.overlays.recorder.events import EVENT, EVENTS_TABLE

_RECORDED: Final = EVENT.id.hex()
_MAX_LOOKUP_BYTES: Final = 256 << 20  # of Parquet that the driver reads to find entries whose evidence is asked for
_LEVEL: Final = "hash"  # how far queries check entries, and loads unless told otherwise


class NotProven(Exception):
    """Reason why the tables do not answer for a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """Report of a plan. No part of the digest: every plan gives the same result."""

    source: str  # log, tables, "tables and log", "log by tables"
    tables: str | None = None
    version: int | None = None
    files: int = 0  # of the typed table that were opened
    files_total: int = 0  # of the typed table
    entries_tables: int = 0  # positions of the scope that the tables answer for
    entries_log: int = 0  # positions of the scope that were read from the log
    reasons: tuple[str, ...] = ()  # why the log

    def to_json(self) -> dict[str, Any]:
        names = self.__dataclass_fields__
        return {name: getattr(self, name) for name in names if name != "reasons"} | {"reasons": list(self.reasons)}


def log_plan(prefix: Prefix, *reasons: str) -> PlanReport:
    return PlanReport(
        source="log", entries_log=sum(part.entries for part in prefix.slices if not part.is_missing), reasons=reasons
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """Division of the work between the tables and the log."""

    report: PlanReport
    task: TableTask  # no files if evidence is asked for
    rest: Prefix  # of the log, as if nothing else were asked for
    proven: Prefix | None  # entries that the tables have found, to be read from the log; their skips are in `skips`
    skips: tuple[tuple[bytes, str, int, int], ...]  # of the part that the tables answer

    def add_skips(self, skips: Skips) -> None:
        for label, kind, first_seq, count in self.skips:
            skips.add(label, kind, first_seq, count)


class _LabelFiles(NamedTuple):
    """Files with rows of one label."""

    silver: tuple[DataFile, ...]
    typed: tuple[DataFile, ...]


def plan_tables(
    to: str | TableStore, prefix: Prefix, descriptor: QueryDescriptor, keyring: Keyring
) -> TablePlan | PlanReport:
    """Plan to answer with the tables at `to`; return the report alone if the log answers everything.

    Raise TableDamaged or OtherHub if the tables contradict the log.
    """
    log = TableLog(to)
    state = log.require_state()
    check_hub(state, prefix.identity)
    if state.typed.get(EVENTS) != definition_of(EVENTS_TABLE):
        return log_plan(prefix, f"{EVENTS} is not complete: run `veen table load`")
    prover = _TableProver(log, state, descriptor, keyring, open_fs(prefix.uri))
    skips, spans, ranges, reasons = Skips(), dict[str, tuple[tuple[int, int], ...]](), list[LabelRange](), list[str]()
    for label_range in prefix.labels:
        try:
            upto = prover.prove_label(label_range)
        except NotProven as exc:
            reasons.append(f"label {label_range.label.hex()}: {exc}")
            ranges.append(label_range)
            continue
        spans[label_range.label.hex()] = runs_of(
            (part.first, min(part.last, upto.upto_seq)) for part in label_range.slices if part.first <= upto.upto_seq
        )
        ranges.append(replace(label_range, slices=tuple(_behind(label_range.slices, upto))))
    if not spans:
        return log_plan(prefix, *sorted(reasons))
    for label in spans:
        for kind, first_seq, count in prover.count_skipped(label, spans):
            skips.add(bytes.fromhex(label), kind, first_seq, count)
    files = prover.files_of(spans)
    rest = replace(prefix, labels=tuple(ranges))
    return _with_evidence(prefix, descriptor, TableTask(log.store, files, spans), rest, state, reasons, skips)


def _with_evidence(
    prefix: Prefix,
    descriptor: QueryDescriptor,
    task: TableTask,
    rest: Prefix,
    state: TableState,
    reasons: list[str],
    skips: Skips,
) -> TablePlan | PlanReport:
    files, proven = task.files, None
    if descriptor.evidence.mode != "none":
        if sum(file.size for file in files) > _MAX_LOOKUP_BYTES:
            return log_plan(prefix, *sorted(reasons), "evidence is asked for, and too many files can have rows")
        proven = _narrow_to_matches(prefix, task, descriptor)
        task = replace(task, files=())
    from_log = [part for source in (rest, proven) if source is not None for part in source.slices]
    from_log = [part for part in from_log if not part.is_missing]
    covered = sum(last - first + 1 for runs in task.spans.values() for first, last in runs)
    source = "log by tables" if proven is not None else "tables and log" if from_log else "tables"
    report = PlanReport(
        source=source,
        tables=task.store.uri,
        version=state.version,
        files=len(files),
        files_total=len(state.of(EVENTS)),
        entries_tables=covered,
        entries_log=sum(part.entries for part in from_log),
        reasons=tuple(sorted(reasons)),
    )
    tree = tuple((label, kind, first_seq, count) for label, kind, first_seq, count in skips.to_tree())
    return TablePlan(report=report, task=task, rest=rest, proven=proven, skips=tree)


def _behind(slices: Iterable[Slice], upto: TableHead) -> Iterator[Slice]:
    """Yield the slices behind the tables, with ts* there. Omit holes: `execute` counts them anyway."""
    for part in slices:
        if part.last > upto.upto_seq and not part.is_missing:
            yield part._replace(first=max(part.first, upto.upto_seq + 1), before_ts=max(part.before_ts, upto.ts))


def _narrow_to_matches(prefix: Prefix, task: TableTask, descriptor: QueryDescriptor) -> Prefix:
    """Return the slices with a match, from the first to the last match in each, with ts* from the table."""
    positions: dict[bytes, list[tuple[int, int]]] = {}
    for label, seq, ts in task.positions(descriptor):
        positions.setdefault(label, []).append((seq, ts))
    labels = []
    for label_range in prefix.labels:
        candidates = iter(sorted(positions.get(label_range.label, ())))
        narrowed: list[Slice] = []
        candidate = next(candidates, None)
        for part in label_range.slices:
            inside = []
            while candidate is not None and candidate[0] <= part.last:
                inside.append(candidate)
                candidate = next(candidates, None)
            if inside:
                narrowed.append(part._replace(first=inside[0][0], last=inside[-1][0], before_ts=inside[0][1]))
        if narrowed:
            labels.append(replace(label_range, slices=tuple(narrowed)))
    return replace(prefix, labels=tuple(labels))


# --- sources --------------------------------------------------------------------------------------------------------


class TableSource:
    """Matches from files of the table, in one process."""

    def __init__(self, task: TableTask, descriptor: QueryDescriptor) -> None:
        self._task, self._descriptor = task, descriptor

    def matches(self, skips: Skips) -> Iterator[Match]:
        """Yield the matches. The plan has the counts of skipped entries."""
        return self._task.matches(self._descriptor)

    def groups(self, skips: Skips) -> None:
        return None


class PlannedSource:
    """The matches of a plan: of one or more sources in one order, with the skipped entries of the plan."""

    def __init__(self, plan: TablePlan, sources: Sequence[MatchSource], proven: MatchSource | None = None) -> None:
        """Combine sources. `proven` reads entries found by the tables, which have counted its skipped ones."""
        self._plan, self._sources, self._proven = plan, sources, proven

    def matches(self, tally: MatchTally) -> Iterator[Match]:
        self._plan.add_skips(tally)
        of_proven = MatchTally()
        parts = [source.matches(tally) for source in self._sources]
        if self._proven is not None:
            parts.append(self._proven.matches(of_proven))
        yield from in_order((0, part) for part in parts)
        tally.left_out += of_proven.left_out

    def groups(self, tally: MatchTally) -> Iterator[tuple[bytes, Partial]] | None:
        if len(self._sources) != 1 or self._proven is not None:
            return None
        merged = self._sources[0].groups(tally)
        if merged is not None:
            self._plan.add_skips(tally)
        return merged


# --- proof ----------------------------------------------------------------------------------------------------------


class _TableProver:
    """Comparison of one version of the tables with a prefix of the log. Lives for one plan."""

    def __init__(self, log: TableLog, state: TableState, descriptor: QueryDescriptor, keyring: Keyring, fs: Fs) -> None:
        self._log, self._state, self._keyring, self._fs = log, state, keyring, fs
        self._chosen = descriptor.filter
        self._silver, self._typed = _by_label(state.of("silver")), _by_label(state.of(EVENTS))

    def _files(self, label: str) -> _LabelFiles:
        return _LabelFiles(tuple(self._silver.get(label, ())), tuple(self._typed.get(label, ())))

    def prove_label(self, label_range: LabelRange) -> TableHead:
        """Return the head up to which the tables are proven to hold what the log gives.

        Raise NotProven if they are not, and TableDamaged for a contradiction.
        """
        label = label_range.label.hex()
        head = self._state.heads.get(label)
        if head is None:
            raise NotProven("not in the tables")
        if head.upto_seq > label_range.head:
            raise NotProven(f"the tables have {head.upto_seq} entries, this log {label_range.head}")
        if head.root_seq != head.upto_seq:
            raise NotProven("the last entry that was loaded has no root")
        stream_id = label_range.stream.stream_id or b""
        if self._state.readers.get(stream_id.hex()) != reader_mark(self._keyring, stream_id, _LEVEL):
            raise NotProven("loaded with other keys, another --verify, or by an earlier release")
        self._check_root(label_range, head)
        self._check_counts(label, label_range, head)
        return head

    def _check_root(self, label_range: LabelRange, head: TableHead) -> None:
        receipt: Receipt | None
        if head.upto_seq == label_range.head:
            receipt = label_range.head_receipt
        else:
            receipt = receipt_at(self._fs, label_range.chunks, head.upto_seq)
        if receipt is None:
            raise NotProven(f"the log has no root at entry {head.upto_seq}")
        if receipt.mmr_root.hex() != head.mmr_root or receipt.hub_ts > head.ts:
            raise self._lie(
                label_range.label.hex(),
                f"root {head.mmr_root} and time {head.ts} at entry {head.upto_seq}; the log has "
                f"{receipt.mmr_root.hex()} and {receipt.hub_ts}",
            )

    def _check_counts(self, label: str, label_range: LabelRange, head: TableHead) -> None:
        files = self._files(label)
        if any(file.file_index is None for file in (*files.silver, *files.typed)):
            raise NotProven("files of an earlier release have no index")
        silver, typed = _sum_counts(files.silver, label), _sum_counts(files.typed, label)
        if sum(silver.values()) != head.upto_seq:
            raise self._lie(label, f"{head.upto_seq} entries are loaded, and has {sum(silver.values())} rows of silver")
        if sum(typed.values()) != silver.get(_RECORDED, 0):
            raise self._lie(
                label, f"{silver.get(_RECORDED, 0)} recorder events, and has {sum(typed.values())} rows of {EVENTS}"
            )
        ends = [last for file in files.silver for other, _, last in file.labels if other == label]
        if max(ends, default=0) != head.upto_seq:
            raise self._lie(label, f"{head.upto_seq} entries are loaded, and ends at {max(ends, default=0)}")
        missing = sum(
            min(part.last, head.upto_seq) - part.first + 1
            for part in label_range.slices
            if part.is_missing and part.first <= head.upto_seq
        )
        erased = sum(
            min(chunk.end_seq, head.upto_seq) - chunk.start_seq + 1
            for chunk in label_range.chunks
            if chunk.kind in ("receipts", "heads") and chunk.start_seq <= head.upto_seq
        )
        if missing != silver.get("missing", 0):
            raise NotProven(f"{missing} entries are missing in the log, {silver.get('missing', 0)} in the tables")
        if erased != silver.get("erased", 0):
            raise NotProven(
                f"{erased} entries are erased in the log, {silver.get('erased', 0)} in the tables: `veen table erase`"
            )
        if erased and (self._chosen.first_ts is not None or self._chosen.last_ts is not None):
            raise NotProven("times of erased entries are asked for")
        if NO_VALUE in typed or any(_has_nulls(file, "hub_time") for file in files.typed):
            raise NotProven("an event has a value that the typed table cannot hold")

    def _lie(self, label: str, claim: str) -> TableDamaged:
        return TableDamaged(f"{self._log.store.uri}: manifest {self._state.version} says of label {label}: {claim}")

    # --- what the tables answer --------------------------------------------------------------------------

    def files_of(self, spans: Spans) -> tuple[DataFile, ...]:
        """Return the files of the typed table that can have rows for the query, each once."""
        by_path: dict[str, DataFile] = {}
        for label, runs in spans.items():
            for file in self._typed.get(label, ()):
                if file.path not in by_path and _meets(file, label, runs) and may_have(file.file_index, self._chosen):
                    by_path[file.path] = file
        return tuple(by_path[path] for path in sorted(by_path))

    def count_skipped(self, label: str, spans: Spans) -> Iterator[tuple[str, int, int]]:
        """Yield (kind, first position, number) of entries that become no row, as reading the log counts them."""
        files = self._files(label)
        for table, listed in (("silver", files.silver), (EVENTS, files.typed)):
            for file in listed:
                if not _meets(file, label, spans[label]):
                    continue
                counts = [count for count in _index_counts(file, label) if _kind_of(table, count.kind) is not None]
                if not counts or not self._may_be_in_time(table, file):
                    continue
                spanned = next((first, last) for other, first, last in file.labels if other == label)
                if not within(spans, label, *spanned) or not self._is_in_time(table, file):
                    counts = _count_rows(table, read_part(self._log.store, table, file), label, spans, self._chosen)
                for count in counts:
                    if (kind := _kind_of(table, count.kind)) is not None:
                        yield kind, count.first_seq, count.rows

    def _may_be_in_time(self, table: str, file: DataFile) -> bool:
        first, last = self._chosen.first_ts, self._chosen.last_ts
        times = _times_of(table, file)
        if times is None or times.nulls:
            return True
        return (first is None or times.may_be(">=", first)) and (last is None or times.may_be("<=", last))

    def _is_in_time(self, table: str, file: DataFile) -> bool:
        """Return True if all rows are in the time of the query; rows without a time are."""
        first, last = self._chosen.first_ts, self._chosen.last_ts
        times = _times_of(table, file)
        if (first is None and last is None) or times is None or times.least is None:
            return first is None and last is None
        return self._chosen.takes_time(int(times.least)) and self._chosen.takes_time(int(times.greatest or 0))


def _by_label(files: Iterable[DataFile]) -> Mapping[str, Sequence[DataFile]]:
    by_label: dict[str, list[DataFile]] = {}
    for file in files:
        for label, _, _ in file.labels:
            by_label.setdefault(label, []).append(file)
    return by_label


def _index_counts(file: DataFile, label: str) -> list[RowCount]:
    return [] if file.file_index is None else [count for count in file.file_index.counts if count.label == label]


def _sum_counts(files: Iterable[DataFile], label: str) -> dict[str, int]:
    """Return the number of rows of a label of each kind."""
    sums: dict[str, int] = {}
    for file in files:
        for count in _index_counts(file, label):
            sums[count.kind] = sums.get(count.kind, 0) + count.rows
    return sums


def _kind_of(table: str, kind: str) -> str | None:
    """Return the reason under which a query counts rows of this kind; None for rows, or those counted elsewhere."""
    if table == EVENTS:
        return "malformed" if kind else None
    if kind in (_RECORDED, "missing"):
        return None
    return "schema" if len(kind) == len(_RECORDED) else kind


def _times_of(table: str, file: DataFile) -> Any:
    return None if file.file_index is None else file.file_index.columns.get("hub_time" if table == EVENTS else "hub_ts")


def _has_nulls(file: DataFile, column: str) -> bool:
    return file.file_index is None or column not in file.file_index.columns or file.file_index.columns[column].nulls > 0


def _meets(file: DataFile, label: str, runs: Iterable[tuple[int, int]]) -> bool:
    return any(file.has(label, first, last) for first, last in runs)


def _count_rows(table: str, rows: Any, label: str, spans: Spans, chosen: Filter) -> list[RowCount]:
    """Count the rows in range and time, in the form of an index."""
    totals: dict[str, RowCount] = {}
    for row in rows.select(_NEEDED[table]).to_pylist():
        seq = row["stream_seq"]
        if row["label"].hex() != label or not within(spans, label, seq, seq):
            continue
        kind: str = row["issue"] or "" if table == EVENTS else row["reason"] or row["schema"].hex()
        hub_ts: int | None = int(row["hub_time"].timestamp()) if table == EVENTS else row["hub_ts"]
        if hub_ts is not None and not chosen.takes_time(hub_ts):
            continue
        before = totals.get(kind, RowCount(label, kind, 0, seq))
        totals[kind] = before._replace(rows=before.rows + 1, first_seq=min(before.first_seq, seq))
    return list(totals.values())


_NEEDED: Final = {
    EVENTS: ["label", "stream_seq", "hub_time", "issue"],
    "silver": ["label", "stream_seq", "hub_ts", "reason", "schema"],
}
