"""Engines apply a function to many chunks: in this process, on all cores, or (`veen.lake.spark.audit`) on a cluster.

Engines differ only in where they work: results come back in the order of the tasks.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Final, Protocol, TypeVar

from veen.io.local import Fs
from veen.io.places import open_fs
from veen.verify.audit.context import AuditContext
from veen.verify.signatures import begin_worker

T = TypeVar("T")
R = TypeVar("R")
Step = Callable[[Fs, AuditContext, T], R]
Weight = Callable[[T], int]


class AuditEngine(Protocol):
    """Interface of an engine: applies `step` to every task and returns the results in the order of the tasks."""

    def map(
        self, step: Step[T, R], context: AuditContext, tasks: Sequence[T], *, weight: Weight[T], what: str
    ) -> Iterator[R]: ...


class PythonEngine:
    """Engine in this process, one chunk after the other: the reference for every other engine."""

    def map(
        self, step: Step[T, R], context: AuditContext, tasks: Sequence[T], *, weight: Weight[T], what: str
    ) -> Iterator[R]:
        del weight, what
        fs = open_fs(context.uri)
        for task in tasks:
            yield step(fs, context, task)


class ProcessesEngine:
    """Engine with several processes. The part of a killed worker is done again in this process."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs

    def map(
        self, step: Step[T, R], context: AuditContext, tasks: Sequence[T], *, weight: Weight[T], what: str
    ) -> Iterator[R]:
        """Yield the result of `step` for each task, in their order; processes run it."""
        parts = cut(tasks, self._jobs * _PARTS, weight)
        if self._jobs == 1 or len(parts) < 2:
            yield from PythonEngine().map(step, context, tasks, weight=weight, what=what)
            return
        packed = pickle.dumps(context)
        payloads = [pickle.dumps((step, part)) for part in parts]
        workers = ProcessPoolExecutor(min(self._jobs, len(parts)), get_context("spawn"), initializer=begin_worker)
        try:
            futures = [_submit(workers, packed, payload) for payload in payloads]
            for future, payload in zip(futures, payloads, strict=True):
                yield from pickle.loads(_result(future, packed, payload))  # noqa: S301 - made by our own workers
        finally:
            workers.shutdown(cancel_futures=True)


def _submit(workers: ProcessPoolExecutor, packed: bytes, payload: bytes) -> Future[bytes] | None:
    try:
        return workers.submit(apply_packed, packed, payload)
    except BrokenProcessPool:
        return None


def _result(future: Future[bytes] | None, packed: bytes, payload: bytes) -> bytes:
    try:
        return future.result() if future is not None else apply_packed(packed, payload)
    except BrokenProcessPool:
        return apply_packed(packed, payload)


def apply_packed(packed_context: bytes, payload: bytes) -> bytes:
    """Apply a step to each task of a part, in a worker. Context, step and results are pickled."""
    context: AuditContext = pickle.loads(packed_context)  # noqa: S301 - made by our own driver
    step, part = pickle.loads(payload)  # noqa: S301 - as above
    fs = open_fs(context.uri)
    results: list[Any] = [step(fs, context, task) for task in part]
    return pickle.dumps(results)


_PARTS: Final = 4  # parts for each process, so that none waits long for another at the end
_LEAST: Final = 1


def cut(tasks: Sequence[T], parts: int, weight: Weight[T]) -> list[tuple[T, ...]]:
    """Split tasks into at most `parts` runs of neighbours of about equal weight; none is empty."""
    total = sum(max(weight(task), _LEAST) for task in tasks)
    runs: list[tuple[T, ...]] = []
    current: list[T] = []
    done = 0
    for task in tasks:
        current.append(task)
        done += max(weight(task), _LEAST)
        if done * parts >= total * (len(runs) + 1):
            runs.append(tuple(current))
            current = []
    if current:
        runs.append(tuple(current))
    return runs
