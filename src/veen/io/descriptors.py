"""File descriptors of the process: their limit, and spare ones for the storage engine.

A hub that cannot open a file cannot write its log, and connections come from strangers. The number of connections
therefore follows from the limit of the process, with a reserve for files. If descriptors still run out (through another
part of the program, or the whole system), storage takes spare ones, and the hub closes idle clients to refill them.
"""

import errno
import os
import resource
import threading
import time
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MOST: Final = 1 << 20  # no hub has more connections than this; a limit may be a thousand times larger
_OPEN_FILES: Final = 256  # that the store keeps open at a time
_RESERVED: Final = 512  # those, the journal, the index, the log, threads that read attachments, spares, refused clients
_SPARES: Final = 16
_SHORTAGE: Final = {errno.EMFILE, errno.ENFILE}
_PAUSE_SEC: Final = 0.1
_PATIENCE_SEC: Final = 60.0


def limit() -> int:
    """Return the number of descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def raise_limit() -> int:
    """Raise the soft limit to the hard one, which needs no privilege; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def max_connections(descriptors: int, workers: int) -> int:
    """Return the number of connections for a limit of `descriptors`, after files and verifier processes."""
    return max(1, descriptors - min(_RESERVED + workers, descriptors // 2))


def max_open_files() -> int:
    """Return the number of files that the store may keep open: fewer if the limit is low."""
    return max(1, min(_OPEN_FILES, limit() // 4))


def is_shortage(error: BaseException) -> bool:
    """Return True if the process, or the system, has no descriptor left."""
    return isinstance(error, OSError) and error.errno in _SHORTAGE


def is_short(count: int = 4) -> bool:
    """Return True if the process cannot open `count` files now."""
    opened: list[int] = []
    try:
        opened += [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(count)]
    except OSError as exc:
        return is_shortage(exc)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


class Spares:
    """Reserved descriptors, closed when storage needs one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._open: list[int] = []

    def fill(self, count: int = _SPARES) -> None:
        """Keep `count` spares from now on. A process that never calls this has none."""
        self._wanted = count
        self.refill()

    def lend(self) -> bool:
        """Close one, so that the caller can open something; return False if there is none left."""
        with self._lock:
            if not self._open:
                return False
            os.close(self._open.pop())
            return True

    def refill(self) -> bool:
        """Open missing spares; return True if all of them are open."""
        with self._lock:
            try:
                while len(self._open) < self._wanted:
                    self._open.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return False
            return True


SPARES: Final = Spares()  # of this process


def with_spares(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `call` and return its result. If it fails for lack of a descriptor, close a spare one and try again."""
    while True:
        try:
            return call(*args, **kwargs)
        except OSError as exc:
            if not is_shortage(exc) or not SPARES.lend():
                raise


def patiently(step: Callable[[], T]) -> T:
    """Call `step` and return its result; while descriptors are short, retry for a minute.

    Blocks: not for an event loop.
    """
    until = time.monotonic() + _PATIENCE_SEC
    while True:
        try:
            return step()
        except OSError as exc:
            if not is_shortage(exc) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_SEC)
