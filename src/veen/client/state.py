"""The database of a client's labels (RESYNC0.4).

One SQLite file per identity, each save one durable transaction, each row with a checksum: damage by a disk is
reported as StateDamaged, and never blamed on the hub. One process at a time holds it: two would use one client_seq
twice, as two hubs with one identity would equivocate (D-76).

A SQLite file on this machine: each change is one durable transaction, and its faults are named errors.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from hmac import compare_digest
from typing import Any, ClassVar, Final, NamedTuple, Self

from veen.client.errors import LocalError, StateDamaged
from veen.client.home import Home
from veen.client.verify.label_state import RK_BYTES, LabelState, Mode, Pending, rekey, session_keys
from veen.client.verify.pin import HubPin
from veen.core.errors import FormatError, VerifyError, VersionError
from veen.core.hashing import Ht, u64be
from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.storage.scan import read_file

__all__ = [
    "RK_BYTES",
    "LabelState",
    "LocalDatabase",
    "Mode",
    "Pending",
    "PendingNote",
    "StateStore",
    "rekey",
    "session_keys",
]


class LocalDatabase:
    """Base of the stores. Thread-safe: `_mutex` guards `_db`.

    `cleanup` has the lock of the directory, if there is one: it is released after the database is closed.
    """

    FILE: ClassVar[str]
    WHAT: ClassVar[str]  # name of the file in messages
    DAMAGED: ClassVar[type[LocalError]]
    VERSION: ClassVar[int]
    SCHEMA: ClassVar[str]  # statements, each ended by `;` and a new line

    def __init__(self, fs: Fs, cleanup: contextlib.ExitStack) -> None:
        self._fs, self._cleanup = fs, cleanup
        self._mutex = threading.RLock()
        try:
            with self._name_errors():
                self._db = self._open_file()
            self._cleanup.callback(self._db.close)
            self._prepare()
        except BaseException:
            self._cleanup.close()
            raise

    def _open_file(self) -> sqlite3.Connection:
        return self._fs.database(self.FILE)

    def close(self) -> None:
        with self._mutex:
            self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> None:
        """Create the tables of a new file; refuse a file of another release."""
        with self._name_errors():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, self.VERSION):
            raise self.DAMAGED(f"it was written by another release (version {version}, this one knows {self.VERSION})")
        if version == 0:
            with self._transaction() as db:
                for statement in self.SCHEMA.split(";\n"):
                    if statement.strip():
                        db.execute(statement)
                db.execute(f"PRAGMA user_version = {self.VERSION}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction: all of it, durably, or nothing."""
        with self._mutex, self._name_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._fs.on_commit(self.FILE, self._db)

    @contextlib.contextmanager
    def _name_errors(self) -> Iterator[None]:
        with self._mutex:
            try:
                yield
            except sqlite3.OperationalError as exc:  # a full disk or a missing permission: nothing is damaged
                raise LocalError(f"{self.WHAT} cannot be used: {exc}") from exc
            except sqlite3.DatabaseError as exc:
                raise self.DAMAGED(str(exc)) from exc


_Key = tuple[bytes, bytes, bytes]  # hub_id, label, client_id

_NOTE: Final = ".note"
_SUM_BYTES: Final = 32
_SCHEMA: Final = """
CREATE TABLE label_state (
    hub_id BLOB NOT NULL, label BLOB NOT NULL, client_id BLOB NOT NULL,
    body BLOB NOT NULL, sum BLOB NOT NULL, PRIMARY KEY (hub_id, label, client_id)
) WITHOUT ROWID;
CREATE TABLE pending (
    hub_id BLOB NOT NULL, label BLOB NOT NULL, client_id BLOB NOT NULL, client_seq INTEGER NOT NULL,
    msg BLOB NOT NULL, sum BLOB NOT NULL, PRIMARY KEY (hub_id, label, client_id, client_seq)
);
CREATE TABLE hub (hub_id BLOB PRIMARY KEY, record BLOB NOT NULL, sum BLOB NOT NULL) WITHOUT ROWID;
"""
# Not needed to send pending messages: a file of an earlier release gets the table when it is next opened.
_NOTES: Final = """
CREATE TABLE IF NOT EXISTS pending_note (
    hub_id BLOB NOT NULL, label BLOB NOT NULL, client_id BLOB NOT NULL, client_seq INTEGER NOT NULL,
    tag BLOB NOT NULL, sealed_at INTEGER NOT NULL, PRIMARY KEY (hub_id, label, client_id, client_seq)
)
"""

