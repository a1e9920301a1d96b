"""Verification of states: fold the same prefix again, from the log, and compare (001 spec-3 §7.4, S2; SNAP-04).

A claim is a state.checkpoint.v1 or a written state: a fold, the cuts it was made of, and the hash of the state there.
It holds if the log still has those entries, the folded leaves have the root that the claim names, a receipt signed by
the hub has the same root, and the state has the hash. Every difference is named.

The verdict has a row for each label of the claim (D-181). A log that ends before the cut, entries that this reader
cannot open, and receipts that cannot be read make it incomplete; a different root, signature or hash makes it bad.

Repair of written states that an earlier release may have resumed with other keys.

Earlier releases resumed from a state whatever keys had read it: entries sealed to the first reader remained left out
for the second one. Such a state does not name its keys. `repair` folds its log from the first entry on, and replaces
the state if the result differs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
from veen.io.places import open_fs
from veen.lake.folds import states
from veen.lake.folds.api import LEVEL, Engine, Keys, fold_named, load_keyring, run
from veen.lake.folds.errors import RootDiffers
from veen.lake.folds.planning import PlanName
from veen.lake.folds.states import FoldResult, WrittenState
from veen.lake.log.decryption import reader_marks
from veen.lake.log.errors import OptionError
from veen.lake.log.prefix import make_prefix, receipt_at
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.schema import Issue, decode
from veen.overlays.framework.snapshot import Cut
from veen.overlays.operations.state_checkpoint import CHECKPOINT, StateCheckpoint, StateCheckpointFold, Stated
from veen.storage.pinned import LogView, pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class StateClaim:
    """A claim about a state: its fold, cuts and hash."""

    state_class: str
    cuts: tuple[Cut, ...]
    state_hash: bytes
    as_of: int | None = None  # None: the time of the last entry
    msg_id: bytes | None = None  # of the checkpoint, if it is one of the log
    readers: Mapping[bytes, str] | None = None  # by stream: whose keys opened it; None: the claim does not say

    @classmethod
    def of(
        cls, given: "StateCheckpoint | Event | WrittenState | StateClaim", *, label: bytes | None = None
    ) -> "StateClaim":
        """Convert to a claim. `label` is required for a checkpoint that is not in a log and names no cuts."""
        if isinstance(given, StateClaim):
            return given
        if isinstance(given, WrittenState):
            as_of = None if given.as_of == given.ts else given.as_of
            return cls(
                state_class=given.fold,
                cuts=given.snapshot.cuts,
                state_hash=given.state_hash,
                as_of=as_of,
                readers=given.readers,
            )
        if isinstance(given, Event):
            typed = decode(given, CHECKPOINT) if given.hdr.schema == CHECKPOINT.id else None
            if typed is None or isinstance(typed, Issue):
                raise OptionError(f"entry {given.stream_seq} is not a state.checkpoint.v1")
            return replace(cls.of(typed.body, label=label or given.label), msg_id=given.leaf_hash)
        if label is None and not (isinstance(given.metadata, dict) and "cuts" in given.metadata):
            raise OptionError("the checkpoint does not say which label it is about: give label=")
        return cls(state_class=given.state_class, cuts=given.cuts_in(label or b""), state_hash=given.state_hash)


_CODES: Final = {
    "state_class": "SNAP.CLASS",
    "label": "SNAP.LENGTH",
    "mmr_root": "SNAP.ROOT",
    "receipt": "SNAP.RECEIPT",
    "leaves": "SNAP.LEAVES",
    "state_hash": "SNAP.HASH",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between a claim and the log."""

    what: str  # a key of _CODES
    claimed: str
    actual: str
    label: bytes | None = None
    because: Because = Because.EVIDENCE  # COVERAGE: the claim could not be judged here

    @property
    def code(self) -> str:
        """Stable code, for programs."""
        return _CODES[self.what]

    def __str__(self) -> str:
        where = f"label {self.label.hex()}, " if self.label is not None else ""
        return f"{where}{self.what}: claimed {self.claimed}, found {self.actual}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCheck:
    """The verdict over a claim; `result` is that of folding again, if it was reached."""

    claim: StateClaim
    differences: tuple[Difference, ...]
    result: FoldResult | None
    compared: tuple[Coverage, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return Verdict.of(self.compared, [Reason(different.because, str(different)) for different in self.differences])

    @property
    def ok(self) -> bool:
        return self.verdict.is_good


def verify(
    path: str,
    claim: "StateCheckpoint | Event | WrittenState | StateClaim",
    *,
    keys: Keys,
    fold: str | AnyFold | None = None,
    label: bytes | None = None,
    engine: Engine = "spark",
    spark: "SparkSession | None" = None,
    parts: int | None = None,
    plan: PlanName = "auto",
    identity: HubIdentity | None = None,
) -> StateCheck:
    """Fold the prefix of the claim again, from the first entry on, and compare.

    `fold` is required where settings or mirrors decide the state. Default: the fold of the state class. `identity` is
    the hub's, where it is pinned; without it the directory's own is trusted.
    """
    asked = StateClaim.of(claim, label=label)
    chosen = fold_named(asked.state_class) if fold is None else fold_named(fold) if isinstance(fold, str) else fold
    if chosen.name != asked.state_class:
        other = Difference(what="state_class", claimed=asked.state_class, actual=chosen.name)
        return StateCheck(claim=asked, differences=(other,), result=None)
    pinned = pin(path)
    compared = tuple(_compare_extent(asked.cuts, pinned, identity))
    differences = _compare_roots(path, asked.cuts, pinned, identity)
    if any(row.behind for row in compared):
        return StateCheck(claim=asked, differences=tuple(differences), result=None, compared=compared)
    try:
        prefix = make_prefix(path, upto={cut.label: cut.upto_seq for cut in asked.cuts}, pinned=pinned)
        result = run(prefix, chosen, keys=keys, engine=engine, spark=spark, parts=parts, plan=plan, as_of=asked.as_of)
    except RootDiffers as exc:
        differences.append(Difference(what="leaves", claimed="the root of the receipt", actual=str(exc)))
        return StateCheck(claim=asked, differences=tuple(differences), result=None, compared=compared)
    differences += [
        Difference(
            what="leaves", claimed="all of them", actual="some cannot be read", label=label, because=Because.COVERAGE
        )
        for label in result.unproven
    ]
    if result.state_hash != asked.state_hash:
        differences.append(_state_difference(asked, result))
    return StateCheck(claim=asked, differences=tuple(differences), result=result, compared=compared)


def _state_difference(asked: StateClaim, result: FoldResult) -> Difference:
    """Return the difference of two states. Other keys cannot decide about a claim, which is then incomplete."""
    claimed, actual = asked.state_hash.hex(), result.state_hash.hex()
    unread = sum(skip.count for skip in result.unopened)
    if asked.readers is not None and asked.readers != result.readers:
        actual += ", with other keys than those that the state was made with"
        return Difference(what="state_hash", claimed=claimed, actual=actual, because=Because.COVERAGE)
    if unread:
        actual += f", without {unread} entries that could not be read"
    because = Because.COVERAGE if unread and asked.readers is None else Because.EVIDENCE
    return Difference(what="state_hash", claimed=claimed, actual=actual, because=because)


def _compare_extent(cuts: Sequence[Cut], pinned: LogView, identity: HubIdentity | None) -> Iterable[Coverage]:
    """Yield a row for each label: the extent that the claim states, and the readable part of the directory."""
    name = None if identity is None else f"hub {identity.hub_id.hex()}"
    for cut in cuts:
        label_pin = pinned.labels.get(cut.label)
        read = 0 if label_pin is None else min(label_pin.size, cut.upto_seq)
        yield Coverage(log=cut.label.hex(), read=read, head=cut.upto_seq, stated_by=StatedBy.FILE, identity=name)


def _compare_roots(path: str, cuts: Sequence[Cut], pinned: LogView, identity: HubIdentity | None) -> list[Difference]:
    """Return the differences between the receipts at the cuts and the claim."""
    hub, fs = identity or pinned.identity, open_fs(path)
    differences: list[Difference] = []

    def differs(what: str, claimed: str, actual: str, because: Because = Because.EVIDENCE) -> None:
        differences.append(
            Difference(what=what, label=cut.label, claimed=claimed, actual=actual, because=because)  # of this turn
        )

    for cut in cuts:
        label_pin = pinned.labels.get(cut.label)
        size = label_pin.size if label_pin is not None else 0
        if label_pin is None or size < cut.upto_seq:
            differs("label", f"{cut.upto_seq} entries", f"{size} entries", Because.COVERAGE)
            continue
        receipt = receipt_at(fs, label_pin.chunks, cut.upto_seq)
        if receipt is None:
            differs("receipt", f"one at {cut.upto_seq}", "none that can be read", Because.COVERAGE)
            continue
        if receipt.mmr_root != cut.mmr_root:
            differs("mmr_root", cut.mmr_root.hex(), receipt.mmr_root.hex())
        if hub is None:
            differs("receipt", "signed by the hub", "the directory does not say whose it is", Because.COVERAGE)
        elif (fault := _receipt_fault(hub, receipt)) is not None:
            differs("receipt", "signed by the hub", fault)
    return differences


def _receipt_fault(hub: HubIdentity, receipt: Receipt) -> str | None:
    try:
        hub.verify_receipt(receipt)
    except VeenError as exc:
        return str(exc)
    return None


def claims_in(path: str, *, keys: Keys, engine: Engine = "python", **how: Any) -> Iterable[StateClaim]:
    """Yield the checkpoints of a log; of several for one state and position the latest (S1)."""
    stated: Mapping[tuple[bytes, int], Stated] = run(path, StateCheckpointFold(), keys=keys, engine=engine, **how).view
    for (state_id, upto_stream_seq), state in stated.items():
        body = StateCheckpoint(
            state_id=state_id,
            upto_stream_seq=upto_stream_seq,
            mmr_root=state.mmr_root,
            state_hash=state.state_hash,
            state_class=state.state_class,
            metadata=None if state.metadata is None else state.metadata.value,
        )
        yield replace(StateClaim.of(body, label=state.label), msg_id=state.msg_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairedState:
    """Result of repairing one written state."""

    path: str
    fold: str
    why: str | None  # why it was folded again; None: it says that these keys read it, and was left alone
    before: bytes  # state_hash
    after: bytes
    is_written: bool

    @property
    def is_changed(self) -> bool:
        """True if the state was another one than its log and these keys give."""
        return self.before != self.after


def repair(
    path: str,
    data_dir: str,
    *,
    keys: Keys,
    engine: Engine = "python",
    spark: "SparkSession | None" = None,
    dry_run: bool = False,
) -> RepairedState:
    """Fold the prefix of a written state again if other keys may have read it, and write the result.

    Raises what `load` and `run` raise: a state that is damaged, or a log that does not have its entries any more.
    """
    written = states.load(path)
    marks = reader_marks(load_keyring(keys), written.streams, LEVEL)
    if written.readers is None:
        why: str | None = "the state does not say which keys it was read with"
    else:
        why = None if written.readers == marks else "the state was read with other keys"
    before = written.state_hash
    if why is None:
        return RepairedState(path=path, fold=written.fold, why=None, before=before, after=before, is_written=False)
    upto = {cut.label: cut.upto_seq for cut in written.snapshot.cuts}
    prefix = make_prefix(data_dir, upto=upto, pinned=pin(data_dir))
    result = run(prefix, fold_named(written.fold), keys=keys, engine=engine, spark=spark, as_of=written.as_of)
    if not dry_run:
        result.write(path)
    return RepairedState(
        path=path,
        fold=written.fold,
        why=why,
        before=before,
        after=result.state_hash,
        is_written=not dry_run,
    )
