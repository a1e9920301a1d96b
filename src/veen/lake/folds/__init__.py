"""Folds on Spark, or in one process: the same state, byte for byte (D-82, D-119, D-120)."""

from veen.lake.folds.api import fold_named, run
from veen.lake.folds.on_spark import typed_frame, typed_rows
from veen.lake.folds.states import EarlierState, FoldResult, WrittenState, load
from veen.lake.folds.verify import RepairedState, StateCheck, StateClaim, claims_in, repair, verify

Claim, Verdict = StateClaim, StateCheck  # the names of earlier documents

__all__ = [
    "Claim",
    "EarlierState",
    "FoldResult",
    "RepairedState",
    "StateCheck",
    "StateClaim",
    "Verdict",
    "WrittenState",
    "claims_in",
    "fold_named",
    "load",
    "repair",
    "run",
    "typed_frame",
    "typed_rows",
    "verify",
]
