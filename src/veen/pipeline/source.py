"""`spark.read.format("veen")` and `spark.readStream.format("veen")` (DESIGN §7, NOTES-SPARK).

A DataFrame is one pinned prefix: heads are taken when it is made, and entries that come later belong to the next one.
Partitions and readers are pickled, so they hold addresses and ranges; files and connections are opened in `read`, on
the executor. Where entries come from, a directory or a hub, is behind `veen.pipeline.place`.
"""

import gc
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from veen.core.hubkeys import HubIdentity
from veen.pipeline import columns
from veen.pipeline.columns import Column
from veen.pipeline.cut import Cut
from veen.pipeline.errors import OptionError, PipelineError
from veen.pipeline.filters import narrowed
from veen.pipeline.inventory import Pinned
from veen.pipeline.options import Options, WriteOptions
from veen.pipeline.place import Directory, Place
from veen.pipeline.plan import Piece, budget, pack

__all__ = ["CheckpointSource", "DataLoss", "EntrySource", "ReceiptSource"]

_HEADS: Final = "heads"


class DataLoss(PipelineError):
    """Entries that a stream has not read yet are gone."""

    hint = "Restore the directory, or go on without them: option('failOnDataLoss', 'false')."


class Task(InputPartition):
    """What one task reads, and the keys that it holds the hub to."""

    def __init__(self, found: tuple[Piece, ...], identity: HubIdentity | None) -> None:
        super().__init__((found, identity))


def _place(options: Options) -> Place:
    if options.hub is not None:
        from veen.pipeline.remote import RemoteHub  # and the client with it: most who read a directory need neither

        return RemoteHub(options.hub, options.partition_bytes)
    assert options.path is not None  # noqa: S101 - there is exactly one of them
    return Directory(options.path)


class _Reading:
    """What both readers do on an executor."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._place, self._level = _place(options), options.level
        chosen = options.selection
        self._cut = Cut(
            columns=tuple(wanted), first_ts=chosen.first_ts, last_ts=chosen.last_ts, fail_fast=options.fail_fast
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow and pandas each time
        found, identity = partition.value
        return self._place.read(found, self._cut, self._level, identity)


class EntryReader(DataSourceReader):
    """One batch read of a pinned prefix."""

    def __init__(self, options: Options, wanted: Sequence[Column], pinned: Pinned) -> None:
        self._options, self._selection, self._pinned = options, options.selection, pinned
        self._reading = _Reading(options, wanted)

    def partitions(self) -> Sequence[InputPartition]:
        chosen = _place(self._options).pieces(self._pinned, self._selection)
        return [Task(found, self._pinned.identity) for found in pack(chosen, self._options.partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        """What executors need: what was pinned is in their tasks."""
        return {"_reading": self._reading}


class NarrowingReader(EntryReader):
    """One that chooses chunks by the filters of the query, for those who ask for it.

    Spark 4.3 keeps the tasks of the last query that had filters for all that read the same DataFrame: a later one
    without them, or another branch of the same one, would silently miss rows. And a session in which the setting for
    filters is off refuses a reader that could take them, which it says. So this is never the default.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Every filter goes back to Spark: rows are judged there."""
        for found in filters:
            self._selection = narrowed(self._selection, found)
            yield found


class EntryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches: offsets are the heads of labels, {label in hex: stream_seq}."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._options, self._place = options, _place(options)
        self._reading = _Reading(options, wanted)
        self._target: dict[str, int] | None = None

    def _pinned(self) -> Pinned:
        return self._place.pin(self._options.selection)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """All that is there now, in as many batches as the limit asks for, and nothing that comes later."""
        self._target = self._heads(self._pinned())

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
        if self._target is not None:
            heads = {
                label: max(begun.get(label, 0), min(heads.get(label, 0), at)) for label, at in self._target.items()
            }
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # What was read stays read, also where the place has lost it since.
        return {_HEADS: {**begun, **budget(begun, heads, rows)}}

    def _check_loss(self, begun: dict[str, int], heads: dict[str, int]) -> None:
        lost = [label for label, seq in begun.items() if heads.get(label, 0) < seq]
        if lost and self._options.fail_on_data_loss:
            raise DataLoss(f"label {lost[0]} was read up to {begun[lost[0]]} and now ends at {heads.get(lost[0], 0)}")
        for label in lost:
            heads[label] = begun[label]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pinned = self._pinned()
        found: list[Piece] = []
        for label, last in sorted(end[_HEADS].items()):
            first = start[_HEADS].get(label, 0) + 1
            if first > last:
                continue
            chosen = self._options.selection.narrowed(labels=[bytes.fromhex(label)], first_seq=first, last_seq=last)
            found += self._place.pieces(pinned, chosen)
            self._check_whole(pinned, label, first, last)
        return [Task(task, pinned.identity) for task in pack(found, self._options.partition_bytes)]

    def _check_whole(self, pinned: Pinned, label: str, first: int, last: int) -> None:
        """Also when a batch is planned again after a restart, by when its end may be gone."""
        found = pinned.labels.get(bytes.fromhex(label))
        size = found.size if found else 0
        gaps = (*(found.gaps if found else ()), (size + 1, last))
        if self._options.fail_on_data_loss and any(max(a, first) <= min(b, last) for a, b in gaps):
            raise DataLoss(f"label {label}: entries between {first} and {last} are gone")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)


class EntrySource(DataSource):
    """The log, one row per entry."""

    COLUMNS: ClassVar[tuple[Column, ...]] = columns.ENTRIES

    _pinned: Pinned | None = None

    @classmethod
    def name(cls) -> str:
        return "veen"

    def schema(self) -> str:
        return columns.ddl(self.COLUMNS)

    def _wanted(self, schema: StructType) -> tuple[Column, ...]:
        return columns.chosen(schema.fieldNames(), self.COLUMNS)

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles a source once, and plans every query of a DataFrame from that copy.

        What is pinned here is therefore the one prefix that all of them see. It happens when the DataFrame is made, or
        when it is first read if its schema was given, since nothing needs to be asked of us before.
        """
        try:
            options = Options.of(self.options)
        except OptionError:
            return self.__dict__  # those of a write; or wrong ones, which the reader will tell
        return {**self.__dict__, "_pinned": self._pinned or _place(options).pin(options.selection)}

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.of(self.options)
        pinned = self._pinned or _place(options).pin(options.selection)
        return (NarrowingReader if options.push_filters else EntryReader)(options, self._wanted(schema), pinned)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return EntryStream(Options.of(self.options), self._wanted(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from veen.pipeline.writer import BatchWriter

        return BatchWriter(WriteOptions.of(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - as above
        from veen.pipeline.writer import StreamWriter

        own = {name: value for name, value in self.options.items() if name.lower() != "checkpointlocation"}  # Spark's
        return StreamWriter(WriteOptions.of(own), schema, overwrite=overwrite)


class ReceiptSource(EntrySource):
    """The receipts alone, also of entries whose payloads were erased."""

    COLUMNS = columns.RECEIPTS

    @classmethod
    def name(cls) -> str:
        return "veen.receipts"


class CheckpointSource(EntrySource):
    """The checkpoints, one row each."""

    COLUMNS = columns.CHECKPOINTS

    @classmethod
    def name(cls) -> str:
        return "veen.checkpoints"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__  # there is nothing to pin

    def reader(self, schema: StructType) -> DataSourceReader:
        from veen.pipeline.checkpoints import CheckpointReader

        return CheckpointReader(Options.of(self.options), self._wanted(schema))
