"""Execution: matches in logical order become rows, hashes, evidence and a digest.

`execute` is the same for every engine; an engine is only a `MatchSource`. `LocalSource` is the reference: one process,
one entry after another, no Spark.

Sampling of a spot check: a function of query_id and the number of the row (D-109, QRY-18).

Planning: the entries that a query has to read, by the labels of its streams, pinned heads, and times of chunks.

Entries that only the journal of a running hub has are included. Heads are pinned once, so one execution sees one
prefix; a repeated execution takes the heads of the first (QRY-28).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import sha256
from typing import Final, Protocol, TypeVar

from veen.client.identity.keyring import Keyring
from veen.core import canonical
from veen.core.hashing import tag_prefix, u64be
from veen.core.objects.identity import HubIdentity
from veen.io.places import open_fs
from veen.lake.log.decryption import Skips, in_order
from veen.lake.log.prefix import LabelRange, Prefix, Shortened, make_prefix
from veen.lake.log.slices import Slice
from veen.lake.query.aggregate import GroupReceipts, Partial, row_of, total_ignored
from veen.lake.query.clauses import first_rows
from veen.lake.query.control import ExecutionControl
from veen.lake.query.descriptor import Aggregate, EvidencePolicy, QueryDescriptor
from veen.lake.query.digest import Coverage, EvidenceHash, ResultDigest, RowsHash, RowsTree
from veen.lake.query.errors import EvidenceFailed, ExecutionFailed
from veen.lake.query.evidence import Leaves, Prover
from veen.lake.query.fields import timestamp
from veen.lake.query.matches import Match, Matcher, MatchTally
from veen.storage.pinned import first_ts, pin

_TAG: Final = tag_prefix("veen/query-spot")


def threshold(rate: int | Decimal) -> int:
    """Return floor(rate · 2^64), without any rounding."""
    over, under = rate.as_integer_ratio()
    return (over << 64) // under


def sampler(evidence: EvidencePolicy, query_id: str) -> Callable[[int], bool]:
    """Return a function that is True for row numbers, from 0, to verify. A spot check always has row 0."""
    if evidence.sample_rate is None:
        return lambda _: evidence.mode == "full"
    below = threshold(evidence.sample_rate)
    seed = _TAG + query_id.encode() + b"\x00"

    def is_sampled(row: int) -> bool:
        return row == 0 or int.from_bytes(sha256(seed + u64be(row)).digest()[:8], "big") < below

    return is_sampled


def plan_query(
    uri: str,
    descriptor: QueryDescriptor,
    *,
    heads: Mapping[bytes, int] | None = None,
    identity: HubIdentity | None = None,
) -> Prefix:
    """Pin the directory, find the labels of the scope, select chunks by time.

    `heads` are those of an earlier execution: the same prefix is read again, or EvidenceFailed names what is gone.
    `identity` is the hub's, where it is known from elsewhere; a directory of another hub is refused.
    """
    if not open_fs(uri).exists("log"):
        raise ExecutionFailed(f"{uri}: there is no log")
    pinned = pin(uri, reach=heads)
    if identity is not None:
        if pinned.identity is not None and pinned.identity.hub_id != identity.hub_id:
            raise EvidenceFailed(
                f"the directory is of hub {pinned.identity.hub_id.hex()}, not of {identity.hub_id.hex()}"
            )
        pinned = replace(pinned, identity=identity)
    _check_covered(heads, pinned.labels)
    times = descriptor.filter
    try:
        prefix = make_prefix(
            uri,
            streams=descriptor.stream_names,
            upto=heads,
            first_ts=times.first_ts,
            last_ts=times.last_ts,
            pinned=pinned,
        )
    except Shortened as exc:
        raise EvidenceFailed(f"{exc}: the log was cut") from exc
    _check_covered(heads, prefix.heads)  # also of the streams of the scope
    return prefix


def _check_covered(heads: Mapping[bytes, int] | None, labels: Mapping[bytes, object]) -> None:
    if heads is not None and (gone := sorted(heads.keys() - labels.keys())):
        raise EvidenceFailed(f"label {gone[0].hex()} was covered before and is missing in the directory now")


NO_HUB: Final = "unidentified"
_T = TypeVar("_T")


class ResultSink(Protocol):
    """Receiver of rows and evidence, one by one."""

    def row(self, row: bytes) -> None: ...
    def evidence(self, entry: bytes) -> None: ...


class MatchSource(Protocol):
    """Source of the matching events of one plan."""

    def matches(self, tally: MatchTally, /) -> Iterator[Match]:
        """Yield matches in logical order (D-27); count entries that become no row, and rows beyond the limit."""

    def groups(self, tally: MatchTally, /) -> Iterator[tuple[bytes, Partial]] | None:
        """Yield the groups of an aggregate by key; return None if that needs the order of events."""


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    digest: ResultDigest
    coverage: Coverage


def execute(
    prefix: Prefix,
    descriptor: QueryDescriptor,
    result_id: str,
    source: MatchSource,
    sink: ResultSink,
    *,
    now: Callable[[], int],
    profile_id: str | None = None,
    leaves: Leaves | None = None,
    control: ExecutionControl | None = None,
) -> QueryOutcome:
    """Run a query to its end. Raise EvidenceFailed if a receipt or proof is invalid: then there is no result."""
    control = control or ExecutionControl()
    rows, tree, evidence, tally = RowsHash(), RowsTree(), EvidenceHash(descriptor, result_id), MatchTally()
    ignored: dict[str, int] = {}

    def emit(row: bytes) -> None:
        control.check()
        rows.add(row)
        tree.add(row)
        sink.row(row)

    with Prover(prefix, descriptor, leaves) as prover:

        def verify(match: Match) -> None:
            control.check()
            if match.fault is not None:
                raise EvidenceFailed(f"label {match.label.hex()}, entry {match.stream_seq}: {match.fault}")
            signed = descriptor.evidence.mode == "full"  # then whoever opened it has verified its signatures
            verified = match.verified or prover.verify(match, signed=signed).to_bytes()
            evidence.add(verified)
            sink.evidence(verified)

        if descriptor.aggregate is None:
            is_sampled = sampler(descriptor.evidence, descriptor.query_id)
            with _close_at_end(source.matches(tally)) as matches:
                first, matched = first_rows(matches, lambda match: match.row, descriptor.order, descriptor.limit)
                for match in first:
                    if is_sampled(rows.count):
                        verify(match)
                    emit(match.row)
        else:
            ignored, matched = _aggregate(descriptor, descriptor.aggregate, source, tally, emit, verify)
    for part in prefix.slices:
        if part.is_missing:
            tally.add(part.label, "missing", part.first, part.entries)
    coverage = Coverage.of(prefix, descriptor, tally, ignored, matched() + tally.left_out)
    digest = ResultDigest(
        query_id=descriptor.query_id,
        result_id=result_id,
        row_count=rows.count,
        evidence_policy=descriptor.evidence,
        rows_hash=rows.hexdigest(),
        evidence_hash=evidence.hexdigest(),
        coverage_hash=coverage.hexdigest(),
        executed_at=timestamp(now()),
        hub_id=prefix.hub_id or NO_HUB,
        profile_id=profile_id,
        rows_root=tree.root(),
    )
    return QueryOutcome(digest, coverage)


@contextmanager
def _close_at_end(values: Iterator[_T]) -> Iterator[Iterator[_T]]:
    """Close `values` at the end of the block. The traceback of a failed query would keep them open."""
    try:
        yield values
    finally:
        if isinstance(values, Generator):
            values.close()


def _aggregate(
    descriptor: QueryDescriptor,
    aggregate: Aggregate,
    source: MatchSource,
    tally: MatchTally,
    emit: Callable[[bytes], None],
    verify: Callable[[Match], None],
) -> tuple[dict[str, int], Callable[[], int]]:
    """Emit rows by canonical group key, or in the order asked for. Memory grows with the number of groups only.

    Return the number of values that metrics could not take, and the number of rows before the limit.
    """
    mode, receipts = descriptor.evidence.mode, GroupReceipts() if descriptor.names_receipts else None
    if mode == "none" and receipts is None and (merged := source.groups(tally)) is not None:
        with _close_at_end(merged):
            return _emit_groups(descriptor, aggregate, merged, emit)
    groups: dict[bytes, Partial] = {}
    for match in source.matches(tally):
        assert match.partial is not None  # noqa: S101 - matches of an aggregate have one
        group = groups.setdefault(match.row, match.partial)
        if group is not match.partial:
            group.absorb(aggregate, match.partial)
        if receipts is not None:
            receipts.add(match.row, match.leaf_hash)
        if mode == "full":
            verify(match)
    if not aggregate.group_by and not groups:
        groups[canonical.encode([])] = Partial.empty(aggregate)

    def row(key: bytes) -> bytes:
        return canonical.encode(row_of(aggregate, key, groups[key], receipts.receipt_id(key) if receipts else None))

    remaining, matched = first_rows(sorted(groups), row, descriptor.order, descriptor.limit)
    keys = list(remaining)
    if mode == "spot":  # which rows are sampled is known only now: look at their events again (D-109)
        is_sampled = sampler(descriptor.evidence, descriptor.query_id)
        chosen = {key for number, key in enumerate(keys) if is_sampled(number)}
        for match in source.matches(MatchTally()):
            if match.row in chosen:
                verify(match)
    for key in keys:
        emit(row(key))
    return total_ignored(aggregate, groups), matched


def _emit_groups(
    descriptor: QueryDescriptor,
    aggregate: Aggregate,
    merged: Iterator[tuple[bytes, Partial]],
    emit: Callable[[bytes], None],
) -> tuple[dict[str, int], Callable[[], int]]:
    """Emit rows of groups that a source has merged already; memory does not grow with them."""
    ignored: dict[str, int] = {}

    def rows() -> Iterator[bytes]:
        is_empty = True
        for key, partial in merged:
            is_empty = False
            for name, more in partial.count_ignored(aggregate).items():
                ignored[name] = ignored.get(name, 0) + more
            yield canonical.encode(row_of(aggregate, key, partial, None))
        if not aggregate.group_by and is_empty:
            yield canonical.encode(row_of(aggregate, canonical.encode([]), Partial.empty(aggregate), None))

    chosen, matched = first_rows(rows(), lambda row: row, descriptor.order, descriptor.limit)
    for row in chosen:
        emit(row)
    return ignored, matched


# --- one process -----------------------------------------------------------------------------------------------


class LocalSource:
    """The reference engine: labels merged by logical order, each opened when its first entry can be the next."""

    def __init__(
        self,
        prefix: Prefix,
        descriptor: QueryDescriptor,
        keyring: Keyring,
        control: ExecutionControl | None = None,
    ) -> None:
        self._prefix, self._fs = prefix, open_fs(prefix.uri)
        self._control = control or ExecutionControl()
        self._matcher = Matcher(descriptor, keyring, prefix.identity)

    def groups(self, tally: MatchTally) -> None:
        return None

    def matches(self, tally: Skips) -> Iterator[Match]:
        control = self._control
        control.add(total=sum(1 for _ in skip_missing(self._prefix.slices)))

        def track_progress(slices: Iterable[Slice]) -> Iterator[Slice]:
            for part in slices:
                control.check()
                yield part
                control.add(done=1)

        for match in in_order(
            (
                self._begin(label_range),
                self._matcher.matches(self._fs, track_progress(skip_missing(label_range.slices)), tally),
            )
            for label_range in self._prefix.labels
        ):
            control.check()
            yield match

    def _begin(self, label_range: LabelRange) -> int:
        """Return a time not after the first match of the label, so that labels that begin later are opened later."""
        part = next(skip_missing(label_range.slices), None)
        return (first_ts(self._fs, part.chunk) if part is not None else None) or 0


def skip_missing(slices: Iterable[Slice]) -> Iterator[Slice]:
    """Skip slices that no file has. `execute` counts their entries, however many a file name claims."""
    return (part for part in slices if not part.is_missing)
