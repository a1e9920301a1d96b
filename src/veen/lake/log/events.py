"""Events of a pinned prefix: `veen.lake.spark.runner` has the same rows as a DataFrame (D-79, D-120).

The first step of tables, folds and products. Each entry is an `Event`, or an `Unread` with the reason; none is left
out. Keys travel as the path of a key file and are read where tasks run.

    prefix = make_prefix("./hub")                       # heads, and the roots there: prefix.cuts
    for event in read_events(prefix, KeyFile("reader.keys")): ...
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from veen.client.identity.keyring import Keyring
from veen.core.errors import VeenError
from veen.core.event import Event, encode_stored_header, read_stored_header
from veen.core.objects.identity import HubIdentity
from veen.io.local import Fs
from veen.io.places import open_fs
from veen.lake.log.columns import Column, arrow_schema, to_batches
from veen.lake.log.decryption import REASONS, Opener, Unread, in_order
from veen.lake.log.entries import Level
from veen.lake.log.errors import PipelineError
from veen.lake.log.keys import KeyFile
from veen.lake.log.prefix import LabelRange, Mark, Prefix, make_prefix
from veen.lake.log.slices import Slice
from veen.storage.pinned import first_ts

__all__ = [
    "EVENT_COLUMNS",
    "REASONS",
    "SILVER",
    "SORT_KEYS",
    "EventJob",
    "LogEntry",
    "Mark",
    "NotAnEvent",
    "Opener",
    "Prefix",
    "Unread",
    "entry_of",
    "event_batches",
    "event_of",
    "event_row",
    "header_of",
    "make_prefix",
    "prefix_of",
    "read_events",
    "rows_of",
]


def _column(name: str, sql: str, arrow: pa.DataType, about: str) -> Column:
    return Column(name, sql, arrow, about)


SILVER: Final = (
    _column("stream_id", "BINARY", pa.binary(), "of the label; NULL where nothing tells it"),
    _column("stream", "STRING", pa.string(), "its name, if the reader's keys have one"),
    _column("label", "BINARY", pa.binary(), "the physical log the entry is in"),
    _column("epoch", "BIGINT", pa.int64(), "of the label"),
    _column("stream_seq", "BIGINT", pa.int64(), "position in the label, from 1"),
    _column("leaf_hash", "BINARY", pa.binary(), "msg_id; NULL if damaged or missing"),
    _column("client_id", "BINARY", pa.binary(), "who signed the message; NULL as above"),
    _column("auth_ref", "BINARY", pa.binary(), "the capability it was sent under"),
    _column("hub_ts", "BIGINT", pa.int64(), "when the hub took it, in seconds; NULL as above"),
    _column("ts", "BIGINT", pa.int64(), "the greatest hub_ts of the label so far"),
    _column("schema", "BINARY", pa.binary(), "of the body; NULL unless ok"),
    _column(
        "hdr", "BINARY", pa.binary(), "the payload header, in canonical CBOR, of a copy with its origin; NULL unless ok"
    ),
    _column("body", "BINARY", pa.binary(), "as it was sealed, of a copy that of the original; NULL unless ok"),
    _column("ok", "BOOLEAN", pa.bool_(), "whether the entry could be opened"),
    _column("reason", "STRING", pa.string(), f"why not: {', '.join(REASONS)}"),
)
SORT_KEYS: Final = ("ts", "stream_id", "epoch", "stream_seq", "leaf_hash")  # the logical order (D-27)


class NotAnEvent(PipelineError):
    """A table row marked as an event that cannot be decoded as one."""

    hint = "Load the tables again from the log, into a new place."


LogEntry = Event | Unread
header_of = lru_cache(maxsize=1024)(read_stored_header)  # most headers say no more than the schema


# --- rows --------------------------------------------------------------------------------------------------------


_SHARED: Final = (
    "stream_id", "label", "epoch", "stream_seq", "leaf_hash", "client_id", "auth_ref", "hub_ts", "ts",
)  # fmt: skip
_NUMBERS: Final = frozenset({"epoch", "stream_seq", "hub_ts", "ts"})
_UNKNOWN: Final = frozenset({"stream_id", "leaf_hash", "client_id", "auth_ref"})  # what Unread may lack
_NULLS: Final = dict.fromkeys(column.name for column in SILVER)
EVENT_COLUMNS: Final = (*_SHARED, "hdr", "body")  # those that make an event


def event_row(event: Event) -> dict[str, Any]:
    """Return the event as a row of EVENT_COLUMNS."""
    return {name: getattr(event, name) for name in _SHARED} | {
        "hdr": encode_stored_header(event.hdr, event.origin),
        "body": event.body,
    }


def rows_of(entries: Iterable[LogEntry], names: Mapping[bytes, str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield entries as rows of SILVER. `names` maps stream ids to names."""
    for entry in entries:
        stream = (names or {}).get(entry.stream_id or b"")
        if isinstance(entry, Event):
            yield _NULLS | event_row(entry) | {"stream": stream, "schema": entry.hdr.schema, "ok": True}
        else:
            row = {name: getattr(entry, name) for name in _SHARED}
            yield _NULLS | row | {"stream": stream, "ok": False, "reason": entry.reason}


