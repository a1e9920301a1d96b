"""The files of a portable set: a signed manifest, and CBOR sequences that are written and read piece by piece (D-72).

The manifest lists every other file with its size and hash. It is written last: a set without one is incomplete.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Final, Self

from veen.client.errors import PortableSetInvalid
from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import FormatError, MalformedError
from veen.core.hashing import Ht
from veen.core.wire import Bytes32, Bytes64, Length, Map, Part, Uint
from veen.io.inside import FileRefused, open_inside
from veen.io.local import Fs

MANIFEST: Final = "manifest.cbor"
ATTACHMENTS: Final = "attachments"
_MAX_FILES: Final = 65_536
_PIECE: Final = 1 << 20
_MAX_ITEM_BYTES: Final = 2 * 1024 * 1024  # a MSG has at most half of that


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Part, kind="listed file"):
    """One file of the set."""

    path: str
    size: Uint
    hash: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Map, kind="manifest"):
    """All files of the set, by path, signed by the identity of the set."""

    id_sign_pk: Bytes32
    created_at: Uint
    files: Annotated[tuple[Listed, ...], Length(0, _MAX_FILES)]
    sig: Bytes64

    def _check(self) -> None:
        paths = [listed.path for listed in self.files]
        if paths != sorted(set(paths)):
            raise MalformedError("the files are not listed by path, each once", "manifest.files")

    @classmethod
    def issue(cls, id_sign: ed25519.SigningKey, *, created_at: int, files: Iterable[Listed]) -> Self:
        listed = tuple(sorted(files, key=lambda one: one.path))
        unsigned = cls(id_sign_pk=id_sign.public, created_at=created_at, files=listed, sig=b"")
        return replace(unsigned, sig=id_sign.sign(unsigned._digest()))

    def verify(self) -> None:
        """Raise PortableSetInvalid unless the identity it names signed this list."""
        if not ed25519.verify(self.id_sign_pk, self._digest(), self.sig):
            raise PortableSetInvalid(MANIFEST, "it is not signed by the identity of the set")

    def _digest(self) -> bytes:
        tree = self.to_tree()
        del tree[5]  # the manifest without sig
        return Ht("veen/portable-set", cbor.encode(tree))


class FileWriter:
    """A new file, written in pieces of any size. Memory does not grow with it; `finish` makes it durable."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs, self._path = fs, path
        self._digest, self._size, self._buffer = sha256(), 0, bytearray()
        self._file = fs.open(path, create=True)

    def write(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._buffer += piece
        if len(self._buffer) >= _PIECE:
            self._flush()

    def finish(self) -> Listed:
        self._flush()
        self._file.truncate(self._size)  # removes the rest of an earlier attempt
        self._file.sync()
        self._fs.sync_dir(self._path.rpartition("/")[0])
        return Listed(path=self._path, size=self._size, hash=self._digest.digest())

    def _flush(self) -> None:
        self._file.write_at(self._size, bytes(self._buffer))
        self._size += len(self._buffer)
        self._buffer.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_file(fs: Fs, path: str, pieces: Iterable[bytes]) -> Listed:
    """Write a whole file, durably."""
    with FileWriter(fs, path) as writer:
        for piece in pieces:
            writer.write(piece)
        return writer.finish()


def _pieces(fs: Fs, path: str) -> Iterator[bytes]:
    """Yield the bytes of a file, a megabyte at a time."""
    try:
        file = open_inside(fs, path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as exc:
        raise PortableSetInvalid(path, "the file is missing") from exc
    except FileRefused as exc:
        raise PortableSetInvalid(path, str(exc)) from exc
    try:
        offset = 0
        while piece := file.read_at(offset, _PIECE):
            offset += len(piece)
            yield piece
    finally:
        file.close()


def check_file(fs: Fs, listed: Listed) -> None:
    """Raise PortableSetInvalid unless the file is the listed one."""
    for _ in _read_listed(fs, listed):
        pass


def copy_file(source: Fs, listed: Listed, target: Fs) -> None:
    """Copy a file, and raise PortableSetInvalid unless it is the listed one."""
    write_file(target, listed.path, _read_listed(source, listed))


def _read_listed(fs: Fs, listed: Listed) -> Iterator[bytes]:
    digest, size = sha256(), 0
    for piece in _pieces(fs, listed.path):
        digest.update(piece)
        size += len(piece)
        if size > listed.size:
            break  # too long: no need to read on
        yield piece
    if size != listed.size:
        what = "longer" if size > listed.size else f"{listed.size - size} bytes shorter"
        raise PortableSetInvalid(listed.path, f"the file is {what} than what was exported")
    if digest.digest() != listed.hash:
        raise PortableSetInvalid(listed.path, "the file was altered: its hash is not that of what was exported")


def items(fs: Fs, path: str) -> Iterator[bytes]:
    """Yield the raw items of a CBOR sequence (RFC 8742), in a window that does not grow with the file."""
    window = bytearray()
    pieces = _pieces(fs, path)
    more = True
    while more or window:
        while more and len(window) < _MAX_ITEM_BYTES:
            piece = next(pieces, b"")
            more = bool(piece)
            window += piece
        if not window:
            return
        data = bytes(window)
        pos = 0
        # Items that are certainly complete in the window, or all of them once the file has ended.
        while pos < len(data) and (not more or len(data) - pos >= _MAX_ITEM_BYTES):
            try:
                end = cbor.item_end(data, pos, what=path)
            except FormatError as exc:
                raise PortableSetInvalid(path, str(exc)) from exc
            yield data[pos:end]
            pos = end
        del window[:pos]
