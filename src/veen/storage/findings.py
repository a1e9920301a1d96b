"""Findings of a verification: at most one error per file, with the first byte that is wrong."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from veen.core.verdict import Because
from veen.io.local import TEMPORARY

Level = Literal["full", "structure"]
Severity = Literal["error", "warning"]
Code = Literal[
    "entry",  # an entry is damaged, out of order or breaks an invariant
    "signature",  # a signature is not by whom it must be
    "capability",  # an entry was not authorised
    "seal",  # summary, peaks or checkpoint of a chunk contradict its entries
    "control",  # the control journal
    "journal",  # the write-ahead journal
    "identity",  # the identity files
    "pin",  # keys of the directory that the pinned ones do not vouch for
    "limits",  # limits.json, or a chunk that breaks them
    "missing",  # a file that must be there
    "cut",  # a file that was longer
    "gap",  # files of a label do not join up
    "rebuildable",  # not the truth, and wrong: `veen hub rebuild-index` makes it again
    "anchor",  # the local chain of anchors, which is no part of the log
    "retention",  # an erased chunk is not as the record of its erasure says
    "unverified",  # could not be judged, because of what is missing elsewhere
    "time",  # hub_ts runs backwards
    "unknown",  # a file that no hub writes
    "leftover",  # of a step that was cut off; harmless
]


# What is absent proves nothing against the hub: only bytes that are there can be bad evidence.
_BECAUSE: Final = MappingProxyType(
    {
        "missing": Because.COVERAGE,
        "cut": Because.COVERAGE,
        "gap": Because.COVERAGE,
        "unverified": Because.COVERAGE,
        "rebuildable": Because.DERIVED,
        "policy": Because.POLICY,
    }
)
# Rules that need records of the control journal.
CONTROL_RULES: Final = frozenset(("capability", "limits", "retention"))


@dataclass(frozen=True, slots=True)
class LogFinding:
    """One fault: its place and meaning; `label` and `stream_seq` where an audit knows them."""

    path: str
    offset: int
    code: str  # a Code, or one of those of `veen.verify.audit.findings`
    message: str
    severity: Severity = "error"
    label: bytes | None = None
    stream_seq: int | None = None

    @property
    def because(self) -> Because:
        """The kind of reason that this is for a verdict."""
        return _BECAUSE.get(self.code, Because.EVIDENCE)

    @property
    def is_evidence(self) -> bool:
        """True if bytes of the log are bad, which absent bytes, derived files and unmet policies are not."""
        return self.severity == "error" and self.because is Because.EVIDENCE

    def __str__(self) -> str:
        entry = "" if self.stream_seq is None else f"entry {self.stream_seq}: "
        return f"{self.severity}: {self.path}, byte {self.offset}: {entry}{self.message} [{self.code}]"


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """Extent of a label: how far it was read, up to which position without a hole, and its head by its own files."""

    size: int
    root: bytes | None  # None for an empty label
    read: int  # every entry up to here was read
    head: int  # the greatest position that a file of the directory speaks of
    complete: bool = True


@dataclass(slots=True)
class Findings:
    """Collector of findings. It keeps only the first error of a file, since the others mostly follow from it."""

    all: list[LogFinding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    _seen: set[tuple[str, Severity]] = field(default_factory=set)
    _late: list[LogFinding] = field(default_factory=list)
    # Called before a finding is added or asked for: workers may still verify entries whose findings come first.
    settle_before: Callable[[], None] = field(default=lambda: None)
    # Whether records of the control journal are missing, so that rules that need them cannot be checked.
    lacks_control: bool = False

    def error(self, path: str, offset: int, code: Code, message: str) -> None:
        if self.lacks_control and code in CONTROL_RULES:
            code, message = "unverified", f"{message}; records of the control journal are missing"
        self._add(LogFinding(path, offset, code, message, "error"))

    def warning(self, path: str, offset: int, code: Code, message: str) -> None:
        self._add(LogFinding(path, offset, code, message, "warning"))

    def late_error(self, path: str, offset: int, code: Code, message: str) -> None:
        """Add an error, unless a running hub wrote since the journal was read: then it is only newer."""
        self._late.append(LogFinding(path, offset, code, message, "error"))

    def unknown(self, path: str) -> None:
        """Add a warning about a file whose name the layout does not know."""
        if path.endswith(TEMPORARY):
            self.warning(path, 0, "leftover", "a replacement that was cut off; may be removed")
        else:
            self.warning(path, 0, "unknown", "no file of a data directory has this name")

    def settle(self, *, written_on: bool) -> None:
        for finding in self._late if not written_on else ():
            self._add(finding)
        self._late.clear()

    def _add(self, finding: LogFinding) -> None:
        self.settle_before()
        if (finding.path, finding.severity) not in self._seen:
            self._seen.add((finding.path, finding.severity))
            self.all.append(finding)

    def has(self, path: str) -> bool:
        """Return True if an error was found in a file."""
        self.settle_before()
        return (path, "error") in self._seen

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] += number

    @property
    def truth_is_whole(self) -> bool:
        """True if only rebuildable files have errors, so that those can be checked."""
        self.settle_before()
        return not any(finding.severity == "error" and finding.code != "rebuildable" for finding in self.all)
