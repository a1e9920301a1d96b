"""Whether executors have what tasks need, checked before any task is sent to them.

A task that imports veen fails where veen is missing, with a traceback from inside Spark. So the question is put by a
function that travels by value and needs nothing but Python: not even PyArrow.
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
    """What one executor's Python said about itself."""

    host: str
    process: int  # of the daemon from which its workers come
    python: str
    veen: str | None
    lacking: tuple[str, ...]  # modules, each with the reason
    key_file: str | None  # why it cannot be read; None if it can, or nobody asked


def _probe(numbers: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """On an executor, by value: every name it uses comes from within."""
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


def ask(session: "SparkSession", *, key_file: str | None = None, patience: float = _PATIENCE_SECONDS) -> list[Executor]:
    """One answer per executor; a cluster that has not all of them yet is given a moment.

    ExecutorUnfit if none comes: Spark itself would wait for ever.
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
        if len(executors) >= _executors(context):
            break
        time.sleep(_HOLD_SECONDS * number)
    return sorted(executors)


def _executors(context: Any) -> int:
    """How many there are; on one machine the driver is the only one."""
    return len(context.statusTracker().getExecutorInfos()) - (not context.master.startswith("local"))


def _await(context: Any, patience: float) -> None:
    deadline = time.monotonic() + patience
    while not _executors(context):
        if time.monotonic() > deadline:
            raise ExecutorUnfit(
                f"no executor came within {patience:.0f} s: the cluster is busy, or none of its machines has the "
                f"memory ({context.getConf().get('spark.executor.memory', '1g')}) and cores that were asked for"
            )
        time.sleep(_HOLD_SECONDS)


def faults(executor: Executor) -> Iterator[str]:
    """Why an executor cannot do our work, if it cannot."""
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
    """The executors, all of them fit; or ExecutorUnfit with what is wrong first."""
    executors = ask(session, key_file=key_file)
    for executor in executors:
        for fault in faults(executor):
            raise ExecutorUnfit(fault)
    return executors
