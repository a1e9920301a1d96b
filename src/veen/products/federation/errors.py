"""Errors of a replica about its primary, which end the replica."""

from veen.core.errors import VerifyError
from veen.core.objects.evidence import Equivocation


class ReplicaInconsistent(VerifyError, code="E.REPLICA.INCONSISTENT"):
    """The primary shows data that it cannot have signed, or that contradicts what it signed before."""

    def __init__(self, what: str, evidence: Equivocation | None = None) -> None:
        super().__init__(what)
        self.evidence = evidence
