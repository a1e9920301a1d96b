"""How the benchmarks of the pipeline measure: something on Spark and its limit in plain processes, in turns.

Each figure has two ratios: of wall time, and of CPU time, which says the same on a machine that does other work, too.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import nan
from multiprocessing.pool import Pool
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.sparklog import Log

__all__ = ["Bench", "Figure", "Limits", "Rate", "Touched", "in_processes", "rate_of", "seconds_of", "turns", "warmed"]

_AGREE: Final = 0.1  # two rounds agree if they differ by no more than this share
_WARM_SECONDS: Final = 30.0  # spent at most, but for the round that is running then
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table: how much a second, and how much the limit is."""

    name: str
    unit: str
    rate: float
    limit: float
    ratio: float
    cpu_ratio: float
    seconds: float  # of one run


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What one query had to look at."""

    name: str
    rows: int
    files: int | None  # None: not counted
    megabytes: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A session, as many plain processes, and a log."""

    spark: Any
    pool: Pool
    cores: int
    rounds: int
    log: Log
    small: Log  # to warm up with


class Rate(NamedTuple):
    """How much a second of the clock, and how much a second of a processor."""

    wall: float
    cpu: float


def cpu_seconds() -> float:
    """CPU time of this process and of all that it started: JVM, Python workers, plain processes, ended or not."""
    parents: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:  # it has ended since it was listed
            continue
        pid = int(stat.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(map(int, fields[11:15]))  # its own, and of children that it has waited for
    family = [os.getpid()]
    for pid in family:
        family += parents.get(pid, ())
    return sum(used.get(pid, 0) for pid in family) / _TICKS


def rate_of(amount: float, work: Callable[[], object]) -> Rate:
    """CPU time is not a number if processes ended meanwhile that nobody waited for: less is known of it than before."""
    cpu, began = cpu_seconds(), time.perf_counter()
    work()
    seconds, spent = time.perf_counter() - began, cpu_seconds() - cpu
    return Rate(amount / seconds, amount / spent if spent > 0 else nan)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def warmed(work: Callable[[], object]) -> None:
    """Run `work` until two rounds take about the same time: a JVM compiles what it runs often, which takes a while."""
    began, before = time.perf_counter(), seconds_of(work)
    while time.perf_counter() - began < _WARM_SECONDS:
        seconds = seconds_of(work)
        if abs(seconds - before) <= _AGREE * before:
            return
        before = seconds


Limits = dict[str, Callable[[], Rate]]


def turns(bench: Bench, unit: str, amount: int, work: Callable[[], object], limits: Limits) -> Iterator[Figure]:
    """Limits are asked before and after each of several runs, so that they saw the same machine."""
    rates = {name: [limit()] for name, limit in limits.items()}
    runs: list[Rate] = []
    for _ in range(bench.rounds):
        runs.append(rate_of(amount, work))
        for name, limit in limits.items():
            rates[name].append(limit() if bench.rounds > 1 else rates[name][-1])  # one round takes minutes
    for name, measured in rates.items():
        sides = list(zip(runs, measured[:-1], measured[1:], strict=True))
        figure = Figure(
            name=name,
            unit=unit,
            rate=median(run.wall for run in runs),
            limit=median(limit.wall for limit in measured),
            ratio=median(run.wall / ((before.wall + after.wall) / 2) for run, before, after in sides),
            cpu_ratio=median(run.cpu / ((before.cpu + after.cpu) / 2) for run, before, after in sides),
            seconds=median(amount / run.wall for run in runs),
        )
        print(
            f"{name}: {figure.rate:,.0f} {unit} a second, {figure.ratio:.2f} of the limit, "
            f"by CPU time {figure.cpu_ratio:.2f}",
            file=sys.stderr,
            flush=True,
        )
        yield figure


def in_processes(
    bench: Bench, task: Callable[..., object], tasks: Callable[[Log], list[tuple[Any, ...]]], amount: int
) -> Callable[[], Rate]:
    """A limit: `task` for every part of the log, in plain processes that have done it before."""
    bench.pool.starmap(task, tasks(bench.small) * (8 * bench.cores), chunksize=1)
    work = tasks(bench.log)
    return lambda: rate_of(amount, lambda: bench.pool.starmap(task, work, chunksize=1))
