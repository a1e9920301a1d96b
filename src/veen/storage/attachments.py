"""Ciphertexts of attachments, by the hash of their bytes (spec §4.6, D-15).

They are not part of the log: a hub that loses one loses nothing it signed, and anybody who has the bytes can upload
them again, because their name is their hash. A file is written atomically.

`attachments.db` records for each file its size, its owner for the quota, and the entries it belongs to, as quota and
retention need it. A file is written before its row and removed before its row. A crash therefore leaves a file without
a row, which is kept and counts for no quota until it is put again, or a row without a file, which the next sweep
removes.

Each change of a row gets the next number, so that a replica requests only later changes. The number up to which it has
copied is in its own records.
"""

import contextlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from veen.core.errors import VerifyError
from veen.core.hashing import H
from veen.io.errors import CorruptError, NoSpaceError, StorageError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.index import Index
from veen.storage.scan import read_file

_MIN_FREE_BYTES: Final = 256 * 1024 * 1024
MAX_ENTRY_REFS: Final = 16  # entries of one attachment that are told apart; with more it is never erased
_BATCH: Final = 256  # references that one transaction of a sweep removes
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS stored (
    coid BLOB PRIMARY KEY, size INTEGER NOT NULL, owner BLOB NOT NULL, pinned INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS used (owner BLOB PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS refs (
    label BLOB NOT NULL, client_id BLOB NOT NULL, client_seq INTEGER NOT NULL, coid BLOB NOT NULL,
    PRIMARY KEY (label, client_id, client_seq, coid)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS refs_by_coid ON refs (coid);
CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY AUTOINCREMENT, coid BLOB NOT NULL UNIQUE);
INSERT INTO changes (coid) SELECT coid FROM stored WHERE coid NOT IN (SELECT coid FROM changes) ORDER BY coid;
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT OR IGNORE INTO about VALUES ('instance', randomblob(32));
"""
_NO_INSTANCE: Final = bytes(32)  # of a directory without records


class EntryRef(NamedTuple):
    """Reference to the entry of an attachment, by names that its writer knows before it has a stream_seq."""

    label: bytes
    client_id: bytes
    client_seq: int


@dataclass(frozen=True, slots=True)
class AttachmentRecord:
    """Metadata of one attachment."""

    coid: bytes
    size: int
    owner: bytes  # empty: nobody
    pinned: bool  # never erased
    entries: tuple[EntryRef, ...]  # that it belongs to


@dataclass(frozen=True, slots=True)
class ChangedAttachments:
    """A part of the changes of a directory, in their order."""

    instance: bytes  # of the numbers: records that were begun anew count from 1 again
    records: tuple[tuple[int, AttachmentRecord], ...]  # by the number of the change
    last: int  # the number of the newest change ever; 0: there was none


class QuotaError(StorageError):
    """An attachment that would exceed the quota of its owner."""

    hint = "Let retention erase old entries, or ask the operator for more (attachments.client_bytes)."

    def __init__(self, used: int, size: int, maximum: int) -> None:
        super().__init__(f"{used} bytes of attachments are stored, and {size} more would exceed the quota of {maximum}")
        self.used, self.size, self.maximum = used, size, maximum
        self.args = (used, size, maximum)


class AttachmentFiles:
    """A content-addressed set of files. Thread-safe: each call opens its own file."""

    def __init__(self, fs: Fs, min_free_bytes: int = _MIN_FREE_BYTES) -> None:
        """Refuse attachments below `min_free_bytes`: the log needs the disk more."""
        self._fs = fs
        self.min_free_bytes = min_free_bytes  # a reload of the hub may replace it
        self._lock = threading.Lock()  # guards everything below
        self._db: sqlite3.Connection | None = None  # opened with the first attachment
        self._arriving: Counter[bytes] = Counter()  # bytes by owner that are being written and have no row yet

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    # --- bytes -----------------------------------------------------------------------------------------

    def get(self, coid: bytes) -> bytes | None:
        """Return the bytes, checked against their name; None if they are missing."""
        path = layout.attachment(coid)
        if not self._fs.exists(path):
            return None
        data = read_file(self._fs, path)
        if H(data) != coid:
            raise CorruptError(path, 0, "the attachment is not what its name says")
        return data

    def put(
        self, coid: bytes, data: bytes, *, owner: bytes = b"", max_bytes: int = 0, entry: EntryRef | None = None
    ) -> bool:
        """Store the bytes, durable on return; return False if they were already stored and intact.

        A damaged copy is replaced. The bytes count for `owner` unless they already count for another; above `max_bytes`
        (0: no limit) QuotaError is raised. Without an `entry` the attachment is never erased, as nobody knows when it
        may be.
        """
        if H(data) != coid:
            raise VerifyError("the hash of the attachment is not its coid")
        with self._lock:
            is_stored = self._row("SELECT 1 FROM stored WHERE coid = ?", coid) is not None
            used = self._bytes_of(owner) + self._arriving[owner]
            if not is_stored:
                if max_bytes and used + len(data) > max_bytes:
                    raise QuotaError(used, len(data), max_bytes)
                self._arriving[owner] += len(data)
        try:
            new = False
            while True:
                new = self._write(coid, data) or new
                with self._lock, self._transaction() as db:
                    if self._fs.exists(layout.attachment(coid)):  # a sweep may have erased it since
                        self._note(db, coid, len(data), owner, entry)
                        break
        finally:
            if not is_stored:
                with self._lock:
                    self._arriving[owner] -= len(data)
                    self._arriving += Counter()  # forget those that are at 0
        return new

    def _write(self, coid: bytes, data: bytes) -> bool:
        path = layout.attachment(coid)
        if self._fs.exists(path) and self._is_whole(path, coid, len(data)):
            return False
        if self._fs.free_bytes() < self.min_free_bytes:
            raise NoSpaceError("too little free space for attachments")
        directory = path.rpartition("/")[0]
        self._fs.make_dir(directory)
        self._fs.sync_dir(layout.ATTACHMENTS)
        self._fs.replace(path, data)
        return True

    def _is_whole(self, path: str, coid: bytes, size: int) -> bool:
        """Return True if the stored copy is intact; read no more than `size` bytes of it."""
        try:
            file = self._fs.open(path)
        except FileNotFoundError:  # erased a moment ago
            return False
        try:
            return file.size() == size and H(file.read_at(0, size)) == coid
        except OSError:  # a bad sector: as good as damaged
            return False
        finally:
            file.close()

    # --- who pays, and for which entry -----------------------------------------------------------------

    def bytes_of(self, owner: bytes) -> int:
        """Return the number of bytes stored for an owner."""
        with self._lock:
            return self._bytes_of(owner)

    def _bytes_of(self, owner: bytes) -> int:
        row = self._row("SELECT bytes FROM used WHERE owner = ?", owner)
        return int(row[0]) if row else 0

    def _note(self, db: sqlite3.Connection, coid: bytes, size: int, owner: bytes, entry: EntryRef | None) -> None:
        changes = db.total_changes
        self._note_stored(db, coid, size, owner)
        count = self._row("SELECT count(*) FROM refs WHERE coid = ?", coid)[0]
        if entry is None or count >= MAX_ENTRY_REFS:
            self._pin(db, coid)
        else:
            db.execute("INSERT OR IGNORE INTO refs VALUES (?, ?, ?, ?)", (*entry, coid))
        if db.total_changes != changes:
            db.execute("INSERT OR REPLACE INTO changes (coid) VALUES (?)", (coid,))

    def _note_stored(self, db: sqlite3.Connection, coid: bytes, size: int, owner: bytes) -> None:
        if self._row("SELECT 1 FROM stored WHERE coid = ?", coid) is None:
            db.execute("INSERT INTO stored VALUES (?, ?, ?, 0)", (coid, size, owner))
            db.execute("INSERT OR IGNORE INTO used VALUES (?, 0)", (owner,))
            db.execute("UPDATE used SET bytes = bytes + ? WHERE owner = ?", (size, owner))

    def _pin(self, db: sqlite3.Connection, coid: bytes) -> None:
        db.execute("UPDATE stored SET pinned = 1 WHERE coid = ? AND pinned = 0", (coid,))

    # --- copies -----------------------------------------------------------------------------------------

    def changes_after(self, instance: bytes | None, after: int, limit: int) -> ChangedAttachments:
        """Return the changes after a number of this instance, oldest first; all changes for another instance."""
        with self._lock:
            if not self._has_records():
                return ChangedAttachments(_NO_INSTANCE, (), 0)
            own = bytes(self._row("SELECT value FROM about WHERE name = 'instance'")[0])
            last = int(self._row("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'changes'")[0])
            start = after if instance == own and after <= last else 0
            query = (
                "SELECT number, coid, size, owner, pinned FROM changes JOIN stored USING (coid)"
                " WHERE number > ? ORDER BY number LIMIT ?"
            )
            records = []
            for number, coid, size, owner, pinned in self._rows(query, start, limit):
                refs = self._rows("SELECT label, client_id, client_seq FROM refs WHERE coid = ?", coid)
                entries = tuple(EntryRef(bytes(label), bytes(client), seq) for label, client, seq in refs)
                records.append((int(number), AttachmentRecord(bytes(coid), size, bytes(owner), bool(pinned), entries)))
        return ChangedAttachments(own, tuple(records), last)

    def has(self, coid: bytes) -> bool:
        return self._fs.exists(layout.attachment(coid))

    def copy_position(self) -> tuple[bytes | None, int]:
        """Return the instance and the change up to which this directory is a copy; None and 0 if it is not a copy."""
        with self._lock:
            row = self._row("SELECT value FROM about WHERE name = 'copied'") if self._has_records() else None
        return (bytes(row[0][:32]), int.from_bytes(row[0][32:], "big")) if row else (None, 0)

    def keep_copy(self, record: AttachmentRecord, data: bytes | None) -> None:
        """Store the attachment and metadata of another directory; durable on return. Without data, the bytes exist."""
        if data is not None:
            if len(data) != record.size or H(data) != record.coid:
                raise VerifyError("the attachment is not what its name says")
            self._write(record.coid, data)
        with self._lock, self._transaction() as db:
            changes = db.total_changes
            self._note_stored(db, record.coid, record.size, record.owner)
            rows = [(*entry, record.coid) for entry in record.entries[:MAX_ENTRY_REFS]]
            db.executemany("INSERT OR IGNORE INTO refs VALUES (?, ?, ?, ?)", rows)
            if record.pinned:
                self._pin(db, record.coid)
            if db.total_changes != changes:
                db.execute("INSERT OR REPLACE INTO changes (coid) VALUES (?)", (record.coid,))

    def note_copied(self, instance: bytes, upto: int) -> None:
        """Record that everything up to this change of that instance was copied."""
        with self._lock, self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO about VALUES ('copied', ?)", (instance + upto.to_bytes(8, "big"),))

    def sweep(self, is_erased: Callable[[EntryRef], bool]) -> int:
        """Erase the attachments that belong to erased entries only; return their number.

        The entries of a client in a label are erased in their order, so the first one that is not erased ends its turn.
        """
        count, after = 0, (b"", b"")
        while (writer := self._writer_after(*after)) is not None:
            after = writer
            while erased := self._find_erased(writer, is_erased):
                count += self._forget(erased)
        return count

    def _writer_after(self, label: bytes, client_id: bytes) -> tuple[bytes, bytes] | None:
        query = "SELECT label, client_id FROM refs WHERE (label, client_id) > (?, ?) ORDER BY label, client_id LIMIT 1"
        with self._lock:
            row = self._row(query, label, client_id) if self._has_records() else None
        return (bytes(row[0]), bytes(row[1])) if row else None

    def _find_erased(self, writer: tuple[bytes, bytes], is_erased: Callable[[EntryRef], bool]) -> list[EntryRef]:
        query = "SELECT DISTINCT client_seq FROM refs WHERE label = ? AND client_id = ? ORDER BY client_seq LIMIT ?"
        with self._lock:
            oldest = [EntryRef(*writer, int(row[0])) for row in self._rows(query, *writer, _BATCH)]
        erased = []
        for ref in oldest:
            if not is_erased(ref):
                break
            erased.append(ref)
        return erased

    def _forget(self, refs: list[EntryRef]) -> int:
        """Remove references, and the attachments that have no other."""
        erased: list[bytes] = []
        with self._lock, self._transaction() as db:
            for ref in refs:
                where = "label = ? AND client_id = ? AND client_seq = ?"
                coids = [bytes(row[0]) for row in self._rows(f"SELECT coid FROM refs WHERE {where}", *ref)]  # noqa: S608 - our own words
                db.execute(f"DELETE FROM refs WHERE {where}", ref)  # noqa: S608 - as above
                erased += [coid for coid in coids if self._erase_unused(db, coid)]
            for directory in {layout.attachment(coid).rpartition("/")[0] for coid in erased}:
                self._fs.sync_dir(directory)
        return len(erased)

    def _erase_unused(self, db: sqlite3.Connection, coid: bytes) -> bool:
        row = self._row("SELECT size, owner, pinned FROM stored WHERE coid = ?", coid)
        if row is None or row[2] or self._row("SELECT 1 FROM refs WHERE coid = ? LIMIT 1", coid) is not None:
            return False
        self._fs.remove(layout.attachment(coid))
        db.execute("DELETE FROM stored WHERE coid = ?", (coid,))
        db.execute("DELETE FROM changes WHERE coid = ?", (coid,))
        db.execute("UPDATE used SET bytes = bytes - ? WHERE owner = ?", (row[0], row[1]))
        db.execute("DELETE FROM used WHERE owner = ? AND bytes <= 0", (row[1],))
        return True

    # --- the records ------------------------------------------------------------------------------------

    def _has_records(self) -> bool:
        return self._db is not None or self._fs.exists(layout.ATTACHMENT_RECORDS)

    def _records(self) -> sqlite3.Connection:
        """Return the open database; the caller holds the lock."""
        if self._db is None:
            with _translate_errors():
                db = self._fs.database(layout.ATTACHMENT_RECORDS)
                try:
                    if (version := db.execute("PRAGMA user_version").fetchone()[0]) not in (0, _VERSION):
                        raise CorruptError(
                            layout.ATTACHMENT_RECORDS, 0, f"version {version} is not supported, expected {_VERSION}"
                        )
                    db.executescript(f"{_SCHEMA}PRAGMA user_version = {_VERSION};")
                except BaseException:
                    db.close()
                    raise
            self._db = db
        return self._db

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with _translate_errors():
            return self._records().execute(query, values).fetchall()

    def _row(self, query: str, *values: Any) -> Any:
        rows = self._rows(query, *values)
        return rows[0] if rows else None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        db = self._records()
        with _translate_errors():
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise
        self._fs.on_commit(layout.ATTACHMENT_RECORDS, db)


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert errors of SQLite to CorruptError. The log does not depend on this file."""
    try:
        yield
    except sqlite3.DatabaseError as exc:
        what = f"{exc}; without it, attachments are kept and count for no quota: move it away and start again"
        raise CorruptError(layout.ATTACHMENT_RECORDS, 0, what) from exc


def make_is_erased(index: Index) -> Callable[[EntryRef], bool]:
    """Return a predicate: True for an entry whose payload was erased, by the index. Unknown entries were not."""

    def is_erased(ref: EntryRef) -> bool:
        label_row = index.label_row(ref.label)
        client = index.client(label_row, ref.client_id) if label_row is not None else None
        if label_row is None or client is None or not 1 <= ref.client_seq <= client.client_seq:
            return False
        stream_seq = index.stream_seq(client.row, ref.client_seq)
        chunk = index.chunk_at(label_row, stream_seq) if stream_seq is not None else None
        return chunk is not None and chunk.dropped >= 1

    return is_erased


def erase_attachments(fs: Fs) -> int:
    """Run `AttachmentFiles.sweep` on a directory that no hub uses."""
    files, index = AttachmentFiles(fs), Index(fs)
    try:
        return files.sweep(make_is_erased(index))
    finally:
        index.close()
        files.close()


def copy_records(source: Fs, target: Fs) -> None:
    """Copy the records as of one commit."""
    if source.exists(layout.ATTACHMENT_RECORDS):
        with (
            contextlib.closing(source.peek(layout.ATTACHMENT_RECORDS)) as records,
            contextlib.closing(target.database(layout.ATTACHMENT_RECORDS)) as copy,
        ):
            records.backup(copy)
            # The copy counts its changes by itself from here on.
            if copy.execute("SELECT 1 FROM sqlite_master WHERE name = 'about'").fetchone() is not None:
                copy.execute("UPDATE about SET value = randomblob(32) WHERE name = 'instance'")
