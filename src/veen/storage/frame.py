"""A log entry on disk: a fixed header, then MSG and RECEIPT (spec §4.8.1)."""

from collections.abc import Iterator
from typing import NamedTuple

from veen.core.entry import FRAME, FRAME_VERSION, MAX_RECEIPT_BYTES, entry_hash_of
from veen.core.entry import FRAME_BYTES as HEADER_BYTES
from veen.core.limits import DEFAULT_LIMITS
from veen.io.errors import CorruptError

__all__ = ["HEADER_BYTES", "Frame", "bytes_needed", "encode", "entry_hash_of", "frames", "pack", "read"]


class Frame(NamedTuple):
    """One entry as stored in a chunk or in the journal."""

    label: bytes
    stream_seq: int
    msg: bytes
    receipt: bytes
    entry_hash: bytes

    @property
    def size(self) -> int:
        return HEADER_BYTES + len(self.msg) + len(self.receipt)

    def to_bytes(self) -> bytes:
        header = FRAME.pack(
            FRAME_VERSION, 0, self.label, self.stream_seq, len(self.msg), len(self.receipt), self.entry_hash
        )
        return b"".join((header, self.msg, self.receipt))


def pack(label: bytes, stream_seq: int, msg: bytes, receipt: bytes) -> tuple[bytes, bytes]:
    """Return `encode(…).to_bytes()` and the entry_hash, for a hub that frames thousands a second."""
    entry_hash = entry_hash_of(msg, receipt)
    header = FRAME.pack(FRAME_VERSION, 0, label, stream_seq, len(msg), len(receipt), entry_hash)
    return b"".join((header, msg, receipt)), entry_hash


def encode(label: bytes, stream_seq: int, msg: bytes, receipt: bytes) -> Frame:
    """Frame a pair; the hashed bytes are the written bytes (DESIGN §3)."""
    return Frame(label, stream_seq, msg, receipt, entry_hash_of(msg, receipt))


def read(data: bytes, offset: int, *, path: str = "", base: int = 0) -> tuple[Frame, int]:
    """Return the frame at `offset`, fully checked, and its end; CorruptError names `path` and `base + offset`."""
    where = base + offset
    if len(data) < offset + HEADER_BYTES:
        raise CorruptError(path, where, "the file ends inside a frame header")
    version, flags, label, stream_seq, msg_len, receipt_len, entry_hash = FRAME.unpack_from(data, offset)
    if version != FRAME_VERSION or flags:
        raise CorruptError(path, where, f"no frame begins here (version {version}, flags {flags})")
    if msg_len > DEFAULT_LIMITS.max_msg_bytes or receipt_len > MAX_RECEIPT_BYTES:
        raise CorruptError(path, where, "the frame claims an impossible length")
    body = offset + HEADER_BYTES
    middle, end = body + msg_len, body + msg_len + receipt_len
    if len(data) < end:
        raise CorruptError(path, where, "the file ends inside a frame")
    msg, receipt = data[body:middle], data[middle:end]
    if entry_hash_of(msg, receipt) != entry_hash:
        raise CorruptError(path, where, f"entry {stream_seq}: entry_hash does not match its bytes")
    return Frame(label, stream_seq, msg, receipt, entry_hash), end


def bytes_needed(data: bytes | bytearray, offset: int) -> int:
    """Return the number of bytes from `offset` that `read` needs; that of a header while there is no valid one."""
    if len(data) < offset + HEADER_BYTES:
        return HEADER_BYTES
    _, _, _, _, msg_len, receipt_len, _ = FRAME.unpack_from(data, offset)
    if msg_len > DEFAULT_LIMITS.max_msg_bytes or receipt_len > MAX_RECEIPT_BYTES:
        return HEADER_BYTES  # `read` refuses it
    return HEADER_BYTES + int(msg_len) + int(receipt_len)


def frames(data: bytes, *, path: str = "", base: int = 0) -> Iterator[tuple[int, Frame]]:
    """Yield every frame in `data` with its offset; raise CorruptError at the first invalid byte."""
    offset = 0
    while offset < len(data):
        frame, end = read(data, offset, path=path, base=base)
        yield base + offset, frame
        offset = end
