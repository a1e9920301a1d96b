"""`spark.read.format("veen")` and `spark.readStream.format("veen")` (DESIGN §7, NOTES-SPARK).

A DataFrame is one pinned prefix: heads are taken when it is made, and entries that come later belong to the next one.
Partitions and readers are pickled, so they hold paths and ranges; files are opened in `read`, on the executor.
"""

import gc
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from veen.core.checkpoint import Checkpoint
from veen.core.errors import FormatError
from veen.core.hubkeys import HubIdentity
from veen.pipeline import bronze, columns
from veen.pipeline.columns import Column
from veen.pipeline.errors import PipelineError
from veen.pipeline.files import open_fs
from veen.pipeline.inventory import Pinned, pin
from veen.pipeline.options import Options
from veen.pipeline.plan import Piece, Selection, budget, pack, pieces
from veen.storage.scan import inventory, read_file

__all__ = ["CheckpointSource", "DataLoss", "EntrySource", "ReceiptSource"]

_HEADS: Final = "heads"


class DataLoss(PipelineError):
    """Entries that a stream has not read yet are gone."""

    hint = "Restore the directory, or go on without them: option('failOnDataLoss', 'false')."


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, found: tuple[Piece, ...]) -> None:
        super().__init__(found)


class _Reading:
    """What both readers do on an executor."""

    def __init__(self, options: Options, wanted: Sequence[Column], identity: HubIdentity | None) -> None:
        self._options, self._wanted, self._identity = options, tuple(wanted), identity

    def read_pieces(self, found: tuple[Piece, ...]) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow and pandas each time
        fs = open_fs(self._options.path)
        for piece in found:
            yield from bronze.batches(
                fs,
                piece.ref,
                self._wanted,
                level=self._options.level,
                identity=self._identity,
                first=piece.first,
                last=piece.last,
                fail_fast=self._options.fail_fast,
            )


