"""The files of a log under any schedule: appends, rotations of every kind, deletions, turns and restarts, the writer's
steps between any two accesses of the agent to the directory, and kills at any of them.

Each line is recorded once and in order, or a loss says that lines are missing.
"""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from veen.products.recorder.adapters.logfiles import LinesMissing, LinesRead, LogDirectory, LogFiles, Place

DISK = "/var/tmp"  # noqa: S108 - not TMPDIR, which may be in memory


@pytest.fixture
def tmp_path():
    """A directory on the disk: a file system in memory does not give the inode of a deleted file to the next one."""
    with tempfile.TemporaryDirectory(dir=DISK) as directory:
        yield Path(directory)


RENAMING = ("append", "append many", "rename")
KEEPING = (*RENAMING, "compress", "second writer", "rename and go on", "reopen")
LOSING = (*RENAMING, "compress", "copytruncate", "truncate", "delete oldest", "delete all", "replace")
# logrotate with `rotate N`: new files are empty, and the inodes of deleted ones are given to them
EMPTYING = ("append", "append many", "rotate 1", "rotate 2", "copytruncate", "copytruncate, rotate 1", "truncate")


class KilledProcess(BaseException):
    """The agent ends here."""


class Writer:
    """A service that writes numbered lines into app.log, and what rotates its files."""

    def __init__(self, folder, *, begins_with_line):
        self.path, self.lines, self.late_lines = folder / "app.log", [], []
        self.begins_with_line = begins_with_line  # every file has a line as soon as it exists
        self.invisible = set()  # lines that were truncated away before any look at their file: nobody can know them
        self.unseen_copies = {}  # inode of a copy -> lines that are in it and in no file that was looked at
        self.still_open = None  # the inode of a rotated file that the service still writes to
        self.is_listed = lambda path: True  # whether the agent has looked at what is in a file
        self.begin()

    def begin(self):
        self.path.touch()
        if self.begins_with_line:
            self.append(1)

    def append(self, count):
        """To the present file, or to the one before it until the service is told to reopen its log."""
        with self.target().open("ab") as file:
            for _ in range(count):
                self.lines.append(f"line {len(self.lines)}")
                file.write(self.lines[-1].encode() + b"\n")

    def target(self):
        if self.still_open is None:
            return self.path
        return next((path for path in self.rotated() if path.stat().st_ino == self.still_open), self.path)

    def rotated(self):
        """The oldest first."""
        return sorted(self.path.parent.glob("app.log.*"), key=self.number, reverse=True)

    @staticmethod
    def number(path):
        return int(path.name.removesuffix(".gz").rpartition(".")[2])

    def shift(self):
        for path in self.rotated():
            suffix = ".gz" if path.suffix == ".gz" else ""
            path.rename(path.with_name(f"app.log.{self.number(path) + 1}{suffix}"))

    def steps(self, name):
        """One operation, cut where the agent may look at the directory."""
        if name == "append":
            self.append(1)
        elif name == "append many":
            self.append(150)  # beyond the fingerprint of the beginning
        elif name == "rename and go on":  # logrotate with `create`: the service is told a moment later
            if self.still_open is None:
                self.still_open = self.path.stat().st_ino
                self.shift()
                self.path.rename(self.path.with_name("app.log.1"))
                self.path.touch()
        elif name == "reopen":
            self.still_open = None
        elif name == "rename":
            self.still_open = None
            self.shift()
            self.path.rename(self.path.with_name("app.log.1"))
            yield
            self.begin()
        elif name == "second writer":
            if (path := self.path.with_name("app.log.1")).exists():
                self.late_lines.append(f"late {len(self.late_lines)}")
                with path.open("ab") as file:
                    file.write(self.late_lines[-1].encode() + b"\n")
        elif name == "compress":
            yield from self.compress()
        elif name == "copytruncate":
            yield from self.copy()
            os.truncate(self.path, 0)
            self.begin()
        elif name == "truncate":
            if not self.is_listed(self.path):
                self.invisible.update(self.path.read_text().splitlines())
            os.truncate(self.path, 0)
            self.begin()
        elif name in ("rotate 1", "rotate 2"):
            self.keep(int(name[-1]) - 1)
            self.shift()
            self.path.rename(self.path.with_name("app.log.1"))
            yield
            self.begin()
        elif name == "copytruncate, rotate 1":
            self.keep(0)
            yield from self.copy()
            os.truncate(self.path, 0)
            self.begin()
        elif name == "delete oldest":
            for path in self.rotated()[:1]:
                path.unlink()
        elif name == "delete all":
            for path in self.rotated():
                path.unlink()
        elif name == "replace":
            for path in [*self.rotated(), self.path]:
                path.unlink()
            self.begin()
        yield

    def keep(self, count):
        """Delete the oldest rotated files but for so many."""
        for path in self.rotated()[: max(0, len(self.rotated()) - count)]:
            self.invisible.update(self.unseen_copies.pop(path.stat().st_ino, ()))
            path.unlink()

    def compress(self):
        plain = [p for p in self.rotated() if p.suffix != ".gz" and p.stat().st_ino != self.still_open]
        for path in plain[:1]:
            data = gzip.compress(path.read_bytes())
            packed = path.with_name(f"{path.name}.gz")
            packed.write_bytes(data[: len(data) // 2])
            yield
            packed.write_bytes(data)
            yield
            path.unlink()

    def copy(self):
        self.shift()
        data, path = self.path.read_bytes(), self.path.with_name("app.log.1")
        path.write_bytes(data[: len(data) // 2])
        yield
        path.write_bytes(data)
        if not self.is_listed(self.path):
            self.unseen_copies[path.stat().st_ino] = data.decode().splitlines()
        yield


class Agent(LogDirectory):
    """Follows the log. What it made durable outlives it; `access` runs before each access to the directory."""

    def __init__(self, path, **options):
        self.path, self.options, self.access = path, options, lambda: None
        self.position = self.table = self.files = None
        self.lines, self.losses = [], []

    def names(self, folder):
        self.access()
        return super().names(folder)

    def status(self, path):
        self.access()
        return super().status(path)

    def open(self, path):
        self.access()
        return super().open(path)

    def read(self, file, offset, size):
        self.access()
        return super().read(file, offset, size)

    def has_looked_at(self, path):
        """Whether a durable value has the fingerprint of what is in the file."""
        texts = [self.position, *(row[0] for row in json.loads(self.table or '{"files": []}')["files"])]
        places = [place for text in texts if (place := Place.parse(text)) and place.inode == path.stat().st_ino]
        data = path.read_bytes()
        return any(p.head == hashlib.sha256(data[: p.head_bytes]).hexdigest()[:32] for p in places if p.head_bytes)

    def end(self):
        if self.files is not None:
            self.files.close()
        self.files = None

    def turn(self):
        """What `Tail` does with the steps; whether another turn is needed."""
        if self.files is None:
            self.files = LogFiles(self.path, self.table, self.position, directory=self, **self.options)
        turn, moved = self.files.turn(), False
        while (step := self.files.advance(turn)) is not None:
            self.access()  # a kill before it is durable
            if isinstance(step, LinesRead):
                moved = True
                self.lines += [line.decode().rstrip("\n") for line, _ in step.lines]
                self.position = str(step.lines[-1][1])
            elif isinstance(step, LinesMissing):
                self.losses.append(step.reason)
            else:
                self.table = step.text
            self.access()  # and after it
        return moved or self.files.is_interrupted


def rounds(names):
    """Operations before a turn, operations during it after so many accesses each, an access at which the agent is
    killed if it gets there, and whether it ends after the turn."""
    operation = st.sampled_from(names)
    during = st.lists(st.tuples(st.integers(0, 12), operation), max_size=3)
    return st.lists(
        st.tuples(st.lists(operation, max_size=5), during, st.none() | st.integers(0, 40), st.booleans()), max_size=7
    )


def play(schedule, *, begins_with_line, **options):
    """The writer and the agent after the schedule, and after a last start that reads whatever is left."""
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        writer = Writer(Path(folder), begins_with_line=begins_with_line)
        agent = Agent(writer.path, **options)
        writer.is_listed = agent.has_looked_at
        try:
            agent.turn()
            for operations, during, kill_at, is_last in schedule:
                for name in operations:
                    for _ in writer.steps(name):
                        pass
                if run_turn(agent, writer, during, kill_at) or is_last:
                    agent.end()
            agent.end()
            for _ in range(100):
                if not agent.turn():
                    return writer, agent
            raise AssertionError("the agent never comes to an end")
        except Exception as error:
            error.add_note(repr(schedule))
            raise
        finally:
            agent.end()


def run_turn(agent, writer, during, kill_at):
    """Whether the agent was killed. What of `during` was not reached happens after the turn."""
    accesses = 0
    waiting = iter_steps(writer, during)

    def access():
        nonlocal accesses
        if accesses == kill_at:
            raise KilledProcess
        accesses += 1
        next(waiting, None)

    agent.access = access
    try:
        agent.turn()
        return False
    except KilledProcess:
        return True
    finally:
        agent.access = lambda: None
        for _ in waiting:
            pass


def iter_steps(writer, during):
    for gap, name in during:
        for _ in range(gap):
            yield
        yield from writer.steps(name)


def is_sorted(lines):
    numbers = [int(line.removeprefix("line ")) if line.startswith("line ") else -1 for line in lines]
    return numbers == sorted(set(numbers))


def check_renaming(schedule):
    writer, agent = play(schedule, begins_with_line=False)
    assert agent.lines == writer.lines, schedule
    assert agent.losses == [], schedule


def check_keeping(schedule):
    writer, agent = play(schedule, begins_with_line=True)
    assert [line for line in agent.lines if line.startswith("line")] == writer.lines, schedule
    assert [line for line in agent.lines if line.startswith("late")] == writer.late_lines, schedule
    # A file that was empty at the last look and compressed before the next cannot be told from a deleted one.
    assert [loss for loss in agent.losses if "lines behind byte 0 " not in loss] == [], schedule


def check_losing(schedule):
    writer, agent = play(schedule, begins_with_line=True)
    assert is_sorted(agent.lines), schedule
    if not agent.losses:
        assert agent.lines == [line for line in writer.lines if line not in writer.invisible], schedule


def check_emptying(schedule):
    """Files are empty when they begin, so that the last look may know nothing of them."""
    writer, agent = play(schedule, begins_with_line=False)
    assert is_sorted(agent.lines), schedule
    if not agent.losses:
        unseen = writer.invisible - set(agent.lines)  # a copy may have been looked at before it was deleted
        assert agent.lines == [line for line in writer.lines if line not in unseen], schedule


TWICE: Any = (["append", "rename", "append", "rename", "append"], [], None, True)


@given(rounds(RENAMING))
@example([TWICE, (["append", "rename", "rename"], [(3, "rename")], 4, False), TWICE])
@settings(max_examples=40, deadline=None)
def test_a_log_that_is_renamed_loses_and_doubles_nothing(schedule):
    check_renaming(schedule)


@given(rounds(KEEPING))
@example([TWICE, (["second writer", "compress", "second writer"], [(2, "compress")], 9, False), TWICE])
@example([(["rename and go on"], [(2, "append"), (0, "reopen"), (0, "append")], None, False)])  # between two sizes
@settings(max_examples=40, deadline=None)
def test_compression_and_a_second_writer_of_the_old_file_lose_and_double_nothing(schedule):
    check_keeping(schedule)


@given(rounds(LOSING))
@example([(["append"], [(1, "copytruncate")], None, False)])  # between the names and the sizes
@example([(["append many"], [(6, "copytruncate")], None, False)])  # between comparison and reading
@example([(["append", "copytruncate", "append many", "copytruncate"], [], None, True)])
@settings(max_examples=60, deadline=None)
def test_what_was_deleted_or_truncated_before_it_was_read_is_a_loss_and_nothing_is_doubled(schedule):
    check_losing(schedule)


@given(rounds(EMPTYING))
@example([([], [], None, True), (["append", "rotate 1", "rotate 1"], [], None, True)])
@example([([], [], None, True), (["append", "rotate 1", "append", "rotate 1", "append"], [], None, True)])
@example([([], [], None, True), (["append", "truncate"], [], None, True)])
@example([([], [(0, "append"), (0, "copytruncate"), (0, "append")], None, False)])  # truncated when it was listed
@example(  # a copy that was listed half written, and whole when it was read
    [
        (["rotate 1"], [(3, "rotate 1"), (0, "append"), (0, "append")], None, False),
        (["append"], [(5, "copytruncate, rotate 1")], None, False),
    ]
)
@settings(max_examples=60, deadline=None)
def test_empty_files_that_are_written_and_deleted_between_two_looks_are_a_loss(schedule):
    check_emptying(schedule)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "check"),
    [(RENAMING, check_renaming), (KEEPING, check_keeping), (LOSING, check_losing), (EMPTYING, check_emptying)],
)
def test_thousands_of_schedules_lose_and_double_nothing(names, check):
    settings(max_examples=3000, deadline=None)(given(rounds(names))(check))()


def test_what_is_rotated_and_deleted_is_named_by_file_and_offset():
    _, agent = play([(["append", "rename", "delete all"], [], None, True)], begins_with_line=True)
    assert agent.lines == ["line 0", "line 1", "line 2"]  # the deleted file was still open
    (reason,) = agent.losses
    assert "app.log: file deleted between two looks, lines behind byte 14" in reason
    restarted: Any = [([], [], None, True), (["append", "rename", "delete all"], [], None, True)]
    _, agent = play(restarted, begins_with_line=True)
    assert agent.lines == ["line 0", "line 2"]
    (reason,) = agent.losses
    assert "lines behind byte 7" in reason


def test_a_file_that_was_empty_and_whose_inode_was_given_to_another_is_a_loss(tmp_path):
    """The new file was taken for the one that was deleted, and no event said that its lines are gone."""
    writer = Writer(tmp_path, begins_with_line=False)
    agent = Agent(writer.path)
    agent.turn()
    agent.end()
    inode = writer.path.stat().st_ino
    writer.append(1)
    for attempt in range(200):  # until the file system gives the inode away again
        writer.path.unlink()
        writer.begin()
        if writer.path.stat().st_ino == inode:
            break
        (tmp_path / f"other-{attempt}").touch()
    else:
        pytest.skip("this file system does not give inodes away again at once")
    writer.append(1)
    agent.turn()
    agent.end()
    assert agent.lines == writer.lines[1:]
    (reason,) = agent.losses
    assert "lines behind byte 0" in reason


def test_a_file_that_was_empty_at_two_looks_and_was_written_between_is_a_loss_of_unknown_extent(tmp_path):
    """A row without a fingerprint asserts nothing."""
    writer = Writer(tmp_path, begins_with_line=False)
    agent = Agent(writer.path)
    agent.turn()
    agent.end()
    writer.append(1)
    os.truncate(writer.path, 0)
    os.utime(writer.path, ns=(0, writer.path.stat().st_mtime_ns + 1_000_000))  # for clocks that tick slowly
    agent.turn()
    assert agent.losses == ["app.log: an unknown number of lines may be missing: it was empty, written and empty"]
    agent.turn()
    agent.end()
    assert len(agent.losses) == 1


def test_a_table_of_an_earlier_release_is_continued(tmp_path):
    """Its rows have neither a generation nor a time."""
    writer = Writer(tmp_path, begins_with_line=True)
    agent = Agent(writer.path)
    agent.turn()
    agent.end()
    place = Place.parse(agent.position)
    assert place is not None
    assert place.generation
    assert agent.position is not None
    assert agent.table is not None
    agent.position = agent.position.rpartition(":")[0]
    table = json.loads(agent.table)
    table["files"] = [[text.rpartition(":")[0], name, size] for text, name, size, _ in table["files"]]
    agent.table = json.dumps(table)
    for name in ("append", "rename", "append"):
        for _ in writer.steps(name):
            pass
    while agent.turn():
        pass
    agent.end()
    assert agent.lines == writer.lines
    assert agent.losses == []


def test_the_first_look_takes_rotated_files_if_asked_to():
    with tempfile.TemporaryDirectory(dir=DISK) as folder:
        writer = Writer(Path(folder), begins_with_line=True)
        for name in ("rename", "append", "rename", "compress"):
            for _ in writer.steps(name):
                pass
        late, early = Agent(writer.path), Agent(writer.path, read_rotated=True)
        for agent in (late, early):
            while agent.turn():
                pass
            agent.end()
        assert late.lines == ["line 3"]
        assert early.lines == ["line 0", "line 1", "line 2", "line 3"]


@pytest.mark.parametrize("suffix", ["-20261116", ".2026-11-16_22-00", ".1.xz", ".1.bz2", ".old"])
def test_names_of_rotated_files(tmp_path, suffix):
    """Of logrotate with dateext, of Python's TimedRotatingFileHandler, and of other compressors."""
    writer = Writer(tmp_path, begins_with_line=True)
    agent = Agent(writer.path)
    agent.turn()
    agent.end()
    writer.append(1)
    pack: Any = {"xz": lzma.compress, "bz2": bz2.compress}.get(suffix.rpartition(".")[2])
    data = writer.path.read_bytes()
    rotated = tmp_path / f"app.log{suffix}"
    if pack:
        rotated.write_bytes(pack(data))
        writer.path.unlink()
    else:
        writer.path.rename(rotated)
    writer.begin()
    agent.turn()
    agent.end()
    assert agent.lines == writer.lines
    assert agent.losses == []


def test_a_damaged_compressed_file_is_a_loss(tmp_path):
    writer = Writer(tmp_path, begins_with_line=True)
    agent = Agent(writer.path, wait_for_packed=False)
    agent.turn()
    data = gzip.compress(b"never read\n" * 1000 + os.urandom(1000).hex().encode())
    (tmp_path / "app.log.1.gz").write_bytes(data[:-500])
    agent.turn()
    agent.turn()
    agent.end()
    assert agent.lines[:2] == ["line 0", "never read"]
    (reason,) = agent.losses
    assert reason.startswith("app.log.1.gz is damaged: lines behind byte ")


def test_files_with_other_names_and_directories_are_left_alone(tmp_path):
    writer = Writer(tmp_path, begins_with_line=True)
    (tmp_path / "app.log.1").mkdir()
    agent = Agent(writer.path)
    agent.turn()
    for name in ("app.log.offset", "app.log.swp", "app.log2", "other.log.1"):
        (tmp_path / name).write_text("not of this log\n")
    agent.turn()
    agent.end()
    assert agent.lines == writer.lines


def test_a_position_of_an_earlier_release_is_continued(tmp_path):
    writer = Writer(tmp_path, begins_with_line=True)
    for name in ("rename", "append"):
        for _ in writer.steps(name):
            pass
    status = writer.path.stat()
    first = f"{writer.lines[1]}\n".encode()
    for _ in writer.steps("rename"):
        pass
    agent = Agent(writer.path)
    head = hashlib.sha256(first).hexdigest()[:32]
    agent.position = f"{status.st_dev}:{status.st_ino}:{len(first)}:{len(first)}:{head}"
    while agent.turn():
        pass
    agent.end()
    assert agent.lines == writer.lines[2:]
    assert agent.losses == []
