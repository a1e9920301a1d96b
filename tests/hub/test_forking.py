"""Forks that are cut off at any change to the disk: no hub starts from one, and none verifies."""

import asyncio
import contextlib
import shutil

import pytest
from tests.examples import spread
from tests.hub.test_runtime import configured as config
from tests.hub.test_runtime import fs_of, running, submit

from veen.hub.process.forking import fork, verify_all
from veen.hub.process.startup import open_identity
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.copies.unfinished import UnfinishedCopyError
from veen.storage.keys import identity
from veen.testing.memfs import Crash

NOW = 1_800_000_000
HERE, BEFORE = "here", "before"


class _Counter:
    """Counts the changes to a directory and cuts one of them off."""

    def __init__(self, at=0):
        self.at, self.count = at, 0

    def step(self):
        self.count += 1
        if self.count == self.at:
            raise Crash


class _CutFile:
    def __init__(self, file, counter):
        self._file, self._counter = file, counter

    def write_at(self, offset, data):
        self._counter.step()
        self._file.write_at(offset, data)

    def __getattr__(self, name):
        return getattr(self._file, name)


class CutFs(OsFs):
    """A real directory whose changes can be cut off."""

    def __init__(self, root, counter):
        super().__init__(root)
        self.counter = counter

    def open(self, path, *, create=False):
        if create:
            self.counter.step()
        return _CutFile(super().open(path, create=create), self.counter)

    def replace(self, path, data, *, private=False):
        self.counter.step()
        super().replace(path, data, private=private)

    def rename(self, old, new):
        self.counter.step()
        super().rename(old, new)

    def remove(self, path):
        self.counter.step()
        super().remove(path)

    def make_dir(self, directory):
        self.counter.step()
        super().make_dir(directory)

    def database(self, path):
        self.counter.step()
        return super().database(path)

    def section(self, directory):
        return CutFs(super().section(directory).root, self.counter)


@pytest.fixture
def origin(tmp_path):
    async def fill():
        async with running(tmp_path, limits__max_checkpoint_interval="2") as hub:
            await submit(hub, 5)

    asyncio.run(fill())
    return fs_of(tmp_path)


@pytest.mark.parametrize("same_identity", spread([False, True], 1))
def test_a_fork_that_is_cut_off_at_any_change_neither_starts_nor_verifies(tmp_path, origin, same_identity):
    target = tmp_path / "fork"
    counter = _Counter()
    target.mkdir()
    fork(origin, CutFs(target, counter), NOW, same_identity=same_identity, accept_clock=True)
    assert all(report.ok for report in verify_all(OsFs(target)))
    assert counter.count > 15
    for at in range(1, counter.count + 1):
        shutil.rmtree(target)
        target.mkdir()
        with pytest.raises(Crash):
            fork(origin, CutFs(target, _Counter(at)), NOW, same_identity=same_identity, accept_clock=True)
        left = OsFs(target)
        if at == 1:  # the mark itself was cut off
            assert left.list("") == [layout.LOCK]
            continue
        for use in (
            verify_all,
            identity.load,
            lambda fs: open_identity(fs, config(tmp_path, data_dir=str(target)), NOW),
        ):
            with pytest.raises(UnfinishedCopyError, match="not finished"):
                use(left)
        with pytest.raises(UnfinishedCopyError) as caught:
            fork(origin, left, NOW, same_identity=same_identity, accept_clock=True)
        assert "remove this directory" in caught.value.hint
        left.remove(layout.UNFINISHED)  # a program that does not know the mark must not take it for a hub either
        if not identity.exists(left) and left.list(layout.ORIGIN):
            with pytest.raises(StorageError, match="origin is not empty"):
                open_identity(left, config(tmp_path, data_dir=str(target)), NOW)
    assert all(report.ok for report in verify_all(origin))


def test_a_fork_into_itself_is_refused_and_leaves_nothing(origin):
    for inside in ("", "fork", "log/fork"):
        with pytest.raises(StorageError, match="is inside"):
            fork(origin, OsFs(origin.root / inside), NOW)
    assert not (origin.root / "fork").exists()
    with contextlib.suppress(FileNotFoundError):
        assert not list((origin.root / "log").glob("fork"))
    assert all(report.ok for report in verify_all(origin))
