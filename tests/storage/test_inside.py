"""Names and sizes that come from a file stay in the directory of that file."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.io.inside import FileRefused, check_inside, check_name, check_size, open_inside, read_inside, read_path
from veen.io.local import OsFs


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "a/./b",
        "a/",
        "./a",
        "a\\b",
        "a\0b",
        "a\nb",
        "x" * 1025,
        7,
        None,
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(name):
    with pytest.raises(FileRefused):
        check_name(name)


@given(st.text(max_size=20))
def test_every_name_that_passes_stays_inside(name):
    try:
        check_name(name)
    except FileRefused:
        return
    assert os.path.normpath(os.path.join("/root", name)) == f"/root/{name}"  # noqa: PTH118 - names as text


def test_a_name_lies_in_the_directory_that_is_asked_for():
    assert check_name("silver/x", below="silver") == "silver/x"
    for name in ("silver", "silverx/a", "gold/x"):
        with pytest.raises(FileRefused, match="silver/"):
            check_name(name, below="silver")


@pytest.mark.parametrize("size", [-1, 11, True, 1.0, "1", None])
def test_a_size_is_a_number_within_its_bound(size):
    assert check_size(10, 10, "x") == 10
    with pytest.raises(FileRefused, match="10 bytes are allowed"):
        check_size(size, 10, "x")


def test_links_and_devices_are_not_opened(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "plain").write_bytes(b"plain")
    (root / "link").symlink_to(outside / "file")
    (root / "folder").symlink_to(outside)
    (root / "dangling").symlink_to(outside / "nothing")
    os.mkfifo(root / "pipe")
    fs = OsFs(root)
    for name in ("link", "folder/file", "dangling", "pipe"):
        with pytest.raises(FileRefused):
            open_inside(fs, name)
    assert read_inside(fs, "plain", 5) == b"plain"
    assert check_inside(root, "not/there") == root / "not/there"
    with pytest.raises(FileNotFoundError):
        open_inside(fs, "not-there")


def test_a_file_is_read_up_to_its_bound_and_no_further(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_path(path, 5) == read_inside(OsFs(tmp_path), "file", 5) == b"12345"
    for read in (lambda: read_path(path, 4), lambda: read_inside(OsFs(tmp_path), "file", 4)):
        with pytest.raises(FileRefused, match="4 bytes are allowed"):
            read()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileRefused, match="not a regular file"):
        read_path(tmp_path / "pipe", 4)
