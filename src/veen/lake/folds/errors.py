"""Errors of folds over a log."""

from veen.lake.log.errors import PipelineError


class NoSuchFold(PipelineError):
    """An unknown fold: no installed overlay has one of this name."""

    hint = "`veen fold list` shows which there are."


class PlanUnfit(PipelineError):
    """A plan that cannot run this fold."""

    hint = 'plan="auto" takes the fastest one that can; docs/folds.md says which fold has which.'


class FoldFailed(PipelineError):
    """A Spark task failed for good."""

    hint = "`--engine python` folds the same log in one process, with the same result."


class RootDiffers(PipelineError):
    """Folded entries with another root than the receipt of the last of them has."""

    hint = "The log was changed after it was signed: `veen audit run` names the entry."


class RowsMissing(PipelineError):
    """A table or DataFrame that lacks rows which its cuts promise."""

    hint = "Load the table again, or give the cuts that belong to these rows."


class NotBound(PipelineError):
    """A state without roots, which nobody can verify."""

    hint = "Fold a data directory, or give cuts= along with the rows."


class FoldStateDamaged(PipelineError):
    """A written state that does not match its own hashes."""

    hint = "Delete it; folding again from the log gives the state."
