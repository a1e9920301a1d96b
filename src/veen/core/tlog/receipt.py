"""Receipts of RFC 9942 (COSE, verifiable data structure 1: RFC 6962) from the tree of an outer log.

    tag 18 [protected bstr, {396: {-1: [bstr of [tree_size, leaf_index, [path…]]]}}, nil, signature]
    protected {1: alg, 4: kid, 15: {1: iss, 2: sub, 6: iat}, 395: 1}

The payload is detached: it is the root that the path leads to. The signature does not cover the tree size, so whoever
verifies a receipt takes size and root from a signed note.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import FormatError
from veen.core.tlog.errors import TlogError, TlogReceiptError
from veen.core.tlog.note import LogCheckpoint, VerifierKey
from veen.core.tlog.tree import HASH_BYTES, MAX_PATH, check_inclusion, leaf_hash

_TAG_18: Final = 0xD2
_MAX_BYTES: Final = 16 * 1024
ALG_ED25519: Final = -19
_ALGS: Final = (ALG_ED25519, -8)  # -8 EdDSA is deprecated and read all the same
_ALG, _KID, _CLAIMS, _VDS, _VDP = 1, 4, 15, 395, 396
_ISS, _SUB, _IAT = 1, 2, 6
_RFC_6962: Final = 1
_INCLUSION: Final = -1


def _fail(what: str) -> TlogReceiptError:
    return TlogReceiptError(f"COSE receipt: {what}")


def kid_of(public: bytes) -> bytes:
    return sha256(public).digest()


@dataclass(frozen=True, slots=True)
class CoseReceipt:
    """A receipt, not verified."""

    protected: bytes
    tree_size: int
    leaf_index: int
    path: tuple[bytes, ...]
    signature: bytes

    @classmethod
    def issue(
        cls,
        key: ed25519.SigningKey,
        checkpoint: LogCheckpoint,
        leaf_index: int,
        path: Sequence[bytes],
        *,
        subject: str,
        issued_at: int,
    ) -> Self:
        """Sign the root of `checkpoint`, in whose tree the leaf is."""
        protected = cbor.encode_sorted(
            {
                _ALG: ALG_ED25519,
                _KID: kid_of(key.public),
                _CLAIMS: {_ISS: checkpoint.origin, _SUB: subject, _IAT: issued_at},
                _VDS: _RFC_6962,
            }
        )
        signature = key.sign(_to_be_signed(protected, checkpoint.root))
        return cls(protected, checkpoint.size, leaf_index, tuple(path), signature)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        if len(data) > _MAX_BYTES:
            raise _fail(f"more than {_MAX_BYTES} bytes")
        if not data or data[0] != _TAG_18:
            raise _fail("does not begin with tag 18")
        tree = _decode(data[1:], "COSE_Sign1")
        if type(tree) is not list or len(tree) != 4:
            raise _fail("expected an array of four items")
        protected, unprotected, payload, signature = tree
        if payload is not None:
            raise _fail("the payload is attached; it must be nil")
        if type(protected) is not bytes or type(signature) is not bytes or len(signature) != ed25519.SIGNATURE_BYTES:
            raise _fail("protected header and signature are byte strings, the signature of 64 bytes")
        if type(unprotected) is not dict or set(unprotected) != {_VDP}:
            raise _fail("the unprotected header has the proofs, and nothing else")
        proofs = unprotected[_VDP]
        if type(proofs) is not dict or set(proofs) != {_INCLUSION}:
            raise _fail("expected one inclusion proof")
        listed = proofs[_INCLUSION]
        if type(listed) is not list or len(listed) != 1 or type(listed[0]) is not bytes:
            raise _fail("expected one inclusion proof")
        size, index, path = _inclusion(listed[0])
        receipt = cls(protected, size, index, path, signature)
        receipt._header()
        return receipt

    def to_bytes(self) -> bytes:
        proof = cbor.encode([self.tree_size, self.leaf_index, list(self.path)])
        return bytes([_TAG_18]) + cbor.encode([self.protected, {_VDP: {_INCLUSION: [proof]}}, None, self.signature])

    def _header(self) -> dict[Any, Any]:
        header = _decode(self.protected, "protected header")
        if type(header) is not dict or set(header) != {_ALG, _KID, _CLAIMS, _VDS} or not cbor.is_sorted(header):
            raise _fail("the protected header has alg, kid, claims and vds, in deterministic order")
        if header[_ALG] not in _ALGS:
            raise _fail("the algorithm is not Ed25519")
        if type(header[_VDS]) is not int or header[_VDS] != _RFC_6962:
            raise _fail("the verifiable data structure is not RFC 6962 (1)")
        claims = header[_CLAIMS]
        if type(claims) is not dict or type(claims.get(_ISS)) is not str or type(claims.get(_SUB)) is not str:
            raise _fail("the claims name issuer and subject as text")
        return header

    def verify(self, key: VerifierKey, leaf_data: bytes, checkpoint: LogCheckpoint) -> None:
        """Raise TlogReceiptError unless `key` signed that the leaf is in the tree of the note text `checkpoint`."""
        header = self._header()
        if header[_KID] != kid_of(key.public) or header[_CLAIMS][_ISS] != checkpoint.origin:
            raise _fail("issuer or key are not those of the log")
        if self.tree_size != checkpoint.size:
            raise _fail("the tree size is not that of the signed note")
        try:
            check_inclusion(leaf_hash(leaf_data), self.leaf_index, self.tree_size, self.path, checkpoint.root)
        except TlogError as exc:
            raise _fail(exc.what) from exc
        if not ed25519.verify(key.public, _to_be_signed(self.protected, checkpoint.root), self.signature):
            raise _fail("the signature does not verify")


def _to_be_signed(protected: bytes, root: bytes) -> bytes:
    return cbor.encode(["Signature1", protected, b"", root])


def _decode(data: bytes, what: str) -> Any:
    try:
        return cbor.decode(data, what=what, max_bytes=_MAX_BYTES)
    except FormatError as exc:
        raise _fail(f"{what}: {exc}") from exc


def _inclusion(data: bytes) -> tuple[int, int, tuple[bytes, ...]]:
    tree = _decode(data, "inclusion proof")
    if type(tree) is not list or len(tree) != 3 or type(tree[2]) is not list:
        raise _fail("an inclusion proof is [tree_size, leaf_index, path]")
    size, index, path = tree
    if type(size) is not int or type(index) is not int or not 0 <= index < size:
        raise _fail("tree_size and leaf_index are numbers, the index below the size")
    if not 1 <= len(path) <= MAX_PATH or any(type(node) is not bytes or len(node) != HASH_BYTES for node in path):
        raise _fail("the path has 1 to 63 hashes of 32 bytes")
    return size, index, tuple(path)