class EntryReader(DataSourceReader):
    """One batch read of a pinned prefix."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._options, self._selection = options, options.selection
        self._pinned: Pinned = pin(options.path)
        self._reading = _Reading(options, wanted, self._pinned.identity)

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Choose chunks by what the query asks for. Every filter goes back to Spark: rows are judged there."""
        for found in filters:
            self._selection = _narrowed(self._selection, found)
            yield found

    def partitions(self) -> Sequence[InputPartition]:
        chosen = pieces(open_fs(self._options.path), self._pinned, self._selection)
        return [Task(found) for found in pack(chosen, self._options.partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read_pieces(partition.value)


def _narrowed(selection: Selection, found: Filter) -> Selection:
    """What a filter on label, stream, position or time says about chunks; others say nothing."""
    attribute: tuple[str, ...] = getattr(found, "attribute", ())
    value: Any = getattr(found, "value", None)
    if len(attribute) != 1 or value is None:
        return selection
    name = attribute[0]
    if name in ("label", "stream_id") and isinstance(found, (EqualTo, In)):
        values = [value] if isinstance(found, EqualTo) else [one for one in value if one is not None]
        named = [bytes(one) for one in values]
        return selection.narrowed(labels=named) if name == "label" else selection.narrowed(streams=named)
    if name not in ("stream_seq", "hub_ts"):
        return selection
    if isinstance(found, EqualTo):
        return _bounded(selection, name, value, value)
    if isinstance(found, (GreaterThan, GreaterThanOrEqual)):
        return _bounded(selection, name, value + isinstance(found, GreaterThan), None)
    if isinstance(found, (LessThan, LessThanOrEqual)):
        return _bounded(selection, name, None, value - isinstance(found, LessThan))
    return selection


def _bounded(selection: Selection, name: str, first: int | None, last: int | None) -> Selection:
    if name == "stream_seq":
        return selection.narrowed(first_seq=first, last_seq=last)
    return selection.narrowed(first_ts=first, last_ts=last)


class EntryStream(DataSourceStreamReader):
    """Micro-batches: offsets are the heads of labels, {label in hex: stream_seq}."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._options, self._wanted = options, tuple(wanted)

    def _pinned(self) -> Pinned:
        return pin(self._options.path)

    def _heads(self, pinned: Pinned) -> dict[str, int]:
        takes = self._options.selection.takes
        return {
            label.hex(): max((ref.end_seq for ref in found.chunks if takes(ref)), default=0)
            for label, found in sorted(pinned.labels.items())
            if any(takes(ref) for ref in found.chunks)
        }

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {_HEADS: {}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_entries
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        heads = self._heads(self._pinned())
        begun = start[_HEADS]
        self._check_loss(begun, heads)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # What was read stays read, also where the directory has lost it since.
        return {_HEADS: {**begun, **budget(begun, heads, rows)}}

    def _check_loss(self, begun: dict[str, int], heads: dict[str, int]) -> None:
        lost = [label for label, seq in begun.items() if heads.get(label, 0) < seq]
        if lost and self._options.fail_on_data_loss:
            raise DataLoss(f"label {lost[0]} was read up to {begun[lost[0]]} and now ends at {heads.get(lost[0], 0)}")
        for label in lost:
            heads[label] = begun[label]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pinned, fs = self._pinned(), open_fs(self._options.path)
        found: list[Piece] = []
        for label, last in sorted(end[_HEADS].items()):
            first = start[_HEADS].get(label, 0) + 1
            if first > last:
                continue
            chosen = self._options.selection.narrowed(labels=[bytes.fromhex(label)], first_seq=first, last_seq=last)
            found += pieces(fs, pinned, chosen)
            self._check_whole(pinned, label, first, last)
        return [Task(task) for task in pack(found, self._options.partition_bytes)]

    def _check_whole(self, pinned: Pinned, label: str, first: int, last: int) -> None:
        found = pinned.labels.get(bytes.fromhex(label))
        gaps = found.gaps if found else ((first, last),)
        if self._options.fail_on_data_loss and any(a <= last and b >= first for a, b in gaps):
            raise DataLoss(f"label {label}: entries between {first} and {last} are not in the directory")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        identity = self._pinned().identity if self._options.level in ("receipt", "full") else None
        return _Reading(self._options, self._wanted, identity).read_pieces(partition.value)


class EntrySource(DataSource):
    """The log, one row per entry."""

    COLUMNS: ClassVar[tuple[Column, ...]] = columns.ENTRIES

    @classmethod
    def name(cls) -> str:
        return "veen"

    def schema(self) -> str:
        return columns.ddl(self.COLUMNS)

    def _wanted(self, schema: StructType) -> tuple[Column, ...]:
        return columns.chosen(schema.fieldNames(), self.COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return EntryReader(Options.of(self.options), self._wanted(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return EntryStream(Options.of(self.options), self._wanted(schema))


class ReceiptSource(EntrySource):
    """The receipts alone, also of entries whose payloads were erased."""

    COLUMNS = columns.RECEIPTS

    @classmethod
    def name(cls) -> str:
        return "veen.receipts"


class CheckpointReader(DataSourceReader):
    """The checkpoints that seals left in the directory."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._options, self._wanted = options, tuple(wanted)

    def partitions(self) -> Sequence[InputPartition]:
        found = inventory(open_fs(self._options.path))
        selection = self._options.selection
        labels = sorted(label for label in found if selection.labels is None or label in selection.labels)
        paths = [file.path for label in labels for file in found[label] if file.kind == "checkpoint"]
        return [InputPartition(tuple(paths[at : at + 4096])) for at in range(0, len(paths), 4096)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        fs = open_fs(self._options.path)
        rows = []
        for path in partition.value:
            row: dict[str, Any] = {"path": path, "ok": False}
            try:
                data = read_file(fs, path)
                found = Checkpoint.from_bytes(data)
            except (FormatError, OSError) as exc:
                rows.append(row | {"reason": str(exc)})
                continue
            rows.append(
                row
                | {
                    "label": found.label_curr,
                    "label_prev": found.label_prev,
                    "epoch": found.epoch,
                    "upto_seq": found.upto_seq,
                    "mmr_root": found.mmr_root,
                    "hub_sig": found.hub_sig,
                    "witness_sigs": list(found.witness_sigs or ()),
                    "checkpoint": data,
                    "ok": True,
                }
            )
        made = {column.name: pa.array([row.get(column.name) for row in rows], column.arrow) for column in self._wanted}
        yield pa.record_batch(made, schema=columns.arrow_schema(self._wanted))


class CheckpointSource(EntrySource):
    """The checkpoints, one row each."""

    COLUMNS = columns.CHECKPOINTS

    @classmethod
    def name(cls) -> str:
        return "veen.checkpoints"

    def reader(self, schema: StructType) -> DataSourceReader:
        return CheckpointReader(Options.of(self.options), self._wanted(schema))
