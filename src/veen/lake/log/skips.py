"""Skipped entries: the number and first position of each label and kind that became no event or row."""

from dataclasses import dataclass, field
from typing import Any, Final

from veen.lake.log.decryption import REASONS

KINDS: Final = (*REASONS, "schema")  # the last: of another schema than the one that was asked for


@dataclass(frozen=True, slots=True)
class SkipCount:
    """Number of skipped entries and the first position."""

    count: int
    first_seq: int

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "first_seq": self.first_seq}


@dataclass(slots=True)
class Skips:
    """Skipped entries by label and kind; a monoid. Owned by the loop that reads."""

    counts: dict[tuple[bytes, str], SkipCount] = field(default_factory=dict)

    def add(self, label: bytes, kind: str, first_seq: int, count: int = 1) -> None:
        before = self.counts.get((label, kind))
        if before is not None:
            count, first_seq = count + before.count, min(first_seq, before.first_seq)
        self.counts[label, kind] = SkipCount(count, first_seq)

    def of(self, label: bytes) -> dict[str, SkipCount]:
        return {kind: self.counts[label, kind] for kind in KINDS if (label, kind) in self.counts}

    def totals(self) -> dict[str, int]:
        """Return the sums over all labels; leave out kinds without any."""
        sums = {kind: sum(skip.count for (_, k), skip in self.counts.items() if k == kind) for kind in KINDS}
        return {kind: count for kind, count in sums.items() if count}

    def to_tree(self) -> list[list[Any]]:
        """Return sorted [label, kind, first_seq, count] lists, to send them between tasks."""
        return [[label, kind, skip.first_seq, skip.count] for (label, kind), skip in sorted(self.counts.items())]

    def absorb(self, tree: list[list[Any]]) -> None:
        for label, kind, first_seq, count in tree:
            self.add(label, kind, first_seq, count)
