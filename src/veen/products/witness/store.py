"""State of a witness: for each log the newest cosigned note, older ones, and requests that may prove a fork.

One SQLite file with full syncs: a note is stored before its cosignature leaves, and check and store are one
transaction. A lock gives the directory to one witness at a time.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.errors import StatedError
from veen.core.hashing import H
from veen.core.tlog.errors import TlogError
from veen.core.tlog.note import COSIGNATURE, LogCheckpoint, Note, VerifierKey, check_name
from veen.io.errors import CorruptError, LockedError
from veen.io.local import OsFs
from veen.storage.keys.identity import KeyExposedError
from veen.storage.scan import read_file

_KEY: Final = "witness.seed"
_NAME: Final = "witness.name"
_DATABASE: Final = "witness.db"
_MAX_NOTES: Final = 65_536  # of each log: older ones prove nothing that the newest does not
# Rows of each log and kind. Only the log can sign two roots for one size, so nobody else can fill the room for forks.
# Anybody can send a note of the log with an invalid proof: the oldest such row is replaced by the next.
_MAX_EVIDENCE: Final = 1024
FORK: Final = "fork"
INCONSISTENT: Final = "inconsistent"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS notes (
    origin TEXT NOT NULL, size INTEGER NOT NULL, note BLOB NOT NULL, PRIMARY KEY (origin, size)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS evidence (
    digest BLOB PRIMARY KEY, origin TEXT NOT NULL, kind TEXT NOT NULL, at INTEGER NOT NULL, seen BLOB,
    data BLOB NOT NULL) WITHOUT ROWID;
"""


class WitnessStateError(StatedError, code="E.WITNESS.STATE"):
    """The directory of a witness cannot be used."""


def witness_key(
    fs: OsFs, name: str | None, draw: Callable[[int], bytes] = os.urandom
) -> tuple[SigningKey, VerifierKey]:
    """Return the key and the name of a witness; both are created once and never change, as logs pin them together."""
    if not fs.exists(_NAME):
        if name is None:
            raise WitnessStateError(f"{fs.root}: no witness exists here yet; give it a name")
        if fs.exists(_DATABASE):
            raise WitnessStateError(f"{fs.root}: has a state but no name")
        check_name(name)
        if not fs.exists(_KEY):
            fs.replace(_KEY, f"{draw(SEED_BYTES).hex()}\n".encode(), private=True)
        fs.replace(_NAME, f"{name}\n".encode())
    known_name = read_file(fs, _NAME).decode().removesuffix("\n")
    if name is not None and name != known_name:
        raise WitnessStateError(f"{fs.root}: the witness here is called {known_name}; its name never changes")
    if (mode := fs.read_exposed_mode(_KEY)) is not None:
        raise KeyExposedError(_KEY, mode)
    try:
        key = SigningKey(bytes.fromhex(read_file(fs, _KEY).decode().strip()))
    except (ValueError, FileNotFoundError) as exc:
        raise WitnessStateError(f"{fs.root}: {_KEY} is missing or damaged") from exc
    return key, VerifierKey(check_name(known_name), COSIGNATURE, key.public)


@dataclass(frozen=True, slots=True)
class SeenNote:
    """A cosigned note, with the signature of the log."""

    note: Note
    checkpoint: LogCheckpoint

    @classmethod
    def of(cls, data: bytes) -> Self:
        try:
            note = Note.from_bytes(data)
            return cls(note, LogCheckpoint.parse(note.text))
        except TlogError as exc:
            raise CorruptError(_DATABASE, 0, str(exc)) from exc


class WitnessStore:
    """The state of one witness. Methods block; one thread at a time."""

    def __init__(self, fs: OsFs) -> None:
        self._stack = contextlib.ExitStack()
        try:
            self._stack.enter_context(fs.lock())
            self._db = fs.database(_DATABASE)
            self._stack.callback(self._db.close)
            self._db.executescript(_SCHEMA)
        except (LockedError, sqlite3.DatabaseError) as exc:
            self._stack.close()
            raise WitnessStateError(f"{fs.root}: {exc}") from exc

    def close(self) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a transaction: all or nothing, and durable when it ends."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # a COMMIT that fails may leave it open or end it
                self._db.execute("ROLLBACK")
            raise

    def newest(self, origin: str) -> SeenNote | None:
        row = self._db.execute(
            "SELECT note FROM notes WHERE origin = ? ORDER BY size DESC LIMIT 1", (origin,)
        ).fetchone()
        return None if row is None else SeenNote.of(row[0])

    def at(self, origin: str, size: int) -> SeenNote | None:
        """Return the note of one size, or None."""
        row = self._db.execute("SELECT note FROM notes WHERE origin = ? AND size = ?", (origin, size)).fetchone()
        return None if row is None else SeenNote.of(row[0])

    def put(self, note: Note, checkpoint: LogCheckpoint) -> None:
        """Store the whole note with the signature of the log: root and size alone would detect a fork but not prove
        it.
        """
        origin = checkpoint.origin
        self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?)", (origin, checkpoint.size, note.to_bytes()))
        self._db.execute(
            "DELETE FROM notes WHERE origin = ? AND size <= (SELECT size FROM notes WHERE origin = ?"
            " ORDER BY size DESC LIMIT 1 OFFSET ?)",
            (origin, origin, _MAX_NOTES),
        )

    def keep(self, kind: str, checkpoint: LogCheckpoint, at: int, data: bytes, seen: bytes | None) -> bool:
        """Keep a request that failed with a good signature of the log; return True if it is kept.

        One row is kept for each kind, size and root: the signed note is the evidence, whatever else the request has.
        """
        origin = checkpoint.origin
        digest = H(b"\0".join((kind.encode(), origin.encode(), str(checkpoint.size).encode(), checkpoint.root)))
        if self._db.execute("SELECT 1 FROM evidence WHERE digest = ?", (digest,)).fetchone() is not None:
            return True
        query = "SELECT count(*) FROM evidence WHERE origin = ? AND kind = ?"
        if self._db.execute(query, (origin, kind)).fetchone()[0] >= _MAX_EVIDENCE:
            if kind == FORK:  # the first thousand prove as much as more would
                return False
            self._db.execute(
                "DELETE FROM evidence WHERE digest = (SELECT digest FROM evidence WHERE origin = ? AND kind = ?"
                " ORDER BY at, digest LIMIT 1)",
                (origin, kind),
            )
        self._db.execute("INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?)", (digest, origin, kind, at, seen, data))
        return True

    def evidence(self) -> list[tuple[str, str, int, bytes | None, bytes]]:
        """Return (origin, kind, time, cosigned note, request), the oldest first."""
        query = "SELECT origin, kind, at, seen, data FROM evidence ORDER BY at, digest"
        return [tuple(row) for row in self._db.execute(query)]

    def origins(self) -> list[str]:
        return [row[0] for row in self._db.execute("SELECT DISTINCT origin FROM notes ORDER BY origin")]
