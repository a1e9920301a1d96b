"""What a result covers: the range of each label that was looked at, the root there, and what could be no row.

Whoever executes the query again over the same ranges, under the same roots, must get the same rows: a row that was
left out shows. What was skipped is counted for each label and reason, with the first place of each, so that nothing
disappears in silence; all of it is a function of the log, the keys and the descriptor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from veen.pipeline.query.canonical import Json
from veen.pipeline.query.digest import hash_of
from veen.pipeline.query.opening import KINDS
from veen.pipeline.query.planning import Plan

__all__ = ["Coverage", "Skips", "heads_of"]


@dataclass(frozen=True, slots=True)
class Count:
    """How many, and the first of them."""

    count: int
    first_seq: int

    def to_json(self) -> Json:
        return {"count": self.count, "first_seq": self.first_seq}


@dataclass(slots=True)
class Skips:
    """Skipped entries by label and kind; a monoid."""

    found: dict[tuple[bytes, str], Count] = field(default_factory=dict)

    def add(self, label: bytes, kind: str, first_seq: int, count: int = 1) -> None:
        known = self.found.get((label, kind))
        if known is not None:
            count, first_seq = count + known.count, min(first_seq, known.first_seq)
        self.found[label, kind] = Count(count, first_seq)

    def of(self, label: bytes) -> dict[str, Count]:
        return {kind: self.found[label, kind] for kind in KINDS if (label, kind) in self.found}

    def totals(self) -> dict[str, int]:
        """Over all labels; kinds without any are left out."""
        sums = {kind: sum(one.count for (_, k), one in self.found.items() if k == kind) for kind in KINDS}
        return {kind: count for kind, count in sums.items() if count}


@dataclass(frozen=True, slots=True)
class Coverage:
    """The ranges behind a result, as JSON; `coverage_hash` of the digest is its hash."""

    value: Json
    skipped: Mapping[str, int]

    @classmethod
    def of(cls, plan: Plan, scope: tuple[str, ...], skips: Skips, ignored: Mapping[str, int]) -> "Coverage":
        streams = []
        for name in scope:
            labels = [
                {
                    "label": one.label.hex(),
                    "epoch": one.epoch,
                    "from_seq": 1,
                    "to_seq": one.head,
                    "mmr_root": one.head_receipt.mmr_root.hex() if one.head_receipt else None,
                    "skipped": {kind: found.to_json() for kind, found in skips.of(one.label).items()},
                }
                for one in plan.labels
                if one.stream == name
            ]
            streams.append({"stream": name, "labels": labels})
        value = {"hub_id": plan.hub_id, "streams": streams, "values_ignored": dict(ignored)}
        return cls(value, skips.totals())

    def hexdigest(self) -> str:
        return hash_of(self.value)


def heads_of(coverage: Json) -> dict[bytes, int]:
    """The heads of an earlier execution, from its coverage."""
    return {
        bytes.fromhex(label["label"]): label["to_seq"] for stream in coverage["streams"] for label in stream["labels"]
    }
