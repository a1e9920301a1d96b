"""Matches from files of the typed table of recorder events: the same values as from the log, without decryption.

A row of the table has all fields of the event and its place, so it makes the same match (`veen.lake.query.matches`).
The indexes of files exclude files without rows. The filter of the query, and the positions that the plan assigns to the
tables, select the rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veen.core import canonical
from veen.core.canonical import Json
from veen.core.event import Order
from veen.io.stores import TableStore
from veen.lake.log.decryption import in_order
from veen.lake.query.clauses import TIME_FIELDS, FieldCondition
from veen.lake.query.descriptor import Filter, QueryDescriptor
from veen.lake.query.fields import RecordedEvent, seconds_of
from veen.lake.query.matches import Match, match_of, takes
from veen.lake.tables.index import FileIndex
from veen.lake.tables.manifest import DataFile
from veen.lake.tables.parts import read_part
from veen.overlays.recorder.events import EVENTS_TABLE

EVENTS: Final = EVENTS_TABLE.name
Spans = Mapping[str, Sequence[tuple[int, int]]]  # by label in hex: runs of positions, in order
_ORDER: Final = ("ts", "stream_id", "epoch", "stream_seq", "leaf_hash")
_COLUMNS: Final = {  # fields of a query that have a column with an index
    "subject_id": "subject_id",
    "principal_id": "principal_id",
    "event_type": "event_type",
    "origin": "origin",
    "event_time": "event_time",
    "hub_commit_time": "hub_time",
    "hub_commit_seq": "stream_seq",
}


# --- files ----------------------------------------------------------------------------------------------------------


def may_have(index: FileIndex | None, chosen: Filter) -> bool:
    """Return True if a file of the table can have rows for a filter."""
    if index is None:
        return True
    bounds: list[tuple[str, str, Any]] = []
    if chosen.subject_id is not None:
        bounds.append(("subject_id", "=", chosen.subject_id))
    if chosen.event_type is not None:
        bounds.append(("event_type", "in", chosen.event_type))
    if chosen.first_ts is not None:
        bounds.append(("hub_time", ">=", chosen.first_ts))
    if chosen.last_ts is not None:
        bounds.append(("hub_time", "<=", chosen.last_ts))
    bounds += filter(None, map(_bound, chosen.where))
    paths = [condition for condition in chosen.where if condition.field.name in index.paths]
    if not all(index.paths[condition.field.name].may_be(condition.op, condition.value) for condition in paths):
        return False
    return all(
        name not in index.columns or index.columns[name].may_be(operator, value) for name, operator, value in bounds
    )


def _bound(condition: FieldCondition) -> tuple[str, str, Any] | None:
    """Return a condition as a bound on a column; None if the index does not help."""
    field, operator = condition.field, condition.op
    column = None if field.path else _COLUMNS.get(field.name)
    if column is None:
        return None
    values = condition.value if operator == "in" else (condition.value,)
    if field.name in TIME_FIELDS:
        if operator == "^=":
            return None
        values = tuple(map(seconds_of, values))
    elif not all(type(value) is (int if column == "stream_seq" else str) for value in values):
        return None
    return column, operator, values if operator == "in" else values[0]


def within(spans: Spans, label: str, first: int, last: int) -> bool:
    """Return True if one run has all positions from `first` to `last`."""
    return any(start <= first and last <= end for start, end in spans.get(label, ()))


# --- rows -----------------------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """Place of a table row in the log."""

    order: Order
    label: bytes
    hub_ts: int

    @property
    def stream_seq(self) -> int:
        return self.order[3]

    @property
    def leaf_hash(self) -> bytes:
        return self.order[4]


class _Fields(NamedTuple):
    subject_id: str
    principal_id: bytes
    event_type: str
    event_time: int
    origin: str
    payload: str  # JSON


class _Row(RecordedEvent):
    @cached_property
    def payload(self) -> Json:
        return canonical.parse(self.body.payload)


@dataclass(frozen=True, slots=True)
class TableTask:
    """Some files of one version of the table, and the positions to take."""

    store: TableStore
    files: tuple[DataFile, ...]
    spans: Spans

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def divide(self, parts: int) -> tuple["TableTask", ...]:
        """Divide into about `parts` tasks of about as many rows each; files stay whole."""
        share = max(1, -(-sum(file.rows for file in self.files) // parts))
        tasks: list[list[DataFile]] = []
        count = share
        for file in sorted(self.files, key=lambda file: (file.first_ts, file.path)):
            if count >= share:
                tasks.append([])
                count = 0
            tasks[-1].append(file)
            count += file.rows
        return tuple(replace(self, files=tuple(files), spans=self._spans_of(files)) for files in tasks)

    def _spans_of(self, files: Iterable[DataFile]) -> Spans:
        labels = {label for file in files for label, _, _ in file.labels}
        return {label: self.spans[label] for label in sorted(labels) if label in self.spans}

    def matches(self, descriptor: QueryDescriptor) -> Iterator[Match]:
        """Yield the matches in logical order. Raise TableDamaged if a file differs from its manifest."""
        return in_order((file.first_ts, self._matches(descriptor, file)) for file in self.files)

    def positions(self, descriptor: QueryDescriptor) -> Iterator[tuple[bytes, int, int]]:
        """Yield label, position and ts* of each match."""
        for file in self.files:
            for record in self._records(descriptor, file):
                yield record.event.label, record.event.stream_seq, record.event.order[0]

    def _matches(self, descriptor: QueryDescriptor, file: DataFile) -> Iterator[Match]:
        for record in self._records(descriptor, file):
            yield match_of(descriptor, None, record, None)

    def tables(self, descriptor: QueryDescriptor) -> Iterator[pa.Table]:
        """Yield the rows of each file at the positions to take, without those of another subject, type or time."""
        for file in self.files:
            rows = read_part(self.store, EVENTS, file, check_paths=False)
            yield self._inside(file, _select_rows(rows, descriptor.filter))

    def matches_of(self, descriptor: QueryDescriptor, rows: pa.Table) -> Iterator[Match]:
        """Yield the matches among some of these rows."""
        for record in _take_rows(descriptor, rows):
            yield match_of(descriptor, None, record, None)

    def _records(self, descriptor: QueryDescriptor, file: DataFile) -> Iterator[RecordedEvent]:
        for rows in replace(self, files=(file,)).tables(descriptor):
            yield from _take_rows(descriptor, rows.sort_by([(name, "ascending") for name in _ORDER]))

    def _inside(self, file: DataFile, rows: pa.Table) -> pa.Table:
        """Select the rows at the positions to take."""
        if all(within(self.spans, *span) for span in file.labels):
            return rows
        labels, seqs = rows.column("label").to_pylist(), rows.column("stream_seq").to_numpy()
        mask = np.zeros(len(labels), bool)
        for label, _, _ in file.labels:
            is_label = np.array([value.hex() == label for value in labels], bool)
            for first, last in self.spans.get(label, ()):
                mask |= is_label & (seqs >= first) & (seqs <= last)
        return rows.filter(pa.array(mask))


def _take_rows(descriptor: QueryDescriptor, rows: pa.Table) -> Iterator[RecordedEvent]:
    chosen, names = descriptor.filter, descriptor.stream_names
    for batch in rows.to_batches():
        for row in batch.to_pylist():
            record = _record(row, names[row["stream_id"]])
            if takes(chosen, record):
                yield record


def _select_rows(rows: pa.Table, chosen: Filter) -> pa.Table:
    """Select rows by the part of the filter that Arrow can evaluate; `takes` decides."""
    mask = pc.is_null(rows.column("issue"))
    if chosen.subject_id is not None:
        mask = pc.and_(mask, pc.fill_null(pc.equal(rows.column("subject_id"), chosen.subject_id), False))
    if chosen.event_type is not None:
        mask = pc.and_(mask, pc.is_in(rows.column("event_type"), pa.array(chosen.event_type, pa.string())))
    seconds = rows.column("hub_time").cast(pa.timestamp("s", tz="UTC")).cast(pa.int64())
    if chosen.first_ts is not None:
        mask = pc.and_(mask, pc.greater_equal(seconds, chosen.first_ts))
    if chosen.last_ts is not None:
        mask = pc.and_(mask, pc.less_equal(seconds, chosen.last_ts))
    return rows.filter(mask)


def _record(row: Mapping[str, Any], stream: str) -> RecordedEvent:
    order = (row["ts"], row["stream_id"], row["epoch"], row["stream_seq"], row["leaf_hash"])
    return _Row(
        stream=stream,
        event=_Place(order, row["label"], int(row["hub_time"].timestamp())),
        body=_Fields(
            row["subject_id"],
            bytes.fromhex(row["principal_id"]),
            row["event_type"],
            int(row["event_time"].timestamp()),
            row["origin"],
            row["payload"],
        ),
    )


def runs_of(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return runs of positions in order, joined where they touch."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(pairs):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return tuple(joined)
