"""Writers of `df.write.format("veen")` and `df.writeStream.format("veen")`: rows become durable messages.

The driver makes the plan: identity, stream and name of the write. Tasks send, each with its own client keys
(`veen.lake.spark.writing`), and read the identity by its path; no key is ever in a plan. A row is written when its
receipt has been verified. Rows of one partition keep their order in the log; partitions run in parallel.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
)

from veen.client.home import PrivateFs
from veen.client.send.sealing import Draft
from veen.client.session import HubSession
from veen.client.state import StateStore
from veen.core.labels import epoch_at
from veen.lake.log.errors import OptionError
from veen.lake.log.keys import private_directory
from veen.lake.log.options import WriteOptions
from veen.lake.log.remote import HubLink
from veen.lake.spark.writing import RowRefused, RowSender, SentFiles, WritePlan, Written, complete, draft_of, open_keys

INPUT: Final = {
    "body": "BINARY, STRING, or a STRUCT or ARRAY, which becomes JSON",
    "schema": "STRING, a name or 64 hex digits; or BINARY",
    "parent_id": "BINARY",
    "expires_at": "BIGINT",
    "key": "STRING, only for the table of receipts",
}
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "schema": (StringType, BinaryType),
    "parent_id": (BinaryType,),
    "expires_at": (IntegralType,),
    "key": (StringType,),
}
_JSON: Final = (StringType, IntegralType, BooleanType, DoubleType, FloatType)
_BATCHES_AT_ONCE: Final = 4  # while one is verified, the next is on its way
_BYTES_AT_ONCE: Final = 8 * 1024 * 1024
_MAX_WRITE_ID: Final = 256
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # how Spark tells tasks


@dataclass(frozen=True)
class Done(WriterCommitMessage):
    """Message of a task to the driver."""

    written: Written


def check_columns(schema: StructType) -> None:
    """Raise OptionError unless rows of this schema can be messages."""
    if unknown := [name for name in schema.fieldNames() if name not in INPUT]:
        columns = "; ".join(f"{name}: {what}" for name, what in INPUT.items())
        raise OptionError(f"unknown column {', '.join(unknown)} of a message. Columns: {columns}")
    if "body" not in schema.fieldNames():
        raise OptionError(f"a message needs a column body: {INPUT['body']}")
    for field in schema.fields:
        allowed = _is_body(field.dataType) if field.name == "body" else isinstance(field.dataType, _TYPES[field.name])
        if not allowed:
            raise OptionError(f"column {field.name} is {field.dataType.simpleString()}; it may be {INPUT[field.name]}")


def _is_body(kind: DataType) -> bool:
    return isinstance(kind, (BinaryType, StringType)) or (isinstance(kind, (StructType, ArrayType)) and _is_json(kind))


def _is_json(kind: DataType) -> bool:
    """Return True for types with an undisputed JSON form. Times, decimals and bytes must be cast to STRING."""
    if isinstance(kind, StructType):
        return all(_is_json(field.dataType) for field in kind.fields)
    return _is_json(kind.elementType) if isinstance(kind, ArrayType) else isinstance(kind, _JSON)


class BatchWriter(DataSourceArrowWriter):
    """One write. Spark pickles it once, so all attempts of all tasks have the same plan."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        write_id = options.write_id or uuid.uuid4().hex
        if not 0 < len(write_id) <= _MAX_WRITE_ID:
            raise OptionError(f"writeId has {len(write_id)} characters; it may have 1 to {_MAX_WRITE_ID}")

        async def first_epoch(session: HubSession) -> int:
            if not session.epoch_sec:
                return 0
            if options.write_time is not None:
                return epoch_at(options.write_time, session.epoch_sec)
            if options.write_id is not None:
                raise OptionError(
                    f"the labels of this hub rotate every {session.epoch_sec} s: with writeId, also say when the "
                    "write was first begun, .option('writeTime', TIME), the same each time"
                )
            return session.epoch_now()

        with HubLink(options.hub) as link:
            bound = replace(options, hub=link.bound())
            self._plan = WritePlan(options=bound, write_id=write_id, epoch=link.session(first_epoch))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - this is a task
        return Done(write_rows(self._plan, context.partitionId(), iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _complete(self._plan.options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """One write per micro-batch, named by the query and the batch: a repeated batch doubles nothing."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(options, schema, overwrite=overwrite)
        if options.write_id is not None or options.write_time is not None:
            raise OptionError("writeId and writeTime are for batches: a stream names its own writes")

        async def rotates(session: HubSession) -> bool:
            return bool(session.epoch_sec)

        with HubLink(options.hub) as link:
            if link.session(rotates):
                raise OptionError(
                    "the labels of this hub rotate, so a batch that is run again cannot know where it began: use "
                    "foreachBatch and a batch write with writeId and writeTime"
                )
            self._options = replace(options, hub=link.bound())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None  # noqa: S101 - this is a task
        write_id = f"{context.getLocalProperty(_QUERY_ID)}/{context.getLocalProperty(_BATCH_ID)}"
        plan = WritePlan(options=self._options, write_id=write_id, epoch=0)
        return Done(write_rows(plan, context.partitionId(), iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        _complete(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: sent rows are in the log, and the repeated batch recognises them."""


def _check(options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
    if overwrite:
        raise OptionError("a log is never overwritten: use .mode('append')")
    check_columns(schema)
    open_keys(options)  # here as well as in tasks: a wrong path or passphrase is told before anything begins


def _complete(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    done = [message.written for message in messages if isinstance(message, Done)]
    if options.receipts is not None and done:
        complete(options.receipts, options.stream, done)


def write_rows(plan: WritePlan, partition: int, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send all rows of a partition, in order; return when the last one is in the log."""
    identity, keys = open_keys(plan.options)
    sent = SentFiles(plan, partition, keys.stream_id)
    names: dict[int, str | None] = {}
    with (
        private_directory("veen-write-") as scratch,  # the state of a client has secrets, too
        HubLink(plan.options.hub) as link,
        StateStore(PrivateFs(scratch)) as store,
    ):
        sender: RowSender | None = None

        async def send(session: HubSession, rows: list[tuple[int, Draft]]) -> None:
            nonlocal sender
            sender = sender or RowSender(session, plan, identity, keys, partition, store)
            for delivery in await sender.send(rows):
                sent.add(delivery, names.pop(delivery.row, None))

        for group in _groups(plan, partition, batches, names):
            link.session(lambda session: send(session, group))  # noqa: B023 - called at once
    return sent.close()


def _groups(
    plan: WritePlan, partition: int, batches: Iterator[pa.RecordBatch], names: dict[int, str | None]
) -> Iterator[list[tuple[int, Draft]]]:
    """Yield rows as drafts, a bounded number at a time; store their keys in `names`."""
    most = _BATCHES_AT_ONCE * plan.options.batch
    group: list[tuple[int, Draft]] = []
    row, size = 0, 0
    for batch in batches:
        for values in _rows(batch, most):
            try:
                draft = draft_of(values, plan.options.schema)
            except (ValueError, TypeError) as exc:
                raise RowRefused(f"row {row} of partition {partition} (writeId {plan.write_id}): {exc}") from exc
            names[row] = values.get("key")
            group.append((row, draft))
            row, size = row + 1, size + len(draft.body)
            if len(group) >= most or size >= _BYTES_AT_ONCE:
                yield group
                group, size = [], 0
    if group:
        yield group


def _rows(batch: pa.RecordBatch, most: int) -> Iterator[dict[str, Any]]:
    for at in range(0, batch.num_rows, most):
        yield from batch.slice(at, most).to_pylist()
