"""Progress line for anything that takes longer than a second; it vanishes at the end.

Other output to the terminal meanwhile goes through `without_line`, which removes the line first: the next redraw puts
it below.
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
    """State of the progress line. `lock` guards `is_drawn` and output while a line is drawn."""

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
def without_line() -> Iterator[None]:
    """Remove the progress line for other output, and draw none into it."""
    with _SCREEN.lock:
        _SCREEN.clear()
        yield


class ProgressLine:
    """`with ProgressLine("reading the log", shown=…) as progress: progress("chunk 3 of 9")`.

    Only a terminal on stderr shows it, so logs and pipes have no half lines.
    """

    def __init__(self, phase: str, *, shown: bool) -> None:
        self._phase, self._shown = phase, shown
        self._detail = ""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, detail: str) -> None:
        """Set the detail of the line. Cheap: call it as often as you like."""
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
            _SCREEN.draw(_cut_line(line, get_terminal_size().columns - 1))
        _SCREEN.clear()


def _cut_line(line: str, columns: int) -> str:
    """Cut a line to the columns of the terminal: a wrapped line could not be removed."""
    while line and width_of(line) > columns:
        line = line[:-1]
    return line
