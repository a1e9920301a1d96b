"""Columns of many frames, decoded with NumPy by the layout of a frame, a MSG and a RECEIPT.

Only a walk over the frame lengths touches entries one by one. Every other field is gathered for the whole buffer, and
every byte that the layout fixes is compared for the whole buffer, so following the layout is the canonical check, as in
`Msg.from_bytes`. A buffer that departs from it anywhere raises `Departs`: the caller then reads it entry by entry,
which names the fault.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veen.core.entry import (
    ENTRY_TAG,
    FRAME_BYTES,
    FRAME_HASH_AT,
    FRAME_HEAD,
    FRAME_LENGTHS,
    FRAME_LENGTHS_AT,
    FRAME_SEQ_AT,
    HASH_BYTES,
    HASH_HEAD,
    HASH_ITEM,
    HEAD_BYTES,
    LEAF_TAG,
    MSG_CLIENT_AT,
    MSG_HEAD,
    MSG_LABEL_AT,
    MSG_PROFILE_AT,
    MSG_SEQ_AT,
    NULL_HEAD,
    RECEIPT_HEAD,
    RECEIPT_SEQ_AT,
    SIG_BYTES,
    SIG_HEAD,
)

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_UINT_SIZES: Final = np.array([1] * 24 + [2, 3, 5, 9] + [0] * 4, dtype=np.int64)  # by the low five bits of the head
_LEAST: Final = np.array([0] * 24 + [24, 1 << 8, 1 << 16, 1 << 32] + [0] * 4, dtype=np.uint64)  # shortest form (I10)


class Departs(Exception):
    """An entry of the buffer does not follow the layout."""


@dataclass(frozen=True, slots=True)
class Vector:
    """The entries of one buffer: the start of each field, and the decoded numbers."""

    data: Bytes
    frame_at: Ints
    frame_length: Ints
    msg_at: Ints
    receipt_at: Ints
    stream_seq: Ints
    client_seq: Ints
    prev_ack: Ints
    hub_ts: Ints
    auth_ref_at: Ints  # -1 where it is null
    ct_hash_at: Ints
    ciphertext_at: Ints
    msg_sig_at: Ints
    leaf_at: Ints
    root_at: Ints
    hub_sig_at: Ints

    def __len__(self) -> int:
        return len(self.frame_at)

    @property
    def end(self) -> int:
        """The end of the last whole frame."""
        return int(self.frame_at[-1] + self.frame_length[-1]) if len(self) else 0

    def counts(self, first: int, last: int) -> bool:
        """Return True if the entries are those from `first` to `last`, whatever a file name claims."""
        return len(self) == last - first + 1 and np.array_equal(self.stream_seq, np.arange(first, last + 1))

    def rows(self, at: Ints, size: int = HASH_BYTES) -> Bytes:
        """Return the fields of `size` bytes that begin at `at`, one row each."""
        return _rows(self.data, at, size)


def _rows(data: Bytes, at: Ints, size: int) -> Bytes:
    """Return `size` bytes from each of `at`, all inside of `data`, as rows of a view, without an index of each byte."""
    if not len(at):
        return np.empty((0, size), dtype=np.uint8)
    windows = np.lib.stride_tricks.as_strided(data, (len(data) - size + 1, size), (1, 1), writeable=False)
    rows: Bytes = windows[at]
    return rows


def walk(data: bytes | memoryview, limit: int) -> tuple[Ints, Ints, Ints]:
    """Return the starts of frames, and the lengths of their MSG and RECEIPT; omit an incomplete frame."""
    places: list[int] = []
    lengths: list[int] = []
    unpack, pos, size = FRAME_LENGTHS.unpack_from, 0, len(data)
    while pos + FRAME_BYTES <= size:
        msg, receipt = unpack(data, pos + FRAME_LENGTHS_AT)
        end = pos + FRAME_BYTES + msg + receipt
        if msg > limit:
            raise Departs
        if end > size:
            break
        places.append(pos)
        lengths += (msg, receipt)
        pos = end
    pairs = np.array(lengths, dtype=np.int64).reshape(-1, 2)
    return np.array(places, dtype=np.int64), pairs[:, 0], pairs[:, 1]


def decode(data: bytes | memoryview, label: bytes, *, max_msg_bytes: int) -> Vector:
    """Decode the whole frames at the beginning of `data`; raise Departs unless all are canonical entries of `label`."""
    frame_at, msg_length, receipt_length = walk(data, max_msg_bytes)
    array = np.frombuffer(data, dtype=np.uint8)
    reader = _Layout(array)
    reader.expect(frame_at, FRAME_HEAD + label)
    msg_at = frame_at + FRAME_BYTES
    receipt_at = msg_at + msg_length
    end = receipt_at + receipt_length
    stream_seq = reader.big_endian(frame_at + FRAME_SEQ_AT, 8)

    reader.expect(msg_at, MSG_HEAD)
    reader.expect(msg_at + MSG_LABEL_AT - HEAD_BYTES, HASH_HEAD + label)
    reader.expect(msg_at + MSG_CLIENT_AT - HEAD_BYTES, HASH_HEAD)
    client_seq, at = reader.uint(msg_at + MSG_SEQ_AT)
    prev_ack, at = reader.uint(at)
    null = reader.byte(at) == NULL_HEAD[0]
    reader.expect(at[~null], HASH_HEAD)
    auth_ref_at = np.where(null, -1, at + HEAD_BYTES)
    at = np.where(null, at + len(NULL_HEAD), at + HASH_ITEM)
    reader.expect(at, HASH_HEAD)
    ct_hash_at = at + HEAD_BYTES
    ct_length, ciphertext_at = reader.uint(ct_hash_at + HASH_BYTES, major=2)
    msg_sig_at = ciphertext_at + ct_length + HEAD_BYTES
    if not np.array_equal(msg_sig_at + SIG_BYTES, receipt_at):
        raise Departs
    reader.expect(msg_sig_at - HEAD_BYTES, SIG_HEAD)

    reader.expect(receipt_at, RECEIPT_HEAD + label)
    receipt_seq, at = reader.uint(receipt_at + RECEIPT_SEQ_AT)
    reader.expect(at, HASH_HEAD)
    leaf_at = at + HEAD_BYTES
    reader.expect(leaf_at + HASH_BYTES, HASH_HEAD)
    root_at = leaf_at + HASH_ITEM
    hub_ts, at = reader.uint(root_at + HASH_BYTES)
    reader.expect(at, SIG_HEAD)
    hub_sig_at = at + HEAD_BYTES
    if not np.array_equal(hub_sig_at + SIG_BYTES, end) or not np.array_equal(receipt_seq, stream_seq):
        raise Departs
    return Vector(
        data=array,
        frame_at=frame_at,
        frame_length=end - frame_at,
        msg_at=msg_at,
        receipt_at=receipt_at,
        stream_seq=stream_seq,
        client_seq=client_seq,
        prev_ack=prev_ack,
        hub_ts=hub_ts,
        auth_ref_at=auth_ref_at,
        ct_hash_at=ct_hash_at,
        ciphertext_at=ciphertext_at,
        msg_sig_at=msg_sig_at,
        leaf_at=leaf_at,
        root_at=root_at,
        hub_sig_at=hub_sig_at,
    )


def hashes_hold(data: bytes, v: Vector, label: bytes) -> bool:
    """Return True if entry_hash, ct_hash (I1) and leaf_hash (I2) are true for every decoded entry."""
    ends = (v.frame_at + v.frame_length).tolist()
    whole = zip(v.msg_at.tolist(), ends, strict=True)
    if not _equal(v, v.frame_at + FRAME_HASH_AT, [sha256(ENTRY_TAG + data[at:end]).digest() for at, end in whole]):
        return False
    sealed = zip(v.ciphertext_at.tolist(), (v.msg_sig_at - HEAD_BYTES).tolist(), strict=True)
    if not _equal(v, v.ct_hash_at, [sha256(data[at:end]).digest() for at, end in sealed]):
        return False
    return _equal(v, v.leaf_at, _leaf_hashes(v, label))


def _leaf_hashes(v: Vector, label: bytes) -> list[bytes]:
    """Return leaf_hash of every entry, computed from its MSG."""
    profiles, clients = v.rows(v.msg_at + MSG_PROFILE_AT), v.rows(v.msg_at + MSG_CLIENT_AT)
    seqs = v.client_seq.astype(">u8").view(np.uint8).reshape(-1, 8)
    begin = np.frombuffer(LEAF_TAG + label, dtype=np.uint8)
    parts = (np.broadcast_to(begin, (len(v), len(begin))), profiles, v.rows(v.ct_hash_at), clients, seqs)
    rows = np.concatenate(parts, axis=1)
    joined, width = rows.tobytes(), rows.shape[1]
    return [sha256(joined[at : at + width]).digest() for at in range(0, len(joined), width)]


def _equal(v: Vector, at: Ints, hashes: list[bytes]) -> bool:
    """Return True if the fields that begin at `at` have these hashes."""
    return v.rows(at).tobytes() == b"".join(hashes)


class _Layout:
    """Reader at many places of one buffer; a place outside of it raises Departs."""

    def __init__(self, data: Bytes) -> None:
        self._data = data

    def gather(self, at: Ints, size: int) -> Bytes:
        if len(at) and (int(at.min()) < 0 or int(at.max()) + size > len(self._data)):
            raise Departs
        return _rows(self._data, at, size)

    def byte(self, at: Ints) -> Bytes:
        return self.gather(at, 1)[:, 0]

    def expect(self, at: Ints, constant: bytes) -> None:
        if not (self.gather(at, len(constant)) == np.frombuffer(constant, dtype=np.uint8)).all():
            raise Departs

    def big_endian(self, at: Ints, size: int) -> Ints:
        """Return unsigned numbers below 2^63, like all stored numbers (D-07)."""
        wide: Any = np.zeros((len(at), 8), dtype=np.uint8)
        wide[:, 8 - size :] = self.gather(at, size)
        if size == 8 and (wide[:, 0] & 0x80).any():
            raise Departs
        numbers: Ints = wide.view(">u8")[:, 0].astype(np.int64)
        return numbers

    def uint(self, at: Ints, major: int = 0) -> tuple[Ints, Ints]:
        """Return CBOR integers (or lengths, by major type) in their shortest form, and the end of each."""
        head = self.byte(at)
        if (head >> 5 != major).any():
            raise Departs
        low = head & 0x1F
        sizes = _UINT_SIZES[low]
        if (sizes == 0).any():
            raise Departs
        values = low.astype(np.int64)
        for size in (2, 3, 5, 9):
            chosen = sizes == size
            if chosen.any():
                values[chosen] = self.big_endian(at[chosen] + 1, size - 1)
        if (values.astype(np.uint64) < np.where(low < 24, 0, _LEAST[low])).any():
            raise Departs
        return values, at + sizes
