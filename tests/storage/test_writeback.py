"""Errors of background writeback: reported once to each descriptor that is open then, and to nobody who opens later."""

import errno

import pytest
from tests.storage.builders import World

from veen.storage.label_files import AppendFile, FileCache
from veen.testing.memfs import MemFs


class _Watched:
    """A descriptor that is told of writeback errors from its opening to its end, as those of Linux are."""

    def __init__(self, fs, path, file):
        self._fs, self._path, self._file = fs, path, file
        self.read_at, self.write_at, self.truncate, self.size = file.read_at, file.write_at, file.truncate, file.size
        self._error = False
        fs.opened.setdefault(path, set()).add(self)

    def fail(self):
        self._error = True

    def sync(self):
        if self._error:
            self._error = False
            raise OSError(errno.EIO, "writeback failed")
        self._file.sync()

    def close(self):
        self._fs.opened[self._path].discard(self)
        self._file.close()


class WritebackFs(MemFs):
    """A disk whose kernel writes back by itself; `lose` is a write that fails then. Inodes leave memory when closed."""

    def __init__(self, *, has_whole=False):
        super().__init__()
        self.opened: dict[str, set[_Watched]] = {}
        self.has_whole, self.whole_syncs = has_whole, 0

    def open(self, path, *, create=False):
        return _Watched(self, path, super().open(path, create=create))

    def rename(self, old, new):
        super().rename(old, new)
        for descriptor in self.opened.get(old, ()):
            descriptor._path = new
        self.opened.setdefault(new, set()).update(self.opened.pop(old, ()))

    def whole(self, directories):
        fs = self

        class Disk:
            def sync(self):
                fs.whole_syncs += 1

            def close(self):
                pass

        return Disk() if self.has_whole else None

    def lose(self, name):
        """Fail the writeback of every file with this in its name; return how many descriptors hear of it."""
        heard = [descriptor for path, opened in self.opened.items() if name in path for descriptor in opened]
        for descriptor in heard:
            descriptor.fail()
        return len(heard)


@pytest.mark.parametrize("name", ["nodes", "chunk", "checkpoint"])
def test_a_write_that_the_kernel_loses_before_the_sync_keeps_the_journal(name, monkeypatch):
    """The descriptor that wrote may have left the cache: the sync goes through it all the same."""
    monkeypatch.setattr("veen.storage.label_files.max_open_files", lambda: 1)
    world = World(fs := WritebackFs())
    for _ in range(8):
        world.send()
    retirement = _captured(world)
    assert fs.lose(name) > 0
    segments = [path for path in fs.list_all() if path.startswith("journal")]
    with pytest.raises(OSError, match="writeback failed"):
        world.store.persist(retirement)
    assert set(segments) <= set(fs.list_all())


def _captured(world):
    world.store.journal.roll()
    return world.store.capture()


@pytest.mark.parametrize("has_whole", [True, False])
def test_many_dirty_files_are_synced_with_the_whole_disk_or_before_they_are_closed(has_whole):
    """Descriptors are few; no error is lost for that."""
    fs = WritebackFs()
    cache = FileCache(fs, capacity=1, most_held=2, has_whole_disk=has_whole)
    for number in range(3):
        AppendFile(cache, f"file {number}", 0).append(b"x" * 70_000)
    assert sum(map(len, fs.opened.values())) == 3
    assert fs.lose("file 2") == 1
    if has_whole:
        AppendFile(cache, "file 3", 0).append(b"x" * 70_000)
        assert cache.take_dirty() == ([], True)
        assert sum(map(len, fs.opened.values())) == 1  # the one in the set
    else:
        with pytest.raises(OSError, match="writeback failed"):
            AppendFile(cache, "file 3", 0).append(b"x" * 70_000)
    cache.close()
    assert sum(map(len, fs.opened.values())) == 0


def test_no_descriptor_is_left_open_by_retirements(monkeypatch):
    monkeypatch.setattr("veen.storage.label_files.max_open_files", lambda: 2)
    world = World(fs := WritebackFs())
    for _ in range(5):
        for _ in range(8):
            world.send()
        world.store.retire()
        cached = 2 + 1  # those of the set, and the journal
        assert sum(map(len, fs.opened.values())) <= cached + 1
    world.store.close()
    assert {path: len(opened) for path, opened in fs.opened.items() if opened} == {}
