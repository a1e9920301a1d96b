"""The spool: records that were read from a source and have no receipt yet; on disk, sealed, of limited size.

One SQLite database holds everything that must change together. Every change is one transaction, durable when the method
returns:

    append     add records, the positions of their sources, and the keys that detect repetitions
    fly        store the MSGs that are about to be sent, with their records
    mark_sent  remove records whose MSG has a verified receipt
    ground     remove the MSGs of a flight that the hub did not accept; their records stay

So a crash at any point leaves either the state before or the state after. MSGs in flight are sent again byte for byte;
other records are sealed when their turn comes, with the client key, token and label of that time (decision 120).

Records are sealed under a key of the producer's identity: a copy of the file without the identity reveals nothing. The
agent is the only user of the directory (`Fs.lock`); methods may be called from any thread and take turns.
"""

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from veen.client.errors import LocalError
from veen.client.identity.identity import Identity
from veen.client.state import LocalDatabase
from veen.core.crypto import aead, hkdf
from veen.core.errors import OpenError
from veen.core.hashing import u64be
from veen.io.errors import LockedError
from veen.io.local import Fs

_MAX_KEYS: Final = 131_072  # keys of records that are remembered to tell repetitions
_DIGEST_BYTES: Final = 20
_SCHEMA: Final = """
CREATE TABLE record (n INTEGER PRIMARY KEY, stream BLOB NOT NULL, sealed BLOB NOT NULL);
CREATE TABLE flight (client_seq INTEGER PRIMARY KEY, n INTEGER NOT NULL, stream BLOB NOT NULL, epoch INTEGER NOT NULL,
    msg BLOB NOT NULL);
CREATE TABLE refused (n INTEGER PRIMARY KEY, stream BLOB NOT NULL, sealed BLOB NOT NULL, code TEXT NOT NULL);
CREATE TABLE position (source TEXT PRIMARY KEY, pos TEXT NOT NULL);
CREATE TABLE seen (source TEXT NOT NULL, key TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (source, key));
CREATE INDEX seen_by_n ON seen (n);
CREATE TABLE loss (source TEXT NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL, first INTEGER NOT NULL,
    last INTEGER NOT NULL, PRIMARY KEY (source, reason));
CREATE TABLE note (name TEXT PRIMARY KEY, value NOT NULL);
"""


class SpoolFull(LocalError, code="SDR.SPOOL_FULL"):
    """The spool has no room for these records until the hub has accepted others."""


class SpoolDamaged(LocalError, code="SDR.SPOOL"):
    """The database is damaged, or it belongs to another identity."""


def spool_key(identity: Identity) -> bytes:
    """Return the key of an identity's spools. It does not change when client keys rotate."""
    return hkdf.hkdf(identity.dh_sk, b"", b"veen/recorder-spool", aead.KEY_BYTES)


@dataclass(frozen=True, slots=True, repr=False)
class SpoolItem:
    """A record on its way into the spool."""

    stream_id: bytes
    data: bytes
    source: str
    position: str | None = None  # where the source continues after it; None for the recorder's own events
    key: str | None = None  # a record with this key is taken once
    earlier_keys: tuple[str, ...] = ()  # a record with one of these keys is a repetition as well
    sender_id: str | None = None  # an id that the sender chose: another record may have it, and is a repeat then
    as_repeat: Callable[[], bytes] | None = None  # the data of a record whose `sender_id` was used before


@dataclass(frozen=True, slots=True, repr=False)
class Waiting:
    """A record in the spool."""

    n: int
    data: bytes


@dataclass(frozen=True, slots=True, repr=False)
class InFlight:
    """A sealed message and the record it carries."""

    n: int
    client_seq: int
    msg: bytes


