"""MSG, the signed and sealed message a client submits (spec §4.1)."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from typing import Any, ClassVar, Final, Self

from veen.core import cbor, ed25519
from veen.core.errors import SignatureError, VerifyError
from veen.core.hashing import H, tag_prefix, u64be
from veen.core.wire import Fields, Form, Wire

__all__ = ["Msg", "end_of", "leaf_hash_of"]

_UNSIGNED: Final = tag_prefix("veen/sig") + b"\x89"  # before the items that are signed
_LEAF_TAG: Final = tag_prefix("veen/leaf")
_BSTR32: Final = b"\x58\x20"
_BSTR64: Final = b"\x58\x40"
_NULL: Final = b"\xf6"
_FIXED: Final = "4s32s2s32s2s32s"  # up to client_id every MSG has the same layout
_INTEGERS: Final = struct.calcsize(_FIXED)  # where client_seq begins
# How long an integer is by its first byte, 0 where none begins; the least value that needs that length; how struct
# reads it.
_WIDTHS: Final = bytes([1] * 24 + [2, 3, 5, 9] + [0] * 228)
_FLOORS: Final = {1: 0, 2: 24, 3: 0x100, 5: 0x10000, 9: 0x100000000}
_INTEGER: Final = {1: "B", 2: "xB", 3: "xH", 5: "xI", 9: "xQ"}
# The layout of a MSG up to its ciphertext, by the widths of client_seq, prev_ack, auth_ref and the ciphertext's length.
_LAYOUTS: Final = {
    (seq, ack, ref, size): struct.Struct(
        f">{_FIXED}{_INTEGER[seq]}{_INTEGER[ack]}{'1s0s' if ref == 1 else '2s32s'}2s32s{_INTEGER[size]}"
    )
    for seq, ack, ref, size in product(_INTEGER, _INTEGER, (1, 34), _INTEGER)
}


def leaf_hash_of(*, label: bytes, profile_id: bytes, ct_hash: bytes, client_id: bytes, client_seq: int) -> bytes:
    """leaf_hash, which is also msg_id (spec §2)."""
    return sha256(b"".join((_LEAF_TAG, label, profile_id, ct_hash, client_id, u64be(client_seq)))).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Msg(Wire):
    """All a hub ever sees of a message."""

    KIND: ClassVar[str] = "MSG"
    FORM: ClassVar[Form] = "array"
    MAX_ITEMS: ClassVar[int] = 16  # it has 11, the array included; a million tiny ones would take a second

    profile_id: bytes
    label: bytes
    client_id: bytes
    client_seq: int
    prev_ack: int
    auth_ref: bytes | None
    ct_hash: bytes
    ciphertext: bytes
    sig: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            profile_id=f.bstr("profile_id", 32),
            label=f.bstr("label", 32),
            client_id=f.bstr("client_id", 32),
            client_seq=f.uint("client_seq"),
            prev_ack=f.uint("prev_ack"),
            auth_ref=f.optional(f.bstr, "auth_ref", 32),
            ct_hash=f.bstr("ct_hash", 32),
            ciphertext=f.blob("ciphertext"),
            sig=f.bstr("sig", 64),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "ver": 1,
            "profile_id": self.profile_id,
            "label": self.label,
            "client_id": self.client_id,
            "client_seq": self.client_seq,
            "prev_ack": self.prev_ack,
            "auth_ref": self.auth_ref,
            "ct_hash": self.ct_hash,
            "ciphertext": self.ciphertext,
            "sig": self.sig,
        }

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
            return b"".join((b"\x8a", self._signed_items(), _BSTR64, self.sig))
        return super(Msg, self).to_bytes()  # names the field that does not fit

    def _signed_items(self) -> bytes:
        """The first nine items, without the head of the array around them."""
        return b"".join(
            (
                b"\x01\x58\x20",
                self.profile_id,
                _BSTR32,
                self.label,
                _BSTR32,
                self.client_id,
                cbor.uint(self.client_seq),
                cbor.uint(self.prev_ack),
                _NULL if self.auth_ref is None else _BSTR32 + self.auth_ref,
                _BSTR32,
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
        """Sign a sealed ciphertext; client_id is the signing key."""
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
        """What sig signs: Ht("veen/sig", CBOR of the first nine items)."""
        return sha256(_UNSIGNED + self._signed_items()).digest()

    @staticmethod
    def digest_of(raw: bytes) -> bytes:
        """`signing_digest` of the message that `from_bytes` read from `raw`, without encoding it again."""
        return sha256(_UNSIGNED + raw[1:-66]).digest()

    def leaf_hash(self) -> bytes:
        """msg_id: the leaf this message becomes in its label's MMR (I2)."""
        return leaf_hash_of(
            label=self.label,
            profile_id=self.profile_id,
            ct_hash=self.ct_hash,
            client_id=self.client_id,
            client_seq=self.client_seq,
        )

    def check_ct_hash(self) -> None:
        """I1: H(ciphertext) = ct_hash."""
        if sha256(self.ciphertext).digest() != self.ct_hash:
            raise VerifyError("MSG: ct_hash is not the hash of the ciphertext (I1)")

    def verify(self) -> None:
        """Raise unless the ciphertext is the one that client_id signed."""
        self.check_ct_hash()
        if not ed25519.verify(self.client_id, self.signing_digest(), self.sig):
            raise SignatureError("MSG: sig does not verify under client_id")


