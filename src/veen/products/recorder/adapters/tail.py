"""A file that others append to: rotation, truncation and compressed predecessors.

A position is `device:inode:offset:bytes:hash`, the hash that of the file's first bytes: an inode that was given to
another file is noticed. Only whole lines are taken. When the file is replaced, the old one is read to its end first,
under its old name or as `NAME.1`, `NAME.1.gz` and so on. A file that became shorter than what was read was truncated:
reading starts over, and a recorder.loss event says that lines may be missing.
"""

import asyncio
import gzip
import hashlib
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final, Self

from veen.products.recorder.adapters.lines import record_of_line
from veen.products.recorder.events import Record
from veen.products.recorder.fields import Selectors
from veen.products.recorder.sink import Sink

__all__ = ["Place", "Tail"]

_HEAD: Final = 1024  # bytes of a file that tell it from another with the same inode
_CHUNK: Final = 1024 * 1024
_MAX_LINE: Final = 4 * 1024 * 1024  # a longer line comes in pieces of this size
_MAX_OLD: Final = 64  # rotated files that are looked at
_POLL_SECONDS: Final = 0.25
_TRIES: Final = 20  # to open all files while none is renamed


@dataclass(frozen=True, slots=True)
class Place:
    """Where reading continues in one file. `head` covers its first `head_bytes` bytes."""

    device: int
    inode: int
    offset: int
    head_bytes: int
    head: str

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        try:
            device, inode, offset, size, head = (text or "").split(":")
            return cls(int(device), int(inode), int(offset), int(size), head)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.device}:{self.inode}:{self.offset}:{self.head_bytes}:{self.head}"


def _head_of(file: BinaryIO, size: int) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(size)).hexdigest()[:32]


