"""The outer log of a hub on disk (D-172): leaves, tree nodes, the last signed note and the last published one.

    outer/leaves      the data of the leaves, one after the other
    outer/offsets     where each leaf ends, u64
    outer/nodes       the hashes of all perfect subtrees, 32 bytes each, in the order of `mmr.node_position`
    outer/signed      the last note that was signed; leaves after its size were never signed and are overwritten
    outer/published   the last note that went out, with the cosignatures that came in time
    outer/index.db    which leaf holds which checkpoint; made again from the leaves where it is missing or behind

A note is signed only over synced leaves, and is durable before anybody gets it: never two roots for one size, never a
smaller size. One thread at a time appends and signs; any thread may read what was appended before.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.hashing import H, u64be
from veen.core.objects.control import ControlRecord
from veen.core.tlog.note import ED25519, LogCheckpoint, Note, VerifierKey, check_name, verify_signatures
from veen.core.tlog.proof import CONTROL_LEAF, MAX_LEAF_BYTES, OuterLeaf
from veen.core.tlog.tree import (
    HASH_BYTES,
    NoteError,
    TlogError,
    TreeCursor,
    leaf_hash,
    prove_consistency,
    prove_inclusion,
    root_at,
)
from veen.core.tree.mmr import node_count, node_position
from veen.io.errors import CorruptError, StorageError
from veen.io.local import File, Fs
from veen.storage import layout
from veen.storage.keys.identity import KeyExposedError
from veen.storage.scan import read_file

_OFFSET_BYTES: Final = 8
_SCAN: Final = 1024  # leaves that are indexed in one transaction
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
    label BLOB NOT NULL, upto_seq INTEGER NOT NULL, pos INTEGER NOT NULL, PRIMARY KEY (label, upto_seq, pos)
) WITHOUT ROWID;
"""


class MissingOuterKeyError(StorageError, code="E.STORAGE.OUTER_KEY"):
    """An outer log without its signing key; another key would be another log for every witness."""


def outer_signing_key(fs: Fs, *, new_log: bool, draw: Callable[[int], bytes] = os.urandom) -> SigningKey:
    """Return the key of the outer log. Create it for a new log, never for one that has signed already."""
    if fs.exists(layout.OUTER_KEY):
        return read_outer_key(fs)
    if not new_log:
        raise MissingOuterKeyError(f"{layout.OUTER_KEY}: the private key of the outer log is missing")
    key = SigningKey(draw(SEED_BYTES))
    write_outer_key(fs, key)
    return key


def write_outer_key(fs: Fs, key: SigningKey) -> None:
    fs.make_dir(layout.KEYS)
    fs.replace(layout.OUTER_KEY, f"{key.seed.hex()}\n".encode(), private=True)


def read_outer_key(fs: Fs) -> SigningKey:
    if (mode := fs.read_exposed_mode(layout.OUTER_KEY)) is not None:
        raise KeyExposedError(layout.OUTER_KEY, mode)
    data = read_file(fs, layout.OUTER_KEY)
    try:
        seed = bytes.fromhex(data.decode("ascii").removesuffix("\n"))
    except ValueError:
        seed = b""
    if len(seed) != SEED_BYTES or f"{seed.hex()}\n".encode() != data:
        raise CorruptError(layout.OUTER_KEY, 0, "not a private key")
    return SigningKey(seed)


