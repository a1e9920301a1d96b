"""Who applies a function to many chunks. Engines differ in where they do it and in nothing else."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from veen.pipeline.audit.context import Context
from veen.pipeline.files import open_fs
from veen.storage.fs import Fs

__all__ = ["Engine", "PythonEngine", "Weight", "cut"]

T = TypeVar("T")
R = TypeVar("R")
Step = Callable[[Fs, Context, T], R]
Weight = Callable[[T], int]


class Engine(Protocol):
    """Applies `step` to every task and gives the results in the order of the tasks."""

    def map(
        self, step: Step[T, R], context: Context, tasks: Sequence[T], *, weight: Weight[T], what: str
    ) -> Iterator[R]: ...


class PythonEngine:
    """One process, one chunk after the other: the reference that every other engine must equal."""

    def map(
        self, step: Step[T, R], context: Context, tasks: Sequence[T], *, weight: Weight[T], what: str
    ) -> Iterator[R]:
        del weight, what
        fs = open_fs(context.uri)
        for task in tasks:
            yield step(fs, context, task)


_LEAST: Final = 1


def cut(tasks: Sequence[T], parts: int, weight: Weight[T]) -> list[tuple[T, ...]]:
    """At most `parts` runs of neighbouring tasks, of about the same weight; none is empty."""
    total = sum(max(weight(task), _LEAST) for task in tasks)
    made: list[tuple[T, ...]] = []
    current: list[T] = []
    done = 0
    for task in tasks:
        current.append(task)
        done += max(weight(task), _LEAST)
        if done * parts >= total * (len(made) + 1):
            made.append(tuple(current))
            current = []
    if current:
        made.append(tuple(current))
    return made
