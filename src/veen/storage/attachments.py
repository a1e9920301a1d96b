"""Ciphertexts of attachments, by the hash of their bytes (spec §4.6, D-15).

They are no part of the log: a hub that loses one loses nothing it signed, and whoever has the bytes can bring them
back, as their name says what they must be. A file is written whole or not at all.
"""

from typing import Final

from veen.core.errors import VerifyError
from veen.core.hashing import H
from veen.storage import layout
from veen.storage.errors import CorruptError, NoSpaceError
from veen.storage.fs import Fs

__all__ = ["AttachmentFiles"]

_MIN_FREE_BYTES: Final = 256 * 1024 * 1024


class AttachmentFiles:
    """A content-addressed set of files. May be used from any thread: each call opens its own file."""

    def __init__(self, fs: Fs, min_free_bytes: int = _MIN_FREE_BYTES) -> None:
        """The log needs the disk more than attachments do: below `min_free_bytes` none is taken."""
        self._fs, self._min_free_bytes = fs, min_free_bytes

    def get(self, coid: bytes) -> bytes | None:
        """The bytes, checked against their name; None if they are not here."""
        path = layout.attachment(coid)
        if not self._fs.exists(path):
            return None
        file = self._fs.open(path)
        try:
            data = file.read_at(0, file.size())
        finally:
            file.close()
        if H(data) != coid:
            raise CorruptError(path, 0, "the attachment is not what its name says")
        return data

    def put(self, coid: bytes, data: bytes) -> bool:
        """Keep the bytes; durable when it returns. False if they were here already."""
        if H(data) != coid:
            raise VerifyError("the hash of the attachment is not its coid")
        path = layout.attachment(coid)
        if self._fs.exists(path):
            return False
        if self._fs.free_bytes() < self._min_free_bytes:
            raise NoSpaceError("too little free space for attachments")
        directory = path.rpartition("/")[0]
        self._fs.make_dir(directory)
        self._fs.sync_dir(layout.ATTACHMENTS)
        self._fs.replace(path, data)
        return True
