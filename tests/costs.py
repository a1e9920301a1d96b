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
    if config.getoption("--costs"):
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
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid] = int(fields[1])
            used[pid] = sum(map(int, fields[11:15]))  # utime, stime, and those of its dead children
    pids, ticks = [os.getpid()], 0
    while pids:
        parent = pids.pop()
        children = [pid for pid in parents if parents[pid] == parent]
        ticks += sum(used[pid] for pid in children)
        pids += children
    return ticks * TICK_SEC
