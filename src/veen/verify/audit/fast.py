"""The fast path of pass 2, for chunks without faults: the rules of `chunk`, applied to many entries at once.

`fast_check` returns None at the first fault, and `chunk` then reads the chunk again, entry by entry, to name the fault
and its place. Both give the same verdict and differ only in speed (DESIGN §8: an audit should spend its time on
signatures). tests/lake/test_audit.py compares the two over many damaged logs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import numpy as np

from veen.core.crypto import ed25519
from veen.core.entry import (
    FRAME_HASH_AT,
    HASH_BYTES,
    HEAD_BYTES,
    MSG_CLIENT_AT,
    MSG_PROFILE_AT,
    MSG_SEQ_AT,
    RECEIPT_SIGNED_TAG,
    SIG_BYTES,
    SIG_TAIL,
)
from veen.core.labels import epoch_window
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.msg import Msg
from veen.core.run_check import AuthorSpan, RunSummary
from veen.core.tree.mmr import LABEL_TAGS, Mmr, Span
from veen.storage.pinned import ChunkRef
from veen.verify.audit.context import AuditContext
from veen.verify.seals import Peaks
from veen.verify.vectors import Departs, Vector, decode, hashes_hold

_JOBS: Final = 3 * 1024  # parts of signatures that are verified together
_CT_PREFIX: Final = 40  # enc, hdr_len, body_len (spec §4.2)


@dataclass(slots=True)
class Clean:
    """Results of a chunk without faults."""

    run: RunSummary
    entry_hashes: Mmr
    size: int
    first_length: int
    signatures: int = 0
    epoch_secs: set[int] = field(default_factory=set)
    offsets: dict[bytes, int] = field(default_factory=dict)  # where the first entry of each author lies


def fast_check(data: bytes, ref: ChunkRef, context: AuditContext, peaks: Peaks) -> Clean | None:
    """Return the results of the chunk if all checks pass for all entries; None if one fails or cannot be made here."""
    try:
        v = decode(data, ref.label, max_msg_bytes=DEFAULT_LIMITS.max_msg_bytes)
    except Departs:
        return None
    if not len(v) or v.end != len(data) or not v.counts(ref.start_seq, ref.end_seq):
        return None
    if (np.diff(v.hub_ts) < 0).any() or (v.prev_ack >= v.stream_seq).any() or not _sizes_hold(data, v, context):
        return None
    mmr = _tree_after(Mmr(ref.start_seq - 1, peaks), _cut(data, v.leaf_at), _cut(data, v.root_at))
    if mmr is None:  # I3
        return None
    entry_hashes = Span.of(0, _cut(data, v.frame_at + FRAME_HASH_AT) if ref.is_sealed else ())
    clean = Clean(
        run=RunSummary(len(v), {}, 0, ref.start_seq, int(v.hub_ts[0]), int(v.hub_ts[-1]), mmr.peaks()),
        entry_hashes=Mmr(entry_hashes.end, entry_hashes.peaks()),
        size=len(data),
        first_length=int(v.frame_length[0]),
    )
    if not _profiles_hold(data, v, ref, context, clean) or not hashes_hold(data, v, ref.label):
        return None
    if not _entries_hold(data, v, ref, context, clean):
        return None
    return clean


def _cut(data: bytes, at: Any) -> list[bytes]:
    return [data[place : place + HASH_BYTES] for place in at.tolist()]


def _tree_after(before: Mmr, leaves: Sequence[bytes], roots: Sequence[bytes]) -> Mmr | None:
    """Return the tree after the last leaf, if it had the given root after each. As Mmr, without a call per leaf."""
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


def _limits_of(v: Vector, context: AuditContext) -> list[Limits]:
    """Return all limits that were in force at some time of the chunk."""
    between = context.control.limits_between(int(v.hub_ts[0]), int(v.hub_ts[-1]))
    return [limits or DEFAULT_LIMITS for limits in between]


def _sizes_hold(data: bytes, v: Vector, context: AuditContext) -> bool:
    """Return True if all sizes are within the tightest limits of the chunk (I11)."""
    limits = _limits_of(v, context)
    length = v.msg_sig_at - HEAD_BYTES - v.ciphertext_at
    if int((v.receipt_at - v.msg_at).max()) > min(limit.max_msg_bytes for limit in limits):
        return False
    if int(length.min()) < _CT_PREFIX:
        return False
    lengths: Any = np.ascontiguousarray(v.rows(v.ciphertext_at + 32, 8)).view(">u4").astype(np.int64)
    hdr, body = lengths[:, 0], lengths[:, 1]
    if int(hdr.max()) > min(limit.max_hdr_bytes for limit in limits):
        return False
    if int(body.max()) > min(limit.max_body_bytes for limit in limits):
        return False
    used = _CT_PREFIX + hdr + body
    if (used > length).any():
        return False
    padded = np.flatnonzero(used < length)
    starts, ends = (v.ciphertext_at + used)[padded].tolist(), (v.ciphertext_at + length)[padded].tolist()
    return all(data.count(0, start, end) == end - start for start, end in zip(starts, ends, strict=True))


def _profiles_hold(data: bytes, v: Vector, ref: ChunkRef, context: AuditContext, clean: Clean) -> bool:
    """Return True if the profiles are known and the epochs match (I4, I12)."""
    profiles = {data[at + MSG_PROFILE_AT : at + MSG_PROFILE_AT + HASH_BYTES] for at in v.msg_at.tolist()}
    if not profiles <= context.profiles.keys():
        return False
    clean.epoch_secs = {context.profiles[profile] for profile in profiles}
    opened = context.find_opening(ref.label)
    if opened is None:
        return True
    skews = [limits.max_epoch_skew_sec for limits in _limits_of(v, context)]
    for epoch_sec in clean.epoch_secs:
        window = epoch_window(epoch_sec, min(skews))
        epochs = v.hub_ts // epoch_sec if epoch_sec else np.zeros(1, dtype=np.int64)
        if (np.abs(epochs - opened.epoch) > window).any():
            return False
    return True


def _entries_hold(data: bytes, v: Vector, ref: ChunkRef, context: AuditContext, clean: Clean) -> bool:
    """Return True if signatures, writers and authority are valid, in one walk."""
    label, every = ref.label, context.level == "full"
    spans: dict[bytes, list[int]] = {}  # the fields of an AuthorSpan by its author
    keys_at, may_write = _hub_keys(context), _authority(context, label)
    jobs: list[bytes] = []  # signature, digest and key of each that is not verified yet
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
        strict=True,
    )
    for frame_at, msg_at, receipt_at, end, seq, client_seq, ack, hub_ts, auth_at in rows:
        client_id = data[msg_at + MSG_CLIENT_AT : msg_at + MSG_SEQ_AT]
        span = spans.get(client_id)
        if span is None:
            spans[client_id] = [seq, client_seq, ack, 0, client_seq, ack, 0]
            clean.offsets[client_id] = frame_at
        elif client_seq != span[4] + 1 or ack < span[5]:  # I8, I9
            return False
        else:
            span[4], span[5] = client_seq, ack
        if auth_at >= 0 and not may_write(data[auth_at : auth_at + HASH_BYTES], client_id, hub_ts):
            return False
        if every or context.checks_signatures_of(label, seq, ref.end_seq):
            raw = data[msg_at:receipt_at]
            jobs += (raw[-SIG_BYTES:], Msg.digest_of(raw), client_id)
            clean.signatures += 1
            if context.identity is not None:
                hub_sig, keys = data[end - SIG_BYTES : end], keys_at(hub_ts)
                digest = sha256(RECEIPT_SIGNED_TAG + data[receipt_at + 1 : end - SIG_TAIL]).digest()
                if len(keys) == 1:
                    jobs += (hub_sig, digest, keys[0])
                elif not any(ed25519.verify(hub_pk, digest, hub_sig) for hub_pk in keys):
                    return False
                clean.signatures += 1
            if len(jobs) >= _JOBS:
                if 0 in ed25519.verify_many(b"".join(jobs)):
                    return False
                jobs.clear()
    if 0 in ed25519.verify_many(b"".join(jobs)):
        return False
    authors = {client_id: AuthorSpan(*fields) for client_id, fields in spans.items()}
    clean.run = clean.run._replace(authors=authors)
    return True


def _hub_keys(context: AuditContext) -> Callable[[int], tuple[bytes, ...]]:
    """Return a function that returns the keys of the hub that were valid at a time, the newest first."""
    identity, keys_at = context.identity, dict[int, tuple[bytes, ...]]()

    def at(hub_ts: int) -> tuple[bytes, ...]:
        keys = keys_at.get(hub_ts)
        if keys is None:
            valid = identity.keys_valid_at(hub_ts) if identity is not None else ()
            keys = keys_at[hub_ts] = tuple(key.hub_pk for key in reversed(valid))
        return keys

    return at


def _authority(context: AuditContext, label: bytes) -> Callable[[bytes, bytes, int], bool]:
    """Return a function: True if a token allows a client to write into this label at a time."""
    opened, spans = context.find_opening(label), dict[tuple[bytes, bytes], range]()
    stream_id = opened.stream_id if opened else None

    def span_of(auth_ref: bytes, client_id: bytes) -> range:
        grant = context.control.caps.get(auth_ref)
        if grant is None or grant.token.subject_pk != client_id:
            return range(0)
        if stream_id is not None and stream_id not in grant.token.allow.stream_ids:
            return range(0)
        return range(grant.issued_at, grant.ends_at + 1)

    def may_write(auth_ref: bytes, client_id: bytes, hub_ts: int) -> bool:
        if context.chunks_only:
            return True
        span = spans.get((auth_ref, client_id))
        if span is None:
            span = spans[auth_ref, client_id] = span_of(auth_ref, client_id)
        return hub_ts in span

    return may_write
