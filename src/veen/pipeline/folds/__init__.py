"""Folds on Spark, or in one process: the same state, byte for byte (D-82, D-119, D-120)."""

from veen.pipeline.folds.api import fold_named, run
from veen.pipeline.folds.result import FoldResult
from veen.pipeline.folds.states import WrittenState, load
from veen.pipeline.folds.typed import typed_frame, typed_rows
from veen.pipeline.folds.verify import Claim, Verdict, claims_in, verify

__all__ = [
    "Claim",
    "FoldResult",
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
