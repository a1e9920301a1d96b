"""The verdict of a verification: good, bad or incomplete, and what was compared to reach it (D-181).

Every command that verifies something ends in a `Verdict`. It cannot be made without its coverage: for each log, the
position up to which entries were read, the head that was stated and by whom, and the identity that signatures were
checked under. A log that nobody stated a head for, or that was read less far than its head, makes the verdict
incomplete. So does an empty coverage: nothing was compared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

__all__ = ["Because", "Coverage", "Outcome", "Reason", "Signatures", "StatedBy", "Verdict"]


class Outcome(StrEnum):
    """The three values of a verdict, in the order of their weight."""

    GOOD = "good"
    INCOMPLETE = "incomplete"
    BAD = "bad"

    @property
    def exit_status(self) -> int:
        """Exit status of a command that ends with this value."""
        return _EXITS[self]


_EXITS: Final = {Outcome.GOOD: 0, Outcome.BAD: 1, Outcome.INCOMPLETE: 6}


class Because(StrEnum):
    """The kind of a reason. `EVIDENCE` makes a verdict bad, all others make it incomplete."""

    EVIDENCE = "evidence"  # something that was signed or hashed does not hold
    COVERAGE = "coverage"  # something was not read, not verified, or nobody states how much there is
    POLICY = "policy"  # the evidence holds, and a policy asks for more
    DERIVED = "derived"  # the log holds, and files that are derived from it do not
    EFFECT = "effect"  # a message is in the log and has no effect


class StatedBy(StrEnum):
    """The source of a stated head, from the weakest to the strongest."""

    NOBODY = "nobody"
    OWN_FILES = "its own files"  # journal, checkpoints and receipts of the directory; nobody outside confirmed it
    FILE = "the signed file"  # an evidence file, a bundle or a result that states its own extent under a signature
    CALLER = "the caller"  # a root and a size that the caller trusts on other grounds
    RECEIPT = "a receipt that was given"
    CHECKPOINT = "a checkpoint that was given"
    HUB = "the running hub"
    WITNESS = "witnesses"


class Signatures(StrEnum):
    """Number of signatures of a log that were verified, from the least."""

    NONE = "not checked"
    SAMPLED = "sampled"
    ALL = "all"


_LEVELS: Final = {Signatures.NONE: "structure only", Signatures.SAMPLED: "a sample of the signatures"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The part of one log that a verification compared."""

    log: str  # the name of the log: a label in hex, a stream, a file
    read: int  # every entry from `first` up to this position was compared
    head: int | None  # the newest position that was stated; None: nobody stated one
    stated_by: StatedBy
    identity: str | None  # the key that signatures were checked under; None: keys that the data itself names
    first: int = 1  # where the comparison begins: at a later position in a file that has a range of entries
    signatures: Signatures = Signatures.ALL  # fewer only where whoever verifies asked for that level

    def __post_init__(self) -> None:
        if self.read < 0 or (self.head is not None and self.head < 0):
            raise ValueError("positions are not negative")
        if (self.head is None) != (self.stated_by is StatedBy.NOBODY):
            raise ValueError("a head has somebody who states it, and nobody states no head")

    @property
    def behind(self) -> int:
        """Number of entries up to the stated head that were not compared."""
        return 0 if self.head is None else max(0, self.head - self.read)

    @property
    def is_whole(self) -> bool:
        """True if everything up to a stated head was compared."""
        return self.head is not None and self.behind == 0

    def to_json(self) -> dict[str, Any]:
        return {
            "log": self.log,
            "first": self.first,
            "read": self.read,
            "head": self.head,
            "behind": self.behind,
            "stated_by": self.stated_by.value,
            "identity": self.identity,
            "signatures": self.signatures.value,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a row. A row of an earlier release has no `signatures`; its caller knows the level."""
        return cls(
            log=data["log"],
            read=data["read"],
            head=data["head"],
            stated_by=StatedBy(data["stated_by"]),
            identity=data["identity"],
            first=data.get("first", 1),
            signatures=Signatures(data.get("signatures", Signatures.ALL)),
        )


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a verdict is not good."""

    because: Because
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"because": self.because.value, "text": self.text}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a verification. `compared` has a row for each log that the verdict speaks of."""

    compared: tuple[Coverage, ...]
    reasons: tuple[Reason, ...] = ()

    @classmethod
    def of(cls, compared: Iterable[Coverage], reasons: Iterable[Reason] = ()) -> Self:
        """Return the verdict over `compared`, with a reason for each log that was not read up to a stated head."""
        rows = tuple(compared)
        gaps = [Reason(Because.COVERAGE, _gap(row)) for row in rows if not row.is_whole]
        if not rows:
            gaps = [Reason(Because.COVERAGE, "nothing was compared")]
        return cls(rows, (*reasons, *gaps))

    def __post_init__(self) -> None:
        if not any(reason.because is Because.COVERAGE for reason in self.reasons) and not (
            self.compared and all(row.is_whole for row in self.compared)
        ):
            raise ValueError("a verdict over less than stated heads has a reason that says so: use Verdict.of")

    @property
    def value(self) -> Outcome:
        """Bad if any evidence is bad, else incomplete if there is any other reason, else good."""
        if any(reason.because is Because.EVIDENCE for reason in self.reasons):
            return Outcome.BAD
        return Outcome.INCOMPLETE if self.reasons else Outcome.GOOD

    @property
    def signatures(self) -> Signatures:
        """The least that was verified of any log."""
        return min((row.signatures for row in self.compared), key=list(Signatures).index, default=Signatures.ALL)

    @property
    def level(self) -> str:
        """The level in brackets, with a space before it; empty if all signatures were verified."""
        level = _LEVELS.get(self.signatures)
        return "" if level is None else f" ({level})"

    @property
    def headline(self) -> str:
        """The value and the level: "good (structure only)"."""
        return f"{self.value.value}{self.level}"

    @property
    def is_good(self) -> bool:
        return self.value is Outcome.GOOD

    @property
    def first(self) -> Reason | None:
        """The reason to report first: evidence before everything else, then in the order they were given."""
        evidence = (reason for reason in self.reasons if reason.because is Because.EVIDENCE)
        return next(evidence, self.reasons[0] if self.reasons else None)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON form (docs/verdicts.md)."""
        return {
            "value": self.value.value,
            "compared": [row.to_json() for row in self.compared],
            "reasons": [reason.to_json() for reason in self.reasons],
            "headline": self.headline,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the JSON form. The value follows from the rest and is computed again."""
        compared = tuple(map(Coverage.from_json, data["compared"]))
        reasons = tuple(Reason(Because(row["because"]), row["text"]) for row in data["reasons"])
        stated = set(reasons)
        derived = cls.of(compared).reasons
        return cls(compared, (*reasons, *(reason for reason in derived if reason not in stated)))

    def __add__(self, other: "Verdict") -> "Verdict":
        """Return the verdict over the logs of both. Nothing compared on one side stays a reason."""
        return Verdict((*self.compared, *other.compared), (*self.reasons, *other.reasons))


def _gap(row: Coverage) -> str:
    if row.head is None:
        return f"{row.log}: read up to {row.read}, and nobody states how much there is"
    return f"{row.log}: read up to {row.read} of {row.head}, as stated by {row.stated_by.value}"
