"""Clones that are cut off: no hub starts from one, and none verifies."""

import random

import pytest
from tests.storage.builders import World, small
from tests.storage.oracle import assert_clean

from veen.core.hashing import H
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.copies.copying import check_apart, clone
from veen.storage.copies.unfinished import UnfinishedCopyError
from veen.storage.keys import identity
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data


def source():
    fs = small().fs
    fs.replace(layout.attachment(H(b"attached")), b"attached")
    return fs


def operations(fs):
    target = MemFs()
    clone(fs, target, with_keys=True)
    assert_clean(target)
    return target.operations


def test_a_clone_that_is_cut_off_at_any_write_neither_starts_nor_verifies():
    fs = source()
    refused = 0
    for at in range(1, operations(fs) + 1):
        for kind in ("lost", "torn", "done"):
            target = MemFs(fault=Fault(at, kind))
            with pytest.raises(Crash):
                clone(fs, target, with_keys=True)
            left = target.after_crash(random.Random(at))
            if not left.exists(layout.UNFINISHED):
                # Before the mark nothing is there; after it went, all of it is.
                assert not left.files() or identity.exists(left), (at, kind)
                if identity.exists(left):
                    assert_clean(left)
                continue
            refused += 1
            for use in (verify_data, World, identity.load):
                with pytest.raises(UnfinishedCopyError, match="not finished"):
                    use(left)
            with pytest.raises(UnfinishedCopyError) as caught:
                clone(fs, left, with_keys=True)
            assert "remove this directory" in caught.value.hint
            with pytest.raises(UnfinishedCopyError):
                clone(left, MemFs(), with_keys=True)
    assert refused > 100


def test_without_its_identity_no_program_takes_a_cut_off_clone_for_a_hub():
    """Also one that does not know the mark: keys come after the log, the identity after the keys."""
    fs = source()
    for at in range(1, operations(fs) + 1):
        target = MemFs(fault=Fault(at, "lost"))
        with pytest.raises(Crash):
            clone(fs, target, with_keys=True)
        log = {path for path in fs.files() if not path.startswith(("keys/", "hub-"))}
        if identity.exists(target):
            assert target.files().keys() >= fs.files().keys()
        elif target.list(layout.KEYS):
            assert target.files().keys() >= log


def test_a_copy_into_itself_is_refused(tmp_path):
    hub = tmp_path / "hub"
    World(OsFs(hub)).store.close()
    (tmp_path / "link").symlink_to(hub)
    before = sorted(hub.rglob("*"))
    for target in (hub, hub / "copy", hub / "log" / "copy", tmp_path / "link" / "copy", tmp_path / "x" / ".." / "hub"):
        with pytest.raises(StorageError, match="is inside"):
            check_apart(hub, target)
        with pytest.raises(StorageError, match="is inside"):
            clone(OsFs(hub), OsFs(target), with_keys=True)
    assert sorted(hub.rglob("*")) == before
    check_apart(hub, tmp_path / "hub2")
