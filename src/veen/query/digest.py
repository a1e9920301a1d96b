"""ResultDigest, and the hashes in it, computed in one pass over what streams by (001 query §5, QRY-14 … QRY-16)."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple, Self

from veen.query import canonical
from veen.query.canonical import Json
from veen.query.descriptor import EvidencePolicy, QueryDescriptor
from veen.query.errors import InvalidDescriptor, UnsupportedVersion

NO_EVIDENCE: Final[dict[str, Json]] = {"mode": "none"}


def hash_of(value: Json) -> str:
    return sha256(canonical.encode(value)).hexdigest()


class RowsHash:
    """hex(sha256(canonical JSON of the array of rows)), one row at a time."""

    def __init__(self) -> None:
        self._digest = sha256(b"[")
        self.count = 0

    def add(self, row: bytes) -> None:
        """`row` is the canonical JSON of one row."""
        self._digest.update(b"," + row if self.count else row)
        self.count += 1

    def hexdigest(self) -> str:
        done = self._digest.copy()
        done.update(b"]")
        return done.hexdigest()


class Verified(NamedTuple):
    """One receipt that was verified. All of it is about the entry itself: it is the same in a longer log."""

    receipt_id: str
    mmr_root: str  # of the receipt: after its entry
    hub_id: str
    label: str
    stream_seq: int

    def to_bytes(self) -> bytes:
        return canonical.encode(self._asdict())


class EvidenceHash:
    """The hash of the evidence summary: `verified` is its last member, so it can grow to any length."""

    def __init__(self, descriptor: QueryDescriptor, result_id: str) -> None:
        evidence = descriptor.evidence
        self.count = 0
        if evidence.mode == "none":
            self._digest, self._end = sha256(canonical.encode(NO_EVIDENCE)), b""
            return
        head = {"query_id": descriptor.query_id, "result_id": result_id, **evidence.to_json(), "verified": []}
        self._digest, self._end = sha256(canonical.encode(head)[:-2]), b"]}"

    def add(self, verified: bytes) -> None:
        """`verified` is the canonical JSON of one entry."""
        self._digest.update(b"," + verified if self.count else verified)
        self.count += 1

    def hexdigest(self) -> str:
        done = self._digest.copy()
        done.update(self._end)
        return done.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultDigest:
    """What is recorded of a result; anyone who has rows and evidence can compute the hashes again.

    `coverage_hash` goes beyond the seeds: it binds the range of each stream that was looked at, and the root there, so
    that a row that was left out shows when the query is executed again.
    """

    query_id: str
    result_id: str
    row_count: int
    evidence_policy: EvidencePolicy
    rows_hash: str
    evidence_hash: str
    coverage_hash: str
    executed_at: str
    hub_id: str
    profile_id: str | None = None

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = {
            "query_id": self.query_id,
            "result_id": self.result_id,
            "version": 1,
            "row_count": self.row_count,
            "evidence_policy": self.evidence_policy.to_json(),
            "rows_hash": self.rows_hash,
            "evidence_hash": self.evidence_hash,
            "coverage_hash": self.coverage_hash,
            "executed_at": self.executed_at,
            "hub_id": self.hub_id,
        }
        return value if self.profile_id is None else {**value, "profile_id": self.profile_id}

    def to_bytes(self) -> bytes:
        """What is recorded in record/query/results (QRY-17)."""
        return canonical.encode(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """A recorded digest. Members that a later release added are ignored (QRY-31)."""
        value = canonical.parse(data)
        if type(value) is not dict:
            raise InvalidDescriptor("result_digest", "expected an object")
        if value.get("version") != 1:
            raise UnsupportedVersion("version of ResultDigest is not 1")
        try:
            policy = value["evidence_policy"]
            digest = cls(
                evidence_policy=EvidencePolicy(mode=policy["mode"], sample_rate=policy.get("sample_rate")),
                profile_id=value.get("profile_id"),
                **{name: value[name] for name in _PLAIN},
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise InvalidDescriptor("result_digest", f"{exc} is missing or of the wrong type") from exc
        if type(digest.row_count) is not int or any(type(getattr(digest, name)) is not str for name in _TEXTS):
            raise InvalidDescriptor("result_digest", "a member is of the wrong type")
        return digest


_TEXTS: Final = (
    "query_id", "result_id", "rows_hash", "evidence_hash", "coverage_hash", "executed_at", "hub_id",
)  # fmt: skip
_PLAIN: Final = ("row_count", *_TEXTS)
