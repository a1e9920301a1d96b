"""Windows of the ledger: effects of a range of the logical order, and the addition of ranges (WAL §6, D-100).

Pure, so that every cut of every history can be tried without Spark. `Books` settles range after range by addition
(`veen.overlays.wallet.flows`), and asks for the entries of a range only if some of them have to be replayed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from veen.core.event import Event, Order
from veen.lake.folds.coverage import FoldCoverage, coverage_row
from veen.lake.folds.errors import PlanUnfit
from veen.lake.log.columns import Column
from veen.lake.log.events import SILVER, SORT_KEYS, LogEntry
from veen.overlays.framework.ordered import OrderedPrefix, Progress, Table
from veen.overlays.framework.schema import Issue, Place, Typed, Violation, decode
from veen.overlays.framework.speaking import STATEMENTS
from veen.overlays.framework.state import from_tree, to_tree
from veen.overlays.wallet import flows
from veen.overlays.wallet.bodies import SCHEMAS, Open, WalletBody
from veen.overlays.wallet.flows import Flow, Window
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.rules import Record, apply


def _binary(name: str, about: str) -> Column:
    return Column(name, "BINARY", pa.binary(), about)


WALLET_EVENTS: Final = (
    *(column for column in SILVER if column.name in (*SORT_KEYS, "label", "schema", "body")),
    _binary("identity", "what copies of one event share"),
    Column("copied", "BOOLEAN", pa.bool_(), "whether it says that it is a copy"),
    Column("counts", "BOOLEAN", pa.bool_(), "whether it may change a balance"),
    Column("code", "STRING", pa.string(), "why not, if that is to be reported"),
    Column("what", "STRING", pa.string(), "the same in words"),
    _binary("sender", "the key that must act for the owner of the wallet"),
    _binary("data", "the coverage of the task; such a row is no event"),
)


class WalletEvent(NamedTuple):
    """A wallet event, checked by all rules except those about balances."""

    order: Order
    label: bytes
    stream_seq: int
    identity: bytes | None  # None: it does not decode, and has no effect
    copied: bool
    counts: bool
    issue: Issue | None
    schema: bytes
    body: bytes
    first: bool = True  # no entry before it is the same event (D-85)
    sender: bytes | None = None  # the key that must act for the owner of the wallet, if that is asked for

    @classmethod
    def of_row(cls, row: Any) -> "WalletEvent":
        """Convert a row of WALLET_EVENTS with the column `first`: a mapping, or a Row of Spark."""
        label, stream_seq = bytes(row["label"]), row["stream_seq"]
        issue = None if row["code"] is None else Issue(label, stream_seq, row["code"], row["what"])
        order = (row["ts"], bytes(row["stream_id"]), row["epoch"], stream_seq, bytes(row["leaf_hash"]))
        return cls(
            order,
            label,
            stream_seq,
            bytes(row["identity"]),
            row["copied"],
            row["counts"],
            issue,
            bytes(row["schema"]),
            bytes(row["body"]),
            row["first"],
            None if row["sender"] is None else bytes(row["sender"]),
        )

    @property
    def place(self) -> Place:
        return self.label, self.stream_seq

    def decode(self) -> WalletBody:
        body: WalletBody = SCHEMAS[self.schema].body.from_bytes(self.body)
        return body


def wallet_events(fold: LedgerFold, events: Iterable[Event]) -> Iterator[WalletEvent]:
    """Yield the events of wallets, checked one by one."""
    find = dict(fold.schemas).get
    for event in events:
        schema = find(event.hdr.schema)
        if schema is None:
            continue
        if schema.id in STATEMENTS:
            raise PlanUnfit("keys are bound to principals in this log: its ledger is folded in order (D-179)")
        if schema.id not in SCHEMAS:
            continue  # a card, which matters for bindings alone
        typed = decode(fold.mirrors.with_origin_times(event), schema)
        if isinstance(typed, Issue):
            yield _wallet_event(event, None, counts=False, issue=typed)
            continue
        counts, issue = _screen(fold, typed)
        sender = fold.sender_to_check(typed) if counts else None
        yield _wallet_event(event, fold.mirrors.identity(event), counts=counts, issue=issue, sender=sender)


def _wallet_event(
    event: Event, identity: bytes | None, *, counts: bool, issue: Issue | None, sender: bytes | None = None
) -> WalletEvent:
    return WalletEvent(
        order=event.order,
        label=event.label,
        stream_seq=event.stream_seq,
        identity=identity,
        copied=event.hdr.parent_id is not None,
        counts=counts,
        issue=issue,
        schema=event.hdr.schema,
        body=event.body,
        sender=sender,
    )


def _screen(fold: LedgerFold, typed: Typed[WalletBody]) -> tuple[bool, Issue | None]:
    try:
        return fold.screen(typed), None
    except Violation as exc:
        return False, Issue(*typed.place, exc.code, exc.what)


def wallet_rows(fold: LedgerFold, found: Iterable[LogEntry]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a task, and last its coverage."""
    coverage = FoldCoverage()
    for event in wallet_events(fold, coverage.events(found)):
        ts, stream_id, epoch, stream_seq, leaf_hash = event.order
        row: dict[str, Any] = {
            "ts": ts,
            "stream_id": stream_id,
            "epoch": epoch,
            "stream_seq": stream_seq,
            "leaf_hash": leaf_hash,
            "label": event.label,
            "schema": event.schema,
            "body": event.body,
            "identity": event.identity,
            "copied": event.copied,
            "counts": event.counts,
            "sender": event.sender,
        }
        if event.issue is not None:
            row |= {"code": event.issue.code, "what": event.issue.what}
        yield row
    yield coverage_row(coverage)


