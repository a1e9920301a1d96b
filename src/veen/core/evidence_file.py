"""veen-evidence: entries of a log with all that an outsider needs to check them, in one file (docs/evidence.md).

    ["veen-evidence", 1, body as a byte string, Ht("veen/evidence", body)]

The file has one encoding: the same evidence gives the same bytes. It never holds a key of a stream or of an identity;
an opening is the secret of one message and opens nothing else. The digest at the end finds a damaged copy. It proves
nothing: an attacker who alters the body computes it again, and then the checks of `veen.core.evidence_check` fail.

Sizes and counts are checked before anything is decoded or verified.
"""

from dataclasses import dataclass
from hmac import compare_digest
from typing import Annotated, ClassVar, Final, Self

from veen.core import cbor
from veen.core.entry import HASH_HEAD
from veen.core.errors import FieldSizeError, FormatError, VerifyError
from veen.core.hashing import Ht
from veen.core.sealing.ciphertext import OPENING_BYTES
from veen.core.wire import (
    Bytes32,
    Bytes64,
    Choice,
    Fields,
    Form,
    Length,
    Size,
    Uint,
    Wire,
    WireType,
    reference,
)

MAGIC: Final = b"\x84\x6dveen-evidence"  # an array of four items, of which the first is this text
VERSION: Final = 1
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
MAX_ENTRIES: Final = 65_536  # in the whole file
MAX_LOGS: Final = 1_024  # labels: one for each epoch in which the stream has entries
MAX_CHECKPOINTS: Final = 16  # of one log
MAX_PROFILES: Final = 16
MAX_ROTATIONS: Final = 1_023
MAX_NAME_BYTES: Final = 1_024
MAX_OUTSIDE: Final = 256
MAX_OUTSIDE_BYTES: Final = 65_536
# Proofs that others than the hub made about a checkpoint. This release carries them and does not check them.
OUTSIDE_KINDS: Final = ("tlog-proof", "cose-receipt", "rfc3161")
_DIGEST_TAG: Final = "veen/evidence"
_SHORTEST: Final = len(MAGIC) + 1 + 1 + len(HASH_HEAD) + 32
_MAX_ITEMS: Final = 8 * MAX_ENTRIES  # an entry of its own run is seven items


