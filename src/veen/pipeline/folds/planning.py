"""Which way a fold goes over Spark.

native       SQL over typed columns: KV, LWW registers, OR-sets, counters
windows      the wallet ledger, optimistically in parallel
by key       ordered folds whose records are independent: CRUD, queues
in order     every other ordered fold: sorted in parallel, stepped on the driver
summaries    every other fold: partial summaries, merged in a tree

A log of few entries takes one of the last two, whatever the fold: a plan of its own has more steps, and each costs time
before it does anything.
"""

from typing import TYPE_CHECKING, Any, Final, Literal

from veen.overlays.fold import AnyFold
from veen.overlays.joined import Joined
from veen.overlays.ordered import Ordered
from veen.overlays.wallet.ledger import LedgerFold
from veen.pipeline.folds import generic, ledger, native, ordered
from veen.pipeline.folds.errors import PlanUnfit
from veen.pipeline.folds.seen import Seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PLANS", "Asked", "fold_on_spark", "plan_of"]

Asked = Literal["auto", "generic", "native"]
PLANS: Final[tuple[Asked, ...]] = ("auto", "generic", "native")
_FEW: Final = 50_000  # entries, of which the generic plans fold thousands in the time a further job takes to start


def plan_of(fold: AnyFold, asked: Asked, *, entries: int | None = None, resumed: bool = False) -> str:
    """The name of the plan; PlanUnfit if only the generic one can do it and another was asked for."""
    if asked not in PLANS:
        raise PlanUnfit(f"there is no plan {asked!r}; known are {', '.join(PLANS)}")
    usual = "in order" if isinstance(fold, Ordered) else "summaries"
    special = usual
    if native.has_native(fold):
        special = "native"
    elif not resumed:  # what came after a state is little: one pass over it is quicker than dividing it
        special = "windows" if type(fold) is LedgerFold else "by key" if ordered.is_keyed(fold) else usual
    if asked == "native" and special == usual and not resumed:
        raise PlanUnfit(f"{fold.name} has no plan of its own")
    few = asked == "auto" and entries is not None and entries < _FEW
    return usual if few or asked == "generic" else special


def fold_on_spark(
    frame: "DataFrame",
    fold: AnyFold,
    asked: Asked,
    *,
    base: Any = None,
    parts: int | None = None,
    entries: int | None = None,
) -> tuple[Any, Seen, str]:
    """The summary of all rows of `frame` after `base`, what the rows were, and the plan that was used.

    `entries` is how many rows there are, if that is known.
    """
    if isinstance(fold, Joined):
        return _joined(frame, fold, asked, base, parts, entries)
    plan = plan_of(fold, asked, entries=entries, resumed=base is not None)
    if plan == "in order":
        return *ordered.in_order(frame, fold, base), plan  # type: ignore[arg-type]  # by its plan
    if plan == "by key":
        return *ordered.by_key(frame, fold, parts), plan  # type: ignore[arg-type]  # as above
    if plan == "windows":
        summary, seen, replayed = ledger.fold_ledger(frame, fold, parts)  # type: ignore[arg-type]  # as above
        return summary, seen, f"{plan}, {replayed} replayed"
    if plan == "native":
        try:
            found, seen = native.fold_native(frame, fold)  # type: ignore[arg-type]  # as above
        except PlanUnfit:
            if asked == "native":
                raise
            plan = "summaries"
            found, seen = generic.fold_frame(frame, fold)
    else:
        found, seen = generic.fold_frame(frame, fold)
    return found if base is None else fold.merge(base, found), seen, plan


def _joined(
    frame: "DataFrame", fold: Joined, asked: Asked, base: Any, parts: int | None, entries: int | None
) -> tuple[tuple[Any, ...], Seen, str]:
    """Each of the folds goes its own way over the same rows."""
    summaries, plans, seen = [], [], Seen()
    for at, one in enumerate(fold.folds):
        found, seen, plan = fold_on_spark(
            frame, one, asked, base=None if base is None else base[at], parts=parts, entries=entries
        )
        summaries.append(found)
        plans.append(plan)
    return tuple(summaries), seen, " + ".join(plans)