@dataclass(frozen=True, slots=True, repr=False)
class Flight:
    """Messages of one client key to one label that were sent or are about to be sent."""

    stream_id: bytes
    epoch: int
    messages: tuple[InFlight, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of a source that could not be recorded."""

    source: str
    reason: str
    count: int
    first: int  # seconds
    last: int


class Spool(LocalDatabase):
    """An open spool. `size`: bytes of waiting records, at most `max_bytes`."""

    FILE: ClassVar[str] = "spool.db"
    WHAT: ClassVar[str] = "the spool"
    DAMAGED: ClassVar[type[LocalError]] = SpoolDamaged
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[str] = _SCHEMA

    def __init__(self, fs: Fs, key: bytes, *, max_bytes: int, random: Callable[[int], bytes] = os.urandom) -> None:
        self._key, self.max_bytes, self._random = key, max_bytes, random
        self._digest_key = hkdf.hkdf(key, b"", b"veen/recorder-digest", aead.KEY_BYTES)
        self._committed: list[Callable[[], None]] = []  # what changes in memory once the transaction is on the disk
        fs.make_dir("")
        lock = contextlib.ExitStack()
        try:
            lock.enter_context(fs.lock())
        except LockedError as exc:
            raise LocalError(f"another agent uses this spool ({exc.holder}): stop it first") from exc
        super().__init__(fs, lock)

    def digest(self, data: bytes) -> str:
        """Return a keyed hash that tells records apart: without the key nobody can test guesses of their content."""
        return hashlib.blake2b(data, key=self._digest_key, digest_size=_DIGEST_BYTES).hexdigest()

    # --- in --------------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        return self.size + size <= self.max_bytes

    def append(self, records: Sequence[SpoolItem], *, force: bool = False) -> list[int]:
        """Store records; return their numbers, for a repetition the earlier number. SpoolFull stores none of them.

        `force`: the recorder's own events, few and small, are stored above the limit, too.
        """
        with self._transaction() as db:
            return self._append(db, records, force=force)

    def _append(self, db: sqlite3.Connection, records: Sequence[SpoolItem], *, force: bool) -> list[int]:
        numbers: list[int] = []
        added, start, n = 0, self._next, self._next
        for record in records:
            number = self._number_of(db, record)
            if number is not None:
                numbers.append(number)
                self._set_position(db, record)  # the source must not offer it again (D-184)
                continue
            data = record.data
            if record.sender_id is not None:
                is_repeat = self._number(db, record.source, record.sender_id) is not None
                data = record.as_repeat() if is_repeat and record.as_repeat is not None else data
                db.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (record.source, record.sender_id, n))
            sealed = self._seal(n, record.stream_id, data)
            is_empty = (
                self.size + added == 0
            )  # one record is taken then, whatever its size: it could never fit otherwise
            if not force and not is_empty and not self.has_room(added + len(sealed)):
                raise SpoolFull(f"{self.size + added} of {self.max_bytes} bytes wait for the hub")
            db.execute("INSERT INTO record VALUES (?, ?, ?)", (n, record.stream_id, sealed))
            if record.key is not None:
                db.execute("INSERT INTO seen VALUES (?, ?, ?)", (record.source, record.key, n))
            self._set_position(db, record)
            numbers.append(n)
            added += len(sealed)
            n += 1
        if n > start:
            db.execute("DELETE FROM seen WHERE n < ?", (n - _MAX_KEYS,))
            self._write_note(db, "next", n)
            self._count(db, "in", n - start)
            self._committed.append(lambda: self._on_grown(n, added))
        return numbers

    def _number_of(self, db: sqlite3.Connection, record: SpoolItem) -> int | None:
        """Return the number that this record has already, or None."""
        if record.key is None:
            return None
        keys = (record.key, *record.earlier_keys)
        numbers = (self._number(db, record.source, key) for key in keys)
        return next((number for number in numbers if number is not None), None)

    @staticmethod
    def _number(db: sqlite3.Connection, source: str, key: str) -> int | None:
        row = db.execute("SELECT n FROM seen WHERE source = ? AND key = ?", (source, key)).fetchone()
        return None if row is None else int(row[0])

    def _on_grown(self, last: int, added: int) -> None:
        self._next = last
        self.size += added

    @staticmethod
    def _set_position(db: sqlite3.Connection, record: SpoolItem) -> None:
        if record.position is not None:
            db.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", (record.source, record.position))

    def position(self, source: str) -> str | None:
        """Return the place where a source continues: behind the last record stored."""
        with self._name_errors():
            row = self._db.execute("SELECT pos FROM position WHERE source = ?", (source,)).fetchone()
        return None if row is None else str(row[0])

    def set_position(self, source: str, position: str) -> None:
        """Store a position without a record, as behind an empty line."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO position VALUES (?, ?)", (source, position))

    # --- out -------------------------------------------------------------------------------------------------

    def next_batch(self, most: int, max_bytes: int) -> tuple[bytes, list[Waiting]] | None:
        """Return the oldest records of the stream that has waited longest; None if the spool is empty."""
        with self._name_errors():
            # One stream for each flight: its MSGs have one label, and client_seq counts within a label.
            first = self._db.execute("SELECT stream FROM record ORDER BY n LIMIT 1").fetchone()
            if first is None:
                return None
            rows = self._db.execute(
                "SELECT n, sealed FROM record WHERE stream = ? ORDER BY n LIMIT ?", (first[0], most)
            ).fetchall()
        batch: list[Waiting] = []
        room = max_bytes
        for n, sealed in rows:
            room -= len(sealed)
            if batch and room < 0:
                break
            batch.append(Waiting(n, self._open(n, first[0], sealed)))
        return first[0], batch

    def fly(self, flight: Flight) -> None:
        """Store messages before any of them is sent (D-09)."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO flight VALUES (?, ?, ?, ?, ?)",
                [(m.client_seq, m.n, flight.stream_id, flight.epoch, m.msg) for m in flight.messages],
            )

    def flight(self) -> Flight | None:
        """Return the stored messages without a receipt, or None."""
        with self._name_errors():
            rows = self._db.execute(
                "SELECT n, client_seq, msg, stream, epoch FROM flight ORDER BY client_seq"
            ).fetchall()
        if not rows:
            return None
        return Flight(rows[0][3], rows[0][4], tuple(InFlight(n, seq, msg) for n, seq, msg, _, _ in rows))

    def mark_sent(self, numbers: Iterable[int]) -> None:
        """Remove records whose receipts were verified."""
        gone = list(numbers)
        with self._transaction() as db:
            freed = self._remove(db, gone)
            db.executemany("DELETE FROM flight WHERE n = ?", [(n,) for n in gone])
            self._count(db, "sent", len(gone))
            self._committed.append(lambda: self._on_shrunk(freed))

    def ground(self) -> None:
        """Remove the messages in flight: they are not in the log and will never be sent again. Their records wait."""
        with self._transaction() as db:
            db.execute("DELETE FROM flight")

    def refuse(self, n: int, code: str, now: int) -> None:
        """Set a record aside that the hub will never accept, and count it as lost."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO refused SELECT n, stream, sealed, ? FROM record WHERE n = ?", (code, n))
            freed = self._remove(db, [n])
            db.execute("DELETE FROM flight WHERE n = ?", (n,))
            # In the same transaction: a record is never gone without a loss that accounts for it.
            self._add_loss(db, "agent", f"refused {code}", 1, now)
            self._committed.append(lambda: self._on_shrunk(freed))

    def _remove(self, db: sqlite3.Connection, numbers: Sequence[int]) -> int:
        freed = 0
        for n in numbers:
            row = db.execute("SELECT length(sealed) FROM record WHERE n = ?", (n,)).fetchone()
            if row is not None:
                freed += int(row[0])
                db.execute("DELETE FROM record WHERE n = ?", (n,))
        return freed

    def _on_shrunk(self, freed: int) -> None:
        self.size -= freed

    # --- losses, notes, counts -------------------------------------------------------------------------------

    def lose(self, source: str, reason: str, count: int, now: int) -> None:
        """Count records that could not be stored; `report` turns the counts into events."""
        with self._transaction() as db:
            self._add_loss(db, source, reason, count, now)

    def _add_loss(self, db: sqlite3.Connection, source: str, reason: str, count: int, now: int) -> None:
        db.execute(
            "INSERT INTO loss VALUES (?, ?, ?, ?, ?) ON CONFLICT (source, reason) DO UPDATE"
            " SET count = count + excluded.count, last = excluded.last",
            (source, reason, count, now, now),
        )
        self._count(db, "lost", count)

    def report(self, event_of: Callable[[Loss], SpoolItem]) -> int:
        """Turn the counts of losses into records in one transaction, so that each loss is reported once."""
        with self._transaction() as db:
            rows = db.execute("SELECT source, reason, count, first, last FROM loss").fetchall()
            if rows:
                self._append(db, [event_of(Loss(*row)) for row in rows], force=True)
                db.execute("DELETE FROM loss")
        return len(rows)

    def note(self, name: str) -> str | None:
        with self._name_errors():
            row = self._db.execute("SELECT value FROM note WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def set_note(self, name: str, value: str) -> None:
        with self._transaction() as db:
            self._write_note(db, name, value)

    def counts(self) -> Mapping[str, int]:
        """Return in, sent and lost since the spool was created; waiting, in_flight and refused now."""
        with self._name_errors():
            notes = dict(self._db.execute("SELECT name, value FROM note").fetchall())
            waiting = self._one("SELECT count(*) FROM record")
            in_flight = self._one("SELECT count(*) FROM flight")
            refused = self._one("SELECT count(*) FROM refused")
        totals = {name: int(notes.get(f"count:{name}", 0)) for name in ("in", "sent", "lost")}
        return {**totals, "waiting": waiting, "in_flight": in_flight, "refused": refused}

    def positions(self) -> dict[str, str]:
        with self._name_errors():
            return dict(self._db.execute("SELECT source, pos FROM position ORDER BY source").fetchall())

    def is_waiting(self, n: int) -> bool:
        """Return True if a record has no receipt yet."""
        with self._name_errors():
            return self._db.execute("SELECT 1 FROM record WHERE n = ?", (n,)).fetchone() is not None

    # --- the database ----------------------------------------------------------------------------------------

    def _one(self, query: str) -> int:
        return int(self._db.execute(query).fetchone()[0])

    @staticmethod
    def _write_note(db: sqlite3.Connection, name: str, value: Any) -> None:
        db.execute("INSERT OR REPLACE INTO note VALUES (?, ?)", (name, value))

    @staticmethod
    def _count(db: sqlite3.Connection, name: str, more: int) -> None:
        db.execute(
            "INSERT INTO note VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
            (f"count:{name}", more),
        )

    def _prepare(self) -> None:
        super()._prepare()
        with self._name_errors():
            self.size = self._one("SELECT coalesce(sum(length(sealed)), 0) FROM record")
        self._next = int(self.note("next") or 1)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._mutex:
            self._committed = []
            with super()._transaction() as db:
                yield db
            for change in self._committed:  # after the commit: a transaction that fails must not change the counters
                change()

    def _seal(self, n: int, stream_id: bytes, data: bytes) -> bytes:
        nonce = self._random(aead.NONCE_BYTES)
        return nonce + aead.seal(self._key, nonce, stream_id + u64be(n), data)

    def _open(self, n: int, stream_id: bytes, sealed: bytes) -> bytes:
        nonce, rest = sealed[: aead.NONCE_BYTES], sealed[aead.NONCE_BYTES :]
        try:
            return aead.open_(self._key, nonce, stream_id + u64be(n), rest)
        except OpenError as exc:
            raise SpoolDamaged(f"record {n} was altered, or sealed by another identity") from exc
