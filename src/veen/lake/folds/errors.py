"""Errors of folds over a log."""

from veen.lake.log.errors import PipelineError


class NoSuchFold(PipelineError):
    """No installed overlay has a fold of this name."""

    hint = "`veen fold list` shows which there are."


class PlanUnfit(PipelineError):
    """The plan that was asked for cannot run this fold."""

    hint = 'plan="auto" takes the fastest one that can; docs/folds.md says which fold has which.'


class FoldFailed(PipelineError):
    """A task of Spark failed for good."""

    hint = "`--engine python` folds the same log in one process, with the same result."


class RootDiffers(PipelineError):
    """The entries that were folded have another root than the receipt of the last of them says."""

    hint = "The log was changed after it was signed: `veen audit run` names the entry."


class RowsMissing(PipelineError):
    """A table or DataFrame has not all the rows that its cuts promise."""

    hint = "Load the table again, or give the cuts that belong to these rows."


class NotBound(PipelineError):
    """A state that is bound to no root cannot be verified by anyone."""

    hint = "Fold a data directory, or give cuts= along with the rows."


class FoldStateDamaged(PipelineError):
    """A written state is not what its own hashes say."""

    hint = "Delete it; folding again from the log gives the state."