def _parse(cls: type[Msg], data: bytes) -> Any:
    """The message in `data`, or None if it departs from the canonical layout anywhere."""
    try:
        seq = _WIDTHS[data[_INTEGERS]]
        ack = _WIDTHS[data[_INTEGERS + seq]]
        pos = _INTEGERS + seq + ack
        ref = 34 if data[pos] == 0x58 else 1
        size = _WIDTHS[data[pos + ref + 34] ^ 0x40]
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
    if head != b"\x8a\x01\x58\x20" or mark2 != _BSTR32 or mark3 != _BSTR32 or mark7 != _BSTR32:
        return None
    if mark6 != (_NULL if ref == 1 else _BSTR32):
        return None
    if client_seq < _FLOORS[seq] or prev_ack < _FLOORS[ack] or length < _FLOORS[size]:
        return None
    start = layout.size
    end = start + length
    if len(data) != end + 66 or data[end : end + 2] != _BSTR64:
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
    _set_sig(msg, data[end + 2 :])
    return msg


def end_of(data: bytes, start: int) -> int | None:
    """Where the MSG that begins at `start` ends, if it follows the canonical layout: `cbor.item_end`, but faster."""
    if data[start : start + 4] != b"\x8a\x01\x58\x20" or data[start + 36 : start + 38] != _BSTR32:
        return None
    try:
        _, pos = cbor.uint_at(data, start + _INTEGERS)
        _, pos = cbor.uint_at(data, pos)
        if data[pos] == 0xF6:
            pos += 1
        elif data[pos : pos + 2] == _BSTR32:
            pos += 34
        else:
            return None
        length, body = cbor.uint_at(data, pos + 34, 0x40)
    except (IndexError, ValueError):
        return None
    end = body + length
    if data[start + 70 : start + 72] != _BSTR32 or data[pos : pos + 2] != _BSTR32 or data[end : end + 2] != _BSTR64:
        return None
    return end + 66 if end + 66 <= len(data) else None


def _setter(name: str) -> Callable[[Msg, Any], None]:
    setter: Callable[[Msg, Any], None] = getattr(Msg, name).__set__
    return setter


_set_profile_id, _set_label, _set_client_id = _setter("profile_id"), _setter("label"), _setter("client_id")
_set_client_seq, _set_prev_ack, _set_auth_ref = _setter("client_seq"), _setter("prev_ack"), _setter("auth_ref")
_set_ct_hash, _set_ciphertext, _set_sig = _setter("ct_hash"), _setter("ciphertext"), _setter("sig")
