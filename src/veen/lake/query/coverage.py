"""Coverage of a result: the range read of each label, the root there, and the entries that became no row.

A repeated execution over the same ranges, under the same roots, must give the same rows: an omitted row shows. Skipped
entries are counted for each label and reason, with the first position, so that nothing disappears silently. All of it
is a function of the log, the keys and the descriptor.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from veen.core.canonical import Json
from veen.lake.log.prefix import Prefix
from veen.lake.log.skips import Skips
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.digest import hash_of


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
