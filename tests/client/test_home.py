"""Where things lie, for whom, and who may use them."""

import os
import stat
from pathlib import Path

import pytest
from tests.client.builders import killed, line, process

from veen.client.errors import IdentityInUse, IdentityMissing, LocalError, NameInvalid
from veen.client.home import Home, PrivateFs

HOLD = """
import sys
from pathlib import Path
from veen.client.home import Home
with Home.at(Path(sys.argv[1])).lock(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_veen_home_puts_everything_below_one_directory(tmp_path):
    home = Home.default({"VEEN_HOME": str(tmp_path)})
    assert home == Home.at(tmp_path)
    paths = [home.config_file, home.identity_dir("alice"), home.state_dir("alice"), home.cache]
    assert all(path.is_relative_to(tmp_path) for path in paths)
    assert len(set(paths)) == 4
    assert Home.default({"VEEN_HOME": "relative"}).data.is_absolute()


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="XDG directories are those of Linux")  # noqa: PTH112 - no path
def test_otherwise_the_directories_of_the_platform_are_used(tmp_path, monkeypatch):
    """UX: config / data / state / cache"""
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.delenv("VEEN_HOME", raising=False)
    home = Home.default()
    assert home.config_file == tmp_path / "config" / "veen" / "config.toml"
    assert (home.data, home.state, home.cache) == tuple(tmp_path / kind / "veen" for kind in ("data", "state", "cache"))


def test_nothing_is_made_by_looking(tmp_path):
    home = Home.at(tmp_path / "home")
    assert home.identities() == []
    assert not home.has_identity("alice")
    assert home.find_exposed() == []
    with pytest.raises(IdentityMissing):
        home.require("alice")
    assert not (tmp_path / "home").exists()


def test_no_name_leads_out_of_the_home(tmp_path):
    home = Home.at(tmp_path)
    for name in ("..", "../x", "/etc", ""):
        for path in (home.identity_dir, home.state_dir, home.has_identity, home.require):
            with pytest.raises(NameInvalid):
                path(name)
        with pytest.raises(NameInvalid), home.lock(name):
            pass


# --- one process at a time ----------------------------------------------------------------------------------


def test_another_process_is_named_by_its_pid_and_its_end_frees_the_identity(tmp_path):
    home = Home.at(tmp_path)
    child = process(HOLD, tmp_path, "alice")
    try:
        assert line(child) == "held\n"
        with pytest.raises(IdentityInUse, match=f"process {child.pid}") as caught, home.lock("alice"):
            pass
        assert (caught.value.name, caught.value.pid) == ("alice", child.pid)
        with home.lock("bob"):  # another identity is free
            pass
    finally:
        killed(child)
    with home.lock("alice"):  # kill -9 leaves no lock behind
        pass


def test_one_process_has_an_identity_once(tmp_path):
    home = Home.at(tmp_path)
    with home.lock("alice"):
        with pytest.raises(IdentityInUse, match=f"process {os.getpid()}"), home.lock("alice"):
            pass
        with pytest.raises(IdentityInUse), home.lock("alice"):  # the attempt did not free it
            pass
    with home.lock("alice"):
        pass


def test_a_lock_file_with_nonsense_in_it_hurts_nobody(tmp_path):
    home = Home.at(tmp_path)
    for nonsense in (b"", b"pid \n", b"pid x", b"\xff\xfe", b"pid " + b"9" * 100):
        with home.lock("alice"):
            (home.state_dir("alice") / "lock").write_bytes(nonsense)
            with pytest.raises(IdentityInUse, match="in use by another process"), home.lock("alice"):
                pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_that_cannot_be_written_is_named_by_mode(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(LocalError, match="cannot be written"), Home.at(tmp_path).lock("alice"):
        pass


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "state").write_text("a file where a directory belongs")
    with pytest.raises(LocalError, match="cannot be written"), Home.at(tmp_path).lock("alice"):
        pass


# --- modes --------------------------------------------------------------------------------------------------


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_all_that_is_made_is_private_whatever_the_umask_says(tmp_path):
    before = os.umask(0)
    try:
        fs = PrivateFs(tmp_path / "a" / "b")
        fs.replace("deep/er/file", b"secret")
        opened = fs.open("other/new", create=True)
        opened.close()
        connection = fs.database("state.db")
        connection.execute("CREATE TABLE t (x)")
        modes = {path.name: mode(path) for path in (tmp_path / "a").rglob("*")}
        connection.close()
    finally:
        os.umask(before)
    assert modes.pop("b") == modes.pop("deep") == modes.pop("er") == modes.pop("other") == 0o700
    assert {"file", "new", "state.db", "state.db-wal"} <= set(modes)
    assert set(modes.values()) == {0o600}


def test_what_others_may_read_is_found(tmp_path):
    home = Home.at(tmp_path)
    home.identity_fs("alice").replace("keystore.enc", b"x")
    home.identity_fs("alice").replace("identity_card", b"public")
    with home.lock("alice"):
        pass
    assert home.find_exposed() == []
    (home.identity_dir("alice") / "identity_card").chmod(0o644)  # public anyway
    assert home.find_exposed() == []
    (home.identity_dir("alice") / "keystore.enc").chmod(0o640)
    home.identity_dir("alice").chmod(0o755)
    assert home.find_exposed() == [
        (home.identity_dir("alice"), 0o755),
        (home.identity_dir("alice") / "keystore.enc", 0o640),
    ]
    assert isinstance(home.find_exposed()[0].path, Path)
