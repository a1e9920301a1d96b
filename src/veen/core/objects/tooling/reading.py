"""Following a label, the older way of reading, and inspection."""

from dataclasses import dataclass
from typing import Annotated

from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.tree.proof import MmrProof
from veen.core.wire import Bytes32, Length, Map, Part, Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest(Map, kind="tail request"):
    """A stream request that waits up to `wait_sec` seconds for entries instead of returning an empty page."""

    label: Bytes32
    from_seq: Uint
    wait_sec: Uint
    max_items: Uint | None = None
    with_receipts: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyItem(Part, kind="legacy stream item"):
    """An element of the legacy GET stream (001 spec-1 §16)."""

    receipt: Receipt
    msg: Msg
    mmr_proof: MmrProof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest(Map, kind="inspect request"):
    """Request for one label, or for all of them by (epoch, label) behind `after_epoch` and `after`."""

    label: Bytes32 | None = None
    after_epoch: Uint | None = None
    after: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelInfo(Part, kind="label info"):
    """State of a label that the hub knows without reading an entry."""

    label: Bytes32
    epoch: Uint
    last_stream_seq: Uint
    last_mmr_root: Bytes32
    last_hub_ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectResponse(Map, kind="inspect response"):
    """Labels of a hub. `label_count` is of the whole hub; `more` is true if the list is not complete."""

    label_count: Uint
    labels: Annotated[tuple[LabelInfo, ...], Length(0, MAX_LISTED)]
    more: bool
