"""File tail: rotation, truncation, compressed predecessors, restarts; each line once or a recorded loss."""

import gzip
import os
import random
import tempfile
from pathlib import Path

import pytest
from tests.client.hubs import run
from tests.examples import spread
from tests.products.recorder.sources import Taken
from tests.products.recorder.test_tail_model import DISK

from veen.products.recorder.adapters.tail import TailSource


def read(taken, path, **options):
    adapter = TailSource("app", path, follow=False, **options)
    run(adapter.run(taken.sink(adapter)))


@pytest.fixture
def log():
    """A file on the disk: a file system in memory does not give the inode of a deleted file to the next one."""
    with tempfile.TemporaryDirectory(dir=DISK) as directory:
        path = Path(directory) / "app.log"
        path.write_bytes(b"")
        yield path


def append(path, *lines):
    with path.open("ab") as file:
        file.write(b"".join(line.encode() + b"\n" for line in lines))


def test_whole_lines_are_taken_once_and_half_a_line_waits(log):
    intake = Taken()
    append(log, "one", "two")
    with log.open("ab") as file:
        file.write(b"thr")
    read(intake, log)
    read(intake, log)
    assert intake.messages() == ["one", "two"]
    append(log, "ee", "", "four")
    read(intake, log)
    assert intake.messages() == ["one", "two", "three", "four"]
    assert intake.payloads()[0]["_src"]["pos"].split(":")[2] == "4"


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(log):
    intake = Taken()
    append(log, "one")
    read(intake, log)
    append(log, "two")
    log.rename(log.with_name("app.log.1"))
    append(log, "three")
    read(intake, log)
    assert intake.messages() == ["one", "two", "three"]
    assert intake.losses() == []


def test_a_predecessor_that_was_compressed_is_found(log):
    intake = Taken()
    append(log, "one", "x" * 2000)
    read(intake, log)
    append(log, "two")
    old = log.with_name("app.log.2.gz")
    old.write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    append(log, "three")
    read(intake, log)
    assert [message[:5] for message in intake.messages()] == ["one", "xxxxx", "two", "three"]


def test_copy_and_truncate_is_noticed_and_what_may_be_missing_is_a_loss(log):
    intake = Taken()
    append(log, "one", "two")
    read(intake, log)
    os.truncate(log, 0)
    append(log, "a")
    read(intake, log)
    assert intake.messages() == ["one", "two", "a"]
    ((reason, count),) = intake.losses()
    assert "truncated" in reason
    assert count == 1


def test_a_truncated_file_that_grew_beyond_the_old_position_is_still_noticed(log):
    intake = Taken()
    append(log, "one")
    read(intake, log)
    log.write_bytes(b"completely other\nlines\n")
    read(intake, log)
    assert intake.messages() == ["one", "completely other", "lines"]
    assert len(intake.losses()) == 1


def test_a_predecessor_that_is_gone_is_a_loss(log):
    intake = Taken()
    append(log, "one")
    read(intake, log)
    log.unlink()
    log.with_name("other").write_bytes(b"takes the inode")
    append(log, "two")
    read(intake, log)
    assert intake.messages() == ["one", "two"]
    assert len(intake.losses()) == 1


def test_poisoned_lines_are_recorded(log):
    intake = Taken()
    with log.open("ab") as file:
        file.write(b"\xff\xfe broken\n" + b"\x1b[2Jcleared\n" + b"y" * 1_000_000 + b"\nnull \x00 byte\n")
    read(intake, log)
    broken, escape, long, null = intake.payloads()
    assert broken["message"]["text"].startswith("\\xff")
    assert escape["message"] == "\x1b[2Jcleared"
    assert long["_cut"]["code"] == "SDR.OVERSIZE"
    assert null["message"] == "null \x00 byte"


def test_a_missing_file_is_waited_for(tmp_path):
    intake = Taken()
    read(intake, tmp_path / "later.log")
    append(tmp_path / "later.log", "one")
    read(intake, tmp_path / "later.log")
    assert intake.messages() == ["one"]


@pytest.mark.parametrize("seed", spread(range(8), 3))
def test_under_rotation_and_restarts_every_line_is_there_once_and_in_order(log, seed):
    """What users of collectors report: lines lost or doubled when a busy file rotates around a restart."""
    rng, intake, written, inode = random.Random(seed), Taken(), 0, 0
    read(intake, log)
    for _ in range(40):
        for _ in range(rng.randint(0, 5)):
            written += 1
            append(log, f"line {written}")
        step = rng.random()
        if step < 0.5:
            read(intake, log)  # a restart: each run has an adapter of its own
            inode = log.stat().st_ino if log.stat().st_size else inode
        elif step < 0.7:
            for number in range(9, 0, -1):
                for suffix in ("", ".gz"):
                    old = log.with_name(f"app.log.{number}{suffix}")
                    if old.exists():
                        old.rename(log.with_name(f"app.log.{number + 1}{suffix}"))
            fresh = log.stat().st_ino != inode  # nothing of it was read, so a compressed copy could not be told apart
            if fresh or rng.random() < 0.5:
                log.rename(log.with_name("app.log.1"))
            else:
                log.with_name("app.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
                log.unlink()
            log.touch()
    read(intake, log)
    assert intake.messages() == [f"line {n}" for n in range(1, written + 1)]
    assert intake.losses() == []