def entry_of(row: Mapping[str, Any]) -> LogEntry:
    """Decode a row of SILVER: a mapping or a Row of Spark. Raise NotAnEvent if it is invalid."""
    return event_of(row) if row["ok"] else Unread(**_fields(row, _UNKNOWN), reason=row["reason"])


def event_of(row: Mapping[str, Any]) -> Event:
    """Decode a row with `ok` set. Raise NotAnEvent if it is invalid."""
    try:
        hdr, origin = header_of(_bytes(row["hdr"]))
        return Event(**_fields(row, frozenset({"auth_ref"})), hdr=hdr, body=_bytes(row["body"]), origin=origin)
    except (VeenError, TypeError) as exc:
        raise NotAnEvent(f"entry {row['stream_seq']} of a label: the row is not a valid event") from exc


def _fields(row: Mapping[str, Any], optional: frozenset[str]) -> dict[str, Any]:
    """Return the fields that Event and Unread share. Raise TypeError for NULL in a required one."""
    return {
        name: row[name] if name in _NUMBERS or (row[name] is None and name in optional) else _bytes(row[name])
        for name in _SHARED
    }


def _bytes(value: Any) -> bytes:
    return bytes(memoryview(value))  # TypeError for None: bytes(None) is one, bytes(5) would not be


# --- reading ------------------------------------------------------------------------------------------------------


def read_events(
    source: str | Prefix, keys: KeyFile | Keyring, *, verify: Level = "hash", **selected: Any
) -> Iterator[LogEntry]:
    """Yield each entry in logical order (D-27), in one process. `selected` are arguments of `make_prefix`."""
    prefix = prefix_of(source, selected)
    keyring = keys.load() if isinstance(keys, KeyFile) else keys
    opener, fs = Opener(keyring, level=verify, identity=prefix.identity), open_fs(prefix.uri)

    return in_order((_begin(fs, label_range), opener.events(fs, label_range.slices)) for label_range in prefix.labels)


def _begin(fs: Fs, label_range: LabelRange) -> int:
    """Return a time not after the first entry of the range, so that labels that begin later are opened later."""
    first = label_range.slices[0]
    return label_range.before.ts or (0 if first.is_missing else first_ts(fs, first.chunk) or 0)


def prefix_of(source: str | Prefix, selected: Mapping[str, Any]) -> Prefix:
    """Return the prefix itself, or make one of a path and arguments of `make_prefix`."""
    if isinstance(source, Prefix):
        if selected:
            raise TypeError(f"a prefix is given: {', '.join(sorted(selected))} would select nothing")
        return source
    return make_prefix(source, **selected)


# --- as batches ----------------------------------------------------------------------------------------------------


class EventJob(NamedTuple):
    """Arguments of every task. The key file is named, never read by the driver."""

    uri: str
    keys: KeyFile
    level: Level = "hash"
    identity: HubIdentity | None = None

    def opener(self) -> Opener:
        return Opener(self.keys.load(), level=self.level, identity=self.identity)


def event_batches(job: EventJob, slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some slices, in order."""
    opener = job.opener()
    rows = rows_of(opener.events(open_fs(job.uri), slices), opener.names)
    return to_batches(rows, arrow_schema(SILVER))
