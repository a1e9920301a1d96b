"""JSON lines from a stream of bytes, such as standard input. Each line is one record, its number the position."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from typing import BinaryIO, Final

from veen.products.recorder.adapters.registry import SourceInvalid
from veen.products.recorder.events import Selectors, SourceRecord, json_object, text_of
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
    """Return a line of text or JSON as a record."""
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
    """Reads a binary file object to its end. After a restart from the start of the input, recorded lines are skipped.

    A position is the number of a line and a hash of all lines up to it. Different lines therefore raise SourceInvalid
    instead of being taken for recorded ones. A source that failed continues with the line behind the last one.
    """

    kind = "lines"

    def __init__(self, id: str, file: BinaryIO, selectors: Selectors | None = None) -> None:
        self.id, self._file, self._selectors = id, file, selectors or Selectors()
        self._number = 0  # lines that were read from the file
        self._lines_hash = hashlib.blake2b(digest_size=16)  # of these lines
        self._waiting: list[SourceRecord] = []  # were read, and are not in the spool yet
        self._fault: SourceInvalid | None = None

    async def run(self, sink: SpoolSink) -> None:
        if self._fault is not None:
            raise self._fault
        text, _, mark = (sink.position or "0").partition(":")
        last_number = int(text)
        if self._waiting:
            await sink.put(self._waiting)
        async for lines in self._batches():
            self._waiting = []
            for line in lines:
                self._number += 1
                self._lines_hash.update(line)
                if self._number == last_number and mark not in ("", self._mark(sink)):
                    self._fault = SourceInvalid(
                        f"source {self.id!r}: the first {last_number} lines are not those that were recorded under this"
                        " name: pipe in the same lines from the start, or give the source another name"
                    )
                    raise self._fault
                data = line.rstrip(b"\r\n")
                if self._number > last_number and data:
                    self._waiting.append(self._record(data, sink))
            await sink.put(self._waiting)
        self._waiting = []

    def _record(self, data: bytes, sink: SpoolSink) -> SourceRecord:
        return record_of_line(
            data, self._selectors, origin=sink.host, position=f"{self._number}:{self._mark(sink)}", now=sink.now(),
            redactor=sink.redactor, shown_position=str(self._number),
        )  # fmt: skip

    def _mark(self, sink: SpoolSink) -> str:
        return sink.digest(self._lines_hash.digest())[:16]

    async def _batches(self) -> AsyncIterator[list[bytes]]:
        while line := await asyncio.to_thread(self._file.readline, _MAX_LINE):
            lines = [line]
            # What is buffered already comes along; a slow writer's line does not wait for more.
            peek = getattr(self._file, "peek", None)
            while len(lines) < _BATCH and peek is not None and b"\n" in peek(1):
                lines.append(self._file.readline(_MAX_LINE))
            yield lines
