"""Folds on Spark, or in one process: the same state, byte for byte (D-82, D-119, D-120)."""

from veen.folds.api import fold_named, run
from veen.folds.on_spark import typed_frame, typed_rows
from veen.folds.result import FoldResult
from veen.folds.states import WrittenState, load
from veen.folds.verify import StateClaim, Verdict, claims_in, verify

Claim = StateClaim  # the name of earlier documents

__all__ = [
    "Claim",
    "FoldResult",
    "StateClaim",
    "Verdict",
    "WrittenState",
    "claims_in",
    "fold_named",
    "load",
    "run",
    "typed_frame",
    "typed_rows",
    "verify",
]
