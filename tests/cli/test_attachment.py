"""`veen attachment`: files that arrive whole, under names that stay in their directory."""

from pathlib import Path

import pytest

from veen.cli.messages.send import _file_name
from veen.cli.shared.output import Exit
from veen.core.sealing.ciphertext import Attachment


@pytest.fixture
def files(tmp_path):
    paths = []
    for name, data in (("photo.jpg", bytes(range(256)) * 40), ("notes.txt", b"a note\n"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        paths.append(tmp_path / name)
    return paths


def test_files_go_and_come_back_byte_for_byte(talk, files, tmp_path):
    stream = talk.new_stream("attachment/all")
    sent = talk.json("attachment", "put", stream, *files, "--body", "three files")
    assert (sent["attachments"], sent["seq"]) == (3, 1)
    listed = talk.json("attachment", "get", stream, 1)["attachments"]
    assert [(attachment["name"], attachment["size"], attachment["file"]) for attachment in listed] == [
        ("photo.jpg", 10_240, None),
        ("notes.txt", 7, None),
        ("empty", 0, None),
    ]
    got = talk.json("attachment", "get", stream, 1, "--out", tmp_path / "out")["attachments"]
    for attachment, path in zip(got, files, strict=True):
        assert Path(attachment["file"]).read_bytes() == path.read_bytes()
    talk.run("attachment", "get", stream, 1, "notes.txt", "--out", tmp_path / "single")
    assert (tmp_path / "single").read_bytes() == b"a note\n"
    assert talk.run("attachment", "get", stream, 1, 1, "--out", "-").stdout_bytes == b"a note\n"
    assert talk.json("attachment", "verify", stream, 1)["count"] == 3
    entry = talk.entries(stream)[0]
    assert (entry["body"], len(entry["attachments"])) == ("three files", 3)
    assert "three files  [photo.jpg, notes.txt, empty]" in talk.run("stream", stream).stdout


def test_a_link_that_lies_in_the_directory_does_not_lead_a_file_elsewhere(talk, files, tmp_path):
    stream = talk.new_stream("attachment/link")
    talk.json("attachment", "put", stream, files[1])
    victim, out = tmp_path / "victim", tmp_path / "prepared"
    victim.write_text("whole")
    out.mkdir()
    (out / "0000-notes.txt").symlink_to(victim)
    (saved,) = talk.json("attachment", "get", stream, 1, "--out", out)["attachments"]
    assert Path(saved["file"]).read_bytes() == b"a note\n"
    assert victim.read_text() == "whole"


def test_an_attachment_that_was_altered_or_lost_is_told(talk, files):
    stream = talk.new_stream("attachment/altered")
    talk.json("attachment", "put", stream, *files[:2])
    coids = [attachment["coid"] for attachment in talk.json("attachment", "get", stream, 1)["attachments"]]
    paths = [next(talk.hub.data_dir.joinpath("attachments").rglob(coid)) for coid in coids]
    data = bytearray(paths[1].read_bytes())
    data[0] ^= 1
    paths[1].write_bytes(bytes(data))
    failed = talk.run("attachment", "verify", stream, 1, code=Exit.REFUSED)  # the hub notices by itself
    assert failed.stdout.splitlines()[0].split("\t")[-1] == "yes"
    paths[1].unlink()
    talk.run("attachment", "verify", stream, 1, code=Exit.BAD_EVIDENCE)


def test_the_stream_may_be_an_option(talk, files):
    stream = talk.new_stream("attachment/option")
    talk.json("attachment", "put", "--stream", stream, files[0], files[1])
    assert len(talk.json("attachment", "get", "--stream", stream, 1)["attachments"]) == 2
    assert len(talk.json("attachment", "get", "--stream", stream, 1, "notes.txt")["attachments"]) == 1
    talk.run("attachment", "put", stream, code=Exit.USAGE)
    talk.run("attachment", "put", "--stream", stream, "no-such-file", code=Exit.USAGE)


def test_what_is_not_there_is_told(talk, files):
    stream = talk.new_stream("attachment/none")
    talk.json("attachment", "put", stream, files[0])
    for which in ("nothing.txt", "7"):
        assert talk.json("attachment", "get", stream, 1, which, code=Exit.USAGE)["exit"] == Exit.USAGE
    assert "has no entry" in talk.json("attachment", "get", stream, 2, code=Exit.USAGE)["message"]
    talk.let_write("bob", stream)
    error = talk.json("attachment", "get", stream, 1, "--identity", "bob", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.READER"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../../etc/passwd", "0000-passwd"),
        ("..\\..\\boot.ini", "0000-boot.ini"),
        ("/etc/passwd", "0000-passwd"),
        (".bashrc", "0000-bashrc"),
        ("..", "0000"),
        ("", "0000"),
        (None, "0000"),
        ("a\x1b[31m\n.txt", "0000-a[31m.txt"),
        ("x" * 300, "0000-" + "x" * 100),
    ],
)
def test_a_name_that_others_chose_stays_in_the_directory(name, expected):
    assert _file_name(0, Attachment(coid=bytes(32), size=0, name=name)) == expected
