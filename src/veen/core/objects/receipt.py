"""RECEIPT, the hub's signed answer to an admitted message (spec §4.3)."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.entry import (
    HASH_HEAD,
    HASH_ITEM,
    HEAD_BYTES,
    RECEIPT_ARRAY,
    RECEIPT_HEAD,
    RECEIPT_LABEL_AT,
    RECEIPT_SEQ_AT,
    RECEIPT_SIGNED_TAG,
    SIG_HEAD,
    SIG_TAIL,
    VER_HEAD,
)
from veen.core.errors import SignatureError
from veen.core.wire import Bytes32, Bytes64, Form, Uint, Version, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Wire, kind="RECEIPT"):
    """A statement that one message has one position of one label, under one root."""

    FORM: ClassVar[Form] = "array"

    ver: ClassVar[Version] = 1
    label: Bytes32
    stream_seq: Uint  # 1-based (spec §2)
    leaf_hash: Bytes32
    mmr_root: Bytes32  # after this leaf was appended (I3)
    hub_ts: Uint  # seconds, assigned by the hub
    hub_sig: Bytes64

    @classmethod
    def issue(
        cls, key: ed25519.SigningKey, *, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
    ) -> Self:
        """Sign a receipt. The caller has already appended the leaf: hubs sign only after the MMR update."""
        items = _items(label, stream_seq, leaf_hash, mmr_root, hub_ts)
        return cls(
            label=label,
            stream_seq=stream_seq,
            leaf_hash=leaf_hash,
            mmr_root=mmr_root,
            hub_ts=hub_ts,
            hub_sig=key.sign(sha256(RECEIPT_SIGNED_TAG + items).digest()),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one canonical encoding; anything else is a FormatError (I10).

        As with MSG, following the fixed layout is the canonical check; the general reader names the faults.
        """
        return _parse(cls, data) or super(Receipt, cls).from_bytes(data)

    def to_bytes(self) -> bytes:
        if len(self.label) == len(self.leaf_hash) == len(self.mmr_root) == 32 and len(self.hub_sig) == 64:
            return b"".join((RECEIPT_ARRAY, self._items_to_sign(), SIG_HEAD, self.hub_sig))
        return super(Receipt, self).to_bytes()  # names the field that does not fit

    def signing_digest(self) -> bytes:
        """Return the digest that hub_sig signs: Ht("veen/sig", CBOR of the first six items)."""
        return sha256(RECEIPT_SIGNED_TAG + self._items_to_sign()).digest()

    def _items_to_sign(self) -> bytes:
        return _items(self.label, self.stream_seq, self.leaf_hash, self.mmr_root, self.hub_ts)

    def verify(self, hub_pk: bytes) -> None:
        """Raise SignatureError unless `hub_pk` signed this receipt."""
        if not ed25519.verify(hub_pk, self.signing_digest(), self.hub_sig):
            raise SignatureError(f"RECEIPT {self.stream_seq}: hub_sig does not verify under the given hub key")


def issue_bytes(
    key: ed25519.SigningKey, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
) -> bytes:
    """Return `Receipt.issue(…).to_bytes()`, for a hub that signs thousands a second and needs only the bytes."""
    items = _items(label, stream_seq, leaf_hash, mmr_root, hub_ts)
    return b"".join((RECEIPT_ARRAY, items, SIG_HEAD, key.sign(sha256(RECEIPT_SIGNED_TAG + items).digest())))


def _items(label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int) -> bytes:
    """Return the first six items, without the head of the array around them."""
    return b"".join(
        (
            VER_HEAD,
            label,
            cbor.uint(stream_seq),
            HASH_HEAD,
            leaf_hash,
            HASH_HEAD,
            mmr_root,
            cbor.uint(hub_ts),
        )
    )


def _parse(cls: type[Receipt], data: bytes) -> Any:
    """Return the receipt in `data`, or None if it departs from the canonical layout."""
    if data[:RECEIPT_LABEL_AT] != RECEIPT_HEAD:
        return None
    try:
        stream_seq, leaf = cbor.uint_at(data, RECEIPT_SEQ_AT)
        hub_ts, end = cbor.uint_at(data, leaf + 2 * HASH_ITEM)
    except (IndexError, ValueError):
        return None
    root = leaf + HASH_ITEM
    if data[leaf : leaf + HEAD_BYTES] != HASH_HEAD or data[root : root + HEAD_BYTES] != HASH_HEAD:
        return None
    if len(data) != end + SIG_TAIL or data[end : end + HEAD_BYTES] != SIG_HEAD:
        return None
    return cls(
        label=data[RECEIPT_LABEL_AT:RECEIPT_SEQ_AT],
        stream_seq=stream_seq,
        leaf_hash=data[leaf + HEAD_BYTES : root],
        mmr_root=data[root + HEAD_BYTES : root + HASH_ITEM],
        hub_ts=hub_ts,
        hub_sig=data[end + HEAD_BYTES :],
    )
