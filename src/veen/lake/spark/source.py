"""`spark.read.format("veen")` and `spark.readStream.format("veen")` (DESIGN §7).

A DataFrame is one pinned prefix: heads are taken when it is made, and entries that come later belong to the next one.
Partitions and readers are pickled, so they hold addresses and ranges; files and connections are opened in `read`, on
the executor. Where entries come from, a directory or a hub, is behind `veen.lake.log.entries`.

Selection of chunks by the filters of a query.
"""

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from veen.io.places import open_fs
from veen.lake.log import columns
from veen.lake.log.columns import Column
from veen.lake.log.entries import DirectorySource, LogSource, ReadSpec
from veen.lake.log.errors import OptionError, PipelineError
from veen.lake.log.opened import OPENED, OPENED_LEAN, open_slices
from veen.lake.log.options import Options, WriteOptions
from veen.lake.log.slices import Selection, Slice, budget, pack
from veen.storage import layout
from veen.storage.pinned import LogView


def narrow_selection(selection: Selection, condition: Filter) -> Selection:
    """Narrow a selection by a filter on label, stream, position or time; ignore other filters."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    value: Any = getattr(condition, "value", None)
    if len(attribute) != 1 or value is None:
        return selection
    name = attribute[0]
    if name in ("label", "stream_id") and isinstance(condition, (EqualTo, In)):
        values = [value] if isinstance(condition, EqualTo) else [element for element in value if element is not None]
        named = [bytes(element) for element in values]
        return selection.narrow(labels=named) if name == "label" else selection.narrow(streams=named)
    if name not in ("stream_seq", "hub_ts"):
        return selection
    if isinstance(condition, EqualTo):
        return _narrow_bounds(selection, name, value, value)
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
        return _narrow_bounds(selection, name, value + isinstance(condition, GreaterThan), None)
    if isinstance(condition, (LessThan, LessThanOrEqual)):
        return _narrow_bounds(selection, name, None, value - isinstance(condition, LessThan))
    return selection


def _narrow_bounds(selection: Selection, name: str, first: int | None, last: int | None) -> Selection:
    if name == "stream_seq":
        return selection.narrow(first_seq=first, last_seq=last)
    return selection.narrow(first_ts=first, last_ts=last)


_HEADS: Final = "heads"
_HUB_ID: Final = "hub_id"


class DataLoss(PipelineError):
    """Entries that were removed before a stream read them."""

    hint = "Restore the directory, or go on without them: option('failOnDataLoss', 'false')."


class NotAHub(PipelineError):
    """A directory without a log: neither the data directory of a hub nor a copy of one."""

    hint = "Give the data directory of a hub, which has a directory `log`, or a copy of it."


_OF_A_HUB: Final = (layout.LOG, layout.JOURNAL, layout.IDENTITY)  # a hub without a message may lack the first


def _source(options: Options) -> LogSource:
    if options.hub is not None:
        from veen.lake.log.remote import RemoteHub  # and the client with it: most who read a directory need neither

        return RemoteHub(options.hub, options.partition_bytes)
    assert options.path is not None  # noqa: S101 - there is exactly one of them
    return DirectorySource(options.path)


def _check_hub_directory(options: Options) -> None:
    """Raise NotAHub for a path that is no data directory: it would read as an empty log."""
    if options.path is not None:
        fs = open_fs(options.path)
        if not any(fs.exists(name) for name in _OF_A_HUB):
            raise NotAHub(f"{options.path} is not the data directory of a hub")


class _Reading:
    """The part of both readers that runs on executors. The value of a partition: its slices, and the hub's identity."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._source, self._keys = _source(options), options.keys
        selection = options.selection
        self._spec = ReadSpec(
            columns=tuple(wanted),
            level=options.level,
            first_ts=selection.first_ts,
            last_ts=selection.last_ts,
            fail_fast=options.fail_fast,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # a worker collects garbage after each task, and looks at all of pyarrow and pandas each time
        if partition.value is None:  # PySpark makes this one if a plan has no partitions
            return iter(())
        slices, identity = partition.value
        spec = replace(self._spec, identity=identity)
        if self._keys is not None:
            return open_slices(self._source, slices, spec, self._keys)
        return self._source.read(slices, spec)


def _partitions(slices: Iterable[Slice], pinned: LogView, options: Options) -> list[InputPartition]:
    return [InputPartition((task, pinned.identity)) for task in pack(slices, options.partition_bytes)]


class EntryPartitionReader(DataSourceReader):
    """Batch read of a pinned prefix."""

    def __init__(self, options: Options, wanted: Sequence[Column], pinned: LogView) -> None:
        self._options, self._selection, self._pinned = options, options.selection, pinned
        self._reading = _Reading(options, wanted)

    def partitions(self) -> Sequence[InputPartition]:
        slices = _source(self._options).slices(self._pinned, self._selection)
        return _partitions(slices, self._pinned, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors: their tasks have the slices."""
        return {"_reading": self._reading}


class NarrowingReader(EntryPartitionReader):
    """Reader that selects chunks by the filters of the query; only by option.

    Spark 4.3 keeps the tasks of the last query that had filters for all that read the same DataFrame: a later one
    without them, or another branch of the same one, would silently miss rows. So this is never the default.

    A session in which the setting for filters is off refuses every reader that overrides `pushFilters`, before it could
    be asked: it looks at `__func__` of the method. Where the setting is on, Spark calls the method without looking. So
    this one pretends to be the method of the base: without the setting nobody calls it, and the rows are the same.
    """

    @property
    def pushFilters(self) -> "_PushedFilters":  # noqa: N802 - Spark's name; it is called
        return _PushedFilters(self)

    def narrow(self, condition: Filter) -> None:
        """Leave out chunks in which no row can satisfy a filter."""
        self._selection = narrow_selection(self._selection, condition)


class _PushedFilters:
    """The method `pushFilters` of a NarrowingReader."""

    def __init__(self, reader: NarrowingReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters  # of the instance: of the class it would be bound

    def __call__(self, filters: list[Filter]) -> Iterator[Filter]:
        """Yield every filter back to Spark, which filters the rows."""
        for condition in filters:
            self._reader.narrow(condition)
            yield condition


class EntryStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches: offsets are the heads of labels, {label in hex: stream_seq}, and the hub_id of a pinned hub."""

    def __init__(self, options: Options, wanted: Sequence[Column]) -> None:
        self._options, self._source = options, _source(options)
        self._reading = _Reading(options, wanted)
        self._target: dict[str, int] | None = None
        self._newest: dict[str, int] | None = None  # heads at the last look, whatever the limit of a batch
        self._last: LogView | None = None  # at the last look: what was new by then

    def _pin_now(self, begun: Mapping[str, int] | None = None) -> LogView:
        """Pin the source; omit files that were read before `begun`, which would only be listed again each time."""
        after = {bytes.fromhex(label): seq for label, seq in (begun or {}).items()}
        return self._source.pin(self._options.selection, after)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the target: all entries that are there now, in as many batches as the limit requires."""
        self._target = self._heads(self._pin_now())

    def _heads(self, pinned: LogView) -> dict[str, int]:
        takes = self._options.selection.takes
        return {
            label.hex(): max((chunk.end_seq for chunk in label_pin.chunks if takes(chunk)), default=0)
            for label, label_pin in sorted(pinned.labels.items())
            if any(takes(chunk) for chunk in label_pin.chunks)
        }

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {_HEADS: {}, **self._hub_of(self._pin_now())}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_entries
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        begun = start[_HEADS]
        pinned = self._last = self._pin_now(begun)
        self._check_hub(start, pinned)
        heads = self._heads(pinned)
        for label, seq in begun.items():
            label_pin = pinned.labels.get(bytes.fromhex(label))
            if label_pin is not None and label_pin.size >= seq:  # all of it read, or some in a file that goes on
                heads[label] = max(heads.get(label, 0), seq)
        self._newest = dict(heads)
        self._check_loss(begun, heads)
        if self._target is not None:
            heads = {
                label: max(begun.get(label, 0), min(heads.get(label, 0), at)) for label, at in self._target.items()
            }
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # What was read stays read, also where the place has lost it since.
        return {_HEADS: {**begun, **budget(begun, heads, rows)}, **self._hub_of(pinned)}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return all heads: `veen.lake.spark.progress.entries_behind` counts from them."""
        return None if self._newest is None else {_HEADS: self._newest}

    def _hub_of(self, pinned: LogView) -> dict[str, str]:
        """Return the pinned hub_id. It is kept with the offsets, so that no later batch reads another log (D-174)."""
        if self._options.hub is None or self._options.hub.pin is None or pinned.identity is None:
            return {}
        return {_HUB_ID: pinned.identity.hub_id.hex()}

    def _check_hub(self, start: dict[str, Any], pinned: LogView) -> None:
        answering = self._hub_of(pinned).get(_HUB_ID)
        if answering is not None and start.get(_HUB_ID, answering) != answering:
            from veen.lake.log.remote import HubDiverged

            raise HubDiverged(f"the stream was read from hub {start[_HUB_ID]}, and {answering} answers now")

    def _check_loss(self, begun: dict[str, int], heads: dict[str, int]) -> None:
        lost = [label for label, seq in begun.items() if heads.get(label, 0) < seq]
        if lost and self._options.fail_on_data_loss:
            raise DataLoss(f"label {lost[0]} was read up to {begun[lost[0]]} and now ends at {heads.get(lost[0], 0)}")
        for label in lost:
            heads[label] = begun[label]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pinned = self._pin_for(start[_HEADS], end[_HEADS])
        self._check_hub(end, pinned)
        slices: list[Slice] = []
        for label, last in sorted(end[_HEADS].items()):
            first = start[_HEADS].get(label, 0) + 1
            if first > last:
                continue
            chosen = self._options.selection.narrow(labels=[bytes.fromhex(label)], first_seq=first, last_seq=last)
            slices += self._source.slices(pinned, chosen)
            self._check_whole(pinned, label, first, last)
        return _partitions(slices, pinned, self._options)

    def _pin_for(self, begun: dict[str, int], heads: dict[str, int]) -> LogView:
        """Return the last pin if it has all of the batch; after a restart there is none."""
        last = self._last
        if last is None:
            return self._pin_now(begun)
        for label, seq in heads.items():
            label_pin, first = last.labels.get(bytes.fromhex(label)), begun.get(label, 0) + 1
            if seq >= first and (label_pin is None or label_pin.left_out >= first or label_pin.size < seq):
                return self._pin_now(begun)
        return last

    def _check_whole(self, pinned: LogView, label: str, first: int, last: int) -> None:
        """Raise DataLoss for a gap, also when a batch is planned again after a restart and its end may be gone."""
        label_pin = pinned.labels.get(bytes.fromhex(label))
        size = label_pin.size if label_pin else 0
        gaps = (*(label_pin.holes if label_pin else ()), (size + 1, last))
        if self._options.fail_on_data_loss and any(max(a, first) <= min(b, last) for a, b in gaps):
            raise DataLoss(f"label {label}: entries between {first} and {last} are missing")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reading.read(partition)


class EntrySource(DataSource):
    """The log, one row per entry."""

    COLUMNS: ClassVar[tuple[Column, ...]] = columns.ENTRIES
    LEAN: ClassVar[tuple[Column, ...]] = columns.LEAN

    _pinned: LogView | None = None

    @classmethod
    def name(cls) -> str:
        return "veen"

    def schema(self) -> str:
        """Return the columns that the options select. Without options (CREATE TABLE) the reader will refuse."""
        options = {name.lower(): value for name, value in self.options.items()}
        if "keys" in options:
            if self.COLUMNS is not columns.ENTRIES:
                raise OptionError(f"keys: {self.name()} has nothing to open; format('veen') has")
            return columns.ddl(columns.parse_columns(options.get("columns", "lean"), OPENED, OPENED_LEAN))
        return columns.ddl(columns.parse_columns(options.get("columns", "lean"), self.COLUMNS, self.LEAN))

    def _columns_of(self, schema: StructType, options: Options) -> tuple[Column, ...]:
        """Return the columns of a user's own schema, which may name any column."""
        return columns.select_columns(schema.fieldNames(), self.COLUMNS if options.keys is None else OPENED)

    def __getstate__(self) -> dict[str, Any]:
        """Pin the prefix on pickling. Spark pickles a source once, and plans every query of a DataFrame from that copy.

        The prefix pinned here is therefore the one that all of them see. Spark pickles when the DataFrame is made, or
        when it is first read if its schema was given.
        """
        try:
            options = Options.of(self.options)
        except OptionError:
            return self.__dict__  # those of a write; or wrong ones, which the reader will tell
        return {**self.__dict__, "_pinned": self._pinned or _source(options).pin(options.selection)}

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.of(self.options)
        _check_hub_directory(options)
        pinned = self._pinned or _source(options).pin(options.selection)
        return (NarrowingReader if options.push_filters else EntryPartitionReader)(
            options, self._columns_of(schema, options), pinned
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = Options.of(self.options)
        _check_hub_directory(options)
        return EntryStream(options, self._columns_of(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from veen.lake.spark.writer import BatchWriter

        return BatchWriter(WriteOptions.of(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - as above
        from veen.lake.spark.writer import StreamWriter

        own = {name: value for name, value in self.options.items() if name.lower() != "checkpointlocation"}  # Spark's
        return StreamWriter(WriteOptions.of(own), schema, overwrite=overwrite)


class ReceiptSource(EntrySource):
    """The receipts alone, also of entries whose payloads were erased."""

    COLUMNS = LEAN = columns.RECEIPTS

    @classmethod
    def name(cls) -> str:
        return "veen.receipts"


class CheckpointSource(EntrySource):
    """The checkpoints, one row each."""

    COLUMNS = LEAN = columns.CHECKPOINTS

    @classmethod
    def name(cls) -> str:
        return "veen.checkpoints"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__  # there is nothing to pin

    def reader(self, schema: StructType) -> DataSourceReader:
        from veen.lake.spark.checkpoints import CheckpointReader

        options = Options.of(self.options)
        _check_hub_directory(options)
        return CheckpointReader(options, self._columns_of(schema, options))
