"""Entries as Arrow batches: the fast decoder for chunks that are well, the strict one for those that are not.

Every entry of a pinned chunk is one row. A row whose entry is damaged, erased or gone says so (`ok`, `reason`) and has
as many of its fields as can be trusted; none is left out and none stops the others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from veen.core import ed25519
from veen.core.errors import VeenError, VerifyError
from veen.core.hashing import tag_prefix, u64be
from veen.core.hubkeys import HubIdentity
from veen.core.limits import DEFAULT_LIMITS
from veen.core.msg import Msg
from veen.core.receipt import Receipt
from veen.pipeline.columns import ENTRIES, Column
from veen.pipeline.cut import Cut
from veen.pipeline.inventory import ChunkRef, read_chunk
from veen.pipeline.vector import Departs, Vector, decode
from veen.storage import archive, frame
from veen.storage.errors import CorruptError
from veen.storage.fs import Fs
from veen.storage.scan import item_of

__all__ = ["LEVELS", "Level", "Row", "batches", "from_frames", "from_rows", "lost"]

Level = Literal["none", "hash", "receipt", "full"]
LEVELS: Final[tuple[Level, ...]] = ("none", "hash", "receipt", "full")

_MAX_HOLE: Final = 1 << 20
_LEAF: Final = tag_prefix("veen/leaf")

Row = dict[str, Any]


def batches(
    fs: Fs,
    ref: ChunkRef,
    columns: Sequence[Column],
    *,
    level: Level = "hash",
    identity: HubIdentity | None = None,
    first: int = 0,
    last: int | None = None,
    first_ts: int | None = None,
    last_ts: int | None = None,
    fail_fast: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The entries of `ref`, or those of them within the bounds, checked as far as `level` says.

    none: shape only. hash: entry_hash, I1, I2. receipt: the hub's signature as well. full: the writer's, too.
    """
    if last is not None and last >= ref.end_seq:
        last = None  # what a damaged file has behind its last entry is told as well
    cut = Cut(columns=tuple(columns), first=first, last=last, first_ts=first_ts, last_ts=last_ts, fail_fast=fail_fast)
    yield from cut.batches(_table(fs, ref, cut.wanted, level, identity))


def _table(fs: Fs, ref: ChunkRef, wanted: set[str], level: Level, identity: HubIdentity | None) -> pa.Table:
    if ref.kind in ("receipts", "heads"):
        return from_rows(_erased(fs, ref), ref, wanted)
    if ref.kind == "missing":
        return from_rows(_missing(ref), ref, wanted)
    try:
        data = read_chunk(fs, ref)
    except (VeenError, OSError) as exc:
        return from_rows(lost(ref, ref.start_seq, 0, str(exc)), ref, wanted)
    return from_frames(data, ref, wanted, level, identity)


def from_frames(data: bytes, ref: ChunkRef, wanted: set[str], level: Level, identity: HubIdentity | None) -> pa.Table:
    """The frames of `ref`, one row each, whatever is wrong with them."""
    try:
        vector = decode(data, ref.label, max_msg_bytes=DEFAULT_LIMITS.max_msg_bytes)
        expected = np.arange(ref.start_seq, ref.end_seq + 1)
        if vector.end != len(data) or not np.array_equal(vector.stream_seq, expected):
            raise Departs
        if _faults(data, vector, level, identity):
            raise Departs
    except Departs:
        return from_rows(_one_by_one(data, ref, level, identity), ref, wanted)
    return _from_vector(data, vector, ref, wanted)


# --- fast ----------------------------------------------------------------------------------------------------


def _faults(data: bytes, v: Vector, level: Level, identity: HubIdentity | None) -> bool:
    """Whether any entry fails a check of `level`; the slow path then says which, and why."""
    if level == "none":
        return False
    rows = zip(
        v.frame_at.tolist(),
        v.msg_at.tolist(),
        v.receipt_at.tolist(),
        (v.frame_at + v.frame_length).tolist(),
        v.ct_hash_at.tolist(),
        v.ciphertext_at.tolist(),
        v.msg_sig_at.tolist(),
        v.leaf_at.tolist(),
        v.client_seq.tolist(),
        strict=True,
    )
    for frame_at, msg_at, receipt_at, end, ct_hash_at, ciphertext_at, sig_at, leaf_at, client_seq in rows:
        if sha256(b"veen/entry" + data[msg_at:end]).digest() != data[frame_at + 50 : frame_at + 82]:
            return True
        ct_hash = data[ct_hash_at : ct_hash_at + 32]
        if sha256(data[ciphertext_at : sig_at - 2]).digest() != ct_hash:  # I1
            return True
        leaf = b"".join(
            (
                _LEAF,
                data[msg_at + 38 : msg_at + 70],
                data[msg_at + 4 : msg_at + 36],
                ct_hash,
                data[msg_at + 72 : msg_at + 104],
                u64be(client_seq),
            )
        )
        if sha256(leaf).digest() != data[leaf_at : leaf_at + 32]:  # I2
            return True
        if level != "hash" and _signature_fault(data[msg_at:receipt_at], data[receipt_at:end], level, identity):
            return True
    return False