# The content of a pending message, sealed with a key of the identity: it is sealed again if the hub refuses its client
# key. A separate table, so that earlier releases can continue with the file; they leave rows, which then match nothing.
_DRAFTS: Final = """
CREATE TABLE IF NOT EXISTS pending_draft (
    hub_id BLOB NOT NULL, label BLOB NOT NULL, client_id BLOB NOT NULL, client_seq INTEGER NOT NULL,
    sealed BLOB NOT NULL, PRIMARY KEY (hub_id, label, client_id, client_seq)
)
"""


class PendingNote(NamedTuple):
    """Facts about a pending message beside its bytes. By `tag` the same draft is recognised if it comes again."""

    tag: bytes  # keyed by the identity: the file alone reveals nothing of the draft
    sealed_at: int
    draft: bytes = b""  # the result of `Sealer.keep`; empty if it is not kept


class StateStore(LocalDatabase):
    """The label states of one identity."""

    FILE: ClassVar[str] = "state.db"
    WHAT: ClassVar[str] = "the state of the client"
    DAMAGED: ClassVar[type[LocalError]] = StateDamaged
    VERSION: ClassVar[int] = 1
    SCHEMA: ClassVar[str] = _SCHEMA + _NOTES

    _has_drafts = False  # True once the table exists; it is made with the first draft

    def __init__(self, fs: Fs, lock: contextlib.ExitStack | None = None) -> None:
        """Open the store of a directory that nobody else uses, as `open` ensures. `lock` is released after the file."""
        super().__init__(fs, lock or contextlib.ExitStack())

    @classmethod
    def open(cls, home: Home, name: str, *, recover: bool = False) -> Self:
        """Open the state of an identity. Raise IdentityInUse if another process has it.

        With `recover`, a file that cannot be read as a whole is renamed for later inspection, and a new one is
        begun: a resync restores all of it from the hub's log (RESYNC0.2).
        """
        fs = home.state_fs(name)
        try:
            return cls(fs, cls._lock(home, name))
        except StateDamaged:
            if not recover:
                raise
        lock = cls._lock(home, name)
        for suffix in ("", "-wal", "-shm"):
            if fs.exists(f"{cls.FILE}{suffix}"):
                fs.rename(f"{cls.FILE}{suffix}", f"{cls.FILE}.damaged{suffix}")
        fs.sync_dir("")
        return cls(fs, lock)

    @staticmethod
    def _lock(home: Home, name: str) -> contextlib.ExitStack:
        with contextlib.ExitStack() as stack:
            stack.enter_context(home.lock(name))
            return stack.pop_all()

    # --- labels ----------------------------------------------------------------------------------------

    def load(self, hub_id: bytes, label: bytes, client_id: bytes) -> LabelState | None:
        """Return the state of a client key on a label, or the view of its predecessor; None if there is neither."""
        states = list(self.states(hub_id, label))
        for state in states:
            if state.client_id == client_id:
                return state
        furthest = max(states, key=lambda state: state.last_stream_seq, default=None)
        return furthest and furthest.for_next_key(client_id)

    def save(self, *states: LabelState, notes: Mapping[int, PendingNote] | None = None) -> None:
        """Save all states or none, durably. `notes` are by client_seq, about the pending messages of the first
        state."""
        for state in states:
            state.check()
        with self._transaction() as db:
            if notes and not self._has_drafts:
                db.execute(_DRAFTS)
            for state in states:
                key = (state.hub_id, state.label, state.client_id)
                body = state.to_bytes()
                db.execute(
                    "INSERT OR REPLACE INTO label_state VALUES (?, ?, ?, ?, ?)", (*key, body, _state_sum(key, body))
                )
                self._save_pending(db, key, state.pending)
            if notes and states:
                key = (states[0].hub_id, states[0].label, states[0].client_id)
                db.executemany(
                    "INSERT OR REPLACE INTO pending_note VALUES (?, ?, ?, ?, ?, ?)",
                    [(*key, client_seq, note.tag, note.sealed_at) for client_seq, note in notes.items()],
                )
                db.executemany(
                    "INSERT OR REPLACE INTO pending_draft VALUES (?, ?, ?, ?, ?)",
                    [(*key, client_seq, note.draft) for client_seq, note in notes.items() if note.draft],
                )
        self._has_drafts = self._has_drafts or bool(notes)

    def notes(self, state: LabelState) -> dict[int, PendingNote]:
        """Return client_seq -> note of the pending messages of a state; those of earlier releases have none."""
        with self._name_errors():
            rows = self._db.execute(
                "SELECT client_seq, tag, sealed_at FROM pending_note WHERE hub_id = ? AND label = ? AND client_id = ?",
                (state.hub_id, state.label, state.client_id),
            ).fetchall()
        waiting = {pending.client_seq for pending in state.pending}
        return {row[0]: PendingNote(bytes(row[1]), int(row[2])) for row in rows if row[0] in waiting}

    def drafts(self, state: LabelState) -> dict[int, bytes]:
        """Return client_seq -> kept draft of the pending messages of a state."""
        if not self._has_drafts:
            return {}
        with self._name_errors():
            rows = self._db.execute(
                "SELECT client_seq, sealed FROM pending_draft WHERE hub_id = ? AND label = ? AND client_id = ?",
                (state.hub_id, state.label, state.client_id),
            ).fetchall()
        return {int(client_seq): bytes(sealed) for client_seq, sealed in rows}

    def states(
        self, hub_id: bytes | None = None, label: bytes | None = None, client_id: bytes | None = None
    ) -> Iterator[LabelState]:
        """Yield every state, or those of a hub, a label or a client key, by hub_id, label and client_id."""
        wanted = {"hub_id": hub_id, "label": label, "client_id": client_id}
        filters = {name: value for name, value in wanted.items() if value is not None}
        where = " AND ".join(f"{name} = ?" for name in filters) or "TRUE"
        query = f"SELECT hub_id, label, client_id, body, sum FROM label_state WHERE {where}"  # noqa: S608 - fixed names
        with self._name_errors():
            rows = self._db.execute(f"{query} ORDER BY hub_id, label, client_id", tuple(filters.values())).fetchall()
        for *key, body, checksum in rows:
            yield self._state((key[0], key[1], key[2]), body, checksum)

    def states_with_pending(self, hub_id: bytes | None = None) -> list[LabelState]:
        """Return states with messages that wait for their receipts, also those of retired client keys."""
        return [state for state in self.states(hub_id) if state.pending]

    def counts(self, client_id: bytes) -> dict[bytes, int]:
        """Return label -> number of messages that a client key has sent there (KEX1+, see `rotation`)."""
        return {state.label: state.client_seq for state in self.states(client_id=client_id)}

    def forget(self, hub_id: bytes, label: bytes) -> None:
        """Drop everything about a label, damaged or not: a resync begins so."""
        with self._transaction() as db:
            for table in ("label_state", *self._tables_of_pending()):
                db.execute(f"DELETE FROM {table} WHERE hub_id = ? AND label = ?", (hub_id, label))  # noqa: S608 - fixed

    # --- hubs ------------------------------------------------------------------------------------------

    def pins(self) -> list[HubPin]:
        """Return the proven facts about each hub, by hub_id: keys that a rotation introduced are not forgotten.

        Records of older releases are left out: neither their hub_id nor their times were signed.
        """
        with self._name_errors():
            rows = self._db.execute("SELECT hub_id, record, sum FROM hub ORDER BY hub_id").fetchall()
        pins: list[HubPin] = []
        for hub_id, record, checksum in rows:
            if not _is_sum(checksum, _hub_sum(hub_id, record)):
                raise StateDamaged(f"the record of hub {hub_id.hex()[:16]}…")
            try:
                pins.append(HubPin.from_bytes(bytes(record)))
            except VersionError:
                continue
            except (FormatError, VerifyError) as exc:
                raise StateDamaged(f"the record of hub {hub_id.hex()[:16]}…: {exc}") from exc
        return pins

    def drop_damaged_hubs(self) -> int:
        """Drop altered records and return their number; the pin and the hub restore them."""
        with self._name_errors():
            rows = self._db.execute("SELECT hub_id, record, sum FROM hub").fetchall()
        bad = [(row[0],) for row in rows if not _is_sum(row[2], _hub_sum(row[0], row[1]))]
        with self._transaction() as db:
            db.executemany("DELETE FROM hub WHERE hub_id = ?", bad)
        return len(bad)

    def save_pin(self, pin: HubPin) -> None:
        """Save the proven facts about a hub, durably.

        A record under a root has its own row, (root_pk ‖ hub_id): a pin on a key of the same hub must neither
        use nor replace it.
        """
        row, record = (pin.root_pk or b"") + pin.identity.hub_id, pin.to_bytes()
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO hub VALUES (?, ?, ?)", (row, record, _hub_sum(row, record)))

    # --- notes -----------------------------------------------------------------------------------------

    def read_note(self, name: str) -> bytes | None:
        """Read a note that saves work; None if it is missing or damaged."""
        try:
            data = read_file(self._fs, f"{name}{_NOTE}")
        except (FileNotFoundError, StorageError):
            return None
        note, checksum = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
        return note if _is_sum(checksum, Ht("veen/client-note", name.encode() + note)) else None

    def write_note(self, name: str, note: bytes) -> None:
        """Write a note that can be restored from the log if it is lost."""
        self._fs.replace(f"{name}{_NOTE}", note + Ht("veen/client-note", name.encode() + note), private=True)

    # --- the file --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        with self._name_errors():
            damage = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":
            raise StateDamaged(str(damage).splitlines()[0])
        super()._prepare()
        with self._name_errors():
            tables = {name for (name,) in self._db.execute("SELECT name FROM sqlite_master").fetchall()}
        self._has_drafts = "pending_draft" in tables
        if "pending_note" not in tables:
            with self._transaction() as db:
                db.execute(_NOTES)

    def _state(self, key: _Key, body: bytes, checksum: bytes) -> LabelState:
        where = f"label {key[1].hex()[:16]}…"
        if not _is_sum(checksum, _state_sum(key, body)):
            raise StateDamaged(where)
        try:
            state = replace(LabelState.from_bytes(body), pending=tuple(self._load_pending(key, where)))
            state.check()
        except FormatError as exc:
            raise StateDamaged(f"{where}: {exc}") from exc
        return state

    def _load_pending(self, key: _Key, where: str) -> Iterator[Pending]:
        with self._name_errors():
            rows = self._db.execute(
                "SELECT client_seq, msg, sum FROM pending WHERE hub_id = ? AND label = ? AND client_id = ?"
                " ORDER BY client_seq",
                key,
            ).fetchall()
        for client_seq, msg, checksum in rows:
            if not _is_sum(checksum, _sum_of_pending(key, Pending(client_seq, msg))):
                raise StateDamaged(f"{where}: the pending message {client_seq}")
            yield Pending(client_seq, msg)

    def _tables_of_pending(self) -> tuple[str, ...]:
        return ("pending", "pending_note", "pending_draft") if self._has_drafts else ("pending", "pending_note")

    def _save_pending(self, db: sqlite3.Connection, key: _Key, wanted: Iterable[Pending]) -> None:
        """Write only the difference: a batch may be large and is confirmed piece by piece."""
        stored = dict(
            db.execute(
                "SELECT client_seq, sum FROM pending WHERE hub_id = ? AND label = ? AND client_id = ?", key
            ).fetchall()
        )
        for pending in wanted:
            checksum = _sum_of_pending(key, pending)
            if stored.pop(pending.client_seq, None) != checksum:
                db.execute("INSERT OR REPLACE INTO pending VALUES (?, ?, ?, ?, ?, ?)", (*key, *pending, checksum))
        for table in self._tables_of_pending():
            db.executemany(
                f"DELETE FROM {table} WHERE hub_id = ? AND label = ? AND client_id = ? AND client_seq = ?",  # noqa: S608 - fixed
                [(*key, client_seq) for client_seq in stored],
            )


