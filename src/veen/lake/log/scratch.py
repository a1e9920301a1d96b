"""Temporary secrets of a job: in memory where the system allows it, else in files that are removed on any signal.

SIGTERM (as by `systemctl stop`, a scheduler, or Spark to its workers) ends a process at once and removes nothing,
unless it is handled. Memory is gone with the process, even if it is killed.
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
    """Provide the path of a file with `data` for processes of the same user on this machine; remove it afterwards."""
    with contextlib.ExitStack() as closing:
        yield _in_memory(data, closing) or _in_directory(data, closing)


def _in_memory(data: bytes, closing: contextlib.ExitStack) -> str | None:
    """Create an unnamed file and return its path; None where the system cannot do this."""
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
    """Create a directory with mode 0700; remove it afterwards, also if SIGTERM ends the process."""
    with _exit_on_sigterm(), tempfile.TemporaryDirectory(prefix=prefix) as directory:
        yield Path(directory)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that files are removed on the way out. Keep an existing handler."""
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
