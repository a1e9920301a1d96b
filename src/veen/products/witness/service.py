"""A witness: cosigns checkpoints that continue the cosigned history (c2sp.org/tlog-witness).

POST add-checkpoint                       200 cosignature, or 400, 403, 404, 409, 422
GET  <hex SHA-256 of the origin>/checkpoint   the newest note with a cosignature that is at most an hour old

State of a witness: for each log the newest cosigned note, older ones, and requests that may prove a fork.

One SQLite file with full syncs: a note is stored before its cosignature leaves, and check and store are one
transaction. A lock gives the directory to one witness at a time.
"""

import asyncio
import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.errors import StatedError
from veen.core.hashing import H
from veen.core.tlog.note import (
    COSIGNATURE,
    LogCheckpoint,
    Note,
    NoteSignature,
    VerifierKey,
    check_name,
    cosign,
    origin_hash,
    verify_signatures,
)
from veen.core.tlog.proof import MAX_REQUEST_BYTES, AddCheckpoint
from veen.core.tlog.tree import EMPTY_ROOT, NoteError, NoteSignatureError, TlogError, TlogProofError, check_consistency
from veen.io.errors import CorruptError, LockedError
from veen.io.local import OsFs
from veen.io.web_listener import WebAnswer, WebRequest
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


_TEXT: Final = "text/plain; charset=utf-8"
_SIZE: Final = "text/x.tlog.size"
_CHECKPOINT: Final = re.compile(r"/([0-9a-f]{64})/checkpoint")


class WitnessService:
    """One witness. `logs` are the keys by origin; every signed note is stored first."""

    def __init__(
        self,
        store: WitnessStore,
        key: SigningKey,
        vkey: VerifierKey,
        logs: Mapping[str, VerifierKey],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._key, self.vkey, self.logs, self._clock = store, key, vkey, logs, clock
        self._origins = {origin_hash(origin): origin for origin in logs}
        self._turn = asyncio.Lock()  # the store belongs to one thread at a time
        self.cosigned = 0
        self.refused = 0

    async def handle(self, request: WebRequest) -> WebAnswer:
        """Answer a request; check and store in a thread, one request after the other."""
        async with self._turn:
            return await asyncio.to_thread(self.answer, request.method, request.path, request.body)

    def answer(self, method: str, path: str, body: bytes) -> WebAnswer:
        if path == "/add-checkpoint":
            if method != "POST":
                return _text(405, "the path takes POST", {"allow": "POST"})
            answer = self.add_checkpoint(body)
            self.cosigned += answer.status == 200
            self.refused += answer.status in (403, 422)
            return answer
        if (match := _CHECKPOINT.fullmatch(path)) and method in ("GET", "HEAD"):
            return self._checkpoint(self._origins.get(match[1], ""))
        return _text(404, "no such path")

    # --- add-checkpoint --------------------------------------------------------------------------------------

    def add_checkpoint(self, body: bytes) -> WebAnswer:
        if len(body) > MAX_REQUEST_BYTES:
            return _text(400, "the request is too large")
        try:
            request = AddCheckpoint.from_bytes(body)
            checkpoint = LogCheckpoint.parse(request.note.text)
        except NoteError as exc:
            return _text(400, str(exc))
        log = self.logs.get(checkpoint.origin)
        if log is None:
            return _text(404, "this log is not known here")
        try:
            if log not in verify_signatures(request.note, (log,)):
                return _text(403, "the known key of the log did not sign")
        except NoteSignatureError as exc:
            return _text(403, str(exc))
        if request.old > checkpoint.size:
            return _text(400, "the old size is above the size of the checkpoint")
        now = int(self._clock())
        with self._store.transaction():
            refusal = self._refuse(request, checkpoint, body, now)
            if refusal is None:
                # Only the log's own line is stored: lines of others are theirs to keep.
                own = Note(request.note.text, tuple(line for line in request.note.signatures if line.is_by(log)))
                self._store.put(own, checkpoint)
        return refusal or WebAnswer(200, self._cosign(request.note.text, now).line().encode(), _TEXT)

    def _refuse(self, request: AddCheckpoint, checkpoint: LogCheckpoint, body: bytes, now: int) -> WebAnswer | None:
        """Return the refusal of a checkpoint, and store evidence; None if it continues the cosigned history."""
        origin = checkpoint.origin
        newest, same_size = self._store.newest(origin), self._store.at(origin, checkpoint.size)
        if same_size is not None and same_size.checkpoint.root != checkpoint.root:  # two roots for one size: proof
            self._store.keep(FORK, checkpoint, now, body, same_size.note.to_bytes())
            return _text(422, "another root was signed for this size")
        size = 0 if newest is None else newest.checkpoint.size
        if request.old != size:
            return WebAnswer(409, f"{size}\n".encode(), _SIZE)
        try:
            root = EMPTY_ROOT if newest is None else newest.checkpoint.root
            check_consistency(size, checkpoint.size, request.path, root, checkpoint.root)
        except TlogProofError as exc:
            self._store.keep(INCONSISTENT, checkpoint, now, body, None if newest is None else newest.note.to_bytes())
            return _text(422, str(exc))
        return None

    def _cosign(self, text: str, now: int) -> NoteSignature:
        return cosign(self._key, self.vkey.name, text, now)

    # --- monitoring ------------------------------------------------------------------------------------------

    def _checkpoint(self, origin: str) -> WebAnswer:
        newest = self._store.newest(origin) if origin else None
        if newest is None:
            return _text(404, "nothing was cosigned for this log")
        note = newest.note.with_signatures((self._cosign(newest.note.text, int(self._clock())),))
        return WebAnswer(200, note.to_bytes(), _TEXT)


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> WebAnswer:
    return WebAnswer(status, f"{text}\n".encode(), _TEXT, headers or {})