class StateSnapshot(StateStore):
    """The label states of one identity as last committed, for reading beside the process that uses them."""

    @classmethod
    def at(cls, home: Home, name: str) -> "StateSnapshot | None":
        """Return the states of an identity without taking its lock; None if it has none yet."""
        fs = home.state_fs(name)
        return cls(fs) if fs.exists(cls.FILE) else None

    def _open_file(self) -> sqlite3.Connection:
        return self._fs.peek(self.FILE)

    def _prepare(self) -> None:
        """Change nothing: refuse the file of another release, and note if it has the newer table."""
        with self._name_errors():
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            table = self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'pending_note'").fetchone()
        if version != self.VERSION:
            raise StateDamaged(f"it was written by another release (version {version})")
        self._has_notes = table is not None

    def notes(self, state: LabelState) -> dict[int, PendingNote]:
        return super().notes(state) if self._has_notes else {}


def _state_sum(key: _Key, body: bytes) -> bytes:
    return Ht("veen/client-state", b"".join(key) + body)


def _sum_of_pending(key: _Key, pending: Pending) -> bytes:
    return Ht("veen/client-pending", b"".join(key) + u64be(pending.client_seq) + pending.msg)


def _hub_sum(hub_id: bytes, record: bytes) -> bytes:
    return Ht("veen/client-hub", hub_id + record)


def _is_sum(found: Any, expected: bytes) -> bool:
    return type(found) is bytes and compare_digest(found, expected)
