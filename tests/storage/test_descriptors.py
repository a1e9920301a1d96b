"""File descriptors: how many connections they leave room for, and what storage does when there are none."""

import errno
import os
import sqlite3

import pytest

from veen.io import descriptors
from veen.io.descriptors import Spares, is_shortage, max_connections, patiently, with_spares
from veen.io.local import OsFs
from veen.storage.label_files import FileCache

SHORT = OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize("limit", [4, 64, 256, 1024, 20_000, 1 << 20])
def test_connections_leave_room_for_files(limit):
    assert 1 <= max_connections(limit, 1) <= limit
    assert limit - max_connections(limit, 1) >= min(513, limit // 2)


def test_a_spare_descriptor_is_given_up_for_a_file(monkeypatch):
    spares, fails = Spares(), [SHORT, SHORT]
    monkeypatch.setattr(descriptors, "SPARES", spares)
    spares.fill(3)

    def call():
        if fails:
            raise fails.pop()
        return "opened"

    assert with_spares(call) == "opened"
    assert len(spares._open) == 1
    assert spares.refill()
    assert len(spares._open) == 3
    spares.fill(0)
    for descriptor in spares._open:
        os.close(descriptor)


def test_without_spares_the_error_comes_through():
    def call():
        raise SHORT

    with pytest.raises(OSError, match="too many open files") as caught:
        with_spares(call)
    assert is_shortage(caught.value)


def test_other_errors_are_not_tried_again():
    calls = []

    def step():
        calls.append(1)
        raise OSError(errno.EIO, "broken")

    for attempt in (lambda: with_spares(step), lambda: patiently(step)):
        with pytest.raises(OSError, match="broken"):
            attempt()
    assert len(calls) == 2


def test_a_helper_thread_waits_until_there_are_descriptors(monkeypatch):
    monkeypatch.setattr(descriptors, "_PAUSE_SEC", 0.0)
    fails = [SHORT] * 5

    def step():
        if fails:
            raise fails.pop()
        return "done"

    assert patiently(step) == "done"


class ShortFs(OsFs):
    """A directory in a process that may have only so many files open."""

    most = 3
    opened = 0

    def open(self, path, *, create=False):
        if self.opened >= self.most:
            raise SHORT
        self.opened += 1
        file = super().open(path, create=create)
        close = file.close

        class Counted:
            def __getattr__(self, name):
                return getattr(file, name)

            def close(counted):  # noqa: N805 - the other self is meant
                self.opened -= 1
                close()

        return Counted()


def test_the_cache_of_files_gives_up_its_oldest_when_descriptors_are_short(tmp_path):
    fs = ShortFs(tmp_path)
    cache = FileCache(fs, capacity=100)
    for number in range(20):
        cache.get(f"file {number}", create=True).write_at(0, b"x")
    assert fs.opened == 3
    assert cache.get("file 0").read_at(0, 1) == b"x"
    cache.close()
    assert fs.opened == 0


def test_a_database_that_cannot_be_opened_for_another_reason_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        OsFs(tmp_path).database("no such directory/index.db")
    (tmp_path / "index.db").mkdir()
    with pytest.raises(sqlite3.OperationalError):
        OsFs(tmp_path).database("index.db")
