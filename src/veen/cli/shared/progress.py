"""The line that says what is going on, for anything that takes longer than a second; it vanishes when done."""

import sys
import threading
import time
from types import TracebackType
from typing import Final, Self

from veen.cli.shared.text import safe

__all__ = ["ProgressLine"]

_PATIENCE_SECONDS: Final = 1.0  # nobody needs to be told about less
_REDRAW_SECONDS: Final = 0.25
_CLEAR: Final = "\r\x1b[K"


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
        started = time.monotonic()
        if self._done.wait(_PATIENCE_SECONDS):
            return
        while not self._done.wait(_REDRAW_SECONDS):
            elapsed = time.monotonic() - started
            line = safe(f"{self._phase}… {elapsed:.0f} s  {self._detail}".rstrip())
            print(f"{_CLEAR}{line[:100]}", end="", file=sys.stderr, flush=True)
        print(_CLEAR, end="", file=sys.stderr, flush=True)
