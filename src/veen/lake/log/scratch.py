"""Secrets for the time of a job: in memory where the system allows it, else in files that are removed on any signal.

A process that is told to end (SIGTERM, as by `systemctl stop`, a scheduler, or Spark to its workers) ends at once and
removes nothing, unless it is asked to. What lies in memory is gone with the process, even if it is killed.
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from veen.client.home import PrivateFs

_NAME: Final = "secret"


@contextlib.contextmanager
def secret_file(data: bytes) -> Iterator[str]:
    """The path of a file with `data`, for processes of the same user on this machine; there is none afterwards."""
    with contextlib.ExitStack() as closing:
        yield _in_memory(data, closing) or _in_directory(data, closing)


def _in_memory(data: bytes, closing: contextlib.ExitStack) -> str | None:
    """A file without a name in any directory; None where the system has no such thing, or no way to it by a path."""
    if sys.platform != "linux":
        return None
    try:
        fd = os.memfd_create("veen", os.MFD_CLOEXEC)
    except OSError:
        return None
    closing.callback(os.close, fd)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(data)
    path = f"/proc/{os.getpid()}/fd/{fd}"
    return path if Path(path).exists() else None


def _in_directory(data: bytes, closing: contextlib.ExitStack) -> str:
    directory = closing.enter_context(private_directory("veen-keys-"))
    PrivateFs(directory).replace(_NAME, data)
    return str(directory / _NAME)


@contextlib.contextmanager
def private_directory(prefix: str) -> Iterator[Path]:
    """A directory of its owner's alone (0700) that is gone afterwards, also if SIGTERM ends the process."""
    with _ends_by_exit(), tempfile.TemporaryDirectory(prefix=prefix) as directory:
        yield Path(directory)


@contextlib.contextmanager
def _ends_by_exit() -> Iterator[None]:
    """SIGTERM raises SystemExit, so that files are removed on the way out. Whoever handles it already goes on to."""
    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
