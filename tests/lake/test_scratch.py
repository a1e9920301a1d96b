"""Secrets of a job are gone when the job is, also if a signal ends it: real processes and real signals."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.interrupts import interruptible
from tests.examples import spread
from tests.lake.query_builders import KEYRING

from veen.lake.log.keys import KeyFile, keys_for_tasks, secret_file

# A job that says where its keys are and then works until it is told to end.
JOB = """
import os, sys, time
from tests.lake.query_builders import KEYRING
from veen.lake.log import keys as scratch
from veen.lake.log.keys import keys_for_tasks
if sys.argv[1] == "directory":
    scratch._in_memory = lambda data, closing: None  # a system without files in memory
with keys_for_tasks(KEYRING) as file:
    print(file.path, flush=True)
    time.sleep(600)
"""


def started(kind, temporary):
    return subprocess.Popen(
        [sys.executable, "-c", JOB, kind],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=Path(__file__).parents[2],
        preexec_fn=interruptible,
    )


@pytest.mark.parametrize(
    ("kind", "end"), spread([("memory", "TERM"), ("memory", "KILL"), ("directory", "TERM"), ("directory", "INT")], 1)
)
def test_reader_keys_do_not_outlive_the_process_that_a_signal_ends(tmp_path, kind, end):
    with started(kind, tmp_path) as job, contextlib.ExitStack() as at_end:
        at_end.callback(job.kill)  # of a test that fails
        assert job.stdout is not None
        path = Path(job.stdout.readline().strip())
        assert KeyFile(str(path)).load().entries, "another process of this user reads the keys while the job runs"
        on_disk = [place for place in tmp_path.rglob("*") if place.is_file()]
        assert len(on_disk) == (kind == "directory")
        for place in tmp_path.rglob("*"):
            assert place.stat().st_mode & 0o077 == 0
        job.send_signal(getattr(signal, f"SIG{end}"))
        job.wait(60)
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_keys_are_gone_when_the_work_is_done_and_when_it_fails():
    paths = []
    for failing in (False, True):
        with contextlib.suppress(ZeroDivisionError), keys_for_tasks(KEYRING) as file:
            paths.append(Path(file.path))
            assert {entry.stream_id for entry in file.load().entries} == {
                entry.stream_id for entry in KEYRING.entries if entry.can_read
            }
            if failing:
                raise ZeroDivisionError
    assert len(paths) == 2
    assert not any(path.exists() for path in paths)


def test_a_handler_that_somebody_else_has_set_stays():
    def mine(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        from veen.lake.log.keys import private_directory

        with private_directory("veen-test-"):
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_secret_file_holds_what_it_was_given():
    with secret_file(b"abc") as path:
        assert Path(path).read_bytes() == b"abc"
