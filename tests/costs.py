"""CPU time of each test, with that of the processes that it started: `python -m pytest -p tests.costs --costs=FILE`.

Each line of FILE is a test, a phase (setup has the fixtures that the test is the first to use) and its seconds.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

TICK_SEC: Final = 1 / os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", help="append the CPU seconds of each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs") and not config.getoption(
        "numprocesses", None
    ):  # not where processes of xdist report
        config.pluginmanager.register(Recorder(Path(config.getoption("--costs"))))


class Recorder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.cpu_sec = total_sec()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.cpu_sec = total_sec()
        yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before, self.cpu_sec = self.cpu_sec, total_sec()
        with self.path.open("a") as file:
            file.write(f"{report.nodeid}\t{report.when}\t{self.cpu_sec - before:.3f}\n")


def total_sec() -> float:
    """What this process, its dead children and its living ones have used."""
    dead = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + dead.ru_utime + dead.ru_stime + living_sec()


def living_sec() -> float:
    """What the descendants that were not waited for yet have used."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0.0
    pids, ticks = children(os.getpid()), 0
    while pids:
        pid = pids.pop()
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of its dead children
        pids += children(pid)
    return ticks * TICK_SEC


def children(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    pids: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            pids += map(int, path.read_text().split())
    return pids
