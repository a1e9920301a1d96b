"""Events of a pinned prefix: in one process, or as a DataFrame whose rows are the same (D-79, D-120).

The first step of everything that interprets a log: tables, folds, products. Each entry is an `Event`, or an `Unread`
that says why it cannot be one; none is left out. Keys travel as the path of a key file and are read where tasks run.

    prefix = make_prefix("./hub")                       # heads, and the roots there: prefix.cuts
    for found in read_events(prefix, KeyFile("reader.keys")): ...
    frame = events_frame(spark, prefix, KeyFile("reader.keys"))
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from veen.client.keyring import Keyring
from veen.core.errors import VeenError
from veen.core.event import Event, Order
from veen.core.hubkeys import HubIdentity
from veen.core.payload_hdr import PayloadHdr
from veen.pipeline.bronze import Level
from veen.pipeline.columns import Column, arrow_schema, ddl
from veen.pipeline.errors import PipelineError
from veen.pipeline.files import open_fs
from veen.pipeline.inventory import first_ts
from veen.pipeline.opening import REASONS, Clock, Entry, Reader, event_at, in_order, open_entries, readers_of
from veen.pipeline.plan import Piece
from veen.pipeline.prefix import LabelPart, Mark, Place, Prefix, make_prefix, resolve
from veen.pipeline.query.keys import KeyFile
from veen.pipeline.session import described
from veen.pipeline.works import Times, Work, cut, over, parts_for, surveyed, timed
from veen.storage.fs import Fs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "REASONS",
    "SILVER",
    "SORT_KEYS",
    "EventJob",
    "EventWork",
    "Found",
    "Mark",
    "NotAnEvent",
    "Opener",
    "Prefix",
    "Unread",
    "event_batches",
    "event_of",
    "events_frame",
    "found_of",
    "make_prefix",
    "read_events",
    "rows_of",
    "timed_tasks",
]

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 4 << 20


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
    _column("hdr", "BINARY", pa.binary(), "the payload header, in canonical CBOR; NULL unless ok"),
    _column("body", "BINARY", pa.binary(), "as it was sealed; NULL unless ok"),
    _column("ok", "BOOLEAN", pa.bool_(), "whether the entry could be opened"),
    _column("reason", "STRING", pa.string(), f"why not: {', '.join(REASONS)}"),
)
SORT_KEYS: Final = ("ts", "stream_id", "epoch", "stream_seq", "leaf_hash")  # the logical order (D-27)


class NotAnEvent(PipelineError):
    """A row of a table that says it is an event and is none."""

    hint = "Load the tables again from the log, into a new place."


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An entry that can be no event, with as much as is known of it."""

    stream_id: bytes | None
    label: bytes
    epoch: int
    stream_seq: int
    leaf_hash: bytes | None
    client_id: bytes | None
    auth_ref: bytes | None
    hub_ts: int | None
    ts: int
    reason: str  # one of REASONS

    @property
    def order(self) -> Order:
        return self.ts, self.stream_id or b"", self.epoch, self.stream_seq, self.leaf_hash or b""


Found = Event | Unread


# --- rows --------------------------------------------------------------------------------------------------------


