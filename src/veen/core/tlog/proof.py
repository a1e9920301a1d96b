"""tlog-proof (c2sp.org/tlog-proof): proof that a leaf is in a log, with the signed note, in one text.

Also the body of `add-checkpoint`, the request by which a log asks a witness for a cosignature (c2sp.org/tlog-witness).

The leaves of a hub's outer log (D-172): deterministic CBOR `[1, kind, bytes]`.

Kind 0 is hub-identity.json and always leaf 0; kind 1 a CHECKPOINT without witness_sigs; kind 2 the newest record of the
control journal.

Receipts of RFC 9942 (COSE, verifiable data structure 1: RFC 6962) from the tree of an outer log.

    tag 18 [protected bstr, {396: {-1: [bstr of [tree_size, leaf_index, [path…]]]}}, nil, signature]
    protected {1: alg, 4: kid, 15: {1: iss, 2: sub, 6: iat}, 395: 1}

The payload is detached: it is the root that the path leads to. The signature does not cover the tree size, so whoever
verifies a receipt takes size and root from a signed note.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import FormatError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tlog.note import (
    MAX_NOTE_BYTES,
    LogCheckpoint,
    Note,
    VerifierKey,
    decode_base64,
    decode_text,
    encode_base64,
    parse_number,
)
from veen.core.tlog.tree import HASH_BYTES, MAX_PATH, NoteError, TlogError, TlogReceiptError, check_inclusion, leaf_hash

IDENTITY_LEAF: Final = 0
CHECKPOINT_LEAF: Final = 1
CONTROL_LEAF: Final = 2
MAX_LEAF_BYTES: Final = 65_535  # of an entry bundle of tlog-tiles
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class OuterLeaf:
    kind: int
    data: bytes

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        return cls(CHECKPOINT_LEAF, replace(checkpoint, witness_sigs=None).to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            tree = cbor.decode(data, what="outer leaf", max_bytes=MAX_LEAF_BYTES)
        except FormatError as exc:
            raise NoteError(f"outer leaf: {exc}") from exc
        if type(tree) is not list or len(tree) != 3 or type(tree[1]) is not int or type(tree[2]) is not bytes:
            raise NoteError("outer leaf: expected [1, kind, bytes]")
        if type(tree[0]) is not int or tree[0] != _VERSION or not 0 <= tree[1] <= CONTROL_LEAF:
            raise NoteError("outer leaf: unknown version or kind")
        return cls(tree[1], tree[2])

    def to_bytes(self) -> bytes:
        return cbor.encode([_VERSION, self.kind, self.data])

    def checkpoint(self) -> Checkpoint | None:
        """Return the CHECKPOINT of the leaf; None for other kinds. Raise NoteError if it is invalid or has
        witness_sigs.
        """
        if self.kind != CHECKPOINT_LEAF:
            return None
        try:
            checkpoint = Checkpoint.from_bytes(self.data)
        except FormatError as exc:
            raise NoteError(f"outer leaf: {exc}") from exc
        if checkpoint.witness_sigs is not None:
            raise NoteError("outer leaf: a CHECKPOINT is listed without witness_sigs")
        return checkpoint


_HEADER: Final = "c2sp.org/tlog-proof@v1"
MAX_REQUEST_BYTES: Final = MAX_NOTE_BYTES + 8 * 1024
_MAX_EXTRA_BYTES: Final = 16 * 1024


def _hashes(lines: list[str], what: str) -> tuple[bytes, ...]:
    if len(lines) > MAX_PATH:
        raise NoteError(f"{what}: at most {MAX_PATH} hashes")
    hashes = tuple(decode_base64(line, what) for line in lines)
    if any(len(node) != HASH_BYTES for node in hashes):
        raise NoteError(f"{what}: a hash has {HASH_BYTES} bytes")
    return hashes


def _before_note(text: str, what: str) -> tuple[list[str], Note]:
    head, empty, rest = text.partition("\n\n")
    if not empty:
        raise NoteError(f"{what}: no empty line before the note")
    return head.split("\n"), Note.from_bytes(rest.encode())


@dataclass(frozen=True, slots=True)
class TlogProof:
    """An inclusion proof with its note, not verified. Nothing authenticates `extra`."""

    index: int  # of the leaf, from 0
    path: tuple[bytes, ...]
    note: Note
    extra: bytes | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        lines, note = _before_note(decode_text(data, "tlog-proof", MAX_REQUEST_BYTES), "tlog-proof")
        if lines.pop(0) != _HEADER:
            raise NoteError(f"tlog-proof: the first line is not {_HEADER}")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = decode_base64(lines.pop(0).removeprefix("extra "), "tlog-proof: extra")
            if len(extra) > _MAX_EXTRA_BYTES:
                raise NoteError(f"tlog-proof: extra has at most {_MAX_EXTRA_BYTES} bytes")
        if not lines or not lines[0].startswith("index "):
            raise NoteError("tlog-proof: the index is missing")
        index = parse_number(lines.pop(0).removeprefix("index "), "tlog-proof: index")
        return cls(index, _hashes(lines, "tlog-proof"), note, extra)

    def to_bytes(self) -> bytes:
        lines = [_HEADER]
        if self.extra is not None:
            lines.append(f"extra {encode_base64(self.extra)}")
        lines += [f"index {self.index}", *map(encode_base64, self.path), ""]
        return "".join(f"{line}\n" for line in lines).encode() + self.note.to_bytes()

    def check(self, leaf_data: bytes) -> LogCheckpoint:
        """Return the checkpoint that includes the leaf; raise TlogProofError if it does not. Signatures are left to a
        policy.
        """
        checkpoint = LogCheckpoint.parse(self.note.text)
        check_inclusion(leaf_hash(leaf_data), self.index, checkpoint.size, self.path, checkpoint.root)
        return checkpoint


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """The body of `POST add-checkpoint`: the old size, the consistency proof from it, and the note."""

    old: int
    path: tuple[bytes, ...]
    note: Note

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        text = decode_text(data, "add-checkpoint", MAX_REQUEST_BYTES)
        lines, note = _before_note(text, "add-checkpoint")
        if not lines[0].startswith("old "):
            raise NoteError("add-checkpoint: the old size is missing")
        old = parse_number(lines.pop(0).removeprefix("old "), "add-checkpoint: old")
        return cls(old, _hashes(lines, "add-checkpoint"), note)

    def to_bytes(self) -> bytes:
        lines = [f"old {self.old}", *map(encode_base64, self.path), ""]
        return "".join(f"{line}\n" for line in lines).encode() + self.note.to_bytes()


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
