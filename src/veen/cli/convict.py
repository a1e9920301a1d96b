"""Keeping proof: whatever command catches a hub telling two stories leaves the evidence in a file (RCPT-07)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veen.cli.clictx import Session

__all__ = ["keep_evidence"]


def keep_evidence(session: "Session", error: Exception) -> None:
    """Write the evidence that an error carries, and have the error say where it is."""
    from veen.core.evidence import Equivocation

    evidence = getattr(error, "evidence", None)
    if not isinstance(evidence, Equivocation):
        return
    from veen.core.hashing import H

    data = evidence.to_bytes()
    fs = session.home.evidence_fs()
    name = f"equivocation-{H(data).hex()[:16]}.cbor"
    fs.replace(name, data)
    error.remedy = f"the proof is kept; publish it: veen equivocation show {fs.root / name}"  # type: ignore[attr-defined]  # read by veen.cli.failures