# --- one range of the order ----------------------------------------------------------------------------------------


class RangeSummary(NamedTuple):
    """Effects of a range of the logical order, freed of copies, and the facts that later ranges need."""

    window: Window
    identities: list[bytes]
    refused: list[Issue]  # by the policy
    upto: dict[bytes, int]
    last: Order | None

    def to_tree(self) -> Any:
        w = self.window
        window = (w.flows, w.trades, w.marks, w.uneasy, w.opened, w.senders)
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
    frozenset[tuple[bytes, bytes]],
]
_KIND: Final = tuple[_Window, tuple[bytes, ...], tuple[Issue, ...], dict[bytes, int], Order | None]


def summarize_range(entries: Iterable[WalletEvent]) -> RangeSummary:
    """Summarize decoded entries in logical order; count a repeated one once."""
    identities: list[bytes] = []
    refused: list[Issue] = []
    upto: dict[bytes, int] = {}
    last: Order | None = None
    senders: set[tuple[bytes, bytes]] = set()

    def bodies() -> Iterator[WalletBody]:
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
                body = entry.decode()
                if entry.sender is not None and type(body) is not Open:  # `open` names its owner: screened before
                    senders.add((body.wallet_id, entry.sender))
                yield body

    window = replace(flows.summarize(bodies()), senders=frozenset(senders))
    return RangeSummary(window, identities, refused, upto, last)


Fetch = Callable[[], Iterable[WalletEvent]]


class Books:
    """The ledger while ranges are added to it, in order. Owned by the driver."""

    def __init__(self, fold: LedgerFold) -> None:
        self._policy = fold.policy
        self._has_copies = bool(fold.mirrors)
        self.table: Table[bytes, Record] = Table()
        self.replayed = 0
        self._identities: dict[bytes, bool] = {}
        self._violations: dict[Place, Issue] = {}
        self._upto: dict[bytes, int] = {}
        self._last: Order | None = None

    def add(self, found: RangeSummary, fetch: Fetch) -> None:
        """Add a range. Call `fetch` for its entries, in order, only if some have to be replayed."""
        settled = flows.settle(self.table, found.window, self._policy.owns)
        for key, record in settled.changes.items():
            self.table[key] = record
        if settled.replay:
            self._replay(settled, fetch)
        if self._has_copies:
            self._identities.update(dict.fromkeys(found.identities, True))
        self._violations.update((issue.place, issue) for issue in found.refused)
        self._upto.update((label, max(seq, self._upto.get(label, 0))) for label, seq in found.upto.items())
        self._last = found.last or self._last

    def _replay(self, settled: flows.Settled, fetch: Fetch) -> None:
        last = None
        for entry in fetch():
            if entry.order == last:
                continue
            last, body = entry.order, entry.decode()
            if settled.is_done(body):
                continue
            self.replayed += 1
            try:
                if entry.sender is not None:
                    self._policy.check_owner(self.table, body, entry.sender)
                changes = apply(self.table, body)
            except Violation as exc:
                self._violations[entry.place] = Issue(*entry.place, exc.code, exc.what)
                continue
            for key, record in changes.items():
                self.table[key] = record

    def progress(self, ts: int, issues: Iterable[Issue]) -> Progress[bytes, Record]:
        """Return the summary. `ts` is the greatest of all rows, `issues` are those of undecodable ones."""
        prefix: OrderedPrefix[bytes, Record] | None = None
        if self._last is not None:
            identities: Table[bytes, bool] = Table((self._identities,))
            violations: Table[Place, Issue] = Table((self._violations,))
            prefix = OrderedPrefix(self.table, identities, self._upto, self._last, violations)
        return Progress(prefix, {}, ts, {issue.place: issue for issue in issues})
