"""Pass 2 for chunks in which nothing is wrong, which is nearly all: the same checks, many entries at once.

At the first thing that is not as it must be it gives up, and `chunk` reads the chunk again, entry by entry, to say what
and where. So the two never disagree about a verdict; they differ in speed alone (DESIGN §8: signatures must be all that
an audit spends time on).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np

from veen.core import ed25519
from veen.core.hashing import tag_prefix, u64be
from veen.core.labels import epoch_window
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.mmr import LABEL_TAGS, Mmr, Span
from veen.core.msg import Msg
from veen.pipeline.audit.context import Context
from veen.pipeline.audit.folding import Peaks
from veen.pipeline.inventory import ChunkRef
from veen.pipeline.vector import Departs, Vector, decode
from veen.storage.frame import HEADER_BYTES

__all__ = ["Clean", "Writer", "quick_check"]

_ENTRY: Final = b"veen/entry"
_LEAF: Final = tag_prefix("veen/leaf")
_RECEIPT: Final = tag_prefix("veen/sig") + b"\x86"  # before the six signed items (spec §4.3)
_CT_PREFIX: Final = 40  # enc, hdr_len, body_len (spec §4.2)


class Writer(NamedTuple):
    """What a chunk tells of one writer: enough to join it to the chunks around it (I8, I9)."""

    client_id: bytes
    stream_seq: int  # of the first entry, and where it lies
    offset: int
    first_seq: int
    first_ack: int
    first_lost: int  # entries of unknown writers before it in this chunk
    last_seq: int
    last_ack: int
    last_lost: int


@dataclass(slots=True)
class Clean:
    """What a chunk without faults adds up to."""

    mmr: Mmr
    entry_hashes: Mmr
    size: int
    first_length: int
    first_ts: int
    last_ts: int
    signatures: int = 0
    epoch_secs: set[int] = field(default_factory=set)
    writers: dict[bytes, Writer] = field(default_factory=dict)


def quick_check(data: bytes, ref: ChunkRef, context: Context, peaks: Peaks) -> Clean | None:
    """The sums of the chunk, if every check holds for every entry; None if any does not, or cannot be told here."""
    try:
        v = decode(data, ref.label, max_msg_bytes=DEFAULT_LIMITS.max_msg_bytes)
    except Departs:
        return None
    if not len(v) or v.end != len(data) or not np.array_equal(v.stream_seq, np.arange(ref.start_seq, ref.end_seq + 1)):
        return None
    if (np.diff(v.hub_ts) < 0).any() or (v.prev_ack >= v.stream_seq).any() or not _sizes_hold(data, v, context):
        return None
    mmr = _tree_after(Mmr(ref.start_seq - 1, peaks), _cut(data, v.leaf_at), _cut(data, v.root_at))
    if mmr is None:  # I3
        return None
    entry_hashes = Span.of(0, _cut(data, v.frame_at + 50) if ref.kind != "active" else ())
    clean = Clean(
        mmr=mmr,
        entry_hashes=Mmr(entry_hashes.end, entry_hashes.peaks()),
        size=len(data),
        first_length=int(v.frame_length[0]),
        first_ts=int(v.hub_ts[0]),
        last_ts=int(v.hub_ts[-1]),
    )
    if not _profiles_hold(data, v, ref, context, clean) or not _entries_hold(data, v, ref, context, clean):
        return None
    return clean


def _cut(data: bytes, at: Any) -> list[bytes]:
    return [data[place : place + 32] for place in at.tolist()]


def _tree_after(before: Mmr, leaves: Sequence[bytes], roots: Sequence[bytes]) -> Mmr | None:
    """The tree behind the last leaf, if it had the given root after each. As Mmr does it, without a call for each."""
    node_prefix, root_prefix = LABEL_TAGS.node_prefix, LABEL_TAGS.root_prefix
    stack, size = list(reversed(before.peaks())), before.size
    for leaf, root in zip(leaves, roots, strict=True):
        node, carry = leaf, size
        while carry & 1:  # a peak of this height stands alone: join it
            node = sha256(node_prefix + stack.pop() + node).digest()
            carry >>= 1
        stack.append(node)
        size += 1
        if (sha256(root_prefix + b"".join(stack[::-1])).digest() if len(stack) > 1 else node) != root:
            return None
    return Mmr(size, tuple(reversed(stack)))


def _limits_of(v: Vector, context: Context) -> list[Limits]:
    """All limits that were in force at some time of the chunk."""
    between = context.control.limits_between(int(v.hub_ts[0]), int(v.hub_ts[-1]))
    return [found or DEFAULT_LIMITS for found in between]


def _sizes_hold(data: bytes, v: Vector, context: Context) -> bool:
    """I11, by the tightest limits of the chunk."""
    limits = _limits_of(v, context)
    length = v.msg_sig_at - 2 - v.ciphertext_at
    if int((v.receipt_at - v.msg_at).max()) > min(found.max_msg_bytes for found in limits):
        return False
    if int(length.min()) < _CT_PREFIX:
        return False
    lengths: Any = np.ascontiguousarray(v.fixed(v.ciphertext_at + 32, 8)).view(">u4").astype(np.int64)
    hdr, body = lengths[:, 0], lengths[:, 1]
    if int(hdr.max()) > min(found.max_hdr_bytes for found in limits):
        return False
    if int(body.max()) > min(found.max_body_bytes for found in limits):
        return False
    used = _CT_PREFIX + hdr + body
    if (used > length).any():
        return False
    padded = np.flatnonzero(used < length)
    starts, ends = (v.ciphertext_at + used)[padded].tolist(), (v.ciphertext_at + length)[padded].tolist()
    return all(data.count(0, start, end) == end - start for start, end in zip(starts, ends, strict=True))


def _profiles_hold(data: bytes, v: Vector, ref: ChunkRef, context: Context, clean: Clean) -> bool:
    """I4 and I12."""
    found = {data[at + 4 : at + 36] for at in v.msg_at.tolist()}
    if not found <= context.profiles.keys():
        return False
    clean.epoch_secs = {context.profiles[profile] for profile in found}
    opened = context.opened(ref.label)
    if opened is None:
        return True
    skews = [limits.max_epoch_skew_sec for limits in _limits_of(v, context)]
    for epoch_sec in clean.epoch_secs:
        window = epoch_window(epoch_sec, min(skews))
        epochs = v.hub_ts // epoch_sec if epoch_sec else np.zeros(1, dtype=np.int64)
        if (np.abs(epochs - opened.epoch) > window).any():
            return False
    return True


def _entries_hold(data: bytes, v: Vector, ref: ChunkRef, context: Context, clean: Clean) -> bool:
    """Hashes, signatures, writers and authority, in one walk."""
    label, every = ref.label, context.level == "full"
    writers: dict[bytes, list[int]] = {}  # the fields of a Writer behind its client_id
    is_signed, may_write = _signed_by(context), _authority(context, label)
    rows = zip(
        v.frame_at.tolist(),
        v.msg_at.tolist(),
        v.receipt_at.tolist(),
        (v.frame_at + v.frame_length).tolist(),
        v.stream_seq.tolist(),
        v.client_seq.tolist(),
        v.prev_ack.tolist(),
        v.hub_ts.tolist(),
        v.auth_ref_at.tolist(),
        v.ct_hash_at.tolist(),
        v.ciphertext_at.tolist(),
        v.leaf_at.tolist(),
        strict=True,
    )
    for (
        frame_at,
        msg_at,
        receipt_at,
        end,
        seq,
        client_seq,
        ack,
        hub_ts,
        auth_at,
        ct_at,
        sealed_at,
        leaf_at,
    ) in rows:
        if sha256(_ENTRY + data[msg_at:end]).digest() != data[frame_at + 50 : frame_at + HEADER_BYTES]:
            return False
        ct_hash = data[ct_at : ct_at + 32]
        if sha256(data[sealed_at : receipt_at - 66]).digest() != ct_hash:  # I1
            return False
        client_id = data[msg_at + 72 : msg_at + 104]
        made = b"".join((_LEAF, label, data[msg_at + 4 : msg_at + 36], ct_hash, client_id, u64be(client_seq)))
        if sha256(made).digest() != data[leaf_at : leaf_at + 32]:  # I2
            return False
        known = writers.get(client_id)
        if known is None:
            writers[client_id] = [seq, frame_at, client_seq, ack, 0, client_seq, ack, 0]
        elif client_seq != known[5] + 1 or ack < known[6]:  # I8, I9
            return False
        else:
            known[5], known[6] = client_seq, ack
        if auth_at >= 0 and not may_write(data[auth_at : auth_at + 32], client_id, hub_ts):
            return False
        if every or context.checks_signatures_of(label, seq, ref.end_seq):
            raw, hub_sig = data[msg_at:receipt_at], data[end - 64 : end]
            if not ed25519.verify(client_id, Msg.digest_of(raw), raw[-64:]):
                return False
            clean.signatures += 1
            if context.identity is not None:
                digest = sha256(_RECEIPT + data[receipt_at + 1 : end - 66]).digest()
                if not is_signed(digest, hub_sig, hub_ts):
                    return False
                clean.signatures += 1
    clean.writers = {client_id: Writer(client_id, *fields) for client_id, fields in writers.items()}
    return True


def _signed_by(context: Context) -> Callable[[bytes, bytes, int], bool]:
    """Whether a key of the hub that was valid at a time signed a digest."""
    identity, keys_at = context.identity, dict[int, tuple[bytes, ...]]()

    def is_signed(digest: bytes, signature: bytes, hub_ts: int) -> bool:
        keys = keys_at.get(hub_ts)
        if keys is None:
            valid = identity.keys_valid_at(hub_ts) if identity is not None else ()
            keys = keys_at[hub_ts] = tuple(key.hub_pk for key in reversed(valid))
        return any(ed25519.verify(hub_pk, digest, signature) for hub_pk in keys)

    return is_signed


def _authority(context: Context, label: bytes) -> Callable[[bytes, bytes, int], bool]:
    """Whether a token lets a client write into this label at a time."""
    opened, spans = context.opened(label), dict[tuple[bytes, bytes], range]()
    stream_id = opened.stream_id if opened else None

    def span_of(auth_ref: bytes, client_id: bytes) -> range:
        given = context.control.caps.get(auth_ref)
        if given is None or given.token.subject_pk != client_id:
            return range(0)
        if stream_id is not None and stream_id not in given.token.allow.stream_ids:
            return range(0)
        return range(given.issued_at, given.issued_at + given.token.allow.ttl + 1)

    def may_write(auth_ref: bytes, client_id: bytes, hub_ts: int) -> bool:
        if context.chunks_only:
            return True
        found = spans.get((auth_ref, client_id))
        if found is None:
            found = spans[auth_ref, client_id] = span_of(auth_ref, client_id)
        return hub_ts in found

    return may_write
