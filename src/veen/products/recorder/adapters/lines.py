"""JSON lines from a stream of bytes, such as standard input: each line one record, its number the position."""

import asyncio
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from veen.products.recorder.events import SourceRecord, json_object, text_of
from veen.products.recorder.fields import Selectors
from veen.products.recorder.redaction import Redactor, redact
from veen.products.recorder.sink import SpoolSink

_BATCH: Final = 256
_MAX_LINE: Final = 4 * 1024 * 1024  # a longer line comes in pieces of this size, none of which is lost


def record_of_line(
    data: bytes,
    selectors: Selectors,
    *,
    origin: str,
    position: str,
    now: int,
    key: str | None = None,
    redactor: Redactor | None = None,
    shown_position: str | None = None,
) -> SourceRecord:
    """A line of text or JSON as a record."""
    parsed = json_object(data)
    value, openings = redact(
        redactor, {"message": text_of(data)} if parsed is None else parsed, data, is_parsed=parsed is not None
    )
    when, stamp = selectors.when(value, now)
    return SourceRecord(
        subject=selectors.pick(selectors.subject, value, "unknown"),
        event_type=selectors.pick(selectors.event_type, value, "log"),
        origin=selectors.pick(selectors.origin, value, origin),
        time=when,
        payload=value,
        position=position,
        key=key,
        source_time=stamp,
        shown_position=shown_position,
        openings=openings,
    )


class Lines:
    """Reads a binary file object to its end. What reads it again from the start skips the lines that were taken."""

    kind = "lines"

    def __init__(self, id: str, file: BinaryIO, selectors: Selectors | None = None) -> None:
        self.id, self._file, self._selectors = id, file, selectors or Selectors()

    async def run(self, sink: SpoolSink) -> None:
        last_number = int(sink.position or 0)
        number = 0
        async for lines in self._batches():
            records = []
            for line in lines:
                number += 1
                data = line.rstrip(b"\r\n")
                if number > last_number and data:
                    records.append(
                        record_of_line(
                            data, self._selectors, origin=sink.host, position=str(number), now=sink.now(),
                            redactor=sink.redactor,
                        )
                    )  # fmt: skip
            await sink.put(records)

    async def _batches(self) -> AsyncIterator[list[bytes]]:
        while line := await asyncio.to_thread(self._file.readline, _MAX_LINE):
            lines = [line]
            # What is buffered already comes along; a slow writer's line does not wait for more.
            peek = getattr(self._file, "peek", None)
            while len(lines) < _BATCH and peek is not None and b"\n" in peek(1):
                lines.append(self._file.readline(_MAX_LINE))
            yield lines
