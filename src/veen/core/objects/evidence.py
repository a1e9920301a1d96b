"""Portable proof that a hub signed two statements that contradict each other (spec §4.3, §4.4; RCPT-07).

A hub that signs two different leaves or roots for one position of one label has equivocated: whoever holds
both statements and the hub's key can convince anyone, offline. Two receipts fit into 512 bytes.
"""

from dataclasses import dataclass
from typing import Annotated, Self

from veen.core.errors import EvidenceError, MalformedError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.receipt import Receipt
from veen.core.wire import Bytes32, Fields, Length, Map, WireType, reference


def _read_statement(f: Fields, name: str) -> Receipt | Checkpoint:
    """Read a RECEIPT or a CHECKPOINT, told apart by their third item: a number in one, a label in the other."""
    tree = f.peek(name)
    third = tree[2] if type(tree) is list and len(tree) > 2 else None
    if type(third) is int:
        return f.object(name, Receipt)
    if third is None:
        raise MalformedError("expected a RECEIPT or a CHECKPOINT", f"equivocation.{name}")
    return f.object(name, Checkpoint)


Statement = Annotated[
    Receipt | Checkpoint,
    WireType(
        _read_statement,
        (),
        "RECEIPT or CHECKPOINT",
        {"anyOf": [reference(Receipt), reference(Checkpoint)]},
        (Receipt, Checkpoint),
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivocation(Map, kind="equivocation"):
    """Two signed statements about one position that cannot both be true.

    One form only: the statements stand in the order of their bytes, so equal evidence has equal bytes. The
    keys are given per statement, as a hub may have rotated its key in between; one key serves both if equal.
    """

    hub_pks: Annotated[tuple[Bytes32, ...], Length(1, 2)]  # one key, or one for each statement
    first: Statement
    second: Statement

    @classmethod
    def of(cls, one: Statement, other: Statement, *, one_pk: bytes, other_pk: bytes | None = None) -> Self:
        """Pack two statements; raise EvidenceError if they do not conflict, SignatureError if a signature does not
        verify.
        """
        pairs = sorted(((one, one_pk), (other, other_pk or one_pk)), key=lambda pair: pair[0].to_bytes())
        (first, first_pk), (second, second_pk) = pairs
        keys = (first_pk,) if first_pk == second_pk else (first_pk, second_pk)
        evidence = cls(hub_pks=keys, first=first, second=second)
        evidence.verify()
        return evidence

    def verify(self) -> None:
        """Raise EvidenceError or SignatureError unless this proves an equivocation by the holder of the keys.

        Who holds the keys is for the reader to know: compare `hub_pks` with the pinned identity of the hub.
        """
        if self.first.to_bytes() >= self.second.to_bytes():
            raise EvidenceError("equivocation: the two statements are not in the order of their bytes")
        if len(self.hub_pks) == 2 and self.hub_pks[0] == self.hub_pks[1]:
            raise EvidenceError("equivocation: one key is listed twice")
        self.first.verify(self.hub_pks[0])
        self.second.verify(self.hub_pks[-1])
        if _position(self.first) != _position(self.second):
            raise EvidenceError("equivocation: the two statements are about different positions")
        if self.first.mmr_root == self.second.mmr_root and not _leaves_differ(self.first, self.second):
            raise EvidenceError("equivocation: the two statements agree")


def _leaves_differ(first: Statement, second: Statement) -> bool:
    """Return True if both are RECEIPTs, which alone name a leaf, with different leaves."""
    return isinstance(first, Receipt) and isinstance(second, Receipt) and first.leaf_hash != second.leaf_hash


def _position(statement: Statement) -> tuple[bytes, int]:
    if isinstance(statement, Receipt):
        return statement.label, statement.stream_seq
    return statement.label_curr, statement.upto_seq