def _opened(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _start_of(file: BinaryIO) -> Place:
    status = os.fstat(file.fileno())
    return Place(status.st_dev, status.st_ino, 0, 0, "")


def _is_at(file: BinaryIO, place: Place) -> bool:
    """Whether this is the file that was read before, perhaps compressed since, and not shorter than what was read."""
    packed = isinstance(file, gzip.GzipFile)
    if packed and not place.head_bytes:
        return False  # nothing tells it from any other compressed file
    try:
        if not packed:
            status = os.fstat(file.fileno())
            if (status.st_dev, status.st_ino) != (place.device, place.inode) or status.st_size < place.offset:
                return False
        if place.head_bytes and _head_of(file, place.head_bytes) != place.head:
            return False
        return file.seek(place.offset) == place.offset
    except (OSError, EOFError, zlib.error):
        return False


def _age(name: str, prefix: str) -> tuple[bool, int, str]:
    """Sorts rotated files from old to new: by date where the name has one (app.log.20261116), else by number."""
    suffix = name.removeprefix(prefix).removesuffix(".gz")
    is_count = suffix.isdecimal() and len(suffix) < 6
    return not is_count, -int(suffix) if is_count else 0, suffix


class Tail:
    """Follows one path. With `follow=False` it ends at the end of the file."""

    kind = "file"

    def __init__(
        self,
        id: str,
        path: Path,
        selectors: Selectors | None = None,
        *,
        follow: bool = True,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self.id, self._path, self._follow, self._poll = id, path, follow, poll_seconds
        self._selectors = selectors or Selectors(origin=f".origin|{path}")

    async def run(self, sink: Sink) -> None:
        place = Place.parse(sink.position)
        while True:
            place, moved = await self._turn(sink, place)
            if not moved:
                if not self._follow:
                    return
                await asyncio.sleep(self._poll)

    async def _turn(self, sink: Sink, place: Place | None) -> tuple[Place | None, bool]:
        """Take what is there now; where to go on, and whether anything was taken.

        Files are read through descriptors that were opened together: a rotation in between changes names, not files.
        """
        try:
            files = [await asyncio.to_thread(_opened, self._path)]
        except FileNotFoundError:
            return place, False
        try:
            if place is not None and not await asyncio.to_thread(_is_at, files[0], place):
                files.pop().close()
                if (unread := await asyncio.to_thread(self._unread, place)) is None:
                    return place, False  # names change all the time: the next turn looks again
                files = unread
                await self._finish_rotated(sink, files[:-1], place, _start_of(files[-1]))
                place = None
            if place is None:
                place = _start_of(files[-1])
                await sink.skip_to(str(place))  # so that a rotation before the first line is noticed after a restart
            after = await self._take(sink, files[-1], place)
            return after, after.offset > place.offset
        finally:
            for file in files:
                file.close()

    async def _finish_rotated(self, sink: Sink, rotated: list[BinaryIO], place: Place, current: Place) -> None:
        """Read rotated files to their end: the one that was read before from its place on, later ones as a whole."""
        if rotated:
            await self._take(sink, rotated[0], place, to_end=True)
            for file in rotated[1:]:  # the file was rotated more than once since it was read
                await self._take(sink, file, _start_of(file), to_end=True)
        elif (place.device, place.inode) == (current.device, current.inode):
            await sink.lost("file truncated: lines behind the last position may be missing", 1)
        else:
            await sink.lost("file replaced and its predecessor is gone: lines may be missing", 1)

    def _unread(self, place: Place) -> list[BinaryIO] | None:
        """The rotated files from the one that was read last on, the oldest first, and the present one; the present one
        alone if that one is gone. None if the files are rotated again and again meanwhile."""
        for _ in range(_TRIES):
            if (files := self._opened_together()) is not None:
                first_unread = next((at for at, file in enumerate(files[:-1]) if _is_at(file, place)), len(files) - 1)
                for file in files[:first_unread]:
                    file.close()
                return files[first_unread:]
            time.sleep(self._poll / 10)
        return None

    def _opened_together(self) -> list[BinaryIO] | None:
        """All rotated files, the oldest first, and the present one; None if a name changed meanwhile."""
        before = self._names()
        files: list[BinaryIO] = []
        try:
            for name in before:
                files.append(_opened(self._path.with_name(name)))
        except FileNotFoundError:
            before = {}
        if before and before == self._names() and self._path.name in before:
            return files
        for file in files:
            file.close()
        return None

    def _names(self) -> dict[str, int]:
        """The inodes of the files by name, in the order in which they were written."""
        prefix = f"{self._path.name}."
        inodes = {
            entry.name: entry.inode()
            for entry in os.scandir(self._path.parent)
            if entry.name.startswith(prefix) or entry.name == self._path.name
        }
        rotated = sorted((name for name in inodes if name != self._path.name), key=lambda name: _age(name, prefix))
        names = [*rotated[-_MAX_OLD:], *([self._path.name] if self._path.name in inodes else [])]
        return {name: inodes[name] for name in names}

    async def _take(self, sink: Sink, file: BinaryIO, place: Place, *, to_end: bool = False) -> Place:
        """Record the whole lines from a place on; `to_end`: nobody appends to it, so the last line is whole too."""
        batches = self._lines(file, place, to_end)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            records: list[Record] = []
            for line, after in batch:
                place = after
                if data := line.rstrip(b"\r\n"):
                    records.append(
                        record_of_line(
                            data, self._selectors, origin=str(self._path), position=str(after), now=sink.now()
                        )
                    )
            await sink.put(records)
        return place

    @staticmethod
    def _lines(file: BinaryIO, place: Place, to_end: bool) -> Iterator[list[tuple[bytes, Place]]]:
        head_bytes = place.head_bytes
        offset, rest = place.offset, b""
        while True:
            file.seek(offset + len(rest))
            chunk = file.read(_CHUNK)
            data = rest + chunk
            lines = data.split(b"\n")
            rest = lines.pop()
            whole = [line + b"\n" for line in lines]
            if len(rest) >= _MAX_LINE or (to_end and not chunk and rest):
                whole.append(rest)
                rest = b""
            if whole:
                if head_bytes < _HEAD:
                    head_bytes = min(offset + len(whole[0]), _HEAD)
                    place = replace(place, head_bytes=head_bytes, head=_head_of(file, head_bytes))
                batch = []
                for line in whole:
                    offset += len(line)
                    batch.append((line, replace(place, offset=offset)))
                yield batch
            if not chunk:
                return
