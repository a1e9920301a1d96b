"""The index: everything that is looked up by key instead of position, in SQLite (spec §3.4.1).

It is rebuildable: each row follows from log and control journal. It is also the snapshot from which a restart begins,
so one transaction brings all cursors to one point, the beginning of a journal segment. Rows that decide admission have
a check value, as SQLite itself would not notice a flipped bit.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from veen.core.objects.control import (
    AnchorPublish,
    CapAuthorize,
    ControlRecord,
    HubFence,
    HubPromote,
    KeyRotate,
    OuterKey,
    RequestDone,
    StreamRegister,
)
from veen.core.objects.policies import POLICY_BODIES, PolicyBody
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS labels (
    row INTEGER PRIMARY KEY, label BLOB NOT NULL UNIQUE, epoch INTEGER NOT NULL, stream_id BLOB,
    size INTEGER NOT NULL, peaks BLOB NOT NULL, last_ts INTEGER NOT NULL,
    active_start INTEGER NOT NULL, active_bytes INTEGER NOT NULL, active_first_ts INTEGER NOT NULL,
    active_hash_peaks BLOB NOT NULL, active_max_bytes INTEGER NOT NULL, active_max_entries INTEGER NOT NULL,
    checkpoints INTEGER NOT NULL, checkpoints_bytes INTEGER NOT NULL,
    chk INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS labels_by_epoch ON labels (epoch, label);
CREATE TABLE IF NOT EXISTS clients (
    row INTEGER PRIMARY KEY, label_row INTEGER NOT NULL, client_id BLOB NOT NULL,
    client_seq INTEGER NOT NULL, prev_ack INTEGER NOT NULL, chk INTEGER NOT NULL,
    UNIQUE (label_row, client_id));
CREATE TABLE IF NOT EXISTS entries (
    client_row INTEGER NOT NULL, client_seq INTEGER NOT NULL, stream_seq INTEGER NOT NULL,
    PRIMARY KEY (client_row, client_seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS chunks (
    label_row INTEGER NOT NULL, start_seq INTEGER NOT NULL, end_seq INTEGER NOT NULL, epoch INTEGER NOT NULL,
    total_bytes INTEGER NOT NULL, first_ts INTEGER NOT NULL, last_ts INTEGER NOT NULL,
    mmr_root BLOB NOT NULL, entry_hashes_root BLOB NOT NULL, dropped INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (label_row, start_seq)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chunks_by_time ON chunks (label_row, last_ts, start_seq, end_seq);
CREATE INDEX IF NOT EXISTS chunks_by_epoch ON chunks (epoch, label_row, start_seq, end_seq, mmr_root);
CREATE TABLE IF NOT EXISTS caps (
    auth_ref BLOB PRIMARY KEY, token BLOB NOT NULL, issued_at INTEGER NOT NULL, tokens INTEGER NOT NULL,
    bucket_ts INTEGER NOT NULL, chk INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writers (
    client_id BLOB PRIMARY KEY, first_ts INTEGER NOT NULL, chk INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS policies (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, hub_ts INTEGER NOT NULL, until INTEGER NOT NULL, body BLOB NOT NULL,
    chk INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS records (
    seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, key BLOB NOT NULL, number INTEGER NOT NULL,
    offset INTEGER NOT NULL, length INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS records_by_key ON records (kind, key, number, seq);
"""


META: Final = (
    "segment",
    "hub_ts",
    "limits",
    "control",
    "control_bytes",
    "next_client_row",
    "label_count",
    "entry_count",
    "cap_count",
    "newest",
)
TABLES: Final = ("meta", "labels", "clients", "entries", "chunks", "caps", "writers", "policies", "records")
_VERSION: Final = 3  # of the tables above; an older index lacks rows that only a rebuild can find
_MAX_INTEGER: Final = 2**63 - 1  # of SQLite
_ROWS: Final = 100  # of `entries` in one statement; SQLite takes 32,766 values


@dataclass(frozen=True, slots=True)
class LabelRow:
    """The durable cursor of a label and of its files."""

    row: int
    label: bytes
    epoch: int
    stream_id: bytes | None
    size: int
    peaks: bytes  # by increasing height, concatenated
    last_ts: int
    active_start: int
    active_bytes: int
    active_first_ts: int
    active_hash_peaks: bytes
    active_max_bytes: int  # the limits that applied when the active chunk began (D-75)
    active_max_entries: int
    checkpoints: int  # how many the checkpoint index lists
    checkpoints_bytes: int  # of its entries, without the head of the map


