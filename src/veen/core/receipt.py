"""RECEIPT, the hub's signed answer to an admitted message (spec §4.3)."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Final, Self

from veen.core import cbor, ed25519
from veen.core.errors import SignatureError
from veen.core.hashing import tag_prefix
from veen.core.wire import Fields, Form, Wire

__all__ = ["Receipt", "signed_bytes"]

_BSTR32: Final = b"\x58\x20"
_BSTR64: Final = b"\x58\x40"
_UNSIGNED: Final = tag_prefix("veen/sig") + b"\x86"  # before the items that are signed


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Wire):
    """One message, at one position of one label, under one root."""

    KIND: ClassVar[str] = "RECEIPT"
    FORM: ClassVar[Form] = "array"

    label: bytes
    stream_seq: int  # 1-based (spec §2)
    leaf_hash: bytes
    mmr_root: bytes  # after this leaf was appended (I3)
    hub_ts: int  # seconds, assigned by the hub
    hub_sig: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.bstr("label", 32),
            stream_seq=f.uint("stream_seq"),
            leaf_hash=f.bstr("leaf_hash", 32),
            mmr_root=f.bstr("mmr_root", 32),
            hub_ts=f.uint("hub_ts"),
            hub_sig=f.bstr("hub_sig", 64),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "ver": 1,
            "label": self.label,
            "stream_seq": self.stream_seq,
            "leaf_hash": self.leaf_hash,
            "mmr_root": self.mmr_root,
            "hub_ts": self.hub_ts,
            "hub_sig": self.hub_sig,
        }

    @classmethod
    def issue(
        cls, key: ed25519.SigningKey, *, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
    ) -> Self:
        """Sign a receipt. The caller has appended the leaf already: hubs sign only after the MMR update."""
        items = _items(label, stream_seq, leaf_hash, mmr_root, hub_ts)
        return cls(
            label=label,
            stream_seq=stream_seq,
            leaf_hash=leaf_hash,
            mmr_root=mmr_root,
            hub_ts=hub_ts,
            hub_sig=key.sign(sha256(_UNSIGNED + items).digest()),
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one canonical encoding; anything else is a FormatError (I10).

        As with MSG, following the fixed layout is the canonical check; the general reader names the faults.
        """
        return _parse(cls, data) or super(Receipt, cls).from_bytes(data)

    def to_bytes(self) -> bytes:
        if len(self.label) == len(self.leaf_hash) == len(self.mmr_root) == 32 and len(self.hub_sig) == 64:
            return b"".join((b"\x87", self._signed_items(), b"\x58\x40", self.hub_sig))
        return super(Receipt, self).to_bytes()  # names the field that does not fit

    def signing_digest(self) -> bytes:
        """What hub_sig signs: Ht("veen/sig", CBOR of the first six items)."""
        return sha256(_UNSIGNED + self._signed_items()).digest()

    def _signed_items(self) -> bytes:
        return _items(self.label, self.stream_seq, self.leaf_hash, self.mmr_root, self.hub_ts)

    def verify(self, hub_pk: bytes) -> None:
        """Raise SignatureError unless `hub_pk` signed this receipt."""
        if not ed25519.verify(hub_pk, self.signing_digest(), self.hub_sig):
            raise SignatureError(f"RECEIPT {self.stream_seq}: hub_sig does not verify under the given hub key")


def signed_bytes(
    key: ed25519.SigningKey, label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int
) -> bytes:
    """`Receipt.issue(…).to_bytes()` for a hub that signs thousands a second and needs only the bytes."""
    items = _items(label, stream_seq, leaf_hash, mmr_root, hub_ts)
    return b"".join((b"\x87", items, b"\x58\x40", key.sign(sha256(_UNSIGNED + items).digest())))


def _items(label: bytes, stream_seq: int, leaf_hash: bytes, mmr_root: bytes, hub_ts: int) -> bytes:
    """The first six items, without the head of the array around them."""
    return b"".join(
        (
            b"\x01\x58\x20",
            label,
            cbor.uint(stream_seq),
            b"\x58\x20",
            leaf_hash,
            b"\x58\x20",
            mmr_root,
            cbor.uint(hub_ts),
        )
    )


def _parse(cls: type[Receipt], data: bytes) -> Any:
    """The receipt in `data`, or None if it departs from the canonical layout anywhere."""
    if data[:4] != b"\x87\x01\x58\x20":
        return None
    try:
        stream_seq, leaf = cbor.uint_at(data, 36)
        hub_ts, end = cbor.uint_at(data, leaf + 68)
    except (IndexError, ValueError):
        return None
    root = leaf + 34
    if data[leaf : leaf + 2] != _BSTR32 or data[root : root + 2] != _BSTR32:
        return None
    if len(data) != end + 66 or data[end : end + 2] != _BSTR64:
        return None
    return cls(
        label=data[4:36],
        stream_seq=stream_seq,
        leaf_hash=data[leaf + 2 : root],
        mmr_root=data[root + 2 : root + 34],
        hub_ts=hub_ts,
        hub_sig=data[end + 2 :],
    )
