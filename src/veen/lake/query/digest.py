"""ResultDigest and the hashes in it, computed in one pass over the rows (001 query §5, QRY-14 … QRY-16).

`rows_hash` is one hash over all rows, as the specification has it. `rows_root` is the root of a tree over the same
rows, so that a page of a result has its own proof (`PageProof`). A digest of an earlier release has no `rows_root`: its
rows can only be checked all together.

Coverage of a result: the range read of each label, the root there, and the entries that became no row.

A repeated execution over the same ranges, under the same roots, must give the same rows: an omitted row shows. Skipped
entries are counted for each label and reason, with the first position, so that nothing disappears silently. All of it
is a function of the log, the keys and the descriptor.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple, Self

from veen.core import canonical
from veen.core.canonical import Json
from veen.core.errors import ProofError
from veen.core.hashing import Ht
from veen.core.tree.mmr import Span, span_nodes
from veen.lake.log.decryption import Skips
from veen.lake.log.prefix import Prefix
from veen.lake.query.descriptor import EvidencePolicy, QueryDescriptor
from veen.lake.query.errors import InvalidDescriptor, ResultForged, UnsupportedVersion

NO_EVIDENCE: Final[dict[str, Json]] = {"mode": "none"}
_ROW_TAG: Final = "veen/query-row"
_RUN: Final = 4_096  # leaves that wait to be folded


def hash_of(value: Json) -> str:
    return sha256(canonical.encode(value)).hexdigest()


class RowsHash:
    """hex(sha256(canonical JSON of the array of rows)), one row at a time."""

    def __init__(self) -> None:
        self._digest = sha256(b"[")
        self.count = 0

    def add(self, row: bytes) -> None:
        """Add the canonical JSON of one row."""
        self._digest.update(b"," + row if self.count else row)
        self.count += 1

    def hexdigest(self) -> str:
        done = self._digest.copy()
        done.update(b"]")
        return done.hexdigest()


def row_leaf(row: bytes) -> bytes:
    """Return the leaf of a row in the tree of its result. `row` is the canonical JSON of one row."""
    return Ht(_ROW_TAG, row)


class RowsTree:
    """The tree over all rows of a result, one row at a time. Owned by the loop that makes the rows."""

    def __init__(self) -> None:
        self._span, self._waiting = Span(0, 0, ()), list[bytes]()

    def add(self, row: bytes) -> None:
        self._waiting.append(row_leaf(row))
        if len(self._waiting) >= _RUN:
            self._fold()

    def _fold(self) -> None:
        if self._waiting:
            self._span = self._span.merge(Span.of(self._span.end, self._waiting))
            self._waiting.clear()

    def root(self) -> str | None:
        """Return the root in hex; None if there is no row, for an empty tree has no root (D-30)."""
        self._fold()
        return self._span.root().hex() if self._span.end else None


@dataclass(frozen=True, slots=True)
class PageProof:
    """The nodes of the tree beside a page: with the rows of the page they give `rows_root`.

    `before` covers the rows before the page, `after` those behind it, each as the maximal aligned subtrees from left to
    right (`mmr.span_nodes`).
    """

    before: tuple[bytes, ...]
    after: tuple[bytes, ...]

    @classmethod
    def of(cls, node_at: Callable[[int, int], bytes], first: int, end: int, total: int) -> Self:
        """Make the proof of rows `first` … `end` - 1 of `total`; `node_at(height, index)` reads a node of the tree."""
        before = tuple(node_at(height, index) for height, index in span_nodes(0, first))
        return cls(before, tuple(node_at(height, index) for height, index in span_nodes(end, total)))

    def check(self, digest: "ResultDigest", first: int, rows: Iterable[bytes]) -> None:
        """Raise ResultForged unless `rows`, from number `first` on, are rows of the digest in their places."""
        leaves = [row_leaf(row) for row in rows]
        end = first + len(leaves)
        try:
            before, after = Span(0, first, self.before), Span(end, digest.row_count, self.after)
            root = before.merge(Span.of(first, leaves)).merge(after).root().hex()
        except ProofError as exc:
            raise ResultForged(f"rows {first} to {end}: the proof of the page is of another form: {exc}") from exc
        if root != digest.rows_root:
            raise ResultForged(f"rows {first} to {end} are not those of the digest: they have another root")

    def to_json(self) -> dict[str, Json]:
        return {"before": [node.hex() for node in self.before], "after": [node.hex() for node in self.after]}

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """Parse a proof that somebody sent. Raise ResultForged if it has another form."""
        try:
            return cls(_nodes(value["before"]), _nodes(value["after"]))
        except (TypeError, KeyError, ValueError) as exc:
            raise ResultForged("the proof of a page has no lists of hashes `before` and `after`") from exc


def _nodes(values: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(value) for value in values)


class Verified(NamedTuple):
    """A verified receipt. All fields concern the entry itself: they are the same in a longer log."""

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
        """Add the canonical JSON of one verified entry."""
        self._digest.update(b"," + verified if self.count else verified)
        self.count += 1

    def hexdigest(self) -> str:
        done = self._digest.copy()
        done.update(self._end)
        return done.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultDigest:
    """Record of a result; anyone who has rows and evidence can compute the hashes again.

    `coverage_hash` goes beyond the seeds: it binds the range of each stream that was read, and the root there, so that
    an omitted row shows when the query is executed again. So does `rows_root`: see `PageProof`.
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
    rows_root: str | None = None  # None: no rows, or a digest of an earlier release

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
        optional = {"profile_id": self.profile_id, "rows_root": self.rows_root}
        return {**value, **{name: member for name, member in optional.items() if member is not None}}

    def to_bytes(self) -> bytes:
        """Encode in the form that record/query/results has (QRY-17)."""
        return canonical.encode(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode a recorded digest. Ignore members that a later release added (QRY-31)."""
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
                rows_root=value.get("rows_root"),
                **{name: value[name] for name in _PLAIN},
            )
        except (KeyError, TypeError, AttributeError) as exc:
            raise InvalidDescriptor("result_digest", f"{exc} is missing or of the wrong type") from exc
        if type(digest.row_count) is not int or any(type(getattr(digest, name)) is not str for name in _TEXTS):
            raise InvalidDescriptor("result_digest", "a member is of the wrong type")
        if type(digest.rows_root) not in (str, type(None)):
            raise InvalidDescriptor("result_digest", "a member is of the wrong type")
        return digest


_TEXTS: Final = (
    "query_id", "result_id", "rows_hash", "evidence_hash", "coverage_hash", "executed_at", "hub_id",
)  # fmt: skip
_PLAIN: Final = ("row_count", *_TEXTS)


@dataclass(frozen=True, slots=True)
class Coverage:
    """The ranges behind a result, as JSON; `coverage_hash` of the digest is its hash."""

    value: Json
    skipped: Mapping[str, int]

    @classmethod
    def of(
        cls, prefix: Prefix, descriptor: QueryDescriptor, skips: Skips, ignored: Mapping[str, int], matched: int
    ) -> "Coverage":
        """Build the coverage. `ignored` counts values that no metric could take, `matched` rows before a limit."""
        streams: dict[str, list[Json]] = {name: [] for name in descriptor.scope}
        for label_range in sorted(prefix.labels, key=lambda label_range: (label_range.stream.epoch, label_range.label)):
            receipt = label_range.head_receipt
            streams[descriptor.stream_names[label_range.stream.stream_id or b""]].append(
                {
                    "label": label_range.label.hex(),
                    "epoch": label_range.stream.epoch,
                    "from_seq": 1,
                    "to_seq": label_range.head,
                    "mmr_root": receipt.mmr_root.hex() if receipt else None,
                    "skipped": {kind: skip.to_json() for kind, skip in skips.of(label_range.label).items()},
                }
            )
        value: dict[str, Json] = {
            "hub_id": prefix.hub_id,
            "streams": [{"stream": name, "labels": labels} for name, labels in streams.items()],
            "values_ignored": dict(ignored),
        }
        if descriptor.limit is not None:
            value["rows_matched"] = matched
        return cls(value, skips.totals())

    def hexdigest(self) -> str:
        return hash_of(self.value)


def heads_of(coverage: Json) -> dict[bytes, int]:
    """Return the heads of an earlier execution from its coverage."""
    return {
        bytes.fromhex(label["label"]): label["to_seq"] for stream in coverage["streams"] for label in stream["labels"]
    }