@dataclass(frozen=True, slots=True)
class ClientRow:
    row: int
    label_row: int
    client_id: bytes
    client_seq: int
    prev_ack: int


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """A sealed chunk: one leaf of the manifest tree (STOR-19)."""

    label_row: int
    start_seq: int
    end_seq: int
    epoch: int
    total_bytes: int
    first_ts: int
    last_ts: int
    mmr_root: bytes
    entry_hashes_root: bytes
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class CapRow:
    auth_ref: bytes
    token: bytes
    issued_at: int
    tokens: int
    bucket_ts: int


@dataclass(frozen=True, slots=True)
class WriterRow:
    """The time when a client was first accepted, on any label (D-102)."""

    client_id: bytes
    first_ts: int


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """A policy record of the control journal; it has no effect from `until` on."""

    seq: int
    kind: str
    hub_ts: int
    until: int
    body: bytes


def policy_row(record: ControlRecord, body: PolicyBody) -> PolicyRow:
    return PolicyRow(record.seq, body.KIND, record.hub_ts, min(body.until, _MAX_INTEGER), body.to_bytes())


@dataclass(frozen=True, slots=True)
class RecordRow:
    """Position of a record of the control journal that the API returns."""

    seq: int
    kind: str
    key: bytes  # auth_ref, stream_id or label; nothing for kinds that are asked for as a whole
    number: int  # upto_seq of an anchor, otherwise 0
    offset: int
    length: int


def record_row(record: ControlRecord, offset: int, length: int) -> RecordRow | None:
    """Return the row of a record, or None if records of its kind are never looked up."""
    body = record.body
    if isinstance(body, CapAuthorize):
        return RecordRow(record.seq, body.KIND, body.auth_ref, 0, offset, length)
    if isinstance(body, StreamRegister):
        return RecordRow(record.seq, body.KIND, body.stream_id, 0, offset, length)
    if isinstance(body, RequestDone):
        return RecordRow(record.seq, body.KIND, body.request_id, 0, offset, length)
    if isinstance(body, AnchorPublish):
        return RecordRow(record.seq, body.KIND, body.label, min(body.upto_seq, _MAX_INTEGER), offset, length)
    if isinstance(body, (KeyRotate, *POLICY_BODIES, OuterKey, HubFence, HubPromote)):
        return RecordRow(record.seq, body.KIND, b"", 0, offset, length)
    return None


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """All changes up to the beginning of journal segment `segment`."""

    segment: int
    hub_ts: int
    limits: str  # as JSON
    control: bytes  # the last control record, or nothing
    control_bytes: int  # how long the control journal is
    next_client_row: int
    label_count: int
    entry_count: int  # of all labels
    cap_count: int
    newest: bytes  # the label of the newest entry; of several in one second the one that was opened last
    labels: Sequence[LabelRow]
    clients: Sequence[ClientRow]
    entries: Iterable[tuple[int, int, int]]  # client_row, client_seq, stream_seq
    chunks: Sequence[ChunkRow]
    caps: Sequence[CapRow]
    writers: Sequence[WriterRow]  # those that are known already stay as they are
    policies: Sequence[PolicyRow]
    records: Sequence[RecordRow]


def _check_value(values: tuple[Any, ...]) -> int:
    return zlib.crc32(repr(values).encode())


