"""Check that executors have the modules of the tasks, before any task is sent to them.

A task that imports veen fails where veen is missing, with a traceback from inside Spark. So the check is a function
that travels by value and needs nothing but Python: not even PyArrow.
"""

import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from veen import __version__
from veen.lake.log.errors import ConnectUnsupported, ExecutorUnfit
from veen.lake.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEEDED: Final = ("veen", "pyspark_veen", "nacl.bindings", "cbor2", "pyarrow", "numpy")
_ROUNDS: Final = 5
_PATIENCE_SECONDS: Final = 60.0
_HOLD_SECONDS: Final = 0.2  # a task that ends at once would leave all others to the executor that came first


@dataclass(frozen=True, slots=True, order=True)
class Executor:
    """Report of one executor's Python about itself."""

    host: str
    process: int  # of the daemon from which its workers come
    python: str
    veen: str | None
    lacking: tuple[str, ...]  # modules, each with the reason
    key_file: str | None  # why it cannot be read; None if it can, or nobody asked


def _probe(numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Yield the report of an executor. Runs there by value: it uses no name from outside."""
    import importlib
    import os
    import platform
    import socket
    import time

    for _ in numbers:
        lacking = []
        for name in needed:  # type: ignore[name-defined]  # noqa: F821 - put among its globals below
            try:
                importlib.import_module(name)
            except Exception as exc:
                lacking.append(f"{name} ({type(exc).__name__})")
        version = None
        if not any(package.startswith("veen ") for package in lacking):
            version = importlib.import_module("veen").__version__
        unread = None
        if key_file is not None:  # type: ignore[name-defined]  # noqa: F821
            try:
                os.close(os.open(key_file, os.O_RDONLY))  # type: ignore[name-defined]  # noqa: F821
            except OSError as exc:
                unread = str(exc.strerror)
        time.sleep(hold)  # type: ignore[name-defined]  # noqa: F821
        yield socket.gethostname(), os.getppid(), platform.python_version(), version, tuple(lacking), unread


def ask_executors(
    session: "SparkSession", *, key_file: str | None = None, patience: float = _PATIENCE_SECONDS
) -> list[Executor]:
    """Return one report per executor; wait a moment for executors that are still starting.

    Raise ExecutorUnfit if there is none: Spark itself would wait forever.
    """
    if is_connect(session):
        raise ConnectUnsupported("executors are asked one by one, for which Spark Connect has no way")
    context: Any = session.sparkContext
    _await(context, patience)
    settings = {"needed": NEEDED, "key_file": key_file, "hold": _HOLD_SECONDS}
    # A function of __main__ is pickled by value, whatever the module it was written in.
    probe = FunctionType(_probe.__code__, {"__builtins__": __builtins__, "__name__": "__main__", **settings}, "probe")
    executors: set[Executor] = set()
    for number in range(_ROUNDS):
        tasks = 2 * max(1, context.defaultParallelism)
        executors |= {
            Executor(*answer) for answer in context.parallelize(range(tasks), tasks).mapPartitions(probe).collect()
        }
        if len(executors) >= _count_executors(context):
            break
        time.sleep(_HOLD_SECONDS * number)
    return sorted(executors)


def _count_executors(context: Any) -> int:
    """Return the number of executors; on one machine the driver is the only one."""
    return len(context.statusTracker().getExecutorInfos()) - (not context.master.startswith("local"))


def _await(context: Any, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not _count_executors(context):
        if time.monotonic() > deadline:
            raise ExecutorUnfit(
                f"no executor came within {patience:.0f} s: the cluster is busy, or none of its machines has the "
                f"memory ({context.getConf().get('spark.executor.memory', '1g')}) and cores that were asked for"
            )
        time.sleep(_HOLD_SECONDS)


def find_faults(executor: Executor) -> Iterator[str]:
    """Yield the reasons why an executor cannot run our tasks."""
    where = f"executor on {executor.host}"
    ours = platform.python_version()
    if executor.python.rsplit(".", 1)[0] != ours.rsplit(".", 1)[0]:  # pickles and native modules differ by minor
        yield f"{where} has Python {executor.python}, the driver has {ours}"
    if executor.lacking:
        yield f"{where} cannot import {', '.join(executor.lacking)}"
    elif executor.veen != __version__:
        yield f"{where} has veen {executor.veen}, the driver has {__version__}"
    if executor.key_file is not None:
        yield f"{where} cannot read the key file: {executor.key_file}"


def check(session: "SparkSession", *, key_file: str | None = None) -> list[Executor]:
    """Return the executors. Raise ExecutorUnfit with the first fault if one is unfit."""
    executors = ask_executors(session, key_file=key_file)
    for executor in executors:
        for fault in find_faults(executor):
            raise ExecutorUnfit(fault)
    return executors
