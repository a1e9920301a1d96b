"""Whether a state is true: fold the same prefix again, from the log, and compare (001 spec-3 §7.4, S2; SNAP-04).

A claim is a state.checkpoint.v1 or a written state: a fold, the cuts it was made of, and the hash of the state there.
It holds if the log still has those entries, the leaves that are folded have the root that the claim names, a receipt
signed by the hub says so too, and the state has the hash. Every way in which it does not is named.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.hubkeys import HubIdentity
from veen.core.receipt import Receipt
from veen.overlays.decode import Issue, decode
from veen.overlays.fold import AnyFold
from veen.overlays.snapshot import Cut
from veen.overlays.statecheckpoint import CHECKPOINT, StateCheckpoint, StateCheckpointFold, Stated
from veen.pipeline.errors import OptionError
from veen.pipeline.events import make_prefix
from veen.pipeline.folds.api import Engine, Keys, fold_named, run
from veen.pipeline.folds.errors import RootDiffers
from veen.pipeline.folds.moments import receipts_at
from veen.pipeline.folds.planning import Asked
from veen.pipeline.folds.result import FoldResult
from veen.pipeline.folds.states import WrittenState
from veen.pipeline.inventory import pin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Claim", "Difference", "Verdict", "claims_in", "verify"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What someone says a state is."""

    state_class: str
    cuts: tuple[Cut, ...]
    state_hash: bytes
    as_of: int | None = None  # None: the time of the last entry
    msg_id: bytes | None = None  # of the checkpoint, if it is one of the log

    @classmethod
    def of(cls, given: "StateCheckpoint | Event | WrittenState | Claim", *, label: bytes | None = None) -> "Claim":
        """`label` is needed for a checkpoint that is not in a log and names no cuts."""
        if isinstance(given, Claim):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One way in which a claim is not true."""

    what: str  # label, mmr_root, receipt, leaves, state_hash, settings
    claimed: str
    found: str
    label: bytes | None = None

    def __str__(self) -> str:
        where = f"label {self.label.hex()}, " if self.label is not None else ""
        return f"{where}{self.what}: claimed {self.claimed}, found {self.found}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a claim holds; `result` is what folding again gave, if it came to that."""

    claim: Claim
    differences: tuple[Difference, ...]
    result: FoldResult | None

    @property
    def ok(self) -> bool:
        return not self.differences


def verify(
    path: str,
    claim: "StateCheckpoint | Event | WrittenState | Claim",
    *,
    keys: Keys,
    fold: str | AnyFold | None = None,
    label: bytes | None = None,
    engine: Engine = "spark",
    spark: "SparkSession | None" = None,
    parts: int | None = None,
    plan: Asked = "auto",
    identity: HubIdentity | None = None,
) -> Verdict:
    """Fold the prefix that the claim is about once more, from the first entry on, and compare.

    `fold` is needed where settings or mirrors decide the state; by default it is the one of the state class. `identity`
    is the hub's, where it is pinned; without it the directory's own is believed.
    """
    asked = Claim.of(claim, label=label)
    chosen = fold_named(asked.state_class) if fold is None else fold_named(fold) if isinstance(fold, str) else fold
    found: list[Difference] = []
    if chosen.name != asked.state_class:
        found.append(Difference(what="state_class", claimed=asked.state_class, found=chosen.name))
        return Verdict(claim=asked, differences=tuple(found), result=None)
    heads = {cut.label: cut.upto_seq for cut in asked.cuts}
    found += _roots(path, asked.cuts, heads, identity)
    if any(one.what == "label" for one in found):
        return Verdict(claim=asked, differences=tuple(found), result=None)
    try:
        prefix = make_prefix(path, upto=heads)
        result = run(prefix, chosen, keys=keys, engine=engine, spark=spark, parts=parts, plan=plan, as_of=asked.as_of)
    except RootDiffers as exc:
        found.append(Difference(what="leaves", claimed="the root of the receipt", found=str(exc)))
        return Verdict(claim=asked, differences=tuple(found), result=None)
    found += [
        Difference(what="leaves", claimed="all of them", found="some cannot be read", label=label)
        for label in result.unproven
    ]
    if result.state_hash != asked.state_hash:
        unread = sum(one.count for one in result.unopened)
        told = result.state_hash.hex() + (f", without {unread} entries that could not be read" if unread else "")
        found.append(Difference(what="state_hash", claimed=asked.state_hash.hex(), found=told))
    return Verdict(claim=asked, differences=tuple(found), result=result)


def _roots(
    path: str, cuts: Sequence[Cut], heads: Mapping[bytes, int], identity: HubIdentity | None
) -> list[Difference]:
    """What the receipts at the cuts say against the claim."""
    pinned = pin(path, heads.keys())
    judge = identity or pinned.identity
    receipts = receipts_at(path, heads)
    found = []
    for cut in cuts:
        known = pinned.labels.get(cut.label)
        size = known.size if known is not None else 0
        if size < cut.upto_seq:
            what = {"claimed": f"{cut.upto_seq} entries", "found": f"{size} entries"}
            found.append(Difference(what="label", label=cut.label, **what))
            continue
        receipt = receipts.get(cut.label)
        if receipt is None:
            what = {"claimed": f"one at {cut.upto_seq}", "found": "none that can be read"}
            found.append(Difference(what="receipt", label=cut.label, **what))
            continue
        if receipt.mmr_root != cut.mmr_root:
            what = {"claimed": cut.mmr_root.hex(), "found": receipt.mmr_root.hex()}
            found.append(Difference(what="mmr_root", label=cut.label, **what))
        if (fault := _fault(judge, receipt)) is not None:
            found.append(Difference(what="receipt", label=cut.label, claimed="signed by the hub", found=fault))
    return found


def _fault(judge: HubIdentity | None, receipt: Receipt) -> str | None:
    if judge is None:
        return "the directory does not say whose it is"
    try:
        judge.verify_receipt(receipt)
    except VeenError as exc:
        return str(exc)
    return None


def claims_in(path: str, *, keys: Keys, engine: Engine = "python", **how: Any) -> Iterable[Claim]:
    """The checkpoints that a log has: of several for one state and position the latest (S1)."""
    stated: Mapping[tuple[bytes, int], Stated] = run(path, StateCheckpointFold(), keys=keys, engine=engine, **how).view
    for (state_id, upto_stream_seq), one in stated.items():
        body = StateCheckpoint(
            state_id=state_id,
            upto_stream_seq=upto_stream_seq,
            mmr_root=one.mmr_root,
            state_hash=one.state_hash,
            state_class=one.state_class,
            metadata=None if one.metadata is None else one.metadata.value,
        )
        yield replace(Claim.of(body, label=one.label), msg_id=one.msg_id)
