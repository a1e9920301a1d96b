"""MSG, the signed and sealed message a client submits (spec §4.1)."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from typing import Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.entry import (
    HASH_HEAD,
    HASH_ITEM,
    HEAD_BYTES,
    MSG_ARRAY,
    MSG_CLIENT_AT,
    MSG_FIXED,
    MSG_HEAD,
    MSG_LABEL_AT,
    MSG_PROFILE_AT,
    MSG_SEQ_AT,
    MSG_SIGNED_TAG,
    NULL_HEAD,
    SIG_HEAD,
    SIG_TAIL,
    VER_HEAD,
    leaf_hash_of,
)
from veen.core.errors import SignatureError, VerifyError
from veen.core.hashing import H
from veen.core.wire import Bytes32, Bytes64, Form, Uint, Version, Wire

# How long an integer is by its first byte, 0 where none begins; the least value that needs that length; how struct
# reads it.
_WIDTHS: Final = bytes([1] * 24 + [2, 3, 5, 9] + [0] * 228)
_FLOORS: Final = {1: 0, 2: 24, 3: 0x100, 5: 0x10000, 9: 0x100000000}
_INTEGER: Final = {1: "B", 2: "xB", 3: "xH", 5: "xI", 9: "xQ"}
# The layout of a MSG up to its ciphertext, by the widths of client_seq, prev_ack, auth_ref and the ciphertext's length.
_LAYOUTS: Final = {
    (seq, ack, ref, size): struct.Struct(
        f">{MSG_FIXED}{_INTEGER[seq]}{_INTEGER[ack]}{'1s0s' if ref == 1 else '2s32s'}2s32s{_INTEGER[size]}"
    )
    for seq, ack, ref, size in product(_INTEGER, _INTEGER, (1, HASH_ITEM), _INTEGER)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Msg(Wire, kind="MSG"):
    """A message as a hub sees it: sealed and signed."""

    FORM: ClassVar[Form] = "array"
    MAX_ITEMS: ClassVar[int] = 16  # it has 11, the array included; a million tiny ones would take a second

    ver: ClassVar[Version] = 1
    profile_id: Bytes32
    label: Bytes32
    client_id: Bytes32
    client_seq: Uint
    prev_ack: Uint
    auth_ref: Bytes32 | None
    ct_hash: Bytes32
    ciphertext: bytes
    sig: Bytes64

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one canonical encoding; anything else is a FormatError (I10).

        A MSG has a fixed layout but for three integers and two lengths, so following the layout is the
        canonical check. Whatever does not fit goes through the general decoder, which names the fault.
        """
        msg = _parse(cls, data) if len(data) <= cls.MAX_BYTES else None
        return msg or super(Msg, cls).from_bytes(data)

    def to_bytes(self) -> bytes:
        if (
            len(self.profile_id) == len(self.label) == len(self.client_id) == len(self.ct_hash) == 32
            and (self.auth_ref is None or len(self.auth_ref) == 32)
            and len(self.sig) == 64
        ):
            return b"".join((MSG_ARRAY, self._items_to_sign(), SIG_HEAD, self.sig))
        return super(Msg, self).to_bytes()  # names the field that does not fit

    def _items_to_sign(self) -> bytes:
        """Return the first nine items, without the head of the array around them."""
        return b"".join(
            (
                VER_HEAD,
                self.profile_id,
                HASH_HEAD,
                self.label,
                HASH_HEAD,
                self.client_id,
                cbor.uint(self.client_seq),
                cbor.uint(self.prev_ack),
                NULL_HEAD if self.auth_ref is None else HASH_HEAD + self.auth_ref,
                HASH_HEAD,
                self.ct_hash,
                cbor.bstr_head(len(self.ciphertext)),
                self.ciphertext,
            )
        )

    @classmethod
    def compose(
        cls,
        key: ed25519.SigningKey,
        *,
        profile_id: bytes,
        label: bytes,
        client_seq: int,
        prev_ack: int,
        auth_ref: bytes | None,
        ciphertext: bytes,
    ) -> Self:
        """Sign a sealed ciphertext; client_id is the public key of the signer."""
        unsigned = cls(
            profile_id=profile_id,
            label=label,
            client_id=key.public,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=auth_ref,
            ct_hash=H(ciphertext),
            ciphertext=ciphertext,
            sig=b"",
        )
        return replace(unsigned, sig=key.sign(unsigned.signing_digest()))

    def signing_digest(self) -> bytes:
        """Return the digest that sig signs: Ht("veen/sig", CBOR of the first nine items)."""
        return sha256(MSG_SIGNED_TAG + self._items_to_sign()).digest()

    @staticmethod
    def digest_of(raw: bytes) -> bytes:
        """Return `signing_digest` of the message that `from_bytes` read from `raw`, without encoding it again."""
        return sha256(MSG_SIGNED_TAG + raw[1:-SIG_TAIL]).digest()

    def leaf_hash(self) -> bytes:
        """Return msg_id: the leaf that this message becomes in its label's MMR (I2)."""
        return leaf_hash_of(
            label=self.label,
            profile_id=self.profile_id,
            ct_hash=self.ct_hash,
            client_id=self.client_id,
            client_seq=self.client_seq,
        )

    def check_ct_hash(self) -> None:
        """Raise VerifyError unless H(ciphertext) = ct_hash (I1)."""
        if sha256(self.ciphertext).digest() != self.ct_hash:
            raise VerifyError("MSG: ct_hash is not the hash of the ciphertext (I1)")

    def is_signed(self, digest: bytes) -> bool:
        """Return True if client_id signed this `signing_digest`."""
        return ed25519.verify(self.client_id, digest, self.sig)

    def verify(self) -> None:
        """Raise unless the ciphertext is the one that client_id signed."""
        self.check_ct_hash()
        if not self.is_signed(self.signing_digest()):
            raise SignatureError("MSG: sig does not verify under client_id")


