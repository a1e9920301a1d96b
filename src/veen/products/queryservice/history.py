"""History of queries in the log: requests, digests, failures. A fold, so a restarted service knows every state.

A service stores it in a database beside its results, with the position and the root up to which each log is included,
and with everything that decides its contents: the hub, the authors whose records count, and the read keys. A start
continues from there; if any of these has changed, or the log has another root there, it is built again from the start.
So memory does not grow with the number of queries, and erased entries stay known.

A request in the log is PENDING until a digest (COMPLETED) or a failure (FAILED) of its result_id follows; records after
that change nothing (QRY-26, D-134). RUNNING is a state of the process only.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from veen.core import canonical
from veen.core.event import Event
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.digest import ResultDigest
from veen.lake.query.errors import QUERY_REFUSALS
from veen.lake.query.recording import result_id_of
from veen.overlays.framework.schema import Issue
from veen.overlays.recorder import events as sdr


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A query recorded in record/query/requests."""

    descriptor: QueryDescriptor
    subject_id: str
    msg_id: bytes
    stream_seq: int

    @property
    def result_id(self) -> str:
        return result_id_of(self.msg_id)


V = TypeVar("V")

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS about (what TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cuts (label BLOB PRIMARY KEY, upto_seq INTEGER NOT NULL, mmr_root BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS erased (
    label BLOB NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (label, first)
);
CREATE TABLE IF NOT EXISTS requests (
    query_id TEXT PRIMARY KEY, result_id TEXT NOT NULL UNIQUE, subject_id TEXT NOT NULL, descriptor BLOB NOT NULL,
    msg_id BLOB NOT NULL, stream_seq INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS ends (result_id TEXT PRIMARY KEY, digest BLOB, error_code TEXT);
"""
_REQUEST: Final = "SELECT subject_id, descriptor, msg_id, stream_seq FROM requests WHERE "

_DIGESTS: Final = "ends WHERE digest IS NOT NULL"
_FAILURES: Final = "ends WHERE error_code IS NOT NULL"
_DIGEST: Final = "SELECT digest FROM ends WHERE digest IS NOT NULL"
_FAILURE: Final = "SELECT error_code FROM ends WHERE error_code IS NOT NULL"
_FORGET: Final = """
BEGIN; DELETE FROM about; DELETE FROM cuts; DELETE FROM erased; DELETE FROM requests; DELETE FROM ends; COMMIT;
"""


class _Column(Mapping[str, V]):
    """A part of the database as a mapping. Each access is a query; nothing is held in memory."""

    def __init__(self, db: sqlite3.Connection, key: str, where: str, select: str, read: Callable[..., V]) -> None:
        self._db, self._key, self._where, self._select, self._read = db, key, where, select, read

    def __getitem__(self, key: str) -> V:
        row = self._db.execute(f"{self._select} AND {self._key} = ?", (key,)).fetchone()
        if row is None:
            raise KeyError(key)
        return self._read(*row)

    def __iter__(self) -> Iterator[str]:
        for (key,) in self._db.execute(f"SELECT {self._key} FROM {self._where} ORDER BY rowid"):  # noqa: S608 - as above
            yield key

    def __len__(self) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {self._where}").fetchone()[0])  # noqa: S608 - as above


class QueryHistory:
    """All queries of a log so far. The first request of a query_id is valid, and the first end of a result.

    Only records by `authors`, the keys of the service, count: others may be able to write to its streams. None accepts
    every author, to show the contents of the streams. Belongs to one thread.
    """

    def __init__(self, authors: frozenset[bytes] | None, path: Path | None = None, *, inputs: str = "") -> None:
        """Open the history. `path`: database, or None for memory; `inputs`: everything else that decides its
        contents.
        """
        self.authors = authors
        whose = "everybody" if authors is None else " ".join(sorted(author.hex() for author in authors))
        self._inputs = f"1 {whose} {inputs}"
        try:
            self._db = self._open(path)
        except sqlite3.DatabaseError:  # damaged: all of it is in the log
            for name in ("", "-wal", "-shm"):
                Path(f"{path}{name}").unlink(missing_ok=True)
            self._db = self._open(path)
        self.requests = _Column(self._db, "query_id", "requests", f"{_REQUEST} 1", _request)
        self.results = _Column(self._db, "result_id", "requests", f"{_REQUEST} 1", _request)
        self.digests = _Column(self._db, "result_id", _DIGESTS, _DIGEST, _digest)
        self.failures = _Column(self._db, "result_id", _FAILURES, _FAILURE, str)

    def _open(self, path: Path | None) -> sqlite3.Connection:
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
        try:
            db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; {_SCHEMA}")
            saved = db.execute("SELECT value FROM about WHERE what = 'inputs'").fetchone()
            if saved != (self._inputs,):
                _forget(db, self._inputs)
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        self._db.close()

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Write the records added within the block in one transaction."""
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")  # records added before an error are in the log as well

    # --- positions -----------------------------------------------------------------------------------------

    def cuts(self) -> dict[bytes, tuple[int, bytes]]:
        """Return position and root, by label, up to which the log is in here."""
        return {label: (upto, root) for label, upto, root in self._db.execute("SELECT * FROM cuts")}

    def cut(self, label: bytes, upto_seq: int, mmr_root: bytes) -> None:
        """Note that the log of a label is in here up to a position."""
        self._db.execute("INSERT OR REPLACE INTO cuts VALUES (?, ?, ?)", (label, upto_seq, mmr_root))

    def erase(self, label: bytes, first: int, last: int) -> None:
        """Note entries that the hub had erased before they were read."""
        self._db.execute("INSERT OR REPLACE INTO erased VALUES (?, ?, ?)", (label, first, last))

    @property
    def erased(self) -> int:
        """Number of entries that were erased before they were read."""
        return int(self._db.execute("SELECT coalesce(sum(last - first + 1), 0) FROM erased").fetchone()[0])

    def forget(self) -> None:
        """Clear the history: it was made from another log."""
        _forget(self._db, self._inputs)

    # --- events ----------------------------------------------------------------------------------------------

    def add(self, event: Event) -> None:
        """Add an event of one of the query streams. An event by others, or of no query, changes nothing."""
        if event.hdr.schema != sdr.EVENT.id or (self.authors is not None and event.client_id not in self.authors):
            return
        typed = sdr.read(event)
        if isinstance(typed, Issue) or not isinstance(typed.body.payload, bytes):
            return
        try:
            self._add(typed.body, event)
        except QUERY_REFUSALS:  # a descriptor of a later release, or an invalid one
            return

    def _add(self, body: sdr.RecorderEvent, event: Event) -> None:
        payload: bytes = body.payload
        match body.event_type:
            case "query.submitted":
                self.add_request(
                    RecordedRequest(
                        descriptor=QueryDescriptor.from_bytes(payload),
                        subject_id=body.subject_id,
                        msg_id=event.leaf_hash,
                        stream_seq=event.stream_seq,
                    )
                )
            case "query.result":
                self.add_digest(ResultDigest.from_bytes(payload))
            case "query.failed":
                value = canonical.parse(payload)
                result_id = value.get("result_id") if type(value) is dict else None
                if type(result_id) is str:
                    self.add_failure(result_id, str(value.get("error_code")))

    def add_request(self, request: RecordedRequest) -> None:
        values: tuple[Any, ...] = (request.descriptor.query_id, request.result_id, request.subject_id)
        values += (request.descriptor.to_bytes(), request.msg_id, request.stream_seq)
        self._db.execute("INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?, ?, ?)", values)

    def add_digest(self, digest: ResultDigest) -> None:
        self._db.execute("INSERT OR IGNORE INTO ends VALUES (?, ?, NULL)", (digest.result_id, digest.to_bytes()))

    def add_failure(self, result_id: str, error_code: str) -> None:
        self._db.execute("INSERT OR IGNORE INTO ends VALUES (?, NULL, ?)", (result_id, error_code))

    def open_requests(self) -> list[RecordedRequest]:
        """Return the requests without an end, in the order of the log."""
        where = "result_id NOT IN (SELECT result_id FROM ends) ORDER BY rowid"
        return [_request(*row) for row in self._db.execute(_REQUEST + where)]


def _request(subject_id: str, descriptor: bytes, msg_id: bytes, stream_seq: int) -> RecordedRequest:
    return RecordedRequest(
        descriptor=QueryDescriptor.from_bytes(descriptor), subject_id=subject_id, msg_id=msg_id, stream_seq=stream_seq
    )


def _digest(data: bytes) -> ResultDigest:
    return ResultDigest.from_bytes(data)


def _forget(db: sqlite3.Connection, inputs: str) -> None:
    db.executescript(_FORGET)
    db.execute("INSERT INTO about VALUES ('inputs', ?)", (inputs,))
