"""Execution: items in logical order become rows, hashes, evidence and a digest.

`execute` is the same for every engine; an engine is only a `Source` of items. `LocalSource` is the reference: one
process, one entry after another, no Spark.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from veen.client.keyring import Keyring
from veen.pipeline.files import open_fs
from veen.pipeline.inventory import first_ts
from veen.pipeline.opening import Clock, in_order, readers_of
from veen.pipeline.query import canonical
from veen.pipeline.query.aggregate import GroupReceipts, Partial, row_of, total_ignored
from veen.pipeline.query.coverage import Coverage, Skips
from veen.pipeline.query.descriptor import Aggregate, QueryDescriptor
from veen.pipeline.query.digest import EvidenceHash, ResultDigest, RowsHash
from veen.pipeline.query.errors import EvidenceFailed
from veen.pipeline.query.evidence import Prover
from veen.pipeline.query.items import Item, Shaper
from veen.pipeline.query.opening import Skipped, entries
from veen.pipeline.query.planning import LabelPlan, Plan
from veen.pipeline.query.sampling import sampler
from veen.pipeline.query.times import timestamp

__all__ = ["LocalSource", "Outcome", "Sink", "Source", "execute"]

NO_HUB: Final = "unidentified"


class Sink(Protocol):
    """Where rows and evidence go, one by one."""

    def row(self, row: bytes) -> None: ...
    def verified(self, entry: bytes) -> None: ...


class Source(Protocol):
    """Matching events of one plan."""

    def items(self, skips: Skips) -> Iterator[Item]:
        """In logical order (D-27); what can be no row is counted in `skips`."""

    def groups(self, skips: Skips) -> Iterator[tuple[bytes, Partial]] | None:
        """The groups of an aggregate by key, if the source can make them without the order of events; else None."""


@dataclass(frozen=True, slots=True)
class Outcome:
    digest: ResultDigest
    coverage: Coverage


def execute(
    plan: Plan,
    descriptor: QueryDescriptor,
    result_id: str,
    source: Source,
    sink: Sink,
    *,
    now: Callable[[], int],
    profile_id: str | None = None,
) -> Outcome:
    """Run a query to its end. EvidenceFailed if a receipt or proof does not hold: then there is no result."""
    rows, evidence, skips = RowsHash(), EvidenceHash(descriptor, result_id), Skips()
    ignored: dict[str, int] = {}

    def emit(row: bytes) -> None:
        rows.add(row)
        sink.row(row)

    with Prover(plan) as prover:

        def verify(item: Item) -> None:
            if item.fault is not None:
                raise EvidenceFailed(f"label {item.label.hex()}, entry {item.stream_seq}: {item.fault}")
            signed = descriptor.evidence.mode == "full"  # then whoever opened it has verified its signatures
            found = prover.verify(item.label, item.stream_seq, item.leaf_hash, item.witness, signed=signed).to_bytes()
            evidence.add(found)
            sink.verified(found)

        if descriptor.aggregate is None:
            is_sampled = sampler(descriptor.evidence, descriptor.query_id)
            for item in source.items(skips):
                if is_sampled(rows.count):
                    verify(item)
                emit(item.row)
        else:
            ignored = _aggregate(descriptor, descriptor.aggregate, source, skips, emit, verify)
    for one in plan.labels:
        for first, last in one.gaps:
            skips.add(one.label, "missing", first, last - first + 1)
    coverage = Coverage.of(plan, descriptor.scope, skips, ignored)
    digest = ResultDigest(
        query_id=descriptor.query_id,
        result_id=result_id,
        row_count=rows.count,
        evidence_policy=descriptor.evidence,
        rows_hash=rows.hexdigest(),
        evidence_hash=evidence.hexdigest(),
        coverage_hash=coverage.hexdigest(),
        executed_at=timestamp(now()),
        hub_id=plan.hub_id or NO_HUB,
        profile_id=profile_id,
    )
    return Outcome(digest, coverage)


def _aggregate(
    descriptor: QueryDescriptor,
    aggregate: Aggregate,
    source: Source,
    skips: Skips,
    emit: Callable[[bytes], None],
    verify: Callable[[Item], None],
) -> dict[str, int]:
    """Rows by canonical group key. Memory grows with the number of groups only."""
    mode, receipts = descriptor.evidence.mode, GroupReceipts() if descriptor.names_receipts else None
    if mode == "none" and receipts is None and (made := source.groups(skips)) is not None:
        return _grouped(aggregate, made, emit)
    groups: dict[bytes, Partial] = {}
    for item in source.items(skips):
        known = groups.get(item.row)
        assert item.partial is not None  # noqa: S101 - items of an aggregate have one
        if known is None:
            groups[item.row] = item.partial
        else:
            known.absorb(aggregate, item.partial)
        if receipts is not None:
            receipts.add(item.row, item.leaf_hash)
        if mode == "full":
            verify(item)
    if not aggregate.group_by and not groups:
        groups[canonical.encode([])] = Partial.empty(aggregate)
    keys = sorted(groups)
    if mode == "spot":  # which rows are sampled is known only now: look at their events again (D-109)
        is_sampled = sampler(descriptor.evidence, descriptor.query_id)
        chosen = {key for number, key in enumerate(keys) if is_sampled(number)}
        for item in source.items(Skips()):
            if item.row in chosen:
                verify(item)
    for key in keys:
        emit(canonical.encode(row_of(aggregate, key, groups[key], receipts.receipt_id(key) if receipts else None)))
    return total_ignored(aggregate, groups)


def _grouped(
    aggregate: Aggregate, made: Iterator[tuple[bytes, Partial]], emit: Callable[[bytes], None]
) -> dict[str, int]:
    """Groups that a source has merged already; they are not held."""
    ignored: dict[str, int] = {}
    rows = 0
    for key, partial in made:
        emit(canonical.encode(row_of(aggregate, key, partial, None)))
        rows += 1
        for name, more in partial.ignored(aggregate).items():
            ignored[name] = ignored.get(name, 0) + more
    if not aggregate.group_by and not rows:
        emit(canonical.encode(row_of(aggregate, canonical.encode([]), Partial.empty(aggregate), None)))
    return ignored


# --- one process -----------------------------------------------------------------------------------------------


class LocalSource:
    """The reference engine: labels merged by logical order, each opened when its first entry can be the next."""

    def __init__(self, plan: Plan, descriptor: QueryDescriptor, keyring: Keyring) -> None:
        self._plan, self._descriptor = plan, descriptor
        self._fs = open_fs(plan.uri)
        self._readers = {one.stream_id: readers_of(keyring, one.stream_id) for one in plan.labels}
        self._shaper = Shaper(descriptor, plan.identity)

    def groups(self, skips: Skips) -> None:
        return None

    def items(self, skips: Skips) -> Iterator[Item]:
        return in_order((self._begin(one), self._label_items(one, skips)) for one in self._plan.labels)

    def _begin(self, plan: LabelPlan) -> int:
        """Not after the first item of the label, so that labels far ahead stay closed."""
        return (first_ts(self._fs, plan.pieces[0].ref) if plan.pieces else None) or 0

    def _label_items(self, plan: LabelPlan, skips: Skips) -> Iterator[Item]:
        clock, reader = Clock(), self._readers[plan.stream_id]
        for piece in plan.pieces:
            for found in entries(self._fs, plan, piece, clock, reader, self._descriptor.filter):
                if isinstance(found, Skipped):
                    skips.add(plan.label, found.kind, found.stream_seq)
                else:
                    yield self._shaper.item(found)
