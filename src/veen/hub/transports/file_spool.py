"""Calls as files (D-113): a request is put into `in/`, its response appears in `out/`.

    in/NAME.req      written by a client under another name, then renamed; NAME is the time in ms and a hash
    taken/NAME.req   moved here by the hub: the call is running
    out/NAME.res     the response; the client removes it
    rejected/        files that were no request, for a person to look at; bounded

The mode of the directory is the access control: it must be closed to others. The hub runs requests of a hub that was
killed again at its next start, because the same bytes mean the same again; the one operation of which that is not
true is answered with an error. Old requests are rejected and old responses removed; without room, the oldest go
first.
"""

import asyncio
import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from veen.core.call_frames import MAX_OVERHEAD_BYTES, RequestFrame
from veen.core.errors import ApiCode, FormatError
from veen.hub.api.access import Principal
from veen.hub.api.reply import ApiError, Reply
from veen.hub.process.config import ConfigError
from veen.hub.process.supervisor import Supervisor
from veen.hub.transports.door import CallDoor, frame_of
from veen.io.spool_files import NotPlainFile, TooLargeFile, file_mode, put_file, read_plain

_LOOP: Final = "spool"
_NAME: Final = re.compile(r"(?P<ms>[0-9]{13})-[0-9a-f]{32}\.req")
_FOLDERS: Final = ("in", "taken", "out", "rejected")
_MODE: Final = 0o700
_OTHERS: Final = 0o007
_MAX_SCANNED: Final = 100_000  # names of a directory that are read in one pass
_MAX_REJECTED: Final = 100  # files
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024  # of running requests, above which no more are taken
_PART_SEC: Final = 600.0  # age at which an unfinished file counts as abandoned
_BUSY_SEC: Final = 0.002  # between two passes over the directory
_IDLE_SEC: Final = 0.1
_TIDY_SEC: Final = 10.0
_TROUBLE_SEC: Final = 1.0
_STOP_SEC: Final = 10.0
_NOT_REPEATABLE: Final = frozenset(("tooling/rotate_key",))  # each call of it adds a key
_CALLER: Final = Principal(address="file")  # one caller for rates and shares: a file has no address


@dataclass(frozen=True, slots=True)
class _Job:
    """A request that was moved to `taken/`, or its fault."""

    name: str
    request: RequestFrame | None
    error: ApiError | None = None

    @property
    def body_bytes(self) -> int:
        return 0 if self.request is None else len(self.request.body)


