"""Parquet files: written once under unique names, sorted so that statistics are selective.

A task holds about `TARGET_BYTES` of rows at most. A file counts when a manifest names it; a failed attempt leaves
unnamed files, and `vacuum` removes them.
"""

import uuid
from collections.abc import Collection, Iterator
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from veen.io.inside import FileRefused
from veen.io.stores import TableStore
from veen.lake.tables.errors import TableDamaged
from veen.lake.tables.index import index_of
from veen.lake.tables.manifest import DataFile
from veen.lake.tables.schema import HOUR, arrow_of, day_of, group_of, is_partitioned, sort_of

TARGET_BYTES: Final = 64 << 20
_ROW_GROUP: Final = 8_192


class PartWriter:
    """Writer of the rows of one table into files."""

    def __init__(
        self, store: TableStore, table: str, *, target_bytes: int = TARGET_BYTES, paths: Collection[str] = ()
    ) -> None:
        self._store, self.table, self._target, self._paths = store, table, target_bytes, paths
        self._held: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}
        self.files: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to the file of their stream and day; write the largest when too much is held."""
        for group, part in _split_by_group(batch):
            self._held.setdefault(group, []).append(part)
            self._sizes[group] = self._sizes.get(group, 0) + part.nbytes
        while sum(self._sizes.values()) > self._target:
            self._flush(max(self._sizes, key=lambda group: (self._sizes[group], group)))

    def finish(self) -> list[DataFile]:
        """Write the remaining rows; return all files."""
        for group in sorted(self._held):
            self._flush(group)
        return self.files

    def _flush(self, group: str) -> None:
        rows = pa.Table.from_batches(self._held.pop(group), schema=arrow_of(self.table))
        del self._sizes[group]
        self.files.append(write_part(self._store, self.table, group, rows, paths=self._paths))


def _split_by_group(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    if not batch.num_rows:
        return
    streams, times = batch.column("stream_id").to_pylist(), batch.column("ts").to_pylist()
    where: dict[tuple[Any, int], list[int]] = {}
    for number, (stream_id, ts) in enumerate(zip(streams, times, strict=True)):
        where.setdefault((stream_id, day_of(ts)), []).append(number)
    for (stream_id, day), rows in where.items():
        yield group_of(stream_id, day), batch if len(where) == 1 else batch.take(pa.array(rows, pa.int64()))


def write_part(
    store: TableStore,
    table: str,
    group: str,
    rows: pa.Table,
    *,
    paths: Collection[str] = (),
    number: int | None = None,
) -> DataFile:
    """Write one file under a new name and return its entry. `paths` of payloads get an index, too.

    `number` is its place among files whose order counts: a table lists its files by name.
    """
    name = uuid.uuid4().hex if number is None else f"{number:06}-{uuid.uuid4().hex}"
    path = f"{table}/{group}/{name}.parquet"
    rows = _sort_rows(table, rows)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=_ROW_GROUP, store_schema=False)
    data = sink.getvalue().to_pybytes()
    store.put(path, data)
    file = DataFile(path, rows.num_rows, len(data), sha256(data).hexdigest(), group)
    if not is_partitioned(table):
        return file
    return _describe(table, file, rows, paths)


def _describe(table: str, file: DataFile, rows: pa.Table, paths: Collection[str]) -> DataFile:
    """Return the entry of a file with the facts about its rows that a manifest has."""
    times = pc.min_max(rows.column("ts")).as_py()
    spans = rows.group_by("label").aggregate([("stream_seq", "min"), ("stream_seq", "max")]).to_pylist()
    return file._replace(
        rows=rows.num_rows,
        first_ts=times["min"],
        last_ts=times["max"],
        labels=tuple(sorted((span["label"].hex(), span["stream_seq_min"], span["stream_seq_max"]) for span in spans)),
        file_index=index_of(table, rows, paths),
    )


def _sort_rows(table: str, rows: pa.Table) -> pa.Table:
    if not is_partitioned(table):
        return rows
    hour = pc.divide(rows.column("ts"), HOUR)
    keyed = rows.append_column("_hour", hour)
    order = pc.sort_indices(keyed, sort_keys=[(name, "ascending") for name in ("_hour", *sort_of(table))])
    return rows.take(order).combine_chunks()


def read_part(
    store: TableStore, table: str, file: DataFile, *, as_written: bool = False, check_paths: bool = True
) -> pa.Table:
    """Read a file. Raise TableDamaged if it is gone or differs from what was written, byte for byte.

    Also if its index in the manifest is not that of its rows. `as_written` returns the columns of the file, which may
    be those of an overlay that is not installed here. Without `check_paths`, indexes of payloads are not compared,
    which would require parsing the payloads.
    """
    try:
        data = store.get(file.path, file.size)
    except FileRefused as exc:
        raise TableDamaged(f"{file.path}: differs from what was written: {exc}") from exc
    except FileNotFoundError as exc:
        raise TableDamaged(f"{file.path}: is missing; a newer version of the table may have replaced it") from exc
    if len(data) != file.size or sha256(data).hexdigest() != file.sha256:
        raise TableDamaged(f"{file.path}: differs from what was written")
    rows = pq.ParquetFile(pa.BufferReader(data)).read()
    if as_written:
        return rows
    rows = rows.cast(arrow_of(table))
    if file.file_index is None:
        return rows
    index = file.file_index if check_paths else file.file_index._replace(paths={})
    if file._replace(file_index=index) != _describe(table, file, rows, tuple(index.paths)):
        raise TableDamaged(f"{file.path}: the manifest says something else about its rows than they do")
    return rows