def rows_of(found: Iterable[Found], names: Mapping[bytes, str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of SILVER; `names` are those of streams."""
    for one in found:
        row = {
            "stream_id": one.stream_id,
            "stream": (names or {}).get(one.stream_id or b""),
            "label": one.label,
            "epoch": one.epoch,
            "stream_seq": one.stream_seq,
            "leaf_hash": one.leaf_hash,
            "client_id": one.client_id,
            "auth_ref": one.auth_ref,
            "hub_ts": one.hub_ts,
            "ts": one.ts,
        }
        if isinstance(one, Event):
            row |= {"schema": one.hdr.schema, "hdr": one.hdr.to_bytes(), "body": one.body, "ok": True, "reason": None}
        else:
            row |= {"schema": None, "hdr": None, "body": None, "ok": False, "reason": one.reason}
        yield row


def found_of(row: Mapping[str, Any]) -> Found:
    """What a row of SILVER says: a mapping, or a row of Spark. NotAnEvent if it is not one of ours."""
    return event_of(row) if row["ok"] else _unread_of(row)


def event_of(row: Mapping[str, Any]) -> Event:
    """The event of a row with `ok`."""
    try:
        return Event(
            stream_id=_bytes(row, "stream_id"),
            label=_bytes(row, "label"),
            epoch=row["epoch"],
            stream_seq=row["stream_seq"],
            leaf_hash=_bytes(row, "leaf_hash"),
            client_id=_bytes(row, "client_id"),
            auth_ref=_maybe(row, "auth_ref"),
            hub_ts=row["hub_ts"],
            ts=row["ts"],
            hdr=PayloadHdr.from_bytes(_bytes(row, "hdr")),
            body=_bytes(row, "body"),
        )
    except (VeenError, TypeError) as exc:
        raise NotAnEvent(f"entry {row['stream_seq']} of a label: the row is no event") from exc


def _unread_of(row: Mapping[str, Any]) -> Unread:
    return Unread(
        stream_id=_maybe(row, "stream_id"),
        label=_bytes(row, "label"),
        epoch=row["epoch"],
        stream_seq=row["stream_seq"],
        leaf_hash=_maybe(row, "leaf_hash"),
        client_id=_maybe(row, "client_id"),
        auth_ref=_maybe(row, "auth_ref"),
        hub_ts=row["hub_ts"],
        ts=row["ts"],
        reason=row["reason"],
    )


def _bytes(row: Mapping[str, Any], name: str) -> bytes:
    return bytes(memoryview(row[name]))  # TypeError for None: bytes(None) is one, bytes(5) would not be


def _maybe(row: Mapping[str, Any], name: str) -> bytes | None:
    return None if row[name] is None else _bytes(row, name)


# --- opening -----------------------------------------------------------------------------------------------------


class Opener:
    """The keys of a reader, applied to places of a directory."""

    def __init__(self, keyring: Keyring, *, level: Level = "hash", identity: HubIdentity | None = None) -> None:
        self._keyring, self._level, self._identity = keyring, level, identity
        self._streams = {keys.stream_id: None for keys in keyring.entries}  # in order, each once
        self.names = {keys.stream_id: keys.name for keys in reversed(keyring.entries) if keys.name is not None}
        self._readers: dict[bytes, tuple[Place, Reader]] = {}

    def found(self, fs: Fs, place: Place, piece: Piece, clock: Clock) -> Iterator[Found]:
        """The entries of one piece, in order."""
        foreign = place.is_foreign
        place, reader = self._resolved(place)
        for entry in open_entries(fs, piece, clock, reader, level=self._level, identity=self._identity):
            opened = entry.opened
            if place.stream_id is None or isinstance(opened, str):
                reason = opened if isinstance(opened, str) else "sealed"
                yield _unread(place, entry, "damaged" if foreign and reason == "sealed" else reason)
            else:
                yield event_at(
                    stream_id=place.stream_id, label=place.label, epoch=place.epoch, entry=entry, opened=opened
                )

    def _resolved(self, place: Place) -> tuple[Place, Reader]:
        known = self._readers.get(place.label)
        if known is None:
            place = place._replace(stream_id=None) if place.is_foreign else resolve(place, self._streams) or place
            readable = place.stream_id is not None and place.stream_id in self._streams
            known = place, readers_of(self._keyring, place.stream_id or b"") if readable else Reader()
            self._readers[place.label] = known
        return known


def _unread(place: Place, entry: Entry, reason: str) -> Unread:
    return Unread(
        stream_id=place.stream_id,
        label=place.label,
        epoch=place.epoch,
        stream_seq=entry.stream_seq,
        leaf_hash=entry.leaf_hash,
        client_id=entry.client_id,
        auth_ref=entry.auth_ref,
        hub_ts=entry.hub_ts,
        ts=entry.ts,
        reason=reason,
    )


def read_events(
    source: str | Prefix, keys: KeyFile | Keyring, *, verify: Level = "hash", **selected: Any
) -> Iterator[Found]:
    """Every entry in logical order (D-27), in one process. `selected` is for `make_prefix`, if a path is given."""
    prefix = _prefix(source, selected)
    keyring = keys.load() if isinstance(keys, KeyFile) else keys
    opener, fs = Opener(keyring, level=verify, identity=prefix.identity), open_fs(prefix.uri)

    def of(part: LabelPart) -> Iterator[Found]:
        clock = Clock(part.before.ts)
        for piece in part.pieces:
            yield from opener.found(fs, part.place, piece, clock)

    return in_order((_begin(fs, part), of(part)) for part in prefix.labels)


def _begin(fs: Fs, part: LabelPart) -> int:
    """Not after the first entry of the part, so that labels far ahead stay closed."""
    ref = part.pieces[0].ref
    return part.before.ts or (0 if ref.kind == "missing" else first_ts(fs, ref) or 0)


def _prefix(source: str | Prefix, selected: Mapping[str, Any]) -> Prefix:
    if isinstance(source, Prefix):
        if selected:
            raise TypeError(f"a prefix is given: {', '.join(sorted(selected))} would select nothing")
        return source
    return make_prefix(source, **selected)


# --- on Spark ----------------------------------------------------------------------------------------------------


class EventJob(NamedTuple):
    """What every task knows. The key file is named, never read by the driver."""

    uri: str
    keys: KeyFile
    level: Level = "hash"
    identity: HubIdentity | None = None

    def opener(self) -> Opener:
        return Opener(self.keys.load(), level=self.level, identity=self.identity)


EventWork = Work[Place]


def event_batches(job: EventJob, works: Sequence[EventWork]) -> Iterator[pa.RecordBatch]:
    """The rows of some works, in order."""
    fs, opener, schema = open_fs(job.uri), job.opener(), arrow_schema(SILVER)
    held: list[dict[str, Any]] = []
    size = 0
    for place, piece, before_ts in works:
        for row in rows_of(opener.found(fs, place, piece, Clock(before_ts)), opener.names):
            held.append(row)
            size += len(row["body"] or b"")
            if len(held) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield pa.RecordBatch.from_pylist(held, schema=schema)
                held, size = [], 0
    yield pa.RecordBatch.from_pylist(held, schema=schema)


def timed_tasks(spark: "SparkSession | None", prefix: Prefix, parts: int | None = None) -> list[list[EventWork]]:
    """The prefix cut into tasks, each work with the ts* before it. Runs a job that looks at times."""
    if parts is None:
        parts = parts_for(spark, prefix.size) if spark is not None else 1
    tasks = cut(((one.place, one.pieces) for one in prefix.labels), parts)
    if not tasks:
        return []
    times: Sequence[Times | None] = [None] * sum(map(len, tasks))
    if any(len(one.pieces) > 1 for one in prefix.labels) or len(tasks) > 1:  # else no work has another before it
        with described(spark, "events: look at times") if spark is not None else nullcontext():
            times = surveyed(spark, prefix.uri, tasks)
    return timed(tasks, times, {one.label: one.before.ts for one in prefix.labels})


def events_frame(
    spark: "SparkSession",
    source: str | Prefix,
    keys: KeyFile,
    *,
    parts: int | None = None,
    verify: Level = "hash",
    **selected: Any,
) -> "DataFrame":
    """The same entries as a DataFrame with the columns of SILVER, in no order: sort by SORT_KEYS where it matters.

    One prefix: `make_prefix` it first to have the cuts next to the frame. `parts` is how many tasks to cut it into.
    """
    prefix = _prefix(source, selected)
    job = EventJob(prefix.uri, keys.absolute(), verify, prefix.identity)
    tasks = timed_tasks(spark, prefix, parts)
    if not tasks:
        return spark.createDataFrame([], ddl(SILVER))
    return over(spark, len(tasks), lambda number: event_batches(job, tasks[number]), SILVER)
