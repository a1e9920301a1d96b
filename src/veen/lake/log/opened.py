"""Opened rows: entries with their decrypted contents, for the data source, for UDFs, and for work without Spark.

Keys come as the path of a key file, which is read where rows are made. An entry that cannot be opened is a row with `ok
= false` and the reason: those of `veen.lake.log.entries`, or sealed, malformed, ambiguous of
`veen.lake.log.decryption`.

Bodies as JSON text and names of schemas: the readable form of an opened entry.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any, Final, NoReturn

import pyarrow as pa

from veen.client.identity.keyring import Keyring
from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.labels import routing_key_of
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.lake.log.columns import ENTRIES, Column, arrow_schema, select_columns, to_batches
from veen.lake.log.decryption import StreamReader, reader_of
from veen.lake.log.entries import LogSource, ReadSpec
from veen.lake.log.errors import SourceDamaged
from veen.lake.log.keys import KeyFile
from veen.lake.log.slices import LabelStream, Slice, epochs_near

_MAX_DEPTH: Final = 64
_MAX_DIGITS: Final = 200  # before or behind the point: 1e999999999 must not become a gigabyte


def json_of(body: bytes) -> str | None:
    """Return a CBOR body as JSON: sorted keys, bytes as hex, bytes that hold a JSON object or array as that value.

    Numbers keep their digits. Return None for a body that is not CBOR, or that has no JSON form.
    """
    try:
        text = _to_json(cbor.decode(body), 0)
        text.encode()  # a lone surrogate has no UTF-8
    except (VeenError, ValueError, TypeError, RecursionError):
        return None
    return text


def _to_json(value: Any, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, bytes):
        return _bytes_to_json(value, depth)
    if isinstance(value, list | tuple):
        return f"[{','.join(_to_json(element, depth + 1) for element in value)}]"
    if isinstance(value, dict):
        members = sorted((_key(key), element) for key, element in value.items())
        return f"{{{','.join(f'{_quote(key)}:{_to_json(element, depth + 1)}' for key, element in members)}}}"
    if isinstance(value, Decimal):
        return _number_to_json(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _bytes_to_json(value: bytes, depth: int) -> str:
    if value[:1] in (b"{", b"["):
        try:
            return _to_json(json.loads(value, parse_float=Decimal, parse_constant=_refuse), depth)
        except (ValueError, RecursionError):
            pass
    return f'"{value.hex()}"'


def _number_to_json(value: Decimal) -> str:
    if abs(value.adjusted()) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return format(value, "f")


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return key.hex() if isinstance(key, bytes) else str(key)


@cache
def _names() -> dict[bytes, str]:
    from veen.overlays.framework.registry import BUILTIN  # every overlay: a task that names no schema does without

    registry = BUILTIN.with_installed()
    return {schema.id: schema.name for name in registry for schema in registry[name].schemas}


def schema_name(schema: bytes) -> str:
    """Return the name of a schema of an installed overlay, or its id in hex."""
    return _names().get(schema) or schema.hex()


_ENTRY: Final = {column.name: column for column in ENTRIES}
OPENED: Final = (
    _ENTRY["label"],
    _ENTRY["epoch"],
    _ENTRY["stream_id"],
    Column("stream", "STRING", pa.string(), "its name, if the reader's keys have one"),
    _ENTRY["stream_seq"],
    _ENTRY["hub_ts"],
    _ENTRY["leaf_hash"],
    _ENTRY["client_id"],
    _ENTRY["auth_ref"],
    Column("schema", "STRING", pa.string(), "the name of the body's schema, or its id in hex"),
    Column("payload", "STRING", pa.string(), "the body as JSON; NULL if it is no CBOR"),
    Column("body", "BINARY", pa.binary(), "as it was sealed"),
    _ENTRY["ok"],
    _ENTRY["reason"],
)
OPENED_LEAN: Final = tuple(column for column in OPENED if column.name not in ("epoch", "auth_ref", "body"))
_READ: Final = select_columns(
    [
        "label",
        "epoch",
        "stream_id",
        "stream_seq",
        "hub_ts",
        "leaf_hash",
        "client_id",
        "auth_ref",
        "msg",
        "ok",
        "reason",
    ],
    ENTRIES,
)


class RowOpener:
    """Opens rows of entries with the keys of a reader. Owned by the thread that reads."""

    def __init__(self, keyring: Keyring, identity: HubIdentity | None = None) -> None:
        self._keyring = keyring
        self._routing_key = routing_key_of(identity.hub_id) if identity is not None else None
        self._streams = {keys.stream_id: None for keys in keyring.entries}
        self._names = {keys.stream_id: keys.name for keys in reversed(keyring.entries) if keys.name is not None}
        self._labels: dict[bytes, LabelStream] = {}
        self._readers: dict[bytes, StreamReader] = {}
        self._any = StreamReader(tuple(keys for keys in keyring.entries if keys.can_read))

    def open_row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the row of OPENED for a row of entries."""
        label = row["label"]
        stream = self._stream_of(label, row["epoch"], row["stream_id"], row["hub_ts"])
        shared = row | {"stream_id": stream.stream_id, "epoch": stream.epoch}
        shared["stream"] = self._names.get(stream.stream_id or b"")
        raw = shared.pop("msg")
        if not row["ok"] or raw is None:
            return shared
        return shared | self._open(raw, self._reader_of(stream))

    def open_msg(self, raw: bytes) -> dict[str, Any]:
        """Return schema, payload, body, ok and reason of a MSG. Try every key: a MSG does not name its stream."""
        return self._open(raw, self._any)

    def _open(self, raw: bytes, reader: StreamReader) -> dict[str, Any]:
        opened = reader.open(Msg.from_bytes(raw))
        if isinstance(opened, str):
            return {"ok": False, "reason": opened}
        body, schema = opened.body, opened.hdr.schema
        return {"schema": schema_name(schema), "payload": json_of(body), "body": body, "ok": True, "reason": None}

    def _reader_of(self, stream: LabelStream) -> StreamReader:
        stream_id = stream.stream_id
        if stream_id is None or stream_id not in self._streams:
            return StreamReader()
        if stream_id not in self._readers:
            self._readers[stream_id] = reader_of(self._keyring, stream_id)
        return self._readers[stream_id]

    def _stream_of(self, label: bytes, epoch: int, stream_id: bytes | None, hub_ts: int | None) -> LabelStream:
        stream = self._labels.get(label)
        if stream is not None:
            return stream
        stream = LabelStream(label, epoch, stream_id, self._routing_key)
        if stream.is_foreign:  # the journal names a stream that the label disproves
            stream = stream._replace(stream_id=None)
        if stream.stream_id is None and self._routing_key is not None:
            epochs = epochs_near(epoch, hub_ts)
            stream = stream._replace(epochs=epochs).match_stream(self._streams) or stream
        if hub_ts is not None or stream.stream_id is not None:  # else a later row may tell more
            self._labels[label] = stream
        return stream


def open_slices(source: LogSource, slices: Iterable[Slice], spec: ReadSpec, keys: KeyFile) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some slices in the columns of `spec`, a part of OPENED. Read the key file here."""
    opener = RowOpener(keys.load(), spec.identity)
    schema = arrow_schema(spec.columns)
    names = schema.names
    for batch in source.read(slices, replace(spec, columns=_READ, fail_fast=False)):
        opened = (opener.open_row(row) for row in batch.to_pylist())
        rows = (
            {name: row.get(name) for name in names} for row in (_stop_at_failure(opened) if spec.fail_fast else opened)
        )
        yield from to_batches(rows, schema)


def _stop_at_failure(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if not row["ok"]:
            raise SourceDamaged(f"label {row['label'].hex()}: entry {row['stream_seq']}: {row['reason']}")
        yield row
