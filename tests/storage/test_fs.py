"""The door to the disk: a directory that a stranger prepared leads nowhere else."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.storage.builders import LABELS, World, fill

from veen.client.home import PrivateFs
from veen.core.errors import VerifyError
from veen.hub.api.rotation import rotate_at_rest
from veen.hub.process.forking import fork, verify_all
from veen.hub.process.startup import at_rest
from veen.io.errors import LinkError, StorageError
from veen.io.local import OsFs, target_of
from veen.storage import layout
from veen.storage.copies.copying import clone
from veen.storage.index import Index
from veen.storage.keys import identity
from veen.storage.maintenance.rebuild import rebuild_index
from veen.verify.directory import verify_data

NOW = 1_700_000_100
SECRET = b"a file of somebody else\n"


@pytest.fixture
def hub(tmp_path):
    """A data directory at rest with sealed and active chunks."""
    world = World(OsFs(tmp_path / "hub"))
    fill(world, 8)
    world.store.close()
    world.bind()
    return world.fs


@pytest.fixture
def outside(tmp_path):
    """A directory that nothing below may read or change."""
    directory = tmp_path / "outside"
    (directory / "deep").mkdir(parents=True)
    (directory / "victim").write_bytes(SECRET)
    (directory / "deep" / "victim").write_bytes(SECRET)
    yield directory
    assert sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*")) == [
        "deep",
        "deep/victim",
        "victim",
    ]
    assert (directory / "victim").read_bytes() == (directory / "deep" / "victim").read_bytes() == SECRET


def commands(fs, target):
    """Everything that a command does to a directory that it was given."""
    yield "rebuild-index", lambda: rebuild_index(fs)
    yield "key rotate", lambda: rotate_at_rest(fs, NOW, 10)
    yield "at rest", lambda: _open_at_rest(fs)
    yield "verify-data", lambda: verify_all(fs)
    yield "clone", lambda: clone(fs, OsFs(target / "clone"), with_keys=True)
    yield "fork", lambda: fork(fs, _made(target / "fork"), NOW)
    yield "same fork", lambda: fork(fs, _made(target / "same"), NOW, same_identity=True)


def _open_at_rest(fs):
    with at_rest(fs, NOW) as opened:
        return opened.hub_ts


def _made(path):
    path.mkdir(parents=True)
    return OsFs(path)


def copied(target):
    return [path for path in target.rglob("*") if path.is_file() and SECRET in path.read_bytes()]


@pytest.mark.parametrize(
    "name",
    [
        layout.CONTROL,
        layout.INDEX,
        f"{layout.INDEX}-wal",
        layout.IDENTITY,
        layout.IDENTITY_SIG,
        layout.KEY_MAP,
        layout.LIMITS,
        layout.LOCK,
        layout.LOG,
        layout.JOURNAL,
        layout.KEYS,
        layout.ORIGIN,
        f"{layout.LOG}/extra.log",
        f"{layout.KEYS}/extra.key",
        "active",
        "nodes",
    ],
)
def test_no_command_goes_through_a_planted_link(hub, outside, tmp_path, name):
    named = {"active": layout.active(LABELS[0], 4), "nodes": layout.nodes(LABELS[0])}
    path = hub.root / named.get(name, name)
    is_directory = name in (layout.LOG, layout.JOURNAL, layout.KEYS, layout.ORIGIN)
    if path.is_dir():
        path.rename(tmp_path / "moved")
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(outside if is_directory else outside / "victim")
    refused = set()
    for what, command in commands(hub, tmp_path / "copies"):
        if not path.is_symlink():  # the command before made this file anew, in the place of the link
            path.unlink(missing_ok=True)
            path.symlink_to(outside / "victim")
        try:
            command()
        except LinkError as exc:
            refused.add(exc.path)
        except (StorageError, VerifyError) as exc:  # something else was refused before the link was met
            assert SECRET.decode() not in str(exc), what  # noqa: PT017 - which error it is depends on the command
    assert refused == {str(path)}
    assert not copied(tmp_path / "copies")


@pytest.mark.parametrize("name", [layout.KEY_MAP, layout.IDENTITY, layout.IDENTITY_SIG])
def test_a_rotation_does_not_write_through_a_planted_temporary_file(hub, outside, name):
    """Its name is random, so nobody can plant one; what lies under the name of before is left alone."""
    link = hub.root / f"{name}.tmp"
    link.symlink_to(outside / "victim")
    rotate_at_rest(hub, NOW, 10)
    link.unlink()
    assert len(identity.load(hub).identity.keys) == 2
    assert verify_data(hub).ok


def test_threads_that_replace_one_file_at_the_same_time_each_leave_it_whole(tmp_path):
    """With one temporary name for all, replacements failed, and half a file could take the name."""
    fs, contents = OsFs(tmp_path), [bytes([number]) * 100_000 for number in range(6)]
    readings = []

    def replace(data):
        for _ in range(10):
            fs.replace("file", data)
            readings.append((tmp_path / "file").read_bytes())

    with ThreadPoolExecutor(len(contents)) as threads:
        for done in [threads.submit(replace, data) for data in contents]:
            done.result()
    assert len(readings) == 60
    assert set(readings) <= set(contents)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_replacement_that_fails_leaves_no_temporary_file(tmp_path, monkeypatch):
    fs = OsFs(tmp_path)
    fs.replace("file", b"before")

    def fail(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        fs.replace("file", b"after")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


@pytest.mark.parametrize("name", ["file", "file.json", "a.tmp.b"])
def test_the_target_of_a_temporary_name(name):
    assert target_of(name) == name
    assert target_of(f"{name}.tmp") == name  # of releases before
    assert target_of(f"{name}.0123456789abcdef.tmp") == name


@pytest.mark.parametrize("name", [layout.nodes(LABELS[0]), layout.locations(LABELS[1])])
def test_a_rebuild_does_not_write_through_a_planted_temporary_file(hub, outside, name):
    (hub.root / f"{name}.tmp").symlink_to(outside / "victim")
    with pytest.raises(LinkError, match=r"\.tmp: symbolic link"):
        rebuild_index(hub)


@pytest.mark.parametrize("kind", [OsFs, PrivateFs])
def test_every_way_into_a_directory_refuses_links(tmp_path, outside, kind):
    root = tmp_path / "root"
    fs = kind(root)
    fs.make_dir("real")
    (root / "link").symlink_to(outside)
    (root / "file").symlink_to(outside / "victim")
    (root / "dangling").symlink_to(outside / "new")
    for use in (
        lambda: fs.open("file"),
        lambda: fs.open("dangling", create=True),
        lambda: fs.open("link/victim"),
        lambda: fs.open("link/deep/victim"),
        lambda: fs.open("link/new", create=True),
        lambda: fs.exists("link/victim"),
        lambda: fs.list("link"),
        lambda: fs.make_dir("link/new"),
        lambda: fs.make_dir("link"),
        lambda: fs.replace("link/victim", b"x"),
        lambda: fs.rename("link/victim", "real/victim"),
        lambda: fs.rename("real", "link/new"),
        lambda: fs.remove("link/victim"),
        lambda: fs.sync_dir("link"),
        lambda: fs.section("link"),
        lambda: fs.database("file"),
        lambda: fs.database("dangling"),
        lambda: fs.peek("file"),
        lambda: fs.remove_database("link/victim"),
    ):
        with pytest.raises(LinkError):
            use()
    assert fs.exists("dangling")  # something is there, and it cannot be opened
    fs.replace("file", b"mine")  # the name goes, what it led to stays
    assert (root / "file").read_bytes() == b"mine"
    fs.remove("dangling")
    assert not (root / "dangling").is_symlink()


def test_what_a_crash_left_does_not_stop_a_replacement(tmp_path, outside):
    fs = OsFs(tmp_path / "root")
    fs.make_dir("")
    os.link(outside / "victim", tmp_path / "root" / "name.tmp")  # a hard link: the same file under another name
    fs.replace("name", b"whole")
    assert (tmp_path / "root" / "name").read_bytes() == b"whole"
    assert fs.list("") == ["name", "name.tmp"]  # what lies under the name of before is left alone


@pytest.mark.parametrize("path", ["../outside/victim", "a/../../outside/victim", "/etc/passwd", "./x", "a\0b"])
def test_a_path_that_leaves_the_directory_is_refused(tmp_path, outside, path):
    fs = OsFs(tmp_path / "root")
    fs.make_dir("a")
    for use in (fs.open, fs.exists, fs.remove, lambda name: fs.replace(name, b"x"), fs.list, fs.make_dir):
        with pytest.raises(StorageError, match="leaves the directory"):
            use(path)


def test_only_regular_files_are_opened(tmp_path):
    fs = OsFs(tmp_path / "root")
    fs.make_dir("directory")
    os.mkfifo(tmp_path / "root" / "pipe")
    with pytest.raises(StorageError, match="not a regular file"):
        fs.open("pipe")  # without waiting for somebody at its other end
    for directory in ("directory", ""):
        with pytest.raises(IsADirectoryError):
            fs.open(directory)


def test_the_directory_itself_is_asked_for_by_an_empty_path(tmp_path):
    assert OsFs(tmp_path).exists("")
    assert not OsFs(tmp_path / "nowhere").exists("")
    assert OsFs(tmp_path / "nowhere").list("") == []


def test_the_directory_itself_may_be_a_link(tmp_path, hub):
    """Whoever names a directory chose it; only what lies in it was prepared by others."""
    (tmp_path / "link").symlink_to(hub.root)
    assert verify_data(OsFs(tmp_path / "link")).ok
    index = Index(OsFs(tmp_path / "link"))
    assert list(index.labels())
    index.close()
