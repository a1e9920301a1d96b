"""Statements of one wallet over a period. Every line is provable on its own (WAL §12).

A line names the place of its event and its leaf_hash. With an inclusion proof, anyone can check it against a
checkpoint, without trusting whoever wrote the statement; with the whole log, anyone can fold the statement again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from veen.core.errors import VerifyError
from veen.core.event import Event
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tree.proof import MmrProof
from veen.overlays.framework.ordered import Progress, Table
from veen.overlays.framework.schema import Issue, Typed
from veen.overlays.wallet.bodies import OPERATIONS, Transfer, WalletBody
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.rules import UNOPENED, Record, Wallet


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The effect of one valid event on the wallet."""

    label: bytes
    stream_seq: int
    leaf_hash: bytes
    hub_ts: int  # ts* of the event: what ranges go by
    ts: int  # what its sender says
    operation: str
    delta: int  # of the balance; 0 for what only changes the state
    balance: int  # after it
    other: bytes | None = None  # the other wallet of a transfer
    ref: bytes | None = None  # the ref, or the transfer_id

    def verify(self, proof: MmrProof, checkpoint: Checkpoint) -> None:
        """Raise VerifyError unless the event is at the position of the line. The caller verifies the checkpoint."""
        if checkpoint.label_curr != self.label:
            raise VerifyError("the CHECKPOINT is of another label")
        proof.verify(
            leaf_hash=self.leaf_hash,
            stream_seq=self.stream_seq,
            expected_root=checkpoint.mmr_root,
            tree_size=checkpoint.upto_seq,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One wallet from `since` to `until`, both inclusive, in seconds of ts*."""

    wallet_id: bytes
    currency: str | None
    since: int
    until: int
    opening: int
    lines: tuple[Line, ...]
    closing: int
    refused: tuple[Issue, ...]  # events for this wallet that had no effect, and why

    def check(self) -> None:
        """Raise VerifyError unless the figures add up."""
        balance = self.opening
        for number, line in enumerate(self.lines, start=1):
            balance += line.delta
            if balance != line.balance:
                raise VerifyError(f"line {number} of the statement shows {line.balance}, the sum is {balance}")
            if balance < 0:
                raise VerifyError(f"line {number} of the statement goes below zero")
        if balance != self.closing:
            raise VerifyError(f"the statement closes at {self.closing}, the sum is {balance}")


def statement(
    fold: LedgerFold,
    events: Iterable[Event],
    wallet_id: bytes,
    *,
    since: int = 0,
    until: int | None = None,
    prefix: Progress[bytes, Record] | None = None,
) -> Statement:
    """Return the statement from the events of all wallet streams, in any order. Default end: the last of them.

    `prefix` is a summary of everything before some point, such as a snapshot's: then only what follows is read again.
    Lines can be told only for events that are not in it, so it must end before `since`.
    """
    summary = fold.summarize(events)
    if prefix is not None:
        prefix = fold.seal(prefix)
        if prefix.prefix is not None and prefix.prefix.last[0] >= since:
            raise ValueError(f"the prefix ends at {prefix.prefix.last[0]}, the statement begins at {since}")
        summary = fold.merge(prefix, summary)
    until = summary.ts if until is None else until
    ordered = sorted(summary.segment.values(), key=lambda typed: typed.order)
    before = [typed for typed in ordered if typed.event.ts < since]
    within = [typed for typed in ordered[len(before) :] if typed.event.ts <= until]
    start = fold.advance(summary.prefix, before)
    watch = _Watch(fold, wallet_id)
    end = watch.advance(start, within)
    refused = end.violations.changes
    closing = _wallet(end.table, wallet_id)
    return Statement(
        wallet_id=wallet_id,
        currency=closing.currency,
        since=since,
        until=until,
        opening=_wallet(start.table, wallet_id).balance,
        lines=tuple(watch.lines),
        closing=closing.balance,
        refused=tuple(refused[t.place] for t in within if t.place in refused and wallet_id in _parties(t.body)),
    )


class _Watch(LedgerFold):
    """The ledger, with a record of the changes of one wallet."""

    def __init__(self, fold: LedgerFold, wallet_id: bytes) -> None:
        super().__init__(mirrors=fold.mirrors, policy=fold.policy)
        self.wallet_id = wallet_id
        self.lines: list[Line] = []

    def step(self, state: Table[bytes, Record], event: Typed[Any]) -> None:
        old = _wallet(state, self.wallet_id)
        super().step(state, event)
        new = _wallet(state, self.wallet_id)
        if new != old:
            self.lines.append(_line(event, self.wallet_id, old, new))


def _wallet(table: Table[bytes, Record], wallet_id: bytes) -> Wallet:
    record = table.get(wallet_id)
    return record if isinstance(record, Wallet) else UNOPENED


def _parties(body: WalletBody) -> tuple[bytes, ...]:
    return (body.wallet_id, body.to_wallet_id) if isinstance(body, Transfer) else (body.wallet_id,)


def _line(typed: Typed[Any], wallet_id: bytes, old: Wallet, new: Wallet) -> Line:
    event, body = typed
    other = ref = None
    if isinstance(body, Transfer):
        other = body.to_wallet_id if wallet_id == body.wallet_id else body.wallet_id
        ref = body.transfer_id
    else:
        ref = getattr(body, "ref", None)
    return Line(
        label=event.label,
        stream_seq=event.stream_seq,
        leaf_hash=event.leaf_hash,
        hub_ts=event.ts,
        ts=body.ts,
        operation=OPERATIONS[type(body)],
        delta=new.balance - old.balance,
        balance=new.balance,
        other=other,
        ref=ref,
    )