def _signature_fault(raw: bytes, receipt_raw: bytes, level: Level, identity: HubIdentity | None) -> str | None:
    receipt = Receipt.from_bytes(receipt_raw)
    if identity is None:
        return "there is no identity to hold its RECEIPT to"
    try:
        key = identity.signing_key_at(receipt.hub_ts)
        receipt.verify(key.hub_pk)
    except VerifyError as exc:
        return str(exc)
    if level == "full":
        msg = Msg.from_bytes(raw)
        if not ed25519.verify(msg.client_id, Msg.digest_of(raw), msg.sig):
            return "sig does not verify under client_id"
    return None


def _from_vector(data: bytes, v: Vector, ref: ChunkRef, wanted: set[str]) -> pa.Table:
    count = len(v)

    def hashes(at: Any, size: int = 32) -> pa.Array:
        flat = np.ascontiguousarray(v.fixed(at, size)).reshape(-1)
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(flat)])

    def slices(start: Any, end: Any) -> pa.Array:
        return pa.array([data[a:b] for a, b in zip(start.tolist(), end.tolist(), strict=True)], pa.binary())

    def auth_refs() -> pa.Array:
        null = v.auth_ref_at < 0
        return (
            pa.array([None if at < 0 else data[at : at + 32] for at in v.auth_ref_at.tolist()], pa.binary())
            if null.any()
            else hashes(v.auth_ref_at)
        )

    def constant(value: Any, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), count)

    end = v.frame_at + v.frame_length
    make: dict[str, Callable[[], pa.Array]] = {
        "label": lambda: constant(ref.label, pa.binary()),
        "epoch": lambda: constant(ref.epoch, pa.int64()),
        "stream_id": lambda: constant(ref.stream_id, pa.binary()),
        "stream_seq": lambda: pa.array(v.stream_seq),
        "hub_ts": lambda: pa.array(v.hub_ts),
        "leaf_hash": lambda: hashes(v.leaf_at),
        "mmr_root": lambda: hashes(v.root_at),
        "hub_sig": lambda: hashes(v.hub_sig_at, 64),
        "entry_hash": lambda: hashes(v.frame_at + 50),
        "profile_id": lambda: hashes(v.msg_at + 4),
        "client_id": lambda: hashes(v.msg_at + 72),
        "client_seq": lambda: pa.array(v.client_seq),
        "prev_ack": lambda: pa.array(v.prev_ack),
        "auth_ref": auth_refs,
        "ct_hash": lambda: hashes(v.ct_hash_at),
        "ciphertext": lambda: slices(v.ciphertext_at, v.msg_sig_at - 2),
        "msg_sig": lambda: hashes(v.msg_sig_at, 64),
        "msg": lambda: slices(v.msg_at, v.receipt_at),
        "receipt": lambda: slices(v.receipt_at, end),
        "path": lambda: constant(ref.path, pa.string()),
        "frame_offset": lambda: pa.array(v.frame_at),
        "frame_length": lambda: pa.array(v.frame_length),
        "ok": lambda: constant(True, pa.bool_()),
        "reason": lambda: constant(None, pa.string()),
    }
    return pa.table({name: make[name]() for name in make if name in wanted})


# --- one by one ----------------------------------------------------------------------------------------------


def _one_by_one(data: bytes, ref: ChunkRef, level: Level, identity: HubIdentity | None) -> Iterator[Row]:
    """The strict reader. Behind a frame whose lengths cannot be believed nothing can be found any more."""
    pos = 0
    for seq in range(ref.start_seq, ref.end_seq + 1):
        wanted = frame.wanted(data, pos)
        if pos + wanted > len(data) or wanted == frame.HEADER_BYTES:
            yield from lost(ref, seq, pos, _why(data, pos, ref))
            return
        yield _checked(data[pos : pos + wanted], ref, seq, pos, level, identity)
        pos += wanted
    if pos != len(data):
        reason = "bytes follow the last entry that the name of the file speaks of"
        yield {"stream_seq": ref.end_seq + 1, "frame_offset": pos, "ok": False, "reason": reason}


