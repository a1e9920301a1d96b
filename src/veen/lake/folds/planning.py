"""Choice of the plan by which Spark folds a log (`veen.lake.folds.on_spark` runs it).

native       SQL over typed columns: KV, LWW registers, OR-sets, counters
windows      the wallet ledger, optimistically in parallel; not where it matters for whom a key speaks (D-179)
by key       ordered folds whose records are independent: CRUD, queues
in order     every other ordered fold: sorted in parallel, stepped on the driver
summaries    every other fold: partial summaries, merged in a tree

A log of few entries takes one of the last two, whatever the fold: a plan of its own has more steps, and each costs time
before it does anything.
"""

from typing import Final, Literal

from veen.lake.folds.errors import PlanUnfit
from veen.lake.folds.partials import is_keyed
from veen.lake.folds.typed import TYPES
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.ordered import Ordered
from veen.overlays.wallet.ledger import LedgerFold

PlanName = Literal["auto", "generic", "native"]
PLANS: Final[tuple[PlanName, ...]] = ("auto", "generic", "native")
_FEW: Final = 50_000  # entries, of which the generic plans fold thousands in the time a further job takes to start


def has_native(fold: AnyFold) -> bool:
    """Return True if the bodies of a fold have columns that SQL can aggregate."""
    return type(fold) in TYPES


def plan_of(fold: AnyFold, asked: PlanName, *, entries: int | None = None, resumed: bool = False) -> str:
    """Return the name of the plan. Raise PlanUnfit if another than the generic one is required and there is none."""
    if asked not in PLANS:
        raise PlanUnfit(f"there is no plan {asked!r}; plans: {', '.join(PLANS)}")
    usual = "in order" if isinstance(fold, Ordered) else "summaries"
    special = usual
    if has_native(fold):
        special = "native"
    elif not resumed:  # what came after a state is little: one pass over it is quicker than dividing it
        special = "windows" if type(fold) is LedgerFold and not fold.speaks else "by key" if is_keyed(fold) else usual
    if asked == "native" and special == usual and not resumed:
        raise PlanUnfit(f"{fold.name} has no native plan")
    few = asked == "auto" and entries is not None and entries < _FEW
    return usual if few or asked == "generic" else special
