"""The files of one log: the current one, the rotated ones, and the offset to which each was read.

A file is identified by device, inode, generation and two fingerprints: a hash of its first bytes, and one of the last
bytes that were read. So it is recognised under another name, compressed, or as a copy (copytruncate). The generation
tells a file from an earlier one with the same inode (FS_IOC_GETVERSION, or else the time of birth). A file that was
empty at the last look has no fingerprint: if it is gone, or cannot be identified with certainty, an unknown number of
lines may be missing. Each turn looks at all files and reads each from its known offset on, oldest first, so any number
of rotations may lie between two turns.

Two durable values store the place where reading continues. The position of the last record names its file and offset.
The table of all files is written before lines of another file are taken, so a position only adds to the table before
it.

Sizes are taken from the newest file to the oldest before anything is read, and no file is read beyond its size. A
writer that has started a new file is done with the old one, so its lines are read in the order of writing.
"""

import bz2
import ctypes
import fcntl
import functools
import gzip
import hashlib
import json
import lzma
import os
import re
import stat
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, Final, Self, cast

_WINDOW: Final = 1024  # bytes of a fingerprint
_CHUNK: Final = 1024 * 1024
_MAX_LINE: Final = 4 * 1024 * 1024  # a longer line comes in pieces of this size
_MAX_FILES: Final = 4096  # rotated files that are looked at, the newest
_MAX_GONE: Final = 256  # files that are gone and still remembered, should they come back compressed
_TRIES: Final = 20  # to look at all files while none is renamed
_ALL: Final = 1 << 62  # the offset of a compressed file that was read to its end, or was there before the first look
_SETTLED_NS: Final = 1_000_000_000  # a file that did not change for so long is not compared again
_DAMAGED: Final = (EOFError, zlib.error, lzma.LZMAError, OSError)  # of a compressed file
_PACKED: Final[dict[str, Callable[..., object]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}

_LONG_BYTES: Final = struct.calcsize("l")
_GETVERSION: Final = 0x80007601 | _LONG_BYTES << 16  # FS_IOC_GETVERSION of Linux
_AT_EMPTY_PATH: Final = 0x1000
_STATX_BTIME: Final = 0x800
_STATX_BTIME_AT: Final = 80  # where stx_btime stands in struct statx

FileId = tuple[int, int, int]  # device, inode and generation; generation 0: not known


class NamesChanged(Exception):
    """A file was renamed while the files were looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """Offset to which a file was read.

    `head` covers its first `head_bytes` bytes, `last` the `last_bytes` before `offset`.
    """

    device: int
    inode: int
    generation: int = 0
    offset: int = 0
    head_bytes: int = 0
    head: str = ""
    last_bytes: int = 0
    last: str = ""

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Parse a position. Positions of earlier releases have no fingerprint of the last bytes, or no generation."""
        fields = (text or "").split(":")
        if len(fields) not in (5, 7, 8):
            return None
        head, last, *generation = *fields[4:5], *(fields[6:7] or [""]), *fields[7:]
        try:
            device, inode, offset, head_bytes = map(int, fields[:4])
            last_bytes = int(fields[5]) if len(fields) > 5 else 0
            return cls(device, inode, int(*generation), offset, head_bytes, head, last_bytes, last)
        except ValueError:
            return None

    def __str__(self) -> str:
        fields = (self.device, self.inode, self.offset, self.head_bytes, self.head, self.last_bytes, self.last)
        return ":".join(map(str, (*fields, self.generation)))

    @property
    def shown(self) -> str:
        """The place without fingerprints, as events show it: fingerprints are hashes of lines that rules may hide."""
        return f"{self.device}:{self.inode}:{self.offset}"

    @property
    def file_id(self) -> FileId:
        return self.device, self.inode, self.generation


@dataclass(frozen=True, slots=True)
class FileState:
    """A row of the table: the place in a file; its name, size and time of writing at the last look."""

    place: Place
    name: str
    size: int
    written_ns: int = 0  # when it was written last; 0: not known

    @property
    def has_fingerprint(self) -> bool:
        return bool(self.place.head_bytes)


@dataclass(frozen=True, slots=True)
class LinesRead:
    """Lines, each with the place behind it. The turn continues when they are durable."""

    lines: list[tuple[bytes, Place]]


@dataclass(frozen=True, slots=True)
class LinesMissing:
    """Lines may be missing, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class TableChanged:
    """The new table, to be stored before the turn continues."""

    text: str


Step = LinesRead | LinesMissing | TableChanged


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of the directory as it was at the last look."""

    name: str
    device: int
    inode: int
    size: int  # on disk
    changed_ns: int
    generation: int = 0
    written_ns: int = 0

    @property
    def file_id(self) -> FileId:
        return self.device, self.inode, self.generation

    @property
    def is_packed(self) -> bool:
        return _is_packed(self.name)

    @property
    def is_settled(self) -> bool:
        return self.changed_ns < time.time_ns() - _SETTLED_NS


class LogDirectory:
    """Access to the directory. Tests insert renames and other changes between any two of its calls."""

    def names(self, folder: Path) -> dict[str, int]:
        """Return the inode of each name."""
        try:
            with os.scandir(folder) as entries:
                return {entry.name: entry.inode() for entry in entries}
        except FileNotFoundError:
            return {}

    def status(self, path: Path) -> os.stat_result:
        return path.stat()

    def generation(self, path: Path, status: os.stat_result) -> int:
        """Return the generation of the file with this status.

        Raise NamesChanged if its name now belongs to another file.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError:
            return 0
        try:
            present = os.fstat(descriptor)
            if (present.st_dev, present.st_ino) != (status.st_dev, status.st_ino):
                raise NamesChanged
            return generation_of(descriptor)
        finally:
            os.close(descriptor)

    def open(self, path: Path) -> BinaryIO:
        unpack = _PACKED.get(path.suffix)
        return cast(BinaryIO, unpack(path, "rb")) if unpack else path.open("rb")

    def read(self, file: BinaryIO, offset: int, size: int) -> bytes:
        if isinstance(file, gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile):
            file.seek(offset)
            return file.read1(size)  # what precedes a damaged part comes first
        return os.pread(file.fileno(), size, offset)  # past the buffer of the object: a file may be truncated


def generation_of(descriptor: int) -> int:
    """Return a number that no later file with the same inode has; 0 if the file system provides none."""
    try:
        data = fcntl.ioctl(descriptor, _GETVERSION, bytes(_LONG_BYTES))
        return int.from_bytes(data[:4], sys.byteorder) or _birth_of(descriptor)
    except OSError:
        return _birth_of(descriptor)


def _birth_of(descriptor: int) -> int:
    """Return the time of birth in ns, by statx(2); 0 if it is unknown."""
    statx = getattr(_libc(), "statx", None)
    buffer = ctypes.create_string_buffer(256)
    if statx is None or statx(descriptor, b"", _AT_EMPTY_PATH, _STATX_BTIME, buffer):
        return 0
    (mask,) = struct.unpack_from("I", buffer.raw, 0)
    seconds, nanos = struct.unpack_from("qI", buffer.raw, _STATX_BTIME_AT)
    return seconds * 1_000_000_000 + nanos if mask & _STATX_BTIME else 0


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _is_packed(name: str) -> bool:
    return Path(name).suffix in _PACKED


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _age(suffix: str) -> tuple[bool, int, str]:
    """Return the sort key of a rotated file, from old to new: by date if the name has one, else by number."""
    is_count = suffix == "old" or (suffix.isdecimal() and len(suffix) < 6)
    count = 1 if suffix == "old" else int(suffix) if is_count else 0
    return not is_count, -count, suffix


def _rotation_pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of rotated names.

    For app.log: app.log.1, app.log-20261116.gz, app.log.2026-11-16_22-00, app-20261116.log, app.log.old.
    """
    stem, extension = Path(name).stem, Path(name).suffix
    forms = [rf"{re.escape(name)}[.-](\d[\dTZ:._-]*|old)"]
    if extension:
        forms.append(rf"{re.escape(stem)}[.-](\d[\dTZ:._-]*){re.escape(extension)}")
    packed = "|".join(re.escape(suffix) for suffix in _PACKED)
    return re.compile(rf"(?:{'|'.join(forms)})(?:{packed})?")


@dataclass(slots=True)
class _Content:
    """The content of an open file, compressed or not."""

    file: BinaryIO
    directory: LogDirectory
    size: int | None  # None: compressed, so its end must be looked for
    is_damaged: bool = False  # a compressed file that cannot be read to its end
    _first_bytes: bytes | None = None  # of the file when it was compared
    _hashes: dict[int, str] = field(default_factory=dict)  # of so many first bytes

    @property
    def first_bytes(self) -> bytes:
        """First bytes of the file, read once: a file is compared with many others."""
        if self._first_bytes is None:
            self._first_bytes = self.window(0, _WINDOW)
        return self._first_bytes

    def begins_with(self, place: Place) -> bool:
        """Return True if the file has the fingerprint of the place at its beginning."""
        size = place.head_bytes
        if size not in self._hashes:
            self._hashes[size] = _hash(self.first_bytes[:size])
        return self._hashes[size] == place.head

    def window(self, offset: int, size: int) -> bytes:
        """Read a range of bytes; fewer at the end of the file."""
        data = b""
        try:
            while len(data) < size and (chunk := self.directory.read(self.file, offset + len(data), size - len(data))):
                data += chunk
        except _DAMAGED:
            if self.size is not None:
                raise
            self.is_damaged = True
        return data

    def end(self) -> int:
        if self.size is None:
            end = 0
            while chunk := self.window(end, _CHUNK):
                end += len(chunk)
            return end
        return self.size

    def has_grown(self) -> bool:
        """Return True if the file has more bytes than when it was listed."""
        return self.size is not None and os.fstat(self.file.fileno()).st_size > self.size

    def continues(self, place: Place) -> bool:
        """Return True if the file begins with the bytes that were read up to `place`."""
        if self.size is not None and self.size < place.offset:
            return False
        if self.size is None and place.offset == _ALL:
            head = self.window(0, place.head_bytes or 1)
            return _hash(head) == place.head if place.head_bytes else not head
        if place.head_bytes and _hash(self.window(0, place.head_bytes)) != place.head:
            return False
        before = self.window(place.offset - place.last_bytes, place.last_bytes)
        return not place.last_bytes or _hash(before) == place.last

    def begins(self, other: "_Content", end: int) -> bool:
        """Return True if the first `end` bytes of this file are also the first ones of `other`."""
        first, last = min(end, _WINDOW), (max(0, end - _WINDOW), min(end, _WINDOW))
        return self.first_bytes[:first] == other.first_bytes[:first] and self.window(*last) == other.window(*last)

    def place(self, file_id: FileId, offset: int) -> Place:
        """Return the place at `offset`, with the fingerprints of the current content.

        The first bytes are those that were compared with other files: if the file was truncated and written again
        since, this place does not fit it, and the turn ends before a line is read.
        """
        head = self.first_bytes
        if offset == _ALL:
            return Place(*file_id, offset, len(head), _hash(head) if head else "")
        last = self.window(max(0, offset - _WINDOW), min(offset, _WINDOW))
        return Place(*file_id, offset, len(head), _hash(head) if head else "", len(last), _hash(last) if last else "")


class LogFiles:
    """All files of one log. Its methods block. `advance` and `close` take turns and may be called from any thread."""

    def __init__(
        self,
        path: Path,
        table: str | None = None,
        position: str | None = None,
        *,
        read_rotated: bool = False,
        wait_for_packed: bool = True,
        directory: LogDirectory | None = None,
    ) -> None:
        """Continue from the durable values.

        Without them this is the first look; `read_rotated` then includes rotated files.
        """
        self._path = path
        self._directory = directory or LogDirectory()
        self._read_rotated, self._wait_for_packed = read_rotated, wait_for_packed
        self._position = position  # of the last durable record
        self._rows: dict[FileId, FileState] = {}  # the files of the last turn, the oldest first
        self._gone: list[Place] = []  # files of earlier turns
        self._is_first = table is None  # there is no table yet
        self._is_moved = False  # the table is that of another path
        self._reading: FileId | None = None  # the file to which the position adds
        self._held: BinaryIO | None = None  # the newest file, open: it can be read after it was deleted
        self._heads: dict[FileId, bytes] = {}  # the first bytes of files that this process has read
        self._copies: dict[FileId, FileId] = {}  # files that are copies of the present one so far
        self._compared: set[ListedFile] = set()  # recognised, and unchanged for long
        self._generations: dict[ListedFile, int] = {}  # of files that did not change for long
        self._listed_names: dict[str, int] = {}  # of the last listing
        self._unreadable: set[FileId] = set()  # were reported
        self._mutex = threading.Lock()
        self._is_closed = False
        self.is_interrupted = False  # the last turn ended because a file was renamed or truncated meanwhile
        self._restore(table, Place.parse(position))

    def _restore(self, table: str | None, place: Place | None) -> None:
        if table is not None:
            written = json.loads(table)
            # The state of another path: those of its files that are here go on, the others are no loss of this log.
            self._is_first = self._is_moved = written.get("path", str(self._path)) != str(self._path)
            for text, name, size, *written_ns in written["files"]:
                if (row := Place.parse(text)) is not None:
                    self._rows[row.file_id] = FileState(row, name, size, *written_ns)
            self._gone = [gone for text in written["gone"] if (gone := Place.parse(text)) is not None]
            if written["position"] == self._position:
                return
        if place is not None:
            row_before = self._rows.get(place.file_id)
            before = row_before or FileState(place, self._path.name, 0)
            self._rows[place.file_id] = replace(before, place=place, size=max(before.size, place.offset))
            self._reading = place.file_id

    def close(self) -> None:
        with self._mutex:
            self._is_closed = True
            self._hold(None)

    def advance(self, turn: Iterator[Step]) -> Step | None:
        """Return the next step of a turn, once the step before is durable; None at the end."""
        with self._mutex:
            return None if self._is_closed else next(turn, None)

    def turn(self) -> Iterator[Step]:
        """Yield the steps of reading everything new. End early if files are renamed meanwhile."""
        self.is_interrupted = False
        try:
            listing = self._list_files()
            yield from self._read_deleted(listing)
            yield from self._update_table(listing)
            for at, listed in enumerate(listing):
                yield from self._read(listed, listing[at + 1 :])
        except NamesChanged:
            self.is_interrupted = True

    # --- what is there -------------------------------------------------------------------------------------------

    def _list_files(self) -> list[ListedFile]:
        """Return the files from the oldest to the newest. List again if a file of the last turn is missing."""
        for attempt in range(_TRIES):
            try:
                listing = self._list_once()
                if self._rows.keys() <= {listed.file_id for listed in listing}:
                    return listing
                return self._list_once()
            except NamesChanged:
                time.sleep(attempt / 1000)
        raise NamesChanged

    def _names(self) -> dict[str, int]:
        """Return the names of the log with their inodes, from the oldest file to the newest."""
        path = self._path.resolve()
        inodes = self._directory.names(path.parent)
        pattern, rotated = _rotation_pattern(path.name), []
        for name in inodes:
            if (match := pattern.fullmatch(name)) is not None:
                rotated.append((_age(match[1] or match[2]), name))
        ordered = [name for _, name in sorted(rotated)[-_MAX_FILES:]]
        # A compressed file is complete when the one that it was made from is gone.
        ordered = [name for name in ordered if not (_is_packed(name) and Path(name).stem in inodes)]
        if path.name in inodes:
            ordered.append(path.name)
        return {name: inodes[name] for name in ordered}

    def _list_once(self) -> list[ListedFile]:
        folder, self._listed_names = self._path.resolve().parent, self._names()
        listing: list[ListedFile] = []
        # From the newest to the oldest: a rename in between shows a file twice, never not at all.
        for name in reversed(self._listed_names):
            try:
                status = self._directory.status(folder / name)
            except FileNotFoundError:
                raise NamesChanged from None
            if stat.S_ISREG(status.st_mode):
                listing.append(self._identify_file(folder / name, status))
        if len({listed.file_id for listed in listing}) < len(listing):  # renamed while the sizes were taken
            raise NamesChanged
        return listing[::-1]

    def _identify_file(self, path: Path, status: os.stat_result) -> ListedFile:
        listed = ListedFile(
            path.name, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns, written_ns=status.st_mtime_ns
        )
        generation = self._generations.get(listed)  # without it: a file that did not change for long has the same one
        if generation is None:
            try:
                generation = self._directory.generation(path, status)
            except FileNotFoundError:
                raise NamesChanged from None
        if listed.is_settled:
            self._generations[listed] = generation
        return replace(listed, generation=generation)

    def _adopt(self, listing: list[ListedFile]) -> None:
        """Add the generation to rows of an earlier release, from the file with the same inode."""
        by_inode = {(file.device, file.inode, 0): file for file in listing if file.generation}
        if not any(file_id in by_inode for file_id in self._rows):
            return
        rows: dict[FileId, FileState] = {}
        for file_id, state in self._rows.items():
            listed = by_inode.get(file_id)
            if listed is not None and state.has_fingerprint:
                place = replace(state.place, generation=listed.generation)
                rows[place.file_id] = replace(state, place=place)
                self._reading = place.file_id if self._reading == file_id else self._reading
            else:
                rows[file_id] = state
        self._rows = rows

    def _open(self, listed: ListedFile) -> _Content:
        """Open the listed file. Raise NamesChanged if its name now belongs to another one."""
        try:
            file = self._directory.open(self._path.resolve().with_name(listed.name))
        except FileNotFoundError:
            raise NamesChanged from None
        if _id_of(file) != listed.file_id:
            file.close()
            raise NamesChanged
        return _Content(file, self._directory, None if listed.is_packed else listed.size)

    # --- which file is which -------------------------------------------------------------------------------------

    def _update_table(self, listing: list[ListedFile]) -> Iterator[Step]:
        """Bring the table up to date: a row for each file, and the fate of those that are gone."""
        contents: dict[FileId, _Content] = {}
        steps: list[Step] = []
        self._adopt(listing)
        try:
            rows, unknown = self._same_files(listing, contents, steps)
            filled = {
                listed.file_id
                for listed in unknown
                if (state := self._rows.get(listed.file_id)) is not None
                and not state.has_fingerprint
                and (listed.generation or self._holds(listed))  # it is certain that it is the same file
            }
            missing = [state for file_id, state in self._rows.items() if file_id not in rows.keys() | filled]
            found_again: set[Place] = set()
            for at, listed in enumerate(listing):
                if listed not in unknown:
                    continue
                place, origins = self._place_of(listing, at, rows, missing, contents)
                found_again.update(origins)
                if place is not None:
                    rows[listed.file_id] = FileState(place, listed.name, listed.size, listed.written_ns)
            if (missing or unknown) and self._names() != self._listed_names:
                raise NamesChanged  # a copy that was made before its origin was truncated may not be listed
        finally:
            for content in contents.values():
                content.file.close()
        newest = next(reversed(self._rows), None)
        if not unknown:  # a file that is new may be a copy that has the lines
            steps += [
                LinesMissing(
                    f"{listed.name}: an unknown number of lines may be missing: it was empty, written and empty"
                )
                for listed in listing
                if self._was_emptied(listed)
            ]
        for state in missing if not self._is_moved else ():
            if state.place not in found_again and (
                state.place.file_id == newest or (state.size > state.place.offset and not _is_packed(state.name))
            ):
                steps.append(LinesMissing(_reason(state, listing)))
        gone = [*self._gone, *(state.place for state in missing if state.place.head_bytes)][-_MAX_GONE:]
        ordered = {listed.file_id: rows[listed.file_id] for listed in listing if listed.file_id in rows}
        is_changed = (
            self._is_first
            or gone != self._gone
            or list(ordered) != list(self._rows)
            or any(not state.has_fingerprint and state != self._rows[file_id] for file_id, state in ordered.items())
        )
        yield from steps
        self._rows, self._gone, self._is_first, self._is_moved = ordered, gone, False, False
        self._compared = {listed for listed in listing if listed.is_settled and listed.file_id in rows}
        self._generations = {replace(listed, generation=0): listed.generation for listed in self._compared}
        self._heads = {file_id: head for file_id, head in self._heads.items() if file_id in rows}
        if is_changed:
            yield self._table()

    def _was_emptied(self, listed: ListedFile) -> bool:
        """Return True if an empty file was empty at the last look as well, and was written in between."""
        state = self._rows.get(listed.file_id)
        return (
            state is not None
            and not state.has_fingerprint
            and listed.size == state.size == 0
            and 0 < state.written_ns < listed.written_ns
        )

    def _same_files(
        self, listing: list[ListedFile], contents: dict[FileId, _Content], steps: list[Step]
    ) -> tuple[dict[FileId, FileState], set[ListedFile]]:
        """Return the rows of files that are the same as in the last turn, and the files that are new or different."""
        rows: dict[FileId, FileState] = {}
        unknown: set[ListedFile] = set()
        for listed in listing:
            state = self._rows.get(listed.file_id)
            if state is not None and listed in self._compared:
                rows[listed.file_id] = _refresh_state(state, listed)
                continue
            try:
                contents[listed.file_id] = content = self._open(listed)
            except PermissionError:
                if listed.name == self._path.resolve().name:
                    raise
                if listed.file_id not in self._unreadable and not self._is_first:
                    steps.append(LinesMissing(f"{listed.name} may not be read: its lines are missing"))
                self._unreadable.add(listed.file_id)
                continue
            if state is not None and content.continues(state.place):
                if not state.place.head_bytes and content.first_bytes:
                    unknown.add(listed)  # it was empty until now, or its inode was given to another file
                elif not state.place.head_bytes and listed.size and not listed.is_packed:
                    raise NamesChanged  # truncated since the listing, so a copy of it may exist by now
                else:
                    rows[listed.file_id] = _refresh_state(state, listed)
            else:
                unknown.add(listed)
        return rows, unknown

    def _place_of(
        self,
        listing: list[ListedFile],
        at: int,
        rows: dict[FileId, FileState],
        missing: list[FileState],
        contents: dict[FileId, _Content],
    ) -> tuple[Place | None, list[Place]]:
        """Return the place where reading of a new inode starts, and the places of the files that it was made from.

        The place is None for a copy of the current file: the copy is read only if the current file is truncated.
        """
        listed, present = listing[at], listing[-1]
        file_id, content = listed.file_id, contents[listed.file_id]
        is_before_start = self._is_first and not self._read_rotated and listed is not present
        if self._rows and self._is_first:  # only a position: files before the one that it names were read
            located = next((index for index, other in enumerate(listing) if other.file_id in rows), len(listing) - 1)
            is_before_start = at < located
        if is_before_start:
            return content.place(file_id, _ALL if listed.is_packed else listed.size), []
        end = content.end()
        if listed.is_packed and not end and not content.is_damaged:  # of a file that stayed empty
            return content.place(file_id, 0), [state.place for state in missing if not state.place.head_bytes]
        if self._is_beginning(listed, end, listing, rows, contents):
            self._copies[file_id] = present.file_id
            return (content.place(file_id, end) if listed.is_settled else None), []
        places = [*(state.place for state in missing), *self._gone, *(state.place for state in rows.values())]
        same = [
            place for place in places if place.head_bytes and content.begins_with(place) and content.continues(place)
        ]
        offsets = [place.offset for place in same if place.offset <= end]
        if offsets or same:
            return content.place(file_id, max(offsets) if offsets else _ALL), same
        for state in missing:  # a copy that was made before the last lines were read
            source, head = state.place.file_id, content.window(0, _WINDOW)
            is_copy = self._copies.get(file_id) == source or (head and self._heads.get(source, b"").startswith(head))
            if is_copy and file_id != source and end <= state.place.offset:
                return content.place(file_id, end), []
        return content.place(file_id, 0), []

    def _is_beginning(
        self,
        listed: ListedFile,
        end: int,
        listing: list[ListedFile],
        rows: dict[FileId, FileState],
        contents: dict[FileId, _Content],
    ) -> bool:
        """Return True if the whole file is the beginning of another one, which is the current one or was recognised."""
        content = contents[listed.file_id]
        for other in reversed(listing):
            is_candidate = other.file_id in rows or other is listing[-1]
            if not end or other is listed or other.is_packed or other.size < end or not is_candidate:
                continue
            place = rows[other.file_id].place if other.file_id in rows else None
            if place and 0 < place.head_bytes <= end and not content.begins_with(place):
                continue
            if other.file_id not in contents:
                contents[other.file_id] = self._open(other)
            if content.begins(contents[other.file_id], end):
                return True
        return False

    def _table(self) -> TableChanged:
        rows = [[str(state.place), state.name, state.size, state.written_ns] for state in self._rows.values()]
        gone = [str(place) for place in self._gone]
        self._reading = None
        table = {"path": str(self._path), "position": self._position, "files": rows, "gone": gone}
        return TableChanged(json.dumps(table))

    # --- lines ---------------------------------------------------------------------------------------------------

    def _read_deleted(self, listing: list[ListedFile]) -> Iterator[Step]:
        """Read the newest file of the last turn to its end if it was deleted but is still open here."""
        if self._held is None:
            return
        file_id = _id_of(self._held)
        state = self._rows.get(file_id)
        if state is None or file_id in {listed.file_id for listed in listing}:
            return
        content = _Content(self._held, self._directory, os.fstat(self._held.fileno()).st_size)
        if content.continues(state.place):
            yield from self._lines(content, state, is_over=True)

    def _hold(self, file: BinaryIO | None) -> None:
        # The newest file stays open: logrotate may delete it before its last lines are read.
        if self._held is not None and self._held is not file:
            self._held.close()
        self._held = file

    def _holds(self, listed: ListedFile) -> bool:
        return self._held is not None and _id_of(self._held) == listed.file_id

    def _read(self, listed: ListedFile, newer: list[ListedFile]) -> Iterator[Step]:
        """Read a file from its place on. The last line may be unfinished as long as no newer file has lines."""
        state = self._rows.get(listed.file_id)
        if state is None or state.place.offset == _ALL:
            return
        if not listed.is_packed and listed.size <= state.place.offset and (newer or self._holds(listed)):
            return
        content = self._open(listed)
        if not newer and not listed.is_packed:
            self._hold(content.file)
        try:
            if not content.continues(state.place):  # truncated since it was looked at
                raise NamesChanged
            yield from self._lines(content, state, is_over=any(file.size for file in newer))
            if listed.is_packed:
                yield from self._finish_packed(listed, content)
        finally:
            if content.file is not self._held:
                content.file.close()

    def _finish_packed(self, listed: ListedFile, content: _Content) -> Iterator[Step]:
        if content.is_damaged:
            if self._wait_for_packed and not listed.is_settled:
                return  # it is being written
            offset = self._rows[listed.file_id].place.offset
            yield LinesMissing(f"{listed.name} is damaged: lines behind byte {offset} are missing")
        state = self._rows[listed.file_id]
        self._rows[listed.file_id] = replace(state, place=replace(state.place, offset=_ALL, last_bytes=0, last=""))
        yield self._table()

    def _lines(self, content: _Content, state: FileState, *, is_over: bool) -> Iterator[Step]:
        """Yield whole lines from a place on; with `is_over` also an unfinished last one."""
        file_id, offset, rest, head = state.place.file_id, state.place.offset, b"", b""
        before = content.window(max(0, offset - _WINDOW), min(offset, _WINDOW))
        if state.place.last_bytes == len(before) and before and _hash(before) != state.place.last:
            raise NamesChanged  # truncated since it was compared
        while True:
            start = offset + len(rest)
            room = _CHUNK if content.size is None else min(_CHUNK, content.size - start)
            chunk = content.window(start, room) if room > 0 else b""
            data = rest + chunk
            *ended, rest = data.split(b"\n")
            lines = [line + b"\n" for line in ended]
            if rest and (len(rest) >= _MAX_LINE or (is_over and not chunk)):
                if (
                    len(rest) < _MAX_LINE and content.has_grown()
                ):  # a copy that was listed half written: its last line goes on
                    raise NamesChanged
                lines.append(rest)
                rest = b""
            if lines:
                end = offset + len(data) - len(rest)
                text, at = before + data, len(before)
                if content.size is None:  # to look back would unpack the file again from its start
                    head = head if len(head) == _WINDOW else content.window(0, min(end, _WINDOW))
                else:
                    head, last = content.window(0, min(end, _WINDOW)), text[-_WINDOW:]
                    is_same = content.continues(self._rows[file_id].place)
                    if not is_same or content.window(offset + len(data) - len(last), len(last)) != last:
                        raise NamesChanged  # truncated while it was read
                head_hash, self._heads[file_id] = _hash(head), head
                batch: list[tuple[bytes, Place]] = []
                for line in lines:
                    offset, at = offset + len(line), at + len(line)
                    last = text[max(0, at - _WINDOW) : at]
                    batch.append((line, Place(*file_id, offset, len(head), head_hash, len(last), _hash(last))))
                before = text[max(0, at - _WINDOW) : at]
                if self._reading not in (None, file_id):
                    yield self._table()
                self._reading = file_id
                yield LinesRead(batch)
                place = batch[-1][1]
                recorded = [after for line, after in batch if line.strip(b"\r\n")]
                self._position = str(recorded[-1]) if recorded else self._position
                self._rows[file_id] = replace(self._rows[file_id], place=place)
            if not chunk:
                return


def _id_of(file: BinaryIO) -> FileId:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, generation_of(file.fileno())


def _refresh_state(state: FileState, listed: ListedFile) -> FileState:
    return replace(state, name=listed.name, size=listed.size, written_ns=listed.written_ns)


def _reason(state: FileState, listing: list[ListedFile]) -> str:
    offset = state.place.offset
    if any(listed.file_id == state.place.file_id for listed in listing):
        return f"{state.name}: file truncated or replaced, lines behind byte {offset} may be missing"
    return (
        f"{state.name}: file deleted between two looks, lines behind byte {offset} and files that were rotated and"
        " deleted since may be missing"
    )