class Index:
    """One connection. Each thread opens its own."""

    def __init__(self, fs: Fs, *, read_only: bool = False) -> None:
        """Open the index; with `read_only`, as last saved, or raise FileNotFoundError if there is none."""
        self._fs = fs
        self._db = fs.peek(layout.INDEX) if read_only else fs.database(layout.INDEX)
        if read_only:
            return
        try:
            version, new = self._version(), not self._all("SELECT 1 FROM sqlite_master LIMIT 1")
            if new:  # before its tables: what has tables must say which
                self._db.execute(f"PRAGMA user_version = {_VERSION}")
            elif version != _VERSION:
                what = f"version {version} is not supported, expected {_VERSION}: run `veen hub rebuild-index`"
                raise CorruptError(layout.INDEX, 0, what)
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as exc:
            raise CorruptError(layout.INDEX, 0, f"not a usable index: {exc}") from exc

    def _version(self) -> int:
        return int(self._one("PRAGMA user_version", ())[0])

    def close(self) -> None:
        self._db.close()

    # --- the snapshot ----------------------------------------------------------------------------------

    def save(self, *snapshots: IndexSnapshot) -> None:
        """Save all rows in one transaction; durable on return."""
        self.save_all(snapshots)

    def save_all(self, snapshots: Iterable[IndexSnapshot]) -> None:
        """Save a snapshot in any number of parts, if it does not fit into memory; the last one has the cursors."""
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            for snapshot in snapshots:
                meta = tuple(getattr(snapshot, key) for key in META)
                for key, value in zip((*META, "check"), (*meta, _check_value(meta)), strict=True):
                    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
                self._put("labels", snapshot.labels, checked=True)
                self._put("clients", snapshot.clients, checked=True)
                self._put("caps", snapshot.caps, checked=True)
                self._put("writers", snapshot.writers, checked=True, keep=True)
                self._put("policies", snapshot.policies, checked=True)
                self._put("records", snapshot.records, checked=False)
                self._put("chunks", snapshot.chunks, checked=False)
                self._put_entries(snapshot.entries)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # on a full disk SQLite has rolled back by itself
                db.execute("ROLLBACK")
            raise
        self._fs.on_commit(layout.INDEX, db)

    def _put(self, table: str, rows: Iterable[Any], *, checked: bool, keep: bool = False) -> None:
        """Insert rows, replacing those with the same key; with `keep`, leave existing ones."""
        values: list[tuple[Any, ...]] = [tuple(getattr(row, name) for name in row.__slots__) for row in rows]
        if checked:
            values = [(*row, _check_value(row)) for row in values]
        if values:
            marks = ", ".join("?" * len(values[0]))
            otherwise = "IGNORE" if keep else "REPLACE"
            self._db.executemany(f"INSERT OR {otherwise} INTO {table} VALUES ({marks})", values)  # noqa: S608 - our own names

    def _put_entries(self, rows: Iterable[tuple[int, int, int]]) -> None:
        """Insert many rows per statement: the interpreter lock changes hands between statements, and a hub needs it."""
        every = iter(rows)
        while part := list(chain.from_iterable(islice(every, _ROWS))):
            marks = ", ".join(["(?, ?, ?)"] * (len(part) // 3))
            self._db.execute(f"INSERT OR REPLACE INTO entries VALUES {marks}", part)  # noqa: S608 - marks only

    # --- look-ups --------------------------------------------------------------------------------------

    def meta(self, key: str) -> Any:
        row = self._one("SELECT value FROM meta WHERE key = ?", (key,))
        return None if row is None else row[0]

    def check_meta(self) -> None:
        """Raise CorruptError unless the cursors are as saved: a wrong segment would lose entries undetected."""
        if self.meta("check") != _check_value(tuple(self.meta(key) for key in META)):
            raise CorruptError(layout.INDEX, 0, "the cursors do not match their check value")

    def label(self, label: bytes) -> LabelRow | None:
        row = self._one("SELECT * FROM labels WHERE label = ?", (label,))
        return None if row is None else self._check_row(LabelRow, row)

    def labels(self) -> Iterator[LabelRow]:
        """Yield all labels in the order in which they were opened."""
        for row in self._run("SELECT * FROM labels ORDER BY row", ()):
            yield self._check_row(LabelRow, row)

    def labels_from(self, epoch: int, after: bytes | None, limit: int) -> list[LabelRow]:
        """Return labels by (epoch, label), from `epoch` on, or behind label `after` of it; at most `limit`."""
        place, sign = (b"", ">=") if after is None else (after, ">")
        query = f"SELECT * FROM labels WHERE (epoch, label) {sign} (?, ?) ORDER BY epoch, label LIMIT ?"  # noqa: S608 - ours
        return [self._check_row(LabelRow, row) for row in self._all(query, (min(epoch, _MAX_INTEGER), place, limit))]

    def label_keys(self, first_row: int, count: int) -> list[bytes]:
        """Return the labels with `count` row numbers from one on."""
        query = "SELECT label FROM labels WHERE row >= ? AND row < ?"
        return [bytes(label) for (label,) in self._all(query, (first_row, first_row + count))]

    def client_keys(self, first_row: int, count: int) -> list[tuple[int, bytes]]:
        """Return (label_row, client_id) of the clients with `count` row numbers from one on."""
        query = "SELECT label_row, client_id FROM clients WHERE row >= ? AND row < ?"
        return [(int(row), bytes(key)) for row, key in self._all(query, (first_row, first_row + count))]

    def records(
        self, kind: str, key: bytes | None, *, number: int = 0, after_seq: int = 0, limit: int = -1, last: bool = False
    ) -> list[RecordRow]:
        """Return the records of a kind by key, number and seq, at most `limit`; with `last` from the end.

        If a key is given, return only records of that key, from a number on and behind a seq.
        """
        values: tuple[Any, ...] = (kind,)
        where, order = "kind = ?", "key, number, seq"
        if key is not None:
            where += " AND key = ? AND number >= ? AND seq > ?"
            values = (kind, key, min(number, _MAX_INTEGER), min(after_seq, _MAX_INTEGER))
        if last:
            order = "key DESC, number DESC, seq DESC"
        query = f"SELECT * FROM records WHERE {where} ORDER BY {order} LIMIT ?"  # noqa: S608 - our own words
        return [RecordRow(*row) for row in self._all(query, (*values, limit))]

    def client(self, label_row: int, client_id: bytes) -> ClientRow | None:
        row = self._one("SELECT * FROM clients WHERE label_row = ? AND client_id = ?", (label_row, client_id))
        return None if row is None else self._check_row(ClientRow, row)

    def stream_seq(self, client_row: int, client_seq: int) -> int | None:
        """Return the position of the message with this client_seq (D-56)."""
        row = self._one(
            "SELECT stream_seq FROM entries WHERE client_row = ? AND client_seq = ?", (client_row, client_seq)
        )
        return None if row is None else int(row[0])

    def stream_seqs(self, client_row: int, first_seq: int, last_seq: int) -> list[Any]:
        """Return the positions of a client's messages with client_seq first_seq … last_seq."""
        rows = self._all(
            "SELECT stream_seq FROM entries WHERE client_row = ? AND client_seq BETWEEN ? AND ? ORDER BY client_seq",
            (client_row, first_seq, last_seq),
        )
        return [row[0] for row in rows]

    def cap(self, auth_ref: bytes) -> CapRow | None:
        row = self._one("SELECT * FROM caps WHERE auth_ref = ?", (auth_ref,))
        return None if row is None else self._check_row(CapRow, row)

    def caps(self) -> list[CapRow]:
        return [self._check_row(CapRow, row) for row in self._all("SELECT * FROM caps ORDER BY auth_ref")]

    def first_ts(self, client_id: bytes) -> int | None:
        """Return the time when a client was first accepted, on any label."""
        row = self._one("SELECT * FROM writers WHERE client_id = ?", (client_id,))
        return None if row is None else int(self._check_row(WriterRow, row).first_ts)

    def policies(self, hub_ts: int = -1) -> list[PolicyRow]:
        """Return the policy records in order, without those that ended at `hub_ts` or earlier."""
        query = "SELECT * FROM policies WHERE until > ? ORDER BY seq"
        return [self._check_row(PolicyRow, row) for row in self._all(query, (hub_ts,))]

    def chunk_at(self, label_row: int, stream_seq: int) -> ChunkRow | None:
        """Return the sealed chunk of an entry."""
        row = self._one(
            "SELECT * FROM chunks WHERE label_row = ? AND start_seq <= ? ORDER BY start_seq DESC LIMIT 1",
            (label_row, stream_seq),
        )
        return ChunkRow(*row) if row and row[2] >= stream_seq else None

    def chunk_by_time(self, label_row: int, hub_ts: int) -> ChunkRow | None:
        """Return the first sealed chunk that ends at or after a time."""
        row = self._one(
            "SELECT * FROM chunks WHERE label_row = ? AND last_ts >= ? ORDER BY last_ts, start_seq LIMIT 1",
            (label_row, hub_ts),
        )
        return ChunkRow(*row) if row else None

    def chunks(self, label_row: int) -> list[ChunkRow]:
        return [
            ChunkRow(*row)
            for row in self._all("SELECT * FROM chunks WHERE label_row = ? ORDER BY start_seq", (label_row,))
        ]

    def list_sealed(self, *, until: int = _MAX_INTEGER, dropped: int = 2) -> Iterator[tuple[bytes, ChunkRow]]:
        """Yield the sealed chunks of all labels that end at or before a time, erased up to level `dropped`.

        They come by label and range. Labels without such a chunk cost nothing.
        """
        query = (
            "SELECT l.label, c.* FROM chunks c JOIN labels l ON l.row = c.label_row"
            " WHERE c.last_ts <= ? AND c.dropped <= ? ORDER BY c.label_row, c.start_seq"
        )
        for label, *chunk in self._run(query, (until, dropped)):
            yield bytes(label), ChunkRow(*chunk)

    def last_sealed(self) -> Iterator[tuple[LabelRow, ChunkRow]]:
        """Yield each label that has sealed chunks, with the last of them."""
        query = "SELECT label_row, max(start_seq) FROM chunks GROUP BY label_row ORDER BY label_row"
        for label_row, start_seq in self._run(query, ()):
            row = self._one("SELECT * FROM labels WHERE row = ?", (label_row,))
            chunk = self.chunk_at(label_row, start_seq)
            if row is not None and chunk is not None:
                yield self._check_row(LabelRow, row), chunk

    def chunk_after(self, label_row: int, start_seq: int) -> ChunkRow | None:
        """Return the sealed chunk that follows another in the order of labels and entries."""
        query = "SELECT * FROM chunks WHERE (label_row, start_seq) > (?, ?) ORDER BY label_row, start_seq LIMIT 1"
        row = self._one(query, (label_row, start_seq))
        return ChunkRow(*row) if row else None

    def manifest(self) -> Iterator[tuple[bytes, int, int | None, int | None]]:
        """Yield (label, start of its active chunk, start_seq, end_seq) of every sealed chunk, by epoch, label and
        range.

        One statement sees one moment, and the key of `chunks_by_epoch` holds all that is needed.
        """
        query = (
            "SELECT l.label, l.active_start, c.start_seq, c.end_seq FROM labels l"
            " LEFT JOIN chunks c ON c.epoch = l.epoch AND c.label_row = l.row ORDER BY l.epoch, l.row, c.start_seq"
        )
        yield from self._run(query, ())

    def label_row(self, label: bytes) -> int | None:
        row = self._one("SELECT row FROM labels WHERE label = ?", (label,))
        return None if row is None else int(row[0])

    def label_of(self, label_row: int) -> bytes:
        row = self._one("SELECT label FROM labels WHERE row = ?", (label_row,))
        if row is None:
            raise CorruptError(layout.INDEX, 0, f"there is no label {label_row}")
        return bytes(row[0])

    # --- the whole of it, for verification -------------------------------------------------------------

    def clients(self, label_row: int) -> Iterator[ClientRow]:
        for row in self._run("SELECT * FROM clients WHERE label_row = ?", (label_row,)):
            yield self._check_row(ClientRow, row)

    def all_records(self) -> Iterator[RecordRow]:
        for row in self._run("SELECT * FROM records ORDER BY seq", ()):
            yield RecordRow(*row)

    def writers(self) -> Iterator[WriterRow]:
        for row in self._run("SELECT * FROM writers", ()):
            yield self._check_row(WriterRow, row)

    def counts(self) -> dict[str, int]:
        return {table: int(self._one(f"SELECT count(*) FROM {table}", ())[0]) for table in TABLES}  # noqa: S608 - ours

    def fault(self) -> str | None:
        """Return the fault of the database itself, its structure or schema; None if there is none."""
        if self._version() != _VERSION:
            return "not the version of an index"
        with sqlite3.connect(":memory:") as model:
            model.executescript(_SCHEMA)
            schema = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
            if self._all(schema) != model.execute(schema).fetchall():
                return "not the schema of an index"
        model.close()
        problem = self._one("PRAGMA integrity_check(1)", ())
        return None if problem == ("ok",) else f"integrity_check: {problem[0]}"

    def _check_row(self, kind: type[Any], row: Sequence[Any]) -> Any:
        *values, check = row
        if _check_value(tuple(values)) != check:
            raise CorruptError(layout.INDEX, 0, f"a {kind.__name__} does not match its check value")
        return kind(*values)

    def _one(self, query: str, values: tuple[Any, ...]) -> Any:
        rows = self._all(query, values)
        return rows[0] if rows else None

    def _all(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        return list(self._run(query, values))

    def _run(self, query: str, values: tuple[Any, ...]) -> Iterator[Any]:
        try:
            yield from self._db.execute(query, values)
        except (sqlite3.DatabaseError, OverflowError, UnicodeDecodeError) as exc:
            raise CorruptError(layout.INDEX, 0, f"cannot be read: {exc}") from exc
