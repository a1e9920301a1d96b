"""The columns of `format("veen")`: one list, from which the DDL, the Arrow schema and the decoder follow (D-07)."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from veen.lake.log.errors import OptionError

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 4 << 20


class Column(NamedTuple):
    name: str
    sql: str
    arrow: pa.DataType
    about: str


def _binary(name: str, about: str) -> Column:
    return Column(name, "BINARY", pa.binary(), about)


def _long(name: str, about: str) -> Column:
    return Column(name, "BIGINT", pa.int64(), about)


def _text(name: str, about: str) -> Column:
    return Column(name, "STRING", pa.string(), about)


_POSITION: Final = (
    _binary("label", "the physical log the entry is in"),
    _long("epoch", "of the label"),
    _binary("stream_id", "of the label, where the hub knows it"),
    _long("stream_seq", "position in the label, from 1"),
)
_FILE: Final = (
    _text("path", "the file the entry was read from"),
    _long("frame_offset", "where its frame begins in the plain chunk"),
    _long("frame_length", "bytes of its frame"),
    Column("ok", "BOOLEAN", pa.bool_(), "false if the entry is damaged, erased or missing"),
    _text("reason", "why not"),
)
ENTRIES: Final = (
    *_POSITION,
    _long("hub_ts", "when the hub took it, in seconds"),
    _binary("leaf_hash", "msg_id"),
    _binary("mmr_root", "root after this entry, as the receipt says"),
    _binary("hub_sig", "the hub's signature on the receipt"),
    _binary("entry_hash", "hash of MSG and RECEIPT in the frame"),
    _binary("profile_id", "of the message"),
    _binary("client_id", "who signed the message"),
    _long("client_seq", "of the writer in this label"),
    _long("prev_ack", "the last receipt the writer had seen"),
    _binary("auth_ref", "the capability it was sent under"),
    _binary("ct_hash", "hash of the ciphertext"),
    _binary("ciphertext", "header and body, sealed"),
    _binary("msg_sig", "the writer's signature"),
    _binary("msg", "the MSG, byte for byte"),
    _binary("receipt", "the RECEIPT, byte for byte"),
    *_FILE,
)
# Without what MSG and RECEIPT have as well, and without the place in the file.
_DERIVED: Final = frozenset(
    ("hub_sig", "entry_hash", "ct_hash", "ciphertext", "msg_sig", "frame_offset", "frame_length")
)
LEAN: Final = tuple(column for column in ENTRIES if column.name not in _DERIVED)
RECEIPTS: Final = tuple(
    column
    for column in ENTRIES
    if column.name
    in {
        "label",
        "epoch",
        "stream_id",
        "stream_seq",
        "hub_ts",
        "leaf_hash",
        "mmr_root",
        "hub_sig",
        "receipt",
        "ok",
        "reason",
    }
)
CHECKPOINTS: Final = (
    _binary("label", "the label it commits to"),
    _binary("label_prev", "the label of the epoch before"),
    _long("epoch", "of the label"),
    _long("upto_seq", "entries it covers"),
    _binary("mmr_root", "root over them"),
    _binary("hub_sig", "the hub's signature"),
    Column("witness_sigs", "ARRAY<BINARY>", pa.list_(pa.binary()), "of a rotation, and of outside witnesses"),
    _binary("checkpoint", "the CHECKPOINT, byte for byte"),
    _text("path", "the file it was read from"),
    Column("ok", "BOOLEAN", pa.bool_(), "false if the file cannot be read"),
    _text("reason", "why not"),
)
SENT: Final = (
    _text("write_id", "the write that sent the row"),
    _long("partition", "of the DataFrame that was written"),
    _long("row", "position in the partition, from 0"),
    _text("key", "what the row called itself"),
    _binary("stream_id", "the stream it was written to"),
    *(column for column in RECEIPTS if column.name in {"label", "epoch", "stream_seq", "hub_ts", "leaf_hash"}),
    _binary("client_id", "the key that signed the message"),
    _long("client_seq", "of that key in the label"),
    *(column for column in RECEIPTS if column.name in {"mmr_root", "receipt"}),
)


def ddl(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.name} {column.sql}" for column in columns)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def select_columns(names: Sequence[str], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of a user's schema by name. Raise OptionError for an unknown name."""
    by_name = {column.name: column for column in columns}
    if unknown := [name for name in names if name.lower() not in by_name]:
        raise OptionError(f"unknown column {', '.join(unknown)}; columns: {', '.join(by_name)}")
    return tuple(by_name[name.lower()] for name in names)


def parse_columns(asked: str, every: Sequence[Column], lean: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns named by the option `columns`: lean, all, or a comma-separated list."""
    if asked in ("lean", "all"):
        return tuple(lean if asked == "lean" else every)
    names = [name.strip() for name in asked.split(",")]
    if not all(names) or len({name.lower() for name in names}) != len(names):
        raise OptionError(f"columns is {asked!r}: expected lean, all, or different names with commas between them")
    return select_columns(names, every)


def to_batches(rows: Iterable[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield record batches of bounded size; the last may be empty. Columns that a row lacks are NULL."""
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row.values() if type(value) is bytes)
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(batch, schema=schema)
            batch, size = [], 0
    yield pa.RecordBatch.from_pylist(batch, schema=schema)
