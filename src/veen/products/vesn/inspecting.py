"""Contents of a set, read without keys and without checks."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from veen.core.errors import FormatError, MalformedError
from veen.products.vesn import portability
from veen.products.vesn.errors import Violation
from veen.products.vesn.objects import RECORDS, Receipt, Record
from veen.products.vesn.sealing import Keystore

_SEQUENCES: Final = (portability.RECEIPTS, portability.PAYLOADS, portability.CHECKPOINTS, portability.TOKENS)
_MAX_PROBLEMS: Final = 20
_MAX_LOGS: Final = 1_000


@dataclass(slots=True)
class Summary:
    """Files with their sizes and the kinds of their records; the labels with their ranges."""

    files: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def rows(self) -> list[tuple[str, int, int, str]]:
        return [
            (
                file["name"],
                file["bytes"],
                file["records"],
                ", ".join(f"{n} {kind}" for kind, n in file["kinds"].items()),
            )
            for file in self.files
        ]

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "logs": self.logs, "problems": self.problems}


def record_of(raw: bytes) -> Record:
    """Decode bytes as any VESN record. Raise FormatError if they are none."""
    kinds: tuple[type[Record], ...] = (*RECORDS, Keystore)
    for kind in kinds:
        try:
            return kind.from_bytes(raw)
        except FormatError:
            continue
    raise MalformedError("not a record of VESN", "record")


def records_of(source: portability.Source, name: str) -> Iterator[Record]:
    """Yield every record of a file."""
    for raw in source.items(name):
        yield record_of(raw)


def summary_of(source: portability.Source) -> Summary:
    summary, ranges = Summary(), dict[bytes, list[int]]()
    for name in source.names():
        kinds: Counter[str] = Counter()
        size = 0
        try:
            size = source.digest(name).size
            if portability.is_attachment(name):
                kinds["attachment"] += 1
            elif name in _SEQUENCES:
                for record in records_of(source, name):
                    kinds[record.KIND] += 1
                    if isinstance(record, Receipt):
                        _count(ranges, record)
            elif name in portability.FILES:
                kinds[record_of(source.read(name, portability.SMALL_FILE_BYTES)).KIND] += 1
        except (FormatError, Violation) as exc:
            if len(summary.problems) < _MAX_PROBLEMS:
                summary.problems.append(f"{name[:100]!a}: {exc}")
        summary.files.append(
            {"name": name, "bytes": size, "records": sum(kinds.values()), "kinds": dict(sorted(kinds.items()))}
        )
    summary.logs = [
        {"label": label.hex(), "first_seq": first, "last_seq": last} for label, (first, last) in ranges.items()
    ]
    return summary


def _count(ranges: dict[bytes, list[int]], receipt: Receipt) -> None:
    seqs = ranges.get(receipt.label)
    if seqs is not None:
        seqs[:] = [min(seqs[0], receipt.stream_seq), max(seqs[1], receipt.stream_seq)]
    elif len(ranges) < _MAX_LOGS:
        ranges[receipt.label] = [receipt.stream_seq] * 2
