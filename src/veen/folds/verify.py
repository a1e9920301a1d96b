"""Whether a state is true: fold the same prefix again, from the log, and compare (001 spec-3 §7.4, S2; SNAP-04).

A claim is a state.checkpoint.v1 or a written state: a fold, the cuts it was made of, and the hash of the state there.
It holds if the log still has those entries, the leaves that are folded have the root that the claim names, a receipt
signed by the hub says so too, and the state has the hash. Every way in which it does not is named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.folds.api import Engine, Keys, fold_named, run
from veen.folds.errors import RootDiffers
from veen.folds.planning import PlanName
from veen.folds.result import FoldResult
from veen.folds.states import WrittenState
from veen.log.errors import OptionError
from veen.log.prefix import make_prefix, receipts_at
from veen.overlays.framework.decode import Issue, decode
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.snapshot import Cut
from veen.overlays.operations.state_checkpoint import CHECKPOINT, StateCheckpoint, StateCheckpointFold, Stated
from veen.storage.pinned import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class StateClaim:
    """What someone says a state is."""

    state_class: str
    cuts: tuple[Cut, ...]
    state_hash: bytes
    as_of: int | None = None  # None: the time of the last entry
    msg_id: bytes | None = None  # of the checkpoint, if it is one of the log

    @classmethod
    def of(
        cls, given: "StateCheckpoint | Event | WrittenState | StateClaim", *, label: bytes | None = None
    ) -> "StateClaim":
        """`label` is needed for a checkpoint that is not in a log and names no cuts."""
        if isinstance(given, StateClaim):
            return given
        if isinstance(given, WrittenState):
            as_of = None if given.as_of == given.ts else given.as_of
            return cls(state_class=given.fold, cuts=given.snapshot.cuts, state_hash=given.state_hash, as_of=as_of)
        if isinstance(given, Event):
            typed = decode(given, CHECKPOINT) if given.hdr.schema == CHECKPOINT.id else None
            if typed is None or isinstance(typed, Issue):
                raise OptionError(f"entry {given.stream_seq} is no state.checkpoint.v1")
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
    """One way in which a claim is not true."""

    what: str  # a key of _CODES
    claimed: str
    actual: str
    label: bytes | None = None

    @property
    def code(self) -> str:
        """Stable, for programs."""
        return _CODES[self.what]

    def __str__(self) -> str:
        where = f"label {self.label.hex()}, " if self.label is not None else ""
        return f"{where}{self.what}: claimed {self.claimed}, found {self.actual}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a claim holds; `result` is what folding again gave, if it came to that."""

    claim: StateClaim
    differences: tuple[Difference, ...]
    result: FoldResult | None

    @property
    def ok(self) -> bool:
        return not self.differences


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
) -> Verdict:
    """Fold the prefix that the claim is about once more, from the first entry on, and compare.

    `fold` is needed where settings or mirrors decide the state; by default it is the one of the state class. `identity`
    is the hub's, where it is pinned; without it the directory's own is believed.
    """
    asked = StateClaim.of(claim, label=label)
    chosen = fold_named(asked.state_class) if fold is None else fold_named(fold) if isinstance(fold, str) else fold
    differences: list[Difference] = []
    if chosen.name != asked.state_class:
        differences.append(Difference(what="state_class", claimed=asked.state_class, actual=chosen.name))
        return Verdict(claim=asked, differences=tuple(differences), result=None)
    heads = {cut.label: cut.upto_seq for cut in asked.cuts}
    differences += _roots(path, asked.cuts, heads, identity)
    if any(difference.what == "label" for difference in differences):
        return Verdict(claim=asked, differences=tuple(differences), result=None)
    try:
        prefix = make_prefix(path, upto=heads)
        result = run(prefix, chosen, keys=keys, engine=engine, spark=spark, parts=parts, plan=plan, as_of=asked.as_of)
    except RootDiffers as exc:
        differences.append(Difference(what="leaves", claimed="the root of the receipt", actual=str(exc)))
        return Verdict(claim=asked, differences=tuple(differences), result=None)
    differences += [
        Difference(what="leaves", claimed="all of them", actual="some cannot be read", label=label)
        for label in result.unproven
    ]
    if result.state_hash != asked.state_hash:
        unread = sum(difference.count for difference in result.unopened)
        actual = result.state_hash.hex() + (f", without {unread} entries that could not be read" if unread else "")
        differences.append(Difference(what="state_hash", claimed=asked.state_hash.hex(), actual=actual))
    return Verdict(claim=asked, differences=tuple(differences), result=result)


def _roots(
    path: str, cuts: Sequence[Cut], heads: Mapping[bytes, int], identity: HubIdentity | None
) -> list[Difference]:
    """What the receipts at the cuts say against the claim."""
    pinned = pin(path, heads.keys())
    hub = identity or pinned.identity
    receipts = receipts_at(path, heads)
    differences = []
    for cut in cuts:
        label_pin = pinned.labels.get(cut.label)
        size = label_pin.size if label_pin is not None else 0
        if size < cut.upto_seq:
            what = {"claimed": f"{cut.upto_seq} entries", "actual": f"{size} entries"}
            differences.append(Difference(what="label", label=cut.label, **what))
            continue
        receipt = receipts.get(cut.label)
        if receipt is None:
            what = {"claimed": f"one at {cut.upto_seq}", "actual": "none that can be read"}
            differences.append(Difference(what="receipt", label=cut.label, **what))
            continue
        if receipt.mmr_root != cut.mmr_root:
            what = {"claimed": cut.mmr_root.hex(), "actual": receipt.mmr_root.hex()}
            differences.append(Difference(what="mmr_root", label=cut.label, **what))
        if (fault := _fault(hub, receipt)) is not None:
            differences.append(Difference(what="receipt", label=cut.label, claimed="signed by the hub", actual=fault))
    return differences


def _fault(hub: HubIdentity | None, receipt: Receipt) -> str | None:
    if hub is None:
        return "the directory does not say whose it is"
    try:
        hub.verify_receipt(receipt)
    except VeenError as exc:
        return str(exc)
    return None


def claims_in(path: str, *, keys: Keys, engine: Engine = "python", **how: Any) -> Iterable[StateClaim]:
    """The checkpoints that a log has: of several for one state and position the latest (S1)."""
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
