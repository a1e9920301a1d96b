"""What one entry is held to by itself: bytes, hashes, signatures, authority, sizes, epoch (I1, I2, I4, I6, I10 to I12).

A damaged entry is taken apart as far as it can be, so that its faults get their names and the tree can go on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

from veen.core import ed25519
from veen.core.ciphertext import Parts
from veen.core.errors import FormatError, LimitError, SignatureError, VerifyError
from veen.core.labels import epoch_at, epoch_window
from veen.core.msg import Msg
from veen.core.receipt import Receipt
from veen.pipeline.audit.context import Context
from veen.pipeline.audit.findings import Severity
from veen.pipeline.inventory import ChunkRef
from veen.storage import frame
from veen.storage.errors import CorruptError
from veen.storage.frame import HEADER_BYTES, Frame
from veen.storage.scan import Item, item_of

__all__ = ["Entry", "Fault", "judge", "take_apart"]

_LENGTHS: Final = Struct(">II")
_LENGTHS_AT: Final = 42  # entry_ver, flags, label and stream_seq come before (spec §4.8.1)


class Fault(NamedTuple):
    code: str
    message: str
    severity: Severity = "error"


@dataclass(frozen=True, slots=True)
class Entry:
    """What could be read at one place. Without `item` nothing of it counts but the leaves it may have been."""

    stream_seq: int
    offset: int
    length: int
    item: Item | None
    raw_msg: bytes = b""
    leaves: tuple[bytes, ...] = ()  # what a damaged entry says about its leaf; the tree tells which was true
    root: bytes | None = None  # what its receipt says, damaged or not
    faults: tuple[Fault, ...] = ()


def take_apart(data: bytes, pos: int, ref: ChunkRef, stream_seq: int) -> Entry | None:
    """The entry at `pos`; None if not even its length can be told."""
    length = frame.wanted(data, pos)
    if length == HEADER_BYTES or pos + length > len(data):
        return None
    try:
        found, _ = frame.read(data, pos, path=ref.path)
        return _placed(found, ref, stream_seq, pos)
    except CorruptError:
        return _damaged(data, pos, length, ref, stream_seq)


def _placed(found: Frame, ref: ChunkRef, stream_seq: int, pos: int) -> Entry:
    if found.stream_seq != stream_seq or found.label != ref.label:
        what = f"entry {found.stream_seq} is where entry {stream_seq} belongs"
        if found.label != ref.label:
            what = f"an entry of label {found.label.hex()} is here"
        return Entry(stream_seq, pos, found.size, None, faults=(Fault("place", what),))
    item = item_of(found, ref.label, ref.path, pos)
    root = item.receipt.mmr_root if item.receipt else None
    return Entry(stream_seq, pos, found.size, item, found.msg, (item.leaf_hash,), root)


def _damaged(data: bytes, pos: int, length: int, ref: ChunkRef, stream_seq: int) -> Entry:
    """An entry that is not as it was written: everything that is wrong with it, by name."""
    msg_len, _ = _LENGTHS.unpack_from(data, pos + _LENGTHS_AT)
    body = pos + HEADER_BYTES
    raw, raw_receipt = data[body : body + msg_len], data[body + msg_len : pos + length]
    header = data[pos : pos + _LENGTHS_AT]
    faults: list[Fault] = []
    if header[:2] != b"\x01\x00":
        faults.append(Fault("frame", f"no frame begins here (version {header[0]}, flags {header[1]})"))
    entry_hash = data[pos + 50 : pos + HEADER_BYTES]
    if frame.entry_hash_of(raw, raw_receipt) != entry_hash:
        faults.append(Fault("entry_hash", "entry_hash does not match its bytes"))
    if header[2:34] != ref.label or int.from_bytes(header[34:42], "big") != stream_seq:
        faults.append(Fault("place", f"its frame names another place than entry {stream_seq} of this label"))
    msg: Msg | None = None
    receipt: Receipt | None = None
    try:
        msg = Msg.from_bytes(raw)
    except FormatError as exc:
        faults.append(Fault("format", f"{exc} (I10)"))
    try:
        receipt = Receipt.from_bytes(raw_receipt)
    except FormatError as exc:
        faults.append(Fault("format", f"{exc} (I10)"))
    faults += _contradictions(msg, receipt, ref, stream_seq)
    leaves = [found for found in (receipt and receipt.leaf_hash, msg and msg.leaf_hash()) if found]
    root = receipt.mmr_root if receipt else None
    return Entry(stream_seq, pos, length, None, raw, tuple(dict.fromkeys(leaves)), root, tuple(faults))


def _contradictions(msg: Msg | None, receipt: Receipt | None, ref: ChunkRef, stream_seq: int) -> Iterator[Fault]:
    if msg is not None:
        try:
            msg.check_ct_hash()
        except VerifyError as exc:
            yield Fault("ct_hash", str(exc))
        if msg.label != ref.label:
            yield Fault("place", f"its MSG is for label {msg.label.hex()}")
    if receipt is not None and (receipt.label, receipt.stream_seq) != (ref.label, stream_seq):
        yield Fault("place", f"its RECEIPT is for entry {receipt.stream_seq} of label {receipt.label.hex()}")
    if msg is not None and receipt is not None and msg.leaf_hash() != receipt.leaf_hash:
        yield Fault("leaf_hash", "leaf_hash is not that of the message (I2)")


# --- entries that are whole ----------------------------------------------------------------------------------


def judge(entry: Entry, item: Item, context: Context, ref: ChunkRef) -> tuple[list[Fault], int]:
    """What is wrong with a whole entry by itself, and how many signatures were verified."""
    faults: list[Fault] = []
    signatures = 0
    if item.prev_ack >= item.stream_seq:
        faults.append(Fault("prev_ack", f"prev_ack {item.prev_ack} names an entry that did not exist yet (I6)"))
    if context.checks_signatures_of(ref.label, item.stream_seq, ref.end_seq):
        if item.msg is not None:
            signatures += 1
            if not ed25519.verify(item.client_id, Msg.digest_of(entry.raw_msg), item.msg.sig):
                faults.append(Fault("msg_sig", "sig does not verify under client_id"))
        if item.receipt is not None and context.identity is not None:
            signatures += 1
            if fault := _hub_fault(item.receipt, context):
                faults.append(fault)
    if item.auth_ref is not None and not context.chunks_only:
        faults += _capability_faults(item, item.auth_ref, context, ref)
    if item.msg is not None:
        faults += _shape_faults(item.msg, len(entry.raw_msg), item.hub_ts, context, ref)
    return faults, signatures


def _hub_fault(receipt: Receipt, context: Context) -> Fault | None:
    identity = context.identity
    assert identity is not None  # noqa: S101 - the caller asked
    try:
        identity.verify_receipt(receipt)
    except SignatureError as exc:
        for key in identity.keys:
            if ed25519.verify(key.hub_pk, receipt.signing_digest(), receipt.hub_sig):
                return Fault("hub_key", f"hub_sig is by key {key.key_id}, which was not valid at {receipt.hub_ts}")
        return Fault("hub_sig", str(exc))
    return None


def _capability_faults(item: Item, auth_ref: bytes, context: Context, ref: ChunkRef) -> Iterator[Fault]:
    """I7, but for the rate, which is a matter of all labels together."""
    given = context.control.caps.get(auth_ref)
    if given is None:
        severity: Severity = "error" if context.control_whole else "warning"
        yield Fault("capability", "no record authorises its token", severity)
        return
    if given.token.subject_pk != item.client_id:
        yield Fault("capability", "its token is for another client (D-49)")
    if item.hub_ts < given.issued_at:
        yield Fault("capability", f"its token was authorised later, at {given.issued_at}")
    elif not given.token.is_live(issued_at=given.issued_at, hub_ts=item.hub_ts):
        yield Fault("capability", f"its token ended at {given.issued_at + given.token.allow.ttl} (D-48)")
    opened = context.opened(ref.label)
    if opened is not None and opened.stream_id is not None and opened.stream_id not in given.token.allow.stream_ids:
        yield Fault("capability", "its token is not for this stream (D-49)")


def _shape_faults(msg: Msg, size: int, hub_ts: int, context: Context, ref: ChunkRef) -> Iterator[Fault]:
    limits = context.limits_at(hub_ts)
    if all(size > found.max_msg_bytes for found in limits):
        yield Fault("size", f"a MSG of {size} bytes is larger than the limits of its time allow (I11)")
    reason = None
    for found in limits:
        try:
            Parts.check(msg.ciphertext, found)
        except (FormatError, LimitError) as exc:
            reason = reason or str(exc)
        else:
            break
    else:
        yield Fault("size", f"{reason} (I11)")
    epoch_sec = context.profiles.get(msg.profile_id)
    if epoch_sec is None:
        severity: Severity = "error" if context.profiles_given else "warning"
        yield Fault("profile", f"profile {msg.profile_id.hex()} is not known to be supported (I4)", severity)
        return
    opened = context.opened(ref.label)
    if opened is None:
        return
    window = max(epoch_window(epoch_sec, found.max_epoch_skew_sec) for found in limits)
    now = epoch_at(hub_ts, epoch_sec)
    if abs(opened.epoch - now) > window:
        yield Fault("epoch", f"its label is of epoch {opened.epoch}, but hub_ts lies in epoch {now} (I12)")