def _why(data: bytes, pos: int, ref: ChunkRef) -> str:
    try:
        frame.read(data, pos, path=ref.path)
    except CorruptError as exc:
        return str(exc)
    return "the file ends before this entry"


def _checked(data: bytes, ref: ChunkRef, seq: int, pos: int, level: Level, identity: HubIdentity | None) -> Row:
    row: Row = {"stream_seq": seq, "frame_offset": pos, "frame_length": len(data), "ok": False}
    try:
        found, _ = frame.read(data, 0, path=ref.path, base=pos)
        if found.stream_seq != seq:
            return row | {"reason": f"entry {found.stream_seq} is where entry {seq} belongs"}
        item = item_of(found, ref.label, ref.path, pos)
    except CorruptError as exc:
        return row | {"reason": str(exc)}
    msg, receipt = item.msg, item.receipt
    assert msg is not None  # noqa: S101 - item_of has read both
    assert receipt is not None  # noqa: S101 - as above
    reason = None
    if level in ("receipt", "full"):
        reason = _signature_fault(found.msg, found.receipt, level, identity)  # item_of has read the same bytes
    return row | {
        "hub_ts": receipt.hub_ts,
        "leaf_hash": receipt.leaf_hash,
        "mmr_root": receipt.mmr_root,
        "hub_sig": receipt.hub_sig,
        "entry_hash": found.entry_hash,
        "profile_id": msg.profile_id,
        "client_id": msg.client_id,
        "client_seq": msg.client_seq,
        "prev_ack": msg.prev_ack,
        "auth_ref": msg.auth_ref,
        "ct_hash": msg.ct_hash,
        "ciphertext": msg.ciphertext,
        "msg_sig": msg.sig,
        "msg": found.msg,
        "receipt": found.receipt,
        "ok": reason is None,
        "reason": reason,
    }


def _erased(fs: Fs, ref: ChunkRef) -> Iterator[Row]:
    """What is left of a chunk whose payloads were erased (D-74)."""
    seq = ref.start_seq
    try:
        for item in archive.items(fs, ref.label, ref.start_seq, ref.end_seq, receipts=ref.kind == "receipts"):
            receipt = item.receipt
            yield {
                "stream_seq": item.stream_seq,
                "hub_ts": item.hub_ts,
                "leaf_hash": item.leaf_hash,
                "mmr_root": receipt.mmr_root if receipt else None,
                "hub_sig": receipt.hub_sig if receipt else None,
                "entry_hash": item.entry_hash,
                "client_id": item.client_id,
                "client_seq": item.client_seq,
                "prev_ack": item.prev_ack,
                "auth_ref": item.auth_ref,
                "receipt": receipt.to_bytes() if receipt else None,
                "frame_offset": item.offset,
                "frame_length": item.length,
                "ok": False,
                "reason": "erased under the retention policy",
            }
            seq = item.stream_seq + 1
    except (VeenError, OSError) as exc:
        yield from lost(ref, seq, 0, str(exc))


def _missing(ref: ChunkRef) -> Iterator[Row]:
    """A row for each entry that no file has; a hole that only a file name claims to be huge is one row."""
    if ref.entries > _MAX_HOLE:
        reason = f"no file has this entry, nor those after it up to {ref.end_seq}"
        yield {"stream_seq": ref.start_seq, "ok": False, "reason": reason}
        return
    for seq in range(ref.start_seq, ref.end_seq + 1):
        yield {"stream_seq": seq, "ok": False, "reason": "no file has this entry"}


def lost(ref: ChunkRef, first: int, offset: int, reason: str) -> Iterator[Row]:
    """A row for each entry that nothing is known of."""
    yield {"stream_seq": first, "frame_offset": offset, "ok": False, "reason": reason}
    behind = f"cannot be found behind the damage at entry {first}"
    for seq in range(first + 1, ref.end_seq + 1):
        yield {"stream_seq": seq, "ok": False, "reason": behind}


def from_rows(rows: Iterable[Row], ref: ChunkRef, wanted: set[str]) -> pa.Table:
    """A table of rows that have some of the columns each."""
    fixed = {"label": ref.label, "epoch": ref.epoch, "stream_id": ref.stream_id, "path": ref.path or None}
    made = [fixed | row for row in rows]
    columns = [column for column in ENTRIES if column.name in wanted]
    return pa.table({column.name: pa.array([row.get(column.name) for row in made], column.arrow) for column in columns})
