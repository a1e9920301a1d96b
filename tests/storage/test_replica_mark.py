"""A directory becomes a replica, also if that is cut off at any operation."""

import random

import pytest

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.identity import HubIdentity
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.copies.replica import ReplicaMark, begin_replica, read_mark
from veen.storage.keys import identity as identities
from veen.testing.memfs import Crash, Fault, MemFs

HUB, ROOT = SigningKey(bytes([7]) * 32), SigningKey(bytes([8]) * 32)
IDENTITY = HubIdentity.first(HUB.public, valid_from=0)
MARK = ReplicaMark("http://primary", "ed25519:00", {})


def begin(fs):
    begin_replica(fs, MARK, IDENTITY, IDENTITY.sign(ROOT), ROOT.public)


def test_a_beginning_that_is_cut_off_anywhere_is_finished_by_the_next_run():
    whole = MemFs()
    begin(whole)
    for at in range(1, whole.operations + 1):
        for kind in ("lost", "torn", "done"):
            fs = MemFs(fault=Fault(at, kind))
            with pytest.raises(Crash):
                begin(fs)
            fs = fs.after_crash(random.Random(at))
            begin(fs)
            assert fs.files() == whole.files(), (at, kind)
            assert read_mark(fs) == MARK
            assert identities.read_identity(fs).hub_id == IDENTITY.hub_id


@pytest.mark.parametrize("name", [layout.IDENTITY, layout.IDENTITY_SIG, layout.KEY_MAP, layout.ROOT])
def test_what_a_killed_process_left_of_a_file_is_no_obstacle(tmp_path, name):
    fs = OsFs(tmp_path)
    begin(fs)
    (tmp_path / name).rename(tmp_path / f"{name}.tmp")
    (tmp_path / layout.IDENTITY).unlink(missing_ok=True)
    begin(fs)
    assert identities.read_identity(fs).hub_id == IDENTITY.hub_id


def test_a_directory_with_something_else_in_it_is_refused():
    fs = MemFs()
    fs.replace(layout.KEY_MAP, b"of a hub that lost its identity")
    with pytest.raises(StorageError, match="not empty"):
        begin(fs)
