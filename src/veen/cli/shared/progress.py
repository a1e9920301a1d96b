"""The line that says what is going on, for anything that takes longer than a second; it vanishes when done.

What else the program writes to the terminal meanwhile goes through `unmixed`, which removes the line first: the next
redraw puts it under what was written.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from veen.cli.shared.text import safe, width_of

_PATIENCE_SECONDS: Final = 1.0  # nobody needs to be told about less
_REDRAW_SECONDS: Final = 0.25
_CLEAR: Final = "\r\x1b[K"


class _Screen:
    """Whether a progress line is on the terminal. `lock` guards `is_drawn` and what is written while one is there."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_drawn = False

    def draw(self, line: str) -> None:
        with self.lock:
            print(f"{_CLEAR}{line}", end="", file=sys.stderr, flush=True)
            self.is_drawn = True

    def clear(self) -> None:
        with self.lock:
            if self.is_drawn:
                print(_CLEAR, end="", file=sys.stderr, flush=True)
                self.is_drawn = False


_SCREEN: Final = _Screen()


@contextmanager
def unmixed() -> Iterator[None]:
    """Write something else: no progress line is on the terminal before it, and none is drawn into it."""
    with _SCREEN.lock:
        _SCREEN.clear()
        yield


class ProgressLine:
    """`with ProgressLine("reading the log", shown=…) as progress: progress("chunk 3 of 9")`.

    Only a terminal on stderr ever sees it, so that logs and pipes hold no half lines.
    """

    def __init__(self, phase: str, *, shown: bool) -> None:
        self._phase, self._shown = phase, shown
        self._detail = ""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, detail: str) -> None:
        """What is being worked on now. Cheap: call it as often as you like."""
        self._detail = detail

    def __enter__(self) -> Self:
        if self._shown:
            self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._done.set()
            self._thread.join()

    def _draw(self) -> None:
        from shutil import get_terminal_size  # not on the way to --help

        started = time.monotonic()
        if self._done.wait(_PATIENCE_SECONDS):
            return
        while not self._done.wait(_REDRAW_SECONDS):
            elapsed = time.monotonic() - started
            line = safe(f"{self._phase}… {elapsed:.0f} s  {self._detail}".rstrip())
            _SCREEN.draw(_fitting(line, get_terminal_size().columns - 1))
        _SCREEN.clear()


def _fitting(line: str, columns: int) -> str:
    """A line that wraps could not be removed any more."""
    while line and width_of(line) > columns:
        line = line[:-1]
    return line
