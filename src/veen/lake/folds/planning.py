"""Choice of the plan by which Spark folds a log (`veen.lake.folds.on_spark` runs it).

native       SQL over typed columns: KV, LWW registers, OR-sets, counters
windows      the wallet ledger, optimistically in parallel; not where it matters for whom a key speaks (D-179)
by key       ordered folds whose records are independent: CRUD, queues
in order     every other ordered fold: sorted in parallel, stepped on the driver
summaries    every other fold: partial summaries, merged in a tree

A log of few entries takes one of the last two, whatever the fold: a plan of its own has more steps, and each costs time
before it does anything.

Partial results of tasks, and their combination. Pure: tested without Spark.

Every fold has a summary per part and a merge (spec §11.3, D-82): neither the number of parts nor their order affects
the result. Folds in which every event depends on the state before it are stepped in order; where the records of such a
state are independent of each other (`KEYS`), as those of two ids of CRUD are, each part steps through some of them by
itself, and the tables are united.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import pyarrow as pa

from veen.core import cbor
from veen.lake.folds.coverage import EVENTS, FoldCoverage, coverage_row
from veen.lake.folds.errors import PlanUnfit
from veen.lake.folds.typed import TYPES
from veen.lake.log.columns import Column
from veen.lake.log.events import LogEntry, event_row
from veen.overlays.crud import Crud, CrudFold
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.ordered import Ordered, OrderedPrefix, Progress, Table
from veen.overlays.framework.schema import Issue, Place, Typed, decode
from veen.overlays.queue import Queue, QueueFold
from veen.overlays.wallet.ledger import LedgerFold


def summarize_part(fold: AnyFold, found: Iterable[LogEntry]) -> list[Any]:
    """Return the summary and coverage of a task's part as one CBOR item."""
    coverage = FoldCoverage()
    summary = fold.summarize(coverage.events(found))
    return [fold.dump(summary), coverage.to_tree()]


def merge_parts(fold: AnyFold, parts: Iterable[list[Any]]) -> tuple[Any, FoldCoverage]:
    """Merge the items of several parts into summary and coverage."""
    coverage = FoldCoverage()

    def summaries() -> Iterator[Any]:
        for tree, more in parts:
            coverage.absorb(FoldCoverage.from_tree(more))
            yield fold.load(tree)

    summary = fold.combine(summaries())
    return summary, coverage


# --- ordered folds -------------------------------------------------------------------------------------------------

AnyOrdered = Ordered[Any, Any, Any]
KeyOf = Callable[[Typed[Any]], bytes]


def _crud_key(typed: Typed[Crud]) -> bytes:
    return cbor.encode([typed.body.entity, typed.body.id])


def _queue_key(typed: Typed[Queue]) -> bytes:
    return typed.event.leaf_hash if typed.body.ref is None else typed.body.ref


# By the class of the fold: the part of the state that an event reads and writes, and nothing else of it.
KEYS: Final[Mapping[type[AnyOrdered], KeyOf]] = MappingProxyType({CrudFold: _crud_key, QueueFold: _queue_key})

KEYED: Final = (*EVENTS, Column("key", "BINARY", pa.binary(), "of the records that the event is about"))


def is_keyed(fold: Any) -> bool:
    """Return True if the records of the state are independent.

    A copy may name a false original and so tie two of them.
    """
    return type(fold) in KEYS and not fold.mirrors


def rows_in_order(fold: AnyOrdered, found: Iterable[LogEntry], key_of: KeyOf | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events that the fold counts, and last the coverage."""
    coverage, find = FoldCoverage(), dict(fold.schemas).get
    for event in coverage.events(found):
        schema = find(event.hdr.schema)
        if schema is not None:
            row = event_row(event)
            if key_of is not None:
                typed = decode(event, schema)
                row["key"] = b"" if isinstance(typed, Issue) else key_of(typed)  # the fold will say what is wrong
            yield row
    yield coverage_row(coverage)


def unite_parts(parts: Iterable[Progress[Any, Any]]) -> Progress[Any, Any]:
    """Unite parts that share no record, as if one had stepped through all of their events."""
    rows: dict[Any, Any] = {}
    identities: dict[bytes, bool] = {}
    violations: dict[Place, Issue] = {}
    issues: dict[Place, Issue] = {}
    upto: dict[bytes, int] = {}
    last, ts = None, 0
    for part in parts:
        ts = max(ts, part.ts)
        issues.update(part.issues)
        if part.prefix is not None:
            rows.update(part.prefix.table.items())
            identities.update(part.prefix.identities.items())
            violations.update(part.prefix.violations.items())
            for label, seq in part.prefix.upto.items():
                upto[label] = max(upto.get(label, 0), seq)
            last = part.prefix.last if last is None else max(last, part.prefix.last)
    prefix: OrderedPrefix[Any, Any] | None = None
    if last is not None:
        prefix = OrderedPrefix(Table((rows,)), Table((identities,)), upto, last, Table((violations,)))
    return Progress(prefix, {}, ts, issues)


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