def _parse(cls: type[Msg], data: bytes) -> Any:
    """Return the message in `data`, or None if it departs from the canonical layout."""
    try:
        seq = _WIDTHS[data[MSG_SEQ_AT]]
        ack = _WIDTHS[data[MSG_SEQ_AT + seq]]
        pos = MSG_SEQ_AT + seq + ack
        ref = HASH_ITEM if data[pos] == 0x58 else 1
        size = _WIDTHS[data[pos + ref + HASH_ITEM] ^ 0x40]
        layout = _LAYOUTS[seq, ack, ref, size]
        (
            head,
            profile_id,
            mark2,
            label,
            mark3,
            client_id,
            client_seq,
            prev_ack,
            mark6,
            auth_ref,
            mark7,
            ct_hash,
            length,
        ) = layout.unpack_from(data)
    except (IndexError, KeyError, struct.error):
        return None
    if head != MSG_HEAD or mark2 != HASH_HEAD or mark3 != HASH_HEAD or mark7 != HASH_HEAD:
        return None
    if mark6 != (NULL_HEAD if ref == 1 else HASH_HEAD):
        return None
    if client_seq < _FLOORS[seq] or prev_ack < _FLOORS[ack] or length < _FLOORS[size]:
        return None
    start = layout.size
    end = start + length
    if len(data) != end + SIG_TAIL or data[end : end + HEAD_BYTES] != SIG_HEAD:
        return None
    # Filled by its slots: the __init__ of a frozen dataclass costs as much as all of the above.
    msg = cls.__new__(cls)
    _set_profile_id(msg, profile_id)
    _set_label(msg, label)
    _set_client_id(msg, client_id)
    _set_client_seq(msg, client_seq)
    _set_prev_ack(msg, prev_ack)
    _set_auth_ref(msg, auth_ref or None)
    _set_ct_hash(msg, ct_hash)
    _set_ciphertext(msg, data[start:end])
    _set_sig(msg, data[end + HEAD_BYTES :])
    return msg


def end_of(data: bytes, start: int) -> int | None:
    """Return the position behind the MSG that begins at `start`, or None if it departs from the canonical layout.

    As `cbor.item_end`, but faster.
    """
    if data[start : start + MSG_PROFILE_AT] != MSG_HEAD:
        return None
    label_at, client_at = start + MSG_LABEL_AT, start + MSG_CLIENT_AT
    if data[label_at - HEAD_BYTES : label_at] != HASH_HEAD or data[client_at - HEAD_BYTES : client_at] != HASH_HEAD:
        return None
    try:
        _, pos = cbor.uint_at(data, start + MSG_SEQ_AT)
        _, pos = cbor.uint_at(data, pos)
        if data[pos] == 0xF6:
            pos += 1
        elif data[pos : pos + HEAD_BYTES] == HASH_HEAD:
            pos += HASH_ITEM
        else:
            return None
        length, body = cbor.uint_at(data, pos + HASH_ITEM, 0x40)
    except (IndexError, ValueError):
        return None
    end = body + length
    if data[pos : pos + HEAD_BYTES] != HASH_HEAD or data[end : end + HEAD_BYTES] != SIG_HEAD:
        return None
    return end + SIG_TAIL if end + SIG_TAIL <= len(data) else None


def _setter(name: str) -> Callable[[Msg, Any], None]:
    setter: Callable[[Msg, Any], None] = getattr(Msg, name).__set__
    return setter


_set_profile_id, _set_label, _set_client_id = _setter("profile_id"), _setter("label"), _setter("client_id")
_set_client_seq, _set_prev_ack, _set_auth_ref = _setter("client_seq"), _setter("prev_ack"), _setter("auth_ref")
_set_ct_hash, _set_ciphertext, _set_sig = _setter("ct_hash"), _setter("ciphertext"), _setter("sig")