class EvidenceFault(VerifyError, code="E.EVIDENCE"):
    """A file that is not evidence, or that does not prove what it claims; `code` tells the cases apart."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.args = (code, what)  # mirror __init__, so that the error survives pickling
        self.code = code


class QuorumUnmet(EvidenceFault, code="E.EVIDENCE.QUORUM"):
    """Proofs by others that do not satisfy the witness policy. Nothing in the file is wrong."""

    def __init__(self, what: str) -> None:
        super().__init__("E.EVIDENCE.QUORUM", what)
        self.args = (what,)  # mirror __init__, so that the error survives pickling


def is_evidence(data: bytes) -> bool:
    """Return True if these bytes begin like an evidence file; at least 15 bytes are needed."""
    return data.startswith(MAGIC)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plaintext(Wire, kind="evidence plaintext"):
    """Content of an entry as stated by the exporter. Nothing in the file proves it."""

    FORM: ClassVar[Form] = "array"

    payload_hdr: bytes
    body: bytes


def _read_content(f: Fields, name: str) -> bytes | Plaintext:
    return f.object(name, Plaintext) if type(f.peek(name)) is list else f.bstr(name, OPENING_BYTES)


Content = Annotated[
    bytes | Plaintext,
    WireType(
        _read_content,
        (),
        f"{OPENING_BYTES} bytes, the opening, or evidence plaintext",
        {"oneOf": [Size(OPENING_BYTES).schema, reference(Plaintext)]},
        (Plaintext,),
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EntryEvidence(Wire, kind="evidence entry"):
    """One entry: the bytes of its MSG and RECEIPT, and perhaps its opening or plaintext."""

    FORM: ClassVar[Form] = "array"

    msg: bytes
    receipt: bytes
    content: Content | None = None  # an opening, what the exporter read, or nothing: trimmed, never null


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunEvidence(Wire, kind="evidence run"):
    """Entries without a gap between them, and the range_proof that leads to the first checkpoint of the log."""

    FORM: ClassVar[Form] = "map"

    proof: bytes
    entries: Annotated[tuple[EntryEvidence, ...], Length(1, MAX_ENTRIES)]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LogEvidence(Wire, kind="evidence log"):
    """Evidence about one label: the stream in one epoch."""

    FORM: ClassVar[Form] = "map"

    label: Bytes32
    epoch: Uint
    checkpoints: Annotated[tuple[bytes, ...], Length(1, MAX_CHECKPOINTS)]  # by upto_seq, strictly ascending
    consistency: Annotated[
        tuple[bytes, ...], Length(0, MAX_CHECKPOINTS - 1)
    ]  # a consistency_proof from each checkpoint to the next
    runs: Annotated[
        tuple[RunEvidence, ...], Length(1, MAX_ENTRIES)
    ]  # by position; entries are left out between two of them


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideProof(Wire, kind="outside proof"):
    """A proof about the checkpoint with this SHA-256, made by somebody other than the hub."""

    FORM: ClassVar[Form] = "array"

    kind: Annotated[str, Choice(*OUTSIDE_KINDS)]
    checkpoint_hash: Bytes32
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EvidenceFile(Wire, kind="evidence body"):
    """The body of a file, not verified. `from_bytes` and `to_bytes` convert the body without its frame."""

    FORM: ClassVar[Form] = "map"

    identity: bytes  # hub-identity.json
    identity_sig: Bytes64  # hub-identity.sig
    rotations: Annotated[
        tuple[bytes, ...], Length(0, MAX_ROTATIONS)
    ]  # the key.rotate records of the hub's control journal, in its order
    stream_id: Bytes32 | None = None
    stream_name: str | None = None  # only with stream_id, which is the hash of it
    profiles: Annotated[tuple[bytes, ...], Length(1, MAX_PROFILES)]  # those that the entries name, by profile_id
    logs: Annotated[tuple[LogEvidence, ...], Length(1, MAX_LOGS)]  # by epoch, then label
    outside: Annotated[tuple[OutsideProof, ...], Length(1, MAX_OUTSIDE)] | None = None

    @property
    def entries(self) -> int:
        return sum(len(run.entries) for log in self.logs for run in log.runs)

    @classmethod
    def from_file(cls, data: bytes) -> Self:
        """Return the body of a file; raise EvidenceFault for bytes that are not the canonical form."""
        body = _check_frame(data)
        try:
            tree = cbor.decode(body, what=cls.KIND, max_bytes=MAX_FILE_BYTES, max_items=_MAX_ITEMS)
            evidence = cls.from_tree(tree)
        except FieldSizeError as exc:
            raise EvidenceFault("E.EVIDENCE.SIZE", str(exc)) from exc
        except FormatError as exc:
            raise EvidenceFault("E.EVIDENCE.FORM", str(exc)) from exc
        evidence._check_counts()
        return evidence

    def to_file(self) -> bytes:
        """Return the bytes of the file; raise EvidenceFault if it exceeds the size limit."""
        self._check_counts()
        body = self.to_bytes()
        data = b"".join((MAGIC, cbor.uint(VERSION), cbor.bstr_head(len(body)), body, HASH_HEAD, Ht(_DIGEST_TAG, body)))
        _check_size(len(data))
        return data

    def _check_counts(self) -> None:
        """Check the bounds that the types of the fields do not express."""
        if self.entries > MAX_ENTRIES:
            raise EvidenceFault("E.EVIDENCE.SIZE", f"{self.entries} entries; a file has at most {MAX_ENTRIES}")
        if self.stream_name is not None:
            if self.stream_id is None:
                raise EvidenceFault("E.EVIDENCE.FORM", "stream_name is given without its stream_id")
            if len(self.stream_name.encode()) > MAX_NAME_BYTES:
                raise EvidenceFault("E.EVIDENCE.SIZE", f"stream_name has more than {MAX_NAME_BYTES} bytes")
        for outside in self.outside or ():
            if len(outside.data) > MAX_OUTSIDE_BYTES:
                raise EvidenceFault("E.EVIDENCE.SIZE", f"a {outside.kind} has more than {MAX_OUTSIDE_BYTES} bytes")


def _check_size(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise EvidenceFault("E.EVIDENCE.SIZE", f"{size} bytes; an evidence file has at most {MAX_FILE_BYTES}")


def _check_frame(data: bytes) -> bytes:
    """Return the body of a file after checking its frame and digest."""
    _check_size(len(data))
    if not is_evidence(data):
        if data and MAGIC.startswith(data):
            raise EvidenceFault("E.EVIDENCE.TRUNCATED", f"the file ends after {len(data)} bytes")
        raise EvidenceFault("E.EVIDENCE.KIND", "the first bytes are not those of an evidence file")
    if len(data) < _SHORTEST:
        raise EvidenceFault("E.EVIDENCE.TRUNCATED", f"the file ends after {len(data)} bytes")
    try:
        version, pos = cbor.uint_at(data, len(MAGIC))
        if version != VERSION:
            raise EvidenceFault("E.EVIDENCE.VERSION", f"the file has version {version}, this release reads {VERSION}")
        length, start = cbor.uint_at(data, pos, 0x40)
    except (IndexError, ValueError) as exc:
        raise EvidenceFault("E.EVIDENCE.FORM", "the frame of the file is not in its canonical form") from exc
    end = start + length
    whole = end + len(HASH_HEAD) + 32
    if len(data) < whole:
        raise EvidenceFault("E.EVIDENCE.TRUNCATED", f"the file ends after {len(data)} of {whole} bytes")
    if len(data) > whole or data[end : end + len(HASH_HEAD)] != HASH_HEAD:
        raise EvidenceFault("E.EVIDENCE.FORM", "bytes follow the file, or its parts have other lengths than they say")
    body = data[start:end]
    if not compare_digest(Ht(_DIGEST_TAG, body), data[whole - 32 :]):
        raise EvidenceFault("E.EVIDENCE.DAMAGED", "the digest at the end of the file is not that of its content")
    return body