class OuterLogFiles:
    """The outer log of one data directory."""

    def __init__(self, fs: Fs, vkey: VerifierKey) -> None:
        """Open or begin the log whose notes `vkey` verifies; raise CorruptError if files and note differ."""
        self._fs, self.vkey = fs, vkey
        self._lock = threading.Lock()  # guards the connection of the index
        check_name(vkey.name)
        fs.make_dir(layout.OUTER)
        self._leaves, self._offsets, self._nodes = (
            fs.open(path, create=True) for path in (layout.OUTER_LEAVES, layout.OUTER_OFFSETS, layout.OUTER_NODES)
        )
        self.signed = self._read_note(layout.OUTER_SIGNED)  # the last note of ours, without cosignatures
        self.published = self._read_note(layout.OUTER_PUBLISHED)
        self.head = None if self.signed is None else LogCheckpoint.parse(self.signed.text)
        size = 0 if self.head is None else self.head.size
        self._check(size)
        self._cursor = TreeCursor.at(self.node_at, size)
        if self.head is not None and self._cursor.root() != self.head.root:
            raise CorruptError(layout.OUTER_NODES, 0, "the tree does not have the root that was signed")
        self._leaf_bytes = self._end(size)
        self._database: sqlite3.Connection | None = None
        self._index()  # forgets rows of leaves that were never signed, before others take their places

    @classmethod
    def exists(cls, fs: Fs) -> bool:
        """Return True if a note was ever signed here."""
        return fs.exists(layout.OUTER_SIGNED)

    def close(self) -> None:
        for file in (self._leaves, self._offsets, self._nodes):
            file.close()
        if self._database is not None:
            self._database.close()
            self._database = None

    # --- opening ---------------------------------------------------------------------------------------------

    def _read_note(self, path: str) -> Note | None:
        if not self._fs.exists(path):
            return None
        try:
            note = Note.from_bytes(read_file(self._fs, path))
            checkpoint = LogCheckpoint.parse(note.text)
            if self.vkey not in verify_signatures(note, (self.vkey,)) or checkpoint.origin != self.vkey.name:
                raise NoteError("signed by another key, or for another origin")
        except TlogError as exc:
            raise CorruptError(path, 0, str(exc)) from exc
        return note

    def _check(self, size: int) -> None:
        wanted = (
            (self._offsets, layout.OUTER_OFFSETS, size * _OFFSET_BYTES),
            (self._nodes, layout.OUTER_NODES, node_count(size) * HASH_BYTES),
            (self._leaves, layout.OUTER_LEAVES, 0 if self._offsets.size() < size * _OFFSET_BYTES else self._end(size)),
        )
        for file, path, least in wanted:
            if file.size() < least:
                raise CorruptError(path, file.size(), "shorter than what was signed")

    # --- reading ---------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of appended leaves; those behind `head.size` are not signed yet."""
        return self._cursor.size

    @property
    def signed_size(self) -> int:
        return 0 if self.head is None else self.head.size

    def node_at(self, height: int, index: int) -> bytes:
        return self._read(self._nodes, layout.OUTER_NODES, node_position(height, index) * HASH_BYTES, HASH_BYTES)

    def leaf(self, pos: int) -> bytes:
        """Return the data of a leaf."""
        start = self._end(pos)
        return self._read(self._leaves, layout.OUTER_LEAVES, start, self._end(pos + 1) - start)

    def root(self, size: int) -> bytes:
        return root_at(self.node_at, size)

    def prove_inclusion(self, pos: int, size: int) -> tuple[bytes, ...]:
        return prove_inclusion(self.node_at, pos, size)

    def prove_consistency(self, old: int, new: int) -> tuple[bytes, ...]:
        return prove_consistency(self.node_at, old, new)

    def prove_apart(self, old: int, new: int) -> tuple[bytes, ...]:
        """Prove as `prove_consistency` does, for another thread: with its own open file."""
        file = self._fs.open(layout.OUTER_NODES)
        try:
            return prove_consistency(
                lambda height, index: self._read(
                    file, layout.OUTER_NODES, node_position(height, index) * HASH_BYTES, HASH_BYTES
                ),
                old,
                new,
            )
        finally:
            file.close()

    def _end(self, count: int) -> int:
        """Return the end of the first `count` leaves."""
        if not count:
            return 0
        data = self._read(self._offsets, layout.OUTER_OFFSETS, (count - 1) * _OFFSET_BYTES, _OFFSET_BYTES)
        return int.from_bytes(data, "big")

    def _read(self, file: File, path: str, offset: int, length: int) -> bytes:
        data = file.read_at(offset, length)
        if len(data) != length:
            raise CorruptError(path, offset, "the file ends too early")
        return data

    # --- writing ---------------------------------------------------------------------------------------------

    def append(self, leaves: Iterable[bytes]) -> None:
        """Append leaves and sync them; they take effect once a note over them is signed."""
        data, offsets, nodes = bytearray(), bytearray(), bytearray()
        cursor, leaf_bytes = TreeCursor(self.size, self._cursor.peaks), self._leaf_bytes
        count, first_node = self.size, node_count(self.size)
        for leaf in leaves:
            if len(leaf) > MAX_LEAF_BYTES:
                raise StorageError(f"{layout.OUTER_LEAVES}: a leaf has at most {MAX_LEAF_BYTES} bytes")
            data += leaf
            leaf_bytes += len(leaf)
            offsets += u64be(leaf_bytes)
            for node in cursor.append(leaf_hash(leaf)):
                nodes += node
        for file, offset, written in (
            (self._leaves, self._leaf_bytes, data),
            (self._offsets, count * _OFFSET_BYTES, offsets),
            (self._nodes, first_node * HASH_BYTES, nodes),
        ):
            file.write_at(offset, bytes(written))
            file.sync()
        self._fs.sync_dir(layout.OUTER)
        self._cursor, self._leaf_bytes = cursor, leaf_bytes  # from here on readers see them

    def sign(self, key: SigningKey) -> Note:
        """Sign all appended leaves, durable on return; if nothing was appended, return the last note."""
        checkpoint = LogCheckpoint(self.vkey.name, self.size, self._cursor.root())
        if self.head is not None and self.signed is not None:
            if checkpoint.size < self.head.size or (
                checkpoint.size == self.head.size and checkpoint.root != self.head.root
            ):
                raise StorageError("the outer log would sign a smaller size, or a second root for one size")
            if checkpoint == self.head:
                return self.signed
        if key.public != self.vkey.public or self.vkey.key_type != ED25519:
            raise StorageError("the outer log has another signing key")
        note = checkpoint.sign(key)
        self._fs.replace(layout.OUTER_SIGNED, note.to_bytes())
        self.signed, self.head = note, checkpoint
        return note

    def publish(self, note: Note) -> None:
        """Publish a signed note with its cosignatures to readers."""
        self._fs.replace(layout.OUTER_PUBLISHED, note.to_bytes())
        self.published = note

    def take_over(self, note: Note) -> None:
        """Take over a note that another copy of this log published over exactly these leaves; durable on return."""
        checkpoint = LogCheckpoint.parse(note.text)
        if checkpoint != LogCheckpoint(self.vkey.name, self.size, self._cursor.root()):
            raise StorageError("the note belongs to another outer log")
        if self.vkey not in verify_signatures(note, (self.vkey,)):
            raise StorageError("the note is not signed by the key of the outer log")
        if checkpoint != self.head:
            signed = Note(note.text, tuple(line for line in note.signatures if line.is_by(self.vkey)))
            self._fs.replace(layout.OUTER_SIGNED, signed.to_bytes())
            self.signed, self.head = signed, checkpoint
        if self.published is None or self.published != note:
            self.publish(note)

    def keep_refusal(self, request: bytes) -> str:
        """Save a request that a witness refused as a fork, as evidence for the operator; return its path."""
        path = layout.outer_refusal(H(request))
        if not self._fs.exists(path):
            self._fs.replace(path, request)
        return path

    # --- which leaf holds what -------------------------------------------------------------------------------

    def last_upto(self, label: bytes) -> int:
        """Return the last entry of the newest listed checkpoint of a label; 0 if none is listed."""
        query = "SELECT max(upto_seq) FROM checkpoints WHERE label = ?"
        with self._lock:
            row = self._index().execute(query, (label,)).fetchone()
        return int(row[0] or 0)

    def checkpoint_leaf(self, label: bytes, upto_seq: int) -> int | None:
        """Return the first signed leaf whose checkpoint of a label covers an entry; None if there is none yet."""
        query = "SELECT pos FROM checkpoints WHERE label = ? AND upto_seq >= ? AND pos < ? ORDER BY upto_seq LIMIT 1"
        with self._lock:
            row = self._index().execute(query, (label, upto_seq, self.signed_size)).fetchone()
        return None if row is None else int(row[0])

    def last_control(self) -> ControlRecord | None:
        """Return the newest listed record of the control journal."""
        with self._lock:
            row = self._index().execute("SELECT value FROM meta WHERE key = 'control'").fetchone()
        return None if row is None else ControlRecord.from_bytes(OuterLeaf.from_bytes(self.leaf(int(row[0]))).data)

    def _index(self) -> sqlite3.Connection:
        database = self._database
        if database is None:
            database = self._database = self._fs.database(layout.OUTER_INDEX)
            database.executescript(_SCHEMA)
        row = database.execute("SELECT value FROM meta WHERE key = 'size'").fetchone()
        indexed, size = int(row[0]) if row else 0, self.size
        if indexed > size:  # of leaves that were never signed and are gone
            with self._indexing(database, size):
                database.execute("DELETE FROM checkpoints WHERE pos >= ?", (size,))
                database.execute("DELETE FROM meta WHERE key = 'control' AND value >= ?", (size,))
            indexed = size
        while indexed < size:
            end = min(size, indexed + _SCAN)
            self._index_leaves(database, range(indexed, end))
            indexed = end
        return database

    def _index_leaves(self, database: sqlite3.Connection, positions: Sequence[int]) -> None:
        rows, control = [], None
        for pos in positions:
            leaf = OuterLeaf.from_bytes(self.leaf(pos))
            if (checkpoint := leaf.checkpoint()) is not None:
                rows.append((checkpoint.label_curr, checkpoint.upto_seq, pos))
            elif leaf.kind == CONTROL_LEAF:
                control = pos
        with self._indexing(database, positions[-1] + 1):
            database.executemany("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?)", rows)
            if control is not None:
                database.execute("INSERT OR REPLACE INTO meta VALUES ('control', ?)", (control,))

    @contextlib.contextmanager
    def _indexing(self, database: sqlite3.Connection, size: int) -> Iterator[None]:
        """Run one transaction, after which the index has `size` leaves; roll back if the disk is full."""
        database.execute("BEGIN")
        try:
            yield
            database.execute("INSERT OR REPLACE INTO meta VALUES ('size', ?)", (size,))
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        self._fs.on_commit(layout.OUTER_INDEX, database)
