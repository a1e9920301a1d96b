"""Sets in directories: what is read, what is refused, how an import appears (002 §15, D-117)."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.products.vesn import log_builders as w

from veen.client.errors import LocalError
from veen.products.vesn import files as rim
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.files import ArchiveExists, DirectorySource, SetRefused, export_set, import_set
from veen.products.vesn.portability import verify_set

FILES = w.small_set()


@pytest.fixture
def place(tmp_path):
    """A good set in a directory."""
    export_set(FILES, tmp_path / "old")
    return tmp_path / "old"


def problems(directory, trust=w.TRUST):
    with DirectorySource(directory) as source:
        return {finding.problem for finding in verify_set(source, trust).findings}


def tree(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


@pytest.mark.req("VESN-15")
def test_an_exported_set_verifies_and_is_private(place):
    assert tree(place) == FILES
    assert problems(place) == set()
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in place.rglob("*") if path.is_file())


@pytest.mark.req("VESN-15")
def test_an_import_is_the_verified_copy_with_a_report(place, tmp_path):
    done = import_set(place, tmp_path / "archive", w.TRUST)
    assert (done.report.verdict, done.existed) == ("verified", False)
    assert tree(tmp_path / "archive" / "set") == FILES
    document = json.loads((tmp_path / "archive" / "report.json").read_text("utf-8"))
    assert (document["verdict"], document["receipts"], document["format"]) == ("verified", 3, 1)
    assert document["hub_pks"] == [w.HUB.public.hex()]
    assert set(document["files"]) == set(FILES)
    assert problems(tmp_path / "archive" / "set") == set()
    assert {path.name for path in tmp_path.iterdir()} == {"old", "archive"}  # nothing else is left


def test_importing_again_changes_nothing_and_nothing_is_overwritten(place, tmp_path):
    import_set(place, tmp_path / "archive", w.TRUST)
    before = tree(tmp_path / "archive")
    assert import_set(place, tmp_path / "archive", w.TRUST).existed
    export_set(w.small_set((1,)), tmp_path / "other")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("x")
    for target in ("archive", "taken"):
        with pytest.raises(ArchiveExists):
            import_set(tmp_path / "other", tmp_path / target, w.TRUST)
    assert tree(tmp_path / "archive") == before
    with pytest.raises(ArchiveExists):
        export_set(FILES, tmp_path / "taken")
    assert {path.name for path in tmp_path.iterdir()} == {"old", "other", "archive", "taken"}


@pytest.mark.req("VESN-15")
def test_a_set_that_fails_leaves_nothing_behind(place, tmp_path):
    (place / "sync_state").write_bytes(FILES["sync_state"][:-1] + b"\x09")
    with pytest.raises(SetRefused) as refused:
        import_set(place, tmp_path / "archive", w.TRUST)
    assert refused.value.report.verdict == "failed"
    assert refused.value.problem is Problem.SYNC
    assert {path.name for path in tmp_path.iterdir()} == {"old"}


def test_an_incomplete_set_is_imported_only_if_asked_for(place, tmp_path):
    (place / "payloads.cborl").unlink()
    with pytest.raises(SetRefused):
        import_set(place, tmp_path / "archive", w.TRUST)
    done = import_set(place, tmp_path / "archive", w.TRUST, allow_incomplete=True)
    assert done.report.verdict == "incomplete"
    assert json.loads((tmp_path / "archive" / "report.json").read_text("utf-8"))["missing"]


def test_what_is_verified_is_the_copy(place, tmp_path, monkeypatch):
    """A source that changes after it was copied cannot change what is archived"""
    from veen.products.vesn import files as archive

    def verify_later(source, trust):
        (place / "receipts.cborl").write_bytes(b"changed meanwhile")
        return verify_set(source, trust)

    monkeypatch.setattr(archive, "verify_set", verify_later)
    import_set(place, tmp_path / "archive", w.TRUST)
    assert tree(tmp_path / "archive" / "set") == FILES


def test_a_killed_import_is_cleared_away_by_the_next(place, tmp_path):
    left = tmp_path / ".archive.partial" / "set"
    left.mkdir(parents=True)
    (left / "receipts.cborl").write_bytes(b"half")
    (tmp_path / ".archive.partial" / "link").symlink_to(place)
    import_set(place, tmp_path / "archive", w.TRUST)
    assert tree(tmp_path / "archive" / "set") == FILES
    assert tree(place) == FILES
    assert not (tmp_path / ".archive.partial").exists()


def test_two_imports_to_one_place_do_not_mix(place, tmp_path):
    import fcntl

    staging = tmp_path / ".archive.partial"
    staging.mkdir()
    fd = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(LocalError, match="another process"):
            import_set(place, tmp_path / "archive", w.TRUST)
        assert staging.is_dir()
    finally:
        os.close(fd)
    import_set(place, tmp_path / "archive", w.TRUST)


# --- hostile directories --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["receipts.cborl", "routing_secret", "attachments/" + "0" * 64])
def test_links_are_not_followed(place, tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_bytes(FILES.get(name, b""))
    (place / name).unlink(missing_ok=True)
    (place / name).symlink_to(secret)
    assert Problem.FILE in problems(place)
    with pytest.raises(Violation):
        import_set(place, tmp_path / "archive", w.TRUST)
    assert not (tmp_path / "archive").exists()


def test_a_linked_folder_is_not_followed(place, tmp_path):
    (place / "attachments").rename(tmp_path / "elsewhere")
    (place / "attachments").symlink_to(tmp_path / "elsewhere")
    assert problems(place) == {Problem.FILE}


@pytest.mark.parametrize("name", ["receipts.cborl", "payloads.cborl", "identity_card"])
def test_a_fifo_is_not_waited_for(place, name):
    (place / name).unlink()
    os.mkfifo(place / name)
    code = (
        "import sys; from pathlib import Path; from veen.products.vesn.files import DirectorySource\n"
        "from veen.products.vesn.logcheck import Trust; from veen.products.vesn.portability import verify_set\n"
        "with DirectorySource(Path(sys.argv[1])) as source:\n"
        "    report = verify_set(source, Trust(hub_pks=(bytes.fromhex(sys.argv[2]),)))\n"
        "print(any('regular file' in finding.what for finding in report.findings))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(place), w.HUB.public.hex()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "True\n"


def test_a_directory_in_the_place_of_a_file(place):
    (place / "sync_state").unlink()
    (place / "sync_state").mkdir()
    assert problems(place) == {Problem.FILE}


def test_a_file_in_the_place_of_the_folder(place):
    for path in (place / "attachments").iterdir():
        path.unlink()
    (place / "attachments").rmdir()
    (place / "attachments").write_bytes(b"")
    assert problems(place) == {Problem.FILE}


def test_a_huge_file_is_refused_by_its_size(place):
    """A sparse terabyte is not read"""
    with (place / "receipts.cborl").open("r+b") as file:
        file.truncate(2**40)
    with (place / "identity_card").open("r+b") as file:
        file.truncate(2**27)
    assert Problem.LIMIT in problems(place)


def test_too_many_files_are_refused(place, monkeypatch):
    monkeypatch.setattr(rim, "_MAX_NAMES", 5)
    assert problems(place) == {Problem.LIMIT}
    monkeypatch.undo()
    monkeypatch.setattr(rim, "MAX_ATTACHMENTS", 1)
    assert problems(place) == {Problem.LIMIT}


def test_a_set_that_is_too_large_in_all_is_not_copied(place, tmp_path, monkeypatch):
    from veen.products.vesn import files as archive

    monkeypatch.setattr(archive, "MAX_SET_BYTES", 1000)
    with pytest.raises(Violation) as refused:
        import_set(place, tmp_path / "archive", w.TRUST)
    assert refused.value.problem is Problem.LIMIT


@pytest.mark.parametrize("name", ["../old/sync_state", "/etc/passwd", "a/b", "..", ""])
def test_no_name_leads_out_of_the_set(place, name):
    with DirectorySource(place) as source, pytest.raises(Violation):
        source.digest(name)


def test_ignored_files_are_copied_and_said_to_be_unjudged(place, tmp_path):
    (place / "notes.txt").write_text("hello")
    with pytest.raises(Violation):
        import_set(place, tmp_path / "archive", w.TRUST)
    trust = replace(w.TRUST, ignore=frozenset(("notes.txt",)))
    done = import_set(place, tmp_path / "archive", trust, allow_incomplete=True)
    assert done.report.missing == ("notes.txt was not judged, as asked",)
    assert (Path(tmp_path) / "archive" / "set" / "notes.txt").read_text() == "hello"


def test_export_writes_nothing_but_files_of_a_set(tmp_path):
    with pytest.raises(LocalError):
        export_set({"../outside": b""}, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
