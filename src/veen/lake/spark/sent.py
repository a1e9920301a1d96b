"""Receipts of a write, as a Parquet dataset that any reader understands.

A task stores its files when its rows are in the log, each in one step and under a name that follows from the write and
the partition. All attempts of a task get the same receipts, so the last one changes nothing, and whatever is in the
dataset is in the log. The record of a write, `_writes/….json`, which the driver stores when all tasks are done, shows
that it is complete.
"""

import json
from hashlib import sha256
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from veen.io.stores import open_store
from veen.lake.log.columns import SENT, arrow_schema
from veen.lake.spark.writing import RowDelivery, WritePlan

_ROWS_PER_FILE: Final = 65_536


class Written(NamedTuple):
    """Result of one task."""

    write_id: str
    partition: int
    rows: int
    files: tuple[str, ...] = ()


class SentFiles:
    """Receipts of one task; only counted if there is no place for them."""

    def __init__(self, plan: WritePlan, partition: int, stream_id: bytes) -> None:
        self._plan, self._partition, self._stream_id = plan, partition, stream_id
        self._store = None if plan.options.receipts is None else open_store(plan.options.receipts)
        self._rows: list[dict[str, Any]] = []
        self._count = 0
        self._files: list[str] = []

    def add(self, done: RowDelivery, key: str | None) -> None:
        self._count += 1
        if self._store is None:
            return
        receipt, msg = done.sent.receipt, done.sent.msg  # its signature is checked here, if it was not yet
        self._rows.append(
            {
                "write_id": self._plan.write_id,
                "partition": self._partition,
                "row": done.row,
                "key": key,
                "stream_id": self._stream_id,
                "label": receipt.label,
                "epoch": done.epoch,
                "stream_seq": receipt.stream_seq,
                "hub_ts": receipt.hub_ts,
                "leaf_hash": receipt.leaf_hash,
                "client_id": msg.client_id,
                "client_seq": msg.client_seq,
                "mmr_root": receipt.mmr_root,
                "receipt": receipt.to_bytes(),
            }
        )
        if len(self._rows) >= _ROWS_PER_FILE:
            self._write_file()

    def close(self) -> Written:
        if self._rows:
            self._write_file()
        return Written(self._plan.write_id, self._partition, self._count, tuple(self._files))

    def _write_file(self) -> None:
        assert self._store is not None  # noqa: S101 - rows are kept only for a store
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self._rows, arrow_schema(SENT)), sink, compression="zstd")
        name = f"{_name(self._plan.write_id)}-{self._partition:05}-{len(self._files):05}.parquet"
        self._store.put(name, sink.getvalue().to_pybytes())
        self._files.append(name)
        self._rows.clear()


def complete(receipts: str, stream: str, done: list[Written]) -> None:
    """Store the record of a write whose tasks are all done. Without rows, an empty file has the columns."""
    store = open_store(receipts)
    write_id = done[0].write_id
    files = sorted(name for task in done for name in task.files)
    if not files:
        sink = pa.BufferOutputStream()
        pq.write_table(arrow_schema(SENT).empty_table(), sink)
        files = [f"{_name(write_id)}-empty.parquet"]
        store.put(files[0], sink.getvalue().to_pybytes())
    rows = {str(task.partition): task.rows for task in sorted(done, key=lambda task: task.partition)}
    record = {"write_id": write_id, "stream": stream, "rows": sum(rows.values()), "partitions": rows, "files": files}
    store.put(f"_writes/{_name(write_id)}.json", json.dumps(record, indent=1).encode())


def _name(write_id: str) -> str:
    """Return a file name for a write. The user's name of it may contain anything."""
    return f"write-{sha256(write_id.encode()).hexdigest()[:20]}"
