"""state.checkpoint.v1: statements of a state at a root of the log, which anyone can check (001 spec-3 §7).

A checkpoint names a state class (the name of a fold), the position and root up to which a log was folded, and the hash
of the state there (D-93). The body has room for one label; a state that is made of several is bound to each of them by
`cuts` in the metadata, the sorted list of D-82. Verifying means folding the same prefix again; nothing of a checkpoint
is believed before that (S2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from veen.core.event import Order
from veen.core.hashing import Ht
from veen.core.wire import Anything, Bytes32, Uint
from veen.overlays.framework.fold import AnyFold, Compact
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed
from veen.overlays.framework.snapshot import Cut
from veen.overlays.framework.state import Free, state_bytes
from veen.overlays.framework.typed_table import StateTable

_CUTS: Final = "cuts"  # in the metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCheckpoint(Body, kind="state.checkpoint.v1"):
    """The hash of a state at a position of the log."""

    state_id: Bytes32
    upto_stream_seq: Uint
    mmr_root: Bytes32
    state_hash: Bytes32
    state_class: str
    metadata: Anything | None = None  # free-form; `cuts` in it has a meaning, see `cuts_in`

    def _check(self) -> None:
        if not self.state_class:
            raise InvalidBody("STATE.CLASS", "state_class must not be empty")
        cuts = _cuts_of(self.metadata)
        if cuts and not any((cut.upto_seq, cut.mmr_root) == (self.upto_stream_seq, self.mmr_root) for cut in cuts):
            raise InvalidBody("STATE.CUTS", "none of the cuts is at upto_stream_seq with mmr_root")

    def cuts_in(self, label: bytes) -> tuple[Cut, ...]:
        """Return the cuts from which the state was folded. Default: its position in `label`."""
        named = _cuts_of(self.metadata)
        return named or (Cut(label=label, upto_seq=self.upto_stream_seq, mmr_root=self.mmr_root),)


def _cuts_of(metadata: Any) -> tuple[Cut, ...]:
    rows = metadata.get(_CUTS) if isinstance(metadata, dict) else None
    if rows is None:
        return ()
    cuts = []
    for row in rows if isinstance(rows, list) else [None]:
        match row:
            case [bytes(label), int(upto_seq), bytes(root)] if len(label) == len(root) == 32 and upto_seq >= 0:
                cuts.append(Cut(label=label, upto_seq=upto_seq, mmr_root=root))
            case _:
                raise InvalidBody("STATE.CUTS", "a cut is [label, upto_seq, mmr_root]")
    labels = [cut.label for cut in cuts]
    if not cuts or labels != sorted(set(labels)):
        raise InvalidBody("STATE.CUTS", "cuts must be sorted by label, one for each label")
    return tuple(cuts)


CHECKPOINT: Final = Schema(StateCheckpoint.KIND, StateCheckpoint)


def state_id_of(fold: AnyFold, stream_ids: Sequence[bytes]) -> bytes:
    """Return the name of the whole state that a fold, under its settings, makes of some streams."""
    what = (fold.name, fold.mirrors, fold.settings(), sorted(set(stream_ids)))
    return Ht("veen/state-id", state_bytes(what))


def checkpoint(*, state_id: bytes, state_class: str, state_hash: bytes, cuts: Sequence[Cut]) -> Draft:
    """Build a statement about a state at some cuts; upto_stream_seq and mmr_root are those of the longest label."""
    if not cuts:
        raise ValueError("a checkpoint is bound to at least one label")
    ordered = sorted(cuts, key=lambda cut: cut.label)
    longest = max(ordered, key=lambda cut: cut.upto_seq)
    body = StateCheckpoint(
        state_id=state_id,
        upto_stream_seq=longest.upto_seq,
        mmr_root=longest.mmr_root,
        state_hash=state_hash,
        state_class=state_class,
        metadata={_CUTS: [[cut.label, cut.upto_seq, cut.mmr_root] for cut in ordered]},
    )
    return CHECKPOINT.draft(body)


class Stated(NamedTuple):
    """The valid checkpoint of one state at one position, and its message."""

    order: Order
    msg_id: bytes
    client_id: bytes
    label: bytes
    mmr_root: bytes
    state_hash: bytes
    state_class: str
    metadata: Free | None


class StateCheckpointFold(Compact[dict[tuple[bytes, int], Stated], dict[tuple[bytes, int], Stated]]):
    """Fold by (state_id, upto_stream_seq). Of several checkpoints the latest in logical order is valid (S1)."""

    name = "state.checkpoint"
    schemas = SchemaSet([CHECKPOINT])
    SUMMARY = dict[tuple[bytes, int], Stated]

    def start(self) -> dict[tuple[bytes, int], Stated]:
        return {}

    def add(self, into: dict[tuple[bytes, int], Stated], event: Typed[StateCheckpoint]) -> None:
        e, body = event
        stated = Stated(
            e.order,
            e.leaf_hash,
            e.client_id,
            e.label,
            body.mmr_root,
            body.state_hash,
            body.state_class,
            None if body.metadata is None else Free(body.metadata),
        )
        _keep(into, (body.state_id, body.upto_stream_seq), stated)

    def absorb(self, into: dict[tuple[bytes, int], Stated], other: dict[tuple[bytes, int], Stated]) -> None:
        for key, stated in other.items():
            _keep(into, key, stated)

    def show(self, state: dict[tuple[bytes, int], Stated], as_of: int) -> dict[tuple[bytes, int], Stated]:
        return dict(sorted(state.items()))


def _keep(into: dict[tuple[bytes, int], Stated], key: tuple[bytes, int], stated: Stated) -> None:
    previous = into.get(key)
    if previous is None or stated.order > previous.order:
        into[key] = stated


STATES: Final = (
    StateTable.of(
        StateCheckpointFold.name,
        Stated,
        {"state_id": "hex", "upto_stream_seq": "integer"},
        lambda view: view,
        about="the last statement about each state and position",
    ),
)
