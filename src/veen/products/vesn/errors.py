"""Errors of VESN logs and sets: codes, findings and exceptions.

`Problem` lists the faults that a check may find in evidence; `Refusal` lists the refusals of a VESN hub (002 §13).
Errors carry data and survive pickling; none of them holds a key or a plaintext.
"""

from dataclasses import dataclass
from enum import Enum

from veen.core.errors import StatedError, VerifyError


class Problem(Enum):
    """The code of a finding; `veen explain` has a text for each."""

    FORMAT = "VESN.FORMAT"  # not the one canonical encoding of its record (002 §1)
    FILE = "VESN.FILE"  # missing, unexpected, not a regular file, unreadable
    LIMIT = "VESN.LIMIT"  # larger or more than is read
    SIG = "VESN.SIG"  # a signature does not verify
    GAP = "VESN.GAP"  # a position is missing or out of order
    EQUIVOCATION = "VESN.EQUIVOCATION"  # the hub signed two statements for one position (002 §14)
    I1 = "VESN.CT_HASH"
    I2 = "VESN.LEAF"
    I3 = "VESN.ROOT"
    I4 = "VESN.PROFILE"
    I5 = "VESN.ATT_ROOT"
    I6 = "VESN.PREV_ACK"
    I7 = "VESN.CAP"
    CLIENT_SEQ = "VESN.CLIENT_SEQ"  # not strictly increasing (D-153)
    LABEL = "VESN.LABEL"  # not a label of the stream that routing_secret names (002 §4)
    CHECKPOINT = "VESN.CHECKPOINT"  # disagrees with the receipts
    SYNC = "VESN.SYNC_STATE"  # disagrees with the last receipt
    PADDING = "VESN.PADDING"  # the length is not a multiple of pad_block (002 §18)
    INCOMPLETE = "VESN.INCOMPLETE"  # nothing is wrong, but something could not be checked
    ATTACHMENT = "VESN.ATTACHMENT"  # the name is not the hash of the bytes (002 §10)


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, with its file and record."""

    problem: Problem
    where: str
    what: str

    @property
    def code(self) -> str:
        return self.problem.value

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.code})"


class Violation(VerifyError):
    """An object breaks a rule of VESN."""

    def __init__(self, problem: Problem, what: str) -> None:
        super(StatedError, self).__init__(problem, what)
        self.problem, self.what, self.code = problem, what, problem.value

    def at(self, where: str) -> Finding:
        """Return the violation as a finding in a file."""
        return Finding(self.problem, where, self.what)


class Refusal(Enum):
    """Every answer by which a VESN hub refuses a message (002 §13)."""

    SIG = "E.SIG"
    SIZE = "E.SIZE"
    SEQ = "E.SEQ"
    CAP = "E.CAP"
    RATE = "E.RATE"
    PROFILE = "E.PROFILE"
    DUP = "E.DUP"


class Refused(VerifyError):
    """A VESN hub does not accept this message."""

    hint = "Correct what the code names and submit the message again."

    def __init__(self, refusal: Refusal, detail: str) -> None:
        super(StatedError, self).__init__(refusal, detail)
        self.refusal, self.detail = refusal, detail

    def __str__(self) -> str:
        return f"{self.refusal.value}: {self.detail}"
