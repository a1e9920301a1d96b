"""A file that other programs append to: rotation, truncation and compressed predecessors (see `logfiles`).

Only whole lines are taken. Lines deleted or truncated before they were read cause a recorder.loss event.
"""

import asyncio
from pathlib import Path
from typing import Final

from veen.products.recorder.adapters.lines import record_of_line
from veen.products.recorder.adapters.logfiles import LinesMissing, LinesRead, LogDirectory, LogFiles, Place
from veen.products.recorder.events import Selectors
from veen.products.recorder.sink import SpoolSink

_POLL_SECONDS: Final = 0.25
_TABLE: Final = "files"  # the note that holds the table of files


class TailSource:
    """Follows one path. With `follow=False` it ends at the end of the file.

    The first run begins with the current file; `rotated=True` includes files rotated before.
    """

    kind = "file"

    def __init__(
        self,
        id: str,
        path: Path,
        selectors: Selectors | None = None,
        *,
        follow: bool = True,
        rotated: bool = False,
        poll_seconds: float = _POLL_SECONDS,
        directory: LogDirectory | None = None,
    ) -> None:
        self.id, self._path, self._follow, self._poll = id, path, follow, poll_seconds
        self._rotated, self._directory = rotated, directory
        self._selectors = selectors or Selectors(origin=f".origin|{path}")

    async def run(self, sink: SpoolSink) -> None:
        files = LogFiles(
            self._path,
            await sink.recall(_TABLE),
            sink.position,
            read_rotated=self._rotated,
            wait_for_packed=self._follow,
            directory=self._directory,
        )
        try:
            while True:
                if not await self._poll_once(sink, files):
                    if not self._follow and not files.is_interrupted:
                        return
                    await asyncio.sleep(self._poll)
        finally:
            files.close()

    async def _poll_once(self, sink: SpoolSink, files: LogFiles) -> bool:
        """Read new lines once; return True if there were any."""
        turn, has_lines = files.turn(), False
        while (step := await asyncio.to_thread(files.advance, turn)) is not None:
            if isinstance(step, LinesRead):
                has_lines = True
                await self._record_lines(sink, step.lines)
            elif isinstance(step, LinesMissing):
                await sink.lost(step.reason, 1)
            else:
                await sink.remember(_TABLE, step.text)
        return has_lines

    async def _record_lines(self, sink: SpoolSink, lines: list[tuple[bytes, Place]]) -> None:
        await sink.put(
            [
                record_of_line(
                    data,
                    self._selectors,
                    origin=str(self._path),
                    position=str(after),
                    now=sink.now(),
                    redactor=sink.redactor,
                    shown_position=after.shown,
                )
                for line, after in lines
                if (data := line.rstrip(b"\r\n"))
            ]
        )
