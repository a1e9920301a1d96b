"""veen.anchor.v1: a root of one hub, stated in the log of another (ANCHOR0.1, D-104).

The message is sealed, signed and receipted like any other: the receipt of the other hub says that the statement, and so
the root, was there at its time. Two statements about one position of one log with different roots prove that the hub
showed two histories; the fold lists them under ANCHOR.CONTRADICTION.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from veen.core.event import Order
from veen.core.objects.checkpoint import Checkpoint
from veen.core.wire import Bytes32, Uint
from veen.overlays.framework.ordered import Ordered, Table
from veen.overlays.framework.schema import Body, Draft, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.typed_table import StateTable


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorStatement(Body, kind="veen.anchor.v1"):
    """Statement of the root of a label up to a position, as a hub signed it."""

    hub_id: Bytes32  # of the hub whose root it is
    label: Bytes32
    upto_seq: Uint
    mmr_root: Bytes32
    epoch: Uint


ANCHOR: Final = Schema(AnchorStatement.KIND, AnchorStatement)


def state_root(hub_id: bytes, checkpoint: Checkpoint) -> Draft:
    """Build a statement of the root of a checkpoint."""
    return ANCHOR.draft(
        AnchorStatement(
            hub_id=hub_id,
            label=checkpoint.label_curr,
            upto_seq=checkpoint.upto_seq,
            mmr_root=checkpoint.mmr_root,
            epoch=checkpoint.epoch,
        )
    )


class StatedRoot(NamedTuple):
    """The first statement about a position."""

    mmr_root: bytes
    hub_ts: int
    msg_id: bytes
    client_id: bytes
    order: Order


_Position = tuple[bytes, bytes, int]  # hub_id, label, upto_seq


class AnchorFold(Ordered[_Position, StatedRoot, Mapping[_Position, StatedRoot]]):
    """Fold of stated roots, by hub_id, label and position. The first statement is valid."""

    name = "anchor"
    schemas = SchemaSet([ANCHOR])
    TABLE = dict[_Position, StatedRoot]

    def step(self, state: Table[_Position, StatedRoot], event: Typed[AnchorStatement]) -> None:
        e, body = event
        place = body.hub_id, body.label, body.upto_seq
        first = state.get(place)
        if first is None:
            state[place] = StatedRoot(body.mmr_root, e.hub_ts, e.leaf_hash, e.client_id, e.order)
        elif first.mmr_root != body.mmr_root:
            raise Violation("ANCHOR.CONTRADICTION", f"another root than the statement {first.msg_id.hex()[:16]}… has")

    def show(self, state: Table[_Position, StatedRoot], as_of: int) -> Mapping[_Position, StatedRoot]:
        return dict(sorted(state.items()))


STATES: Final = (
    StateTable.of(
        AnchorFold.name,
        StatedRoot,
        {"hub_id": "hex", "label": "hex", "upto_seq": "integer"},
        lambda view: view,
        about="the first root that was stated for each position",
        times=("hub_ts",),
    ),
)
