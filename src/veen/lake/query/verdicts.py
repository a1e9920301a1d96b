"""Verdicts over results of queries, with the extent of the comparison (D-181, D-190).

A result states its own extent: the labels that it covers and their heads. A directory that ends before these heads, or
lacks entries below them, makes the verdict incomplete; another answer over the same entries makes it bad.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Unpack

from veen.core.canonical import Json
from veen.core.errors import VerifyError
from veen.core.objects.identity import HubIdentity
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
from veen.lake.query.api import Comparison, Execution, Recorded, unknown_fields, verify
from veen.lake.query.digest import ResultDigest, heads_of
from veen.lake.query.engine import plan_query
from veen.storage.pinned import pin

_UNREAD: Final = ("missing", "damaged")  # kinds of skipped entries whose bytes nobody compared


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultCheck:
    """The verdict over a result; `comparison` is None if the query was not executed again."""

    verdict: Verdict
    comparison: Comparison | None


def check_result(data_dir: str, recorded: Recorded, **how: Unpack[Execution]) -> ResultCheck:
    """Execute the query of a result again over the entries that it covers, and return the verdict.

    The verdict has a row for each label. It is bad if the answer differs, or if the hub did not sign the root at the
    end of a label. It is incomplete if the directory does not have all covered entries.
    """
    heads, identity = heads_of(recorded.coverage), how.get("identity")
    pinned = pin(data_dir)
    name = None if identity is None else f"hub {identity.hub_id.hex()}"
    sizes = {label: label_pin.size for label, label_pin in pinned.labels.items()}
    rows = [
        Coverage(
            log=label.hex(), read=min(sizes.get(label, 0), head), head=head, stated_by=StatedBy.FILE, identity=name
        )
        for label, head in sorted(heads.items())
    ]
    if not rows or any(row.behind for row in rows):
        return ResultCheck(verdict=Verdict.of(rows), comparison=None)
    try:
        reasons = [*_check_signed(data_dir, recorded, heads, identity)]
        comparison = verify(data_dir, recorded, **how)
    except VerifyError as exc:
        return ResultCheck(verdict=Verdict.of(rows, [Reason(Because.EVIDENCE, str(exc))]), comparison=None)
    before, after = comparison.before.to_json(), comparison.after.to_json()
    for member in comparison.differences:
        reasons.append(Reason(Because.EVIDENCE, f"{member} was {before[member]} and is {after[member]}"))
    for path in unknown_fields(data_dir, recorded.descriptor, recorded.digest, recorded.coverage, **how):
        what = f"no event in scope has a field {path}: the result is no proof that nothing fits"
        reasons.append(Reason(Because.COVERAGE, what))
    return ResultCheck(verdict=Verdict.of(rows, [*reasons, *_unread(recorded.coverage)]), comparison=comparison)


def _check_signed(
    data_dir: str, recorded: Recorded, heads: Mapping[bytes, int], identity: HubIdentity | None
) -> Iterator[Reason]:
    """Yield a reason for each root at the end of a label that the hub did not sign, or that cannot be read."""
    prefix = plan_query(data_dir, recorded.descriptor, heads=heads, identity=identity)
    for label_range in prefix.labels:
        place, receipt = f"{label_range.label.hex()}: the receipt of entry {label_range.head}", label_range.head_receipt
        if receipt is None or prefix.identity is None:
            yield Reason(Because.COVERAGE, f"{place} cannot be read, or there is no identity of the hub to check it by")
            continue
        try:
            prefix.identity.verify_receipt(receipt)
        except VerifyError as exc:
            yield Reason(Because.EVIDENCE, f"{place}: {exc}")


def _unread(coverage: Json) -> Iterator[Reason]:
    for stream in coverage["streams"]:
        for label in stream["labels"]:
            for kind in _UNREAD:
                if (skip := label["skipped"].get(kind)) is not None:
                    entries = f"{skip['count']} covered entries are {kind}, the first is {skip['first_seq']}"
                    yield Reason(Because.COVERAGE, f"{label['label']}: {entries}")


def page_verdict(digest: ResultDigest, offset: int, limit: int, rows: int) -> Verdict:
    """Return the verdict over a page whose rows were checked against the digest.

    It covers the rows that were asked for. The log proves the digest (`check_result`). No signature was checked, so the
    store or the service itself states the number of rows.
    """
    expected = max(0, min(limit, digest.row_count - offset))
    log = f"rows {offset} to {offset + expected} of result {digest.result_id}"
    return Verdict.of([Coverage(log=log, read=rows, head=expected, stated_by=StatedBy.OWN_FILES, identity=None)])
