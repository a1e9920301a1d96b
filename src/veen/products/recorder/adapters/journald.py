"""The systemd journal, through `journalctl -o json` as a child process: the cursor of an entry is its position."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from typing import Any, Final

from veen.client.errors import LocalError
from veen.products.recorder.events import SourceRecord
from veen.products.recorder.sink import SpoolSink
from veen.query.canonical import Json

_MAX_LINE: Final = 16 * 1024 * 1024


def record_of_entry(entry: dict[str, Any], *, now: int, host: str) -> SourceRecord:
    """An entry of `journalctl -o json`. Fields that are no text come as lists of numbers: they are kept as they are."""

    def first(*names: str, default: str) -> str:
        return next((value for name in names if isinstance(value := entry.get(name), str) and value), default)

    stamp = entry.get("_SOURCE_REALTIME_TIMESTAMP") or entry.get("__REALTIME_TIMESTAMP")
    seconds = int(stamp) // 1_000_000 if isinstance(stamp, str) and stamp.isdigit() else now
    machine = first("_HOSTNAME", default=host)
    unit = first("_SYSTEMD_UNIT", default="")
    payload: dict[str, Json] = {name: value for name, value in entry.items() if not name.startswith("__")}
    return SourceRecord(
        subject=first("_AUDIT_LOGINUID", "_UID", "SYSLOG_IDENTIFIER", default="journal"),
        event_type=first("SYSLOG_IDENTIFIER", "_COMM", "_TRANSPORT", default="journal"),
        origin=f"{machine}/{unit}" if unit else machine,
        time=seconds,
        payload=payload,
        position=str(entry.get("__CURSOR", "")),
        key=str(entry.get("__CURSOR", "")) or None,
        source_time=stamp if isinstance(stamp, str) else None,
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
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=_MAX_LINE
        )
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            while line := await process.stdout.readline():
                await sink.put([self._record(line, sink)])
            errors = await process.stderr.read() if process.stderr is not None else b""
            if await process.wait():
                raise LocalError(f"{self._program} ended: {errors.decode(errors='replace').strip()[-300:]}")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @staticmethod
    def _record(line: bytes, sink: SpoolSink) -> SourceRecord:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            entry = {"MESSAGE": line.decode(errors="backslashreplace"), "malformed": "not a JSON object"}
        return record_of_entry(entry, now=sink.now(), host=sink.host)
