"""The layout of an entry: a frame header, then MSG and RECEIPT (spec §4.2, §4.3, §4.8.1). No other module has offsets.

A MSG has the same layout up to client_seq, a RECEIPT up to stream_seq; behind that, integers differ in length. Names
that end in `_AT` count from the first byte of the frame, the MSG or the RECEIPT; `_HEAD` is the CBOR before a value.
"""

from hashlib import sha256
from struct import Struct
from typing import Final

from veen.core.hashing import tag_prefix, u64be

HASH_BYTES: Final = 32
SIG_BYTES: Final = 64
HASH_HEAD: Final = b"\x58\x20"
SIG_HEAD: Final = b"\x58\x40"
VER_HEAD: Final = b"\x01" + HASH_HEAD  # ver 1, and the head of the hash that follows it in MSG and RECEIPT
NULL_HEAD: Final = b"\xf6"
HEAD_BYTES: Final = len(HASH_HEAD)  # as long as SIG_HEAD
HASH_ITEM: Final = HEAD_BYTES + HASH_BYTES
SIG_TAIL: Final = HEAD_BYTES + SIG_BYTES  # MSG and RECEIPT both end with a signature

# entry_ver, flags, label, stream_seq, msg_len, receipt_len, entry_hash
FRAME: Final = Struct(">BB32sQII32s")
FRAME_BYTES: Final = FRAME.size
FRAME_VERSION: Final = 1
FRAME_HEAD: Final = bytes((FRAME_VERSION, 0))
FRAME_LENGTHS: Final = Struct(">II")
FRAME_LABEL_AT: Final = len(FRAME_HEAD)
FRAME_SEQ_AT: Final = FRAME_LABEL_AT + HASH_BYTES
FRAME_LENGTHS_AT: Final = FRAME_SEQ_AT + 8
FRAME_HASH_AT: Final = FRAME_LENGTHS_AT + FRAME_LENGTHS.size
MAX_RECEIPT_BYTES: Final = 256

MSG_ARRAY: Final = b"\x8a"  # of 10
MSG_HEAD: Final = MSG_ARRAY + VER_HEAD
MSG_PROFILE_AT: Final = len(MSG_HEAD)
MSG_LABEL_AT: Final = MSG_PROFILE_AT + HASH_BYTES + HEAD_BYTES
MSG_CLIENT_AT: Final = MSG_LABEL_AT + HASH_BYTES + HEAD_BYTES
MSG_SEQ_AT: Final = MSG_CLIENT_AT + HASH_BYTES
MSG_FIXED: Final = "4s32s2s32s2s32s"  # the parts before MSG_SEQ_AT, for struct
MSG_SIGNED_TAG: Final = tag_prefix("veen/sig") + b"\x89"  # before the nine items that `sig` signs

RECEIPT_ARRAY: Final = b"\x87"  # of 7
RECEIPT_HEAD: Final = RECEIPT_ARRAY + VER_HEAD
RECEIPT_LABEL_AT: Final = len(RECEIPT_HEAD)
RECEIPT_SEQ_AT: Final = RECEIPT_LABEL_AT + HASH_BYTES
RECEIPT_SIGNED_TAG: Final = tag_prefix("veen/sig") + b"\x86"  # before the six items that `hub_sig` signs

ENTRY_TAG: Final = b"veen/entry"  # H, not Ht: entry_hash has no 0x00 separator (spec §4.8.1, D-68)
LEAF_TAG: Final = tag_prefix("veen/leaf")  # before label, profile_id, ct_hash, client_id and client_seq (u64)


def entry_hash_of(msg: bytes, receipt: bytes = b"") -> bytes:
    """Return entry_hash of a MSG and its RECEIPT, or of both in one piece."""
    return sha256(ENTRY_TAG + msg + receipt).digest()


def leaf_hash_of(*, label: bytes, profile_id: bytes, ct_hash: bytes, client_id: bytes, client_seq: int) -> bytes:
    """Return leaf_hash, which is also msg_id (spec §2)."""
    return sha256(b"".join((LEAF_TAG, label, profile_id, ct_hash, client_id, u64be(client_seq)))).digest()


def read_claimed_client(raw: bytes) -> bytes | None:
    """Return the client_id of bytes that begin like a MSG, or None. Nothing is verified; the rest may be invalid."""
    has_head = raw[MSG_CLIENT_AT - HEAD_BYTES : MSG_CLIENT_AT] == HASH_HEAD
    if len(raw) < MSG_SEQ_AT or not raw.startswith(MSG_ARRAY) or not has_head:
        return None
    return raw[MSG_CLIENT_AT : MSG_CLIENT_AT + HASH_BYTES]
