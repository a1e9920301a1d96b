"""How the benchmarks of the pipeline measure: something on Spark and its limit in plain processes, in turns."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.pool import Pool
from statistics import median
from typing import Any

from benchmarks.sparklog import Log

__all__ = ["Bench", "Figure", "Limits", "Touched", "in_processes", "seconds_of", "turns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table: how much a second, and how much the limit is."""

    name: str
    unit: str
    rate: float
    limit: float
    ratio: float
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


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


Limits = dict[str, Callable[[], float]]


def turns(bench: Bench, unit: str, amount: int, work: Callable[[], object], limits: Limits) -> Iterator[Figure]:
    """Limits are rates; they are asked before and after each of several runs, so that they saw the same machine."""
    rates = {name: [limit()] for name, limit in limits.items()}
    figures = []
    for _ in range(bench.rounds):
        figures.append(seconds_of(work))
        for name, limit in limits.items():
            rates[name].append(limit() if bench.rounds > 1 else rates[name][-1])  # one round takes minutes
    for name, measured in rates.items():
        ratios = [
            amount / seconds / ((before + after) / 2)
            for seconds, before, after in zip(figures, measured[:-1], measured[1:], strict=True)
        ]
        yield Figure(
            name=name,
            unit=unit,
            rate=amount / median(figures),
            limit=median(measured),
            ratio=median(ratios),
            seconds=median(figures),
        )


def in_processes(
    bench: Bench, task: Callable[..., object], tasks: Callable[[Log], list[tuple[Any, ...]]], amount: int
) -> Callable[[], float]:
    """A limit: `task` for every part of the log, in plain processes that have done it before."""
    bench.pool.starmap(task, tasks(bench.small) * (8 * bench.cores), chunksize=1)
    work = tasks(bench.log)

    def rate() -> float:
        began = time.perf_counter()
        bench.pool.starmap(task, work, chunksize=1)
        return amount / (time.perf_counter() - began)

    return rate
