"""Reader keys for tasks: passed by a path, never by value (D-120).

Tasks are pickled, shown in plans and logged; so a task carries the path of a key file, and the file is read where the
task runs. One line per key, as `veen id keyring` prints them: `veen-stream1…`.

Temporary secrets of a job: in memory where the system allows it, else in files that are removed on any signal.

SIGTERM (as by `systemctl stop`, a scheduler, or Spark to its workers) ends a process at once and removes nothing,
unless it is handled. Memory is gone with the process, even if it is killed.
"""

import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Final

from veen.client.errors import ClientError
from veen.client.home import PrivateFs
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.lake.log.errors import OptionError

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


_MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of stream keys on a path that every executor can read."""

    path: str

    def absolute(self) -> "KeyFile":
        """Return the same file by its absolute path, for a task, which runs in another directory."""
        return KeyFile(str(Path(self.path).absolute()))

    def load(self) -> Keyring:
        """Read the keys; once per process and version of the file."""
        try:
            stat = Path(self.path).stat()
        except OSError as exc:
            raise OptionError(f"key file {self.path}: {exc.strerror}") from exc
        return _load(self.path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _load(path: str, _changed: int, size: int) -> Keyring:
    if size > _MAX_BYTES:
        raise OptionError(f"key file {path}: {size} bytes are more than a key file has")
    try:
        lines = Path(path).read_text("ascii").split()
    except (OSError, UnicodeDecodeError) as exc:
        raise OptionError(f"key file {path}: cannot be read") from exc
    keys = []
    for number, line in enumerate(lines, start=1):
        try:
            keys.append(StreamKeys.from_text(line))
        except ClientError:
            raise OptionError(f"key file {path}: word {number} is not a stream key") from None  # its text is a secret
    return Keyring(tuple(keys))


def write_keys(directory: Path, keys: Iterable[StreamKeys]) -> KeyFile:
    """Write keys to a permanent file that only its owner can read."""
    PrivateFs(directory).replace("reader.keys", _text_of(keys))
    return KeyFile(str(directory / "reader.keys"))


@contextmanager
def keys_for_tasks(keys: "KeyFile | Keyring | Iterable[StreamKeys]") -> Iterator[KeyFile]:
    """Provide a key file for the executors of this machine, and remove it afterwards.

    A KeyFile is passed on as it is; a cluster needs one.
    """
    if isinstance(keys, KeyFile):
        yield keys
        return
    entries = keys.entries if isinstance(keys, Keyring) else keys
    with secret_file(_text_of(key for key in entries if key.can_read)) as path:
        yield KeyFile(path)


def _text_of(keys: Iterable[StreamKeys]) -> bytes:
    return "".join(f"{key.to_text()}\n" for key in keys).encode("ascii")
