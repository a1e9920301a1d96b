"""Index of a copied stream: the originals that the target has, on disk and not in memory.

The log of the target is the state, and this is an index of it: originals with a copy there, and the positions up to
which both streams were read, with their roots. It belongs to two hubs, two streams and the keys whose copies count. If
these differ, or a log has another root, it starts empty and both streams are read from the first entry.
"""

import sqlite3
from collections.abc import Mapping
from typing import Final, Literal

Side = Literal["source", "target"]

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS about (streams TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS cuts (
    side TEXT NOT NULL, label BLOB NOT NULL, upto_seq INTEGER NOT NULL, mmr_root BLOB, PRIMARY KEY (side, label)
);
CREATE TABLE IF NOT EXISTS copies (original BLOB PRIMARY KEY, has_origin INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gaps (label BLOB NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS gaps_by_end ON gaps (label, last);
"""
_FORGET: Final = """
BEGIN; DELETE FROM about; DELETE FROM cuts; DELETE FROM copies; DELETE FROM gaps; COMMIT;
"""


class CopyIndex:
    """The index of one copy. Without a database it is in a temporary file."""

    def __init__(self, database: sqlite3.Connection | None = None) -> None:
        self._db = sqlite3.connect("") if database is None else database
        self._db.isolation_level = None
        self._db.executescript(_SCHEMA)

    def begin(self, between: str) -> None:
        """Clear the index unless it belongs to `between`."""
        if self._db.execute("SELECT streams FROM about").fetchone() != (between,):
            self.forget()
            self._db.execute("INSERT INTO about VALUES (?)", (between,))

    def forget(self) -> None:
        self._db.executescript(_FORGET)

    def restart(self, between: str) -> None:
        """Clear the index and assign it to `between`."""
        self.forget()
        self.begin(between)

    def close(self) -> None:
        self._db.close()

    def cuts(self, side: Side) -> dict[bytes, tuple[int, bytes | None]]:
        """Return position and root, by label; no root where the payload was erased."""
        rows = self._db.execute("SELECT label, upto_seq, mmr_root FROM cuts WHERE side = ?", (side,))
        return {label: (upto, root) for label, upto, root in rows}

    def advance(self, side: Side, cuts: Mapping[bytes, tuple[int, bytes | None]]) -> None:
        """Note that these labels are read up to these positions."""
        rows = [(side, label, upto, root) for label, (upto, root) in cuts.items()]
        self._db.executemany("INSERT OR REPLACE INTO cuts VALUES (?, ?, ?, ?)", rows)

    def add_copy(self, original: bytes, *, has_origin: bool) -> None:
        """Note a copy. `has_origin`: it states the hub that its original comes from."""
        self._db.execute(
            "INSERT INTO copies VALUES (?, ?)"
            " ON CONFLICT DO UPDATE SET has_origin = max(has_origin, excluded.has_origin)",
            (original, has_origin),
        )

    def has_copy(self, original: bytes) -> bool:
        return self._db.execute("SELECT 1 FROM copies WHERE original = ?", (original,)).fetchone() is not None

    def has_origin(self, original: bytes) -> bool:
        """Return True if a copy states that it is of this original."""
        sql = "SELECT 1 FROM copies WHERE original = ? AND has_origin"
        return self._db.execute(sql, (original,)).fetchone() is not None

    def add_gap(self, label: bytes, first: int, last: int) -> None:
        self._db.execute("INSERT INTO gaps VALUES (?, ?, ?)", (label, first, last))

    def has_gap(self, label: bytes, seq: int) -> bool:
        sql = "SELECT 1 FROM gaps WHERE label = ? AND last >= ? AND first <= ?"
        return self._db.execute(sql, (label, seq, seq)).fetchone() is not None