class FileSpool:
    """The spool of one directory. Fields are owned by the event loop's thread, but for the arguments of `_take` and
    `_answer`."""

    def __init__(
        self,
        door: CallDoor,
        directory: Path,
        *,
        max_age_sec: float,
        max_bytes: int,
        report: Callable[[str, str], None],
        beside: Supervisor,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the spool. `report` gets a level and a message for the hub's log; `beside` runs the scan loop."""
        self._door, self._directory = door, directory
        self._max_age_sec, self._max_bytes, self._report, self._clock = max_age_sec, max_bytes, report, clock
        self._beside = beside
        self._in, self._taken, self._out, self._rejected = (directory / name for name in _FOLDERS)
        self._mode = 0o600  # of responses
        self._out_bytes = 0  # upper bound for responses in `out/`: clients remove some between two tidyings
        self._calls: set[asyncio.Task[None]] = set()
        self._body_bytes = 0  # of the requests of `_calls`
        self._trouble = ""  # the last trouble that was reported

    @property
    def url(self) -> str:
        return self._directory.absolute().as_uri()

    # --- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to serve. Raise ConfigError if others may enter the directory, or it cannot be used."""
        try:
            await asyncio.to_thread(self._prepare)
        except OSError as exc:
            raise _unusable(self._directory, exc.strerror or str(exc)) from exc
        for job in await asyncio.to_thread(self._read_unfinished):
            self._begin(job)
        self._beside.start(_LOOP, self._scan)

    async def drain(self) -> None:
        """Accept no more requests."""
        await self._beside.end(_LOOP)

    async def stop(self) -> None:
        """Finish the requests that were taken. Those that take too long are left for the next start."""
        await self._beside.end(_LOOP)
        if self._calls:
            await asyncio.wait(self._calls, timeout=_STOP_SEC)
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)

    def _prepare(self) -> None:
        self._directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
        status = self._directory.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise _unusable(self._directory, "not a directory")
        if status.st_mode & _OTHERS:
            raise _unusable(self._directory, f"others may enter it (mode {stat.S_IMODE(status.st_mode):04o})")
        for folder in (self._in, self._taken, self._out, self._rejected):
            if not folder.exists():
                folder.mkdir()
                folder.chmod(stat.S_IMODE(status.st_mode))
            if folder.is_symlink() or not folder.is_dir():
                raise _unusable(folder, "not a directory")
        self._mode = file_mode(self._directory)
        self._out_bytes = self._tidy()

    def _read_unfinished(self) -> list[_Job]:
        """Return the requests that an earlier hub took and did not answer."""
        names = sorted(name for name in _names(self._taken) if _NAME.fullmatch(name))
        unfinished = [self._read(name) for name in names[: self._door.max_calls]]
        for name in names[self._door.max_calls :]:
            (self._taken / name).rename(self._in / name)
        message = "the hub stopped during this operation: check if it took effect"
        return [
            _Job(job.name, None, ApiError(ApiCode.UNAVAILABLE, message))
            if job.request is not None and job.request.operation in _NOT_REPEATABLE
            else job
            for job in unfinished
        ]

    # --- taking ----------------------------------------------------------------------------------------

    async def _scan(self) -> None:
        pause, tidied = _IDLE_SEC, asyncio.get_running_loop().time()
        while True:
            free = self._door.max_calls - len(self._calls) if self._body_bytes < _MAX_BODY_BYTES else 0
            try:
                batch = await asyncio.to_thread(self._take, free) if free > 0 else []
                if asyncio.get_running_loop().time() - tidied > _TIDY_SEC or self._out_bytes > self._max_bytes:
                    tidied = asyncio.get_running_loop().time()
                    before = self._out_bytes
                    left = await asyncio.to_thread(self._tidy)
                    self._out_bytes += left - before  # a response written meanwhile counts at least once
            except OSError as exc:
                self._tell(f"{self._directory}: {exc.strerror or exc}")
                await asyncio.sleep(_TROUBLE_SEC)
                continue
            self._trouble = ""
            for job in batch:
                self._begin(job)
            pause = _BUSY_SEC if batch or self._calls else min(2 * pause, _IDLE_SEC)
            await asyncio.sleep(pause)

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._report("error", f"the spool cannot be served: {trouble}")

    def _take(self, limit: int) -> list[_Job]:
        """Move up to `limit` requests to `taken/`, in the order of their names, and read them. Runs in a thread."""
        batch: list[_Job] = []
        size = 0
        for name in sorted(_names(self._in)):
            if len(batch) >= limit or size >= _MAX_BODY_BYTES:
                break
            path = self._in / name
            if name.startswith("."):  # being written
                continue
            if not _NAME.fullmatch(name):
                self._reject(path)
                continue
            with contextlib.suppress(FileNotFoundError):  # the client withdrew it
                path.rename(self._taken / name)
                batch.append(self._read(name))
                size += batch[-1].body_bytes
        return batch

    def _read(self, name: str) -> _Job:
        try:
            match = _NAME.fullmatch(name)
            if match is None or self._clock() - int(match["ms"]) / 1000 > self._max_age_sec:
                raise ApiError.timeout("the request took too long to arrive")
            maximum = self._door.max_request_bytes() + MAX_OVERHEAD_BYTES
            return _Job(name, RequestFrame.from_bytes(read_plain(self._taken / name, maximum)))
        except FormatError as exc:
            return _Job(name, None, ApiError.of_format(exc))
        except TooLargeFile as exc:
            detail = {"actual": exc.size, "max_allowed": self._door.max_request_bytes()}
            return _Job(name, None, ApiError(ApiCode.LIMIT, "the request is too large", detail=detail))
        except NotPlainFile:
            return _Job(name, None, ApiError(ApiCode.BAD_REQUEST, "the request is not a regular file"))
        except ApiError as exc:
            return _Job(name, None, exc)

    def _reject(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            if not path.is_symlink() and path.is_dir():
                return  # no request; its content is not the hub's to move
            path.rename(self._rejected / path.name)

    # --- answering -------------------------------------------------------------------------------------

    def _begin(self, job: _Job) -> None:
        self._body_bytes += job.body_bytes
        task = asyncio.create_task(self._serve(job))
        self._calls.add(task)

        def on_end(_: object) -> None:
            self._calls.discard(task)
            self._body_bytes -= job.body_bytes

        task.add_done_callback(on_end)

    async def _serve(self, job: _Job) -> None:
        reply: Reply
        if job.request is None:
            reply = self._door.of_error(job.error or ApiError(ApiCode.BAD_REQUEST, "no request"), _CALLER)
        else:
            reply = await self._door.call(job.request, _CALLER)
            if reply.stream is not None:
                await reply.stream.aclose()
                reply = self._door.endless(_CALLER)
        if not self._door.take_answer(_CALLER, reply, "" if job.request is None else job.request.operation):
            reply = self._door.unread(_CALLER)
        data = frame_of(reply).to_bytes()
        try:
            await asyncio.to_thread(self._answer, job, data)
        except OSError as exc:
            self._tell(f"{self._out}: {exc.strerror or exc}")
        finally:
            self._door.release_answer(_CALLER, reply)
        self._out_bytes += len(data)  # only now: a tidying during the write may not have counted it

    def _answer(self, job: _Job, data: bytes) -> None:
        """Write the response first, then end the request: after a crash in between the request is answered once
        more."""
        put_file(self._out / f"{job.name.removesuffix('.req')}.res", data, self._mode)
        path = self._taken / job.name
        with contextlib.suppress(FileNotFoundError):
            if job.request is None:
                path.rename(self._rejected / job.name)
            else:
                path.unlink()

    # --- bounds ----------------------------------------------------------------------------------------

    def _tidy(self) -> int:
        """Remove old files, then the oldest ones beyond the bounds; return the bytes of responses that are left."""
        now = self._clock()
        for folder in (self._in, self._out):
            for _, path, status in _files(folder):
                if path.name.startswith(".") and now - status.st_mtime > min(_PART_SEC, self._max_age_sec):
                    _remove(path)
        _trim(self._rejected, now - self._max_age_sec, self._max_bytes, _MAX_REJECTED)
        return _trim(self._out, now - self._max_age_sec, self._max_bytes, _MAX_SCANNED)


def _unusable(path: Path, what: str) -> ConfigError:
    remedy = "Use a directory that only the hub and its clients can enter: chmod o-rwx DIR."
    return ConfigError(str(path), "spool.directory", what, remedy)


def _names(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _MAX_SCANNED)]


def _files(folder: Path) -> Iterator[tuple[float, Path, os.stat_result]]:
    """Yield files with their modification time; skip directories."""
    for name in _names(folder):
        path = folder / name
        with contextlib.suppress(OSError):
            status = path.lstat()
            if not stat.S_ISDIR(status.st_mode):
                yield status.st_mtime, path, status


def _trim(folder: Path, oldest: float, max_bytes: int, max_files: int) -> int:
    """Remove files older than `oldest`, then the oldest until the bounds hold; return the bytes that are left."""
    left = 0
    for number, (changed, path, status) in enumerate(sorted(_files(folder), key=lambda file: -file[0])):
        if changed < oldest or left + status.st_size > max_bytes or number >= max_files:
            _remove(path)
        else:
            left += status.st_size
    return left


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
