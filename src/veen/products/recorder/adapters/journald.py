"""The systemd journal, read through `journalctl -o json` as a child process. The position is the cursor of an entry."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from veen.client.errors import LocalError
from veen.core.canonical import Json
from veen.products.recorder.events import SourceRecord
from veen.products.recorder.redaction import Redactor, redact
from veen.products.recorder.sink import SpoolSink

_MAX_LINE: Final = 16 * 1024 * 1024
_MAX_HEAD: Final = 65_536  # bytes that are kept of a line that is no entry
_CHUNK: Final = 262_144
_CURSOR: Final = re.compile(rb'"__CURSOR"\s*:\s*"([^"\\]{1,1024})"')


def record_of_entry(
    entry: dict[str, Any], *, now: int, host: str, redactor: Redactor | None = None, raw: bytes = b""
) -> SourceRecord:
    """Return an entry of `journalctl -o json` as a record. Fields that are lists of byte values are kept as they are.

    `raw`: a line that is not a valid entry; it replaces the fields.
    """
    fields: dict[str, Json] = {name: value for name, value in entry.items() if not name.startswith("__")}
    payload, openings = redact(redactor, fields, raw, is_parsed=not raw)

    def first(*names: str, default: str) -> str:
        return next((value for name in names if isinstance(value := payload.get(name), str) and value), default)

    stamp = payload.get("_SOURCE_REALTIME_TIMESTAMP") or entry.get("__REALTIME_TIMESTAMP")
    seconds = int(stamp) // 1_000_000 if isinstance(stamp, str) and stamp.isdigit() else now
    machine = first("_HOSTNAME", default=host)
    unit = first("_SYSTEMD_UNIT", default="")
    cursor = entry.get("__CURSOR")
    return SourceRecord(
        subject=first("_AUDIT_LOGINUID", "_UID", "SYSLOG_IDENTIFIER", default="journal"),
        event_type=first("SYSLOG_IDENTIFIER", "_COMM", "_TRANSPORT", default="journal"),
        origin=f"{machine}/{unit}" if unit else machine,
        time=seconds,
        payload=payload,
        position=str(cursor or ""),
        key=str(cursor) if cursor else None,
        source_time=stamp if isinstance(stamp, str) else None,
        openings=openings,
    )


class JournaldSource:
    """Follows the journal of this machine, or the files of a directory (`journalctl --directory`)."""

    kind = "journald"

    def __init__(
        self, id: str, *, options: Sequence[str] = (), follow: bool = True, program: str = "journalctl"
    ) -> None:
        self.id, self._options, self._follow, self._program = id, tuple(options), follow, program

    async def run(self, sink: SpoolSink) -> None:
        if shutil.which(self._program) is None:
            raise LocalError(f"{self._program} is not installed: the journal cannot be read (apt install systemd)")
        command = [self._program, "--output=json", "--all", "--no-pager", "--quiet", *self._options]
        if self._follow:
            command.append("--follow")
        command += [f"--after-cursor={sink.position}"] if sink.position else ["--no-tail"] if self._follow else []
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            async for lines in _batches(process.stdout):
                await sink.put([self._record(*line, sink) for line in lines])
            errors = await process.stderr.read() if process.stderr is not None else b""
            if await process.wait():
                raise LocalError(f"{self._program} ended: {errors.decode(errors='replace').strip()[-300:]}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @staticmethod
    def _record(line: bytes, size: int, sink: SpoolSink) -> SourceRecord:
        try:
            entry = json.loads(line) if size == len(line) else None
        except ValueError:
            entry = None
        if isinstance(entry, dict):
            return record_of_entry(entry, now=sink.now(), host=sink.host, redactor=sink.redactor)
        why = "not a JSON object" if size == len(line) else f"an entry of {size} bytes, above {_MAX_LINE}"
        cursor = _CURSOR.search(line)  # journalctl writes it first, so reading goes on behind the entry
        fields: dict[str, Any] = {"MESSAGE": line[:_MAX_HEAD].decode(errors="backslashreplace"), "malformed": why}
        if cursor is not None:
            fields["__CURSOR"] = cursor[1].decode(errors="replace")
        return record_of_entry(fields, now=sink.now(), host=sink.host, redactor=sink.redactor, raw=line)


async def _batches(stream: asyncio.StreamReader) -> AsyncIterator[list[tuple[bytes, int]]]:
    """Yield the lines read so far, each with its size. Of a line above the limit only the beginning is kept."""
    rest, size = bytearray(), 0
    while chunk := await stream.read(_CHUNK):
        batch: list[tuple[bytes, int]] = []
        at = 0
        while (end := chunk.find(b"\n", at)) >= 0:
            rest += chunk[at : min(end, at + _MAX_LINE - len(rest))]
            batch.append((bytes(rest), size + end - at))
            rest, size, at = bytearray(), 0, end + 1
        rest += chunk[at : at + _MAX_LINE - len(rest)]
        size += len(chunk) - at
        if batch:
            yield batch
    if size:
        yield [(bytes(rest), size)]
