"""A SQLite file on this machine: each change is one durable transaction, and its faults are named errors."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import ClassVar, Self

from veen.client.errors import LocalError
from veen.io.local import Fs


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
