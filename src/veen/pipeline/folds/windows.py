"""Windows of the ledger: what a range of the logical order would do, and how ranges are added up (WAL §6, D-100).

Pure, so that every cut of every history can be tried without Spark. `Books` settles range after range by addition
(`veen.overlays.wallet.flows`), and asks for the entries of a range only if some of them have to be replayed.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from veen.core.event import Event, Order
from veen.overlays.decode import Issue, Place, Typed, Violation, decode
from veen.overlays.ordered import Prefix, Progress, Table
from veen.overlays.state import from_tree, to_tree
from veen.overlays.wallet import flows
from veen.overlays.wallet.bodies import SCHEMAS, Open, WalletBody
from veen.overlays.wallet.flows import Flow, Window
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.rules import Record, apply

__all__ = ["Books", "Entry", "Fetch", "RangeSummary", "entries_of", "summarize_range"]


class Entry(NamedTuple):
    """A wallet event, judged by all but balances."""

    order: Order
    label: bytes
    stream_seq: int
    identity: bytes | None  # None: it does not decode, and counts for nothing
    copied: bool
    counts: bool
    issue: Issue | None
    schema: bytes
    body: bytes
    first: bool = True  # no entry before it is the same event (D-85)

    @property
    def place(self) -> Place:
        return self.label, self.stream_seq

    def decoded(self) -> WalletBody:
        found: WalletBody = SCHEMAS[self.schema].body.from_bytes(self.body)
        return found


def entries_of(fold: LedgerFold, events: Iterable[Event]) -> Iterator[Entry]:
    """The events of wallets, judged."""
    find = dict(fold.schemas).get
    for event in events:
        schema = find(event.hdr.schema)
        if schema is None:
            continue
        typed = decode(event, schema)
        if isinstance(typed, Issue):
            yield _entry(event, None, counts=False, issue=typed)
            continue
        counts, issue = _judged(fold, typed)
        yield _entry(event, fold.mirrors.identity(event), counts=counts, issue=issue)


def _entry(event: Event, identity: bytes | None, *, counts: bool, issue: Issue | None) -> Entry:
    copied, schema = event.hdr.parent_id is not None, event.hdr.schema
    return Entry(event.order, event.label, event.stream_seq, identity, copied, counts, issue, schema, event.body)


def _judged(fold: LedgerFold, typed: Typed[WalletBody]) -> tuple[bool, Issue | None]:
    try:
        return fold.screen(typed), None
    except Violation as exc:
        return False, Issue(*typed.place, exc.code, exc.what)


# --- one range of the order ----------------------------------------------------------------------------------------


class RangeSummary(NamedTuple):
    """What a range of the logical order, freed of copies, would do; and what is to be remembered of it."""

    window: Window
    identities: list[bytes]
    refused: list[Issue]  # by the policy
    upto: dict[bytes, int]
    last: Order | None

    def to_tree(self) -> Any:
        w = self.window
        window = (w.flows, w.trades, w.marks, w.uneasy, w.opened)
        return to_tree((window, self.identities, self.refused, self.upto, self.last), pairs=True)

    @classmethod
    def from_tree(cls, tree: Any) -> "RangeSummary":
        window, identities, refused, upto, last = from_tree(_KIND, tree)
        return cls(Window(*window), list(identities), list(refused), upto, last)


_Window = tuple[
    dict[bytes, Flow],
    frozenset[tuple[bytes, bytes]],
    dict[bytes, tuple[bytes, bytes]],
    frozenset[bytes],
    dict[bytes, Open],
]
_KIND: Final = tuple[_Window, tuple[bytes, ...], tuple[Issue, ...], dict[bytes, int], Order | None]


def summarize_range(entries: Iterable[Entry]) -> RangeSummary:
    """`entries` decode and stand in logical order; one that stands there twice counts once."""
    identities: list[bytes] = []
    refused: list[Issue] = []
    upto: dict[bytes, int] = {}
    last: Order | None = None

    def counting() -> Iterator[WalletBody]:
        nonlocal last
        for entry in entries:
            if entry.order == last or entry.identity is None:
                continue
            last = entry.order
            upto[entry.label] = entry.stream_seq
            if not entry.first:
                continue
            identities.append(entry.identity)
            if entry.issue is not None:
                refused.append(entry.issue)
            if entry.counts:
                yield entry.decoded()

    window = flows.summarize(counting())
    return RangeSummary(window, identities, refused, upto, last)


Fetch = Callable[[], Iterable[Entry]]


class Books:
    """The ledger while ranges are added to it, in order."""

    def __init__(self) -> None:
        self.table: Table[bytes, Record] = Table()
        self.replayed = 0
        self._identities: dict[bytes, bool] = {}
        self._violations: dict[Place, Issue] = {}
        self._upto: dict[bytes, int] = {}
        self._last: Order | None = None

    def add(self, found: RangeSummary, fetch: Fetch) -> None:
        """`fetch` gives the entries of the range again, in order; it is called only if some have to be replayed."""
        settled = flows.settle(self.table, found.window)
        for key, record in settled.changes.items():
            self.table[key] = record
        if settled.replay:
            self._replay(settled, fetch)
        self._identities.update(dict.fromkeys(found.identities, True))
        self._violations.update((issue.place, issue) for issue in found.refused)
        self._upto.update((label, max(seq, self._upto.get(label, 0))) for label, seq in found.upto.items())
        self._last = found.last or self._last

    def _replay(self, settled: flows.Settled, fetch: Fetch) -> None:
        last = None
        for entry in fetch():
            if entry.order == last:
                continue
            last, body = entry.order, entry.decoded()
            if settled.is_done(body):
                continue
            self.replayed += 1
            try:
                changes = apply(self.table, body)
            except Violation as exc:
                self._violations[entry.place] = Issue(*entry.place, exc.code, exc.what)
                continue
            for key, record in changes.items():
                self.table[key] = record

    def progress(self, ts: int, issues: Iterable[Issue]) -> Progress[bytes, Record]:
        """The summary: `ts` is the greatest of all rows, `issues` are of those that do not decode."""
        prefix: Prefix[bytes, Record] | None = None
        if self._last is not None:
            identities: Table[bytes, bool] = Table((self._identities,))
            violations: Table[Place, Issue] = Table((self._violations,))
            prefix = Prefix(self.table, identities, self._upto, self._last, violations)
        return Progress(prefix, {}, ts, {issue.place: issue for issue in issues})
