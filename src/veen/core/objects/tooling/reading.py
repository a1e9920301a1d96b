"""Following a label, the older way of reading, and inspection."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.tree.proof import MmrProof
from veen.core.wire import Bytes32, Length, Map, Part, Uint

__all__ = ["InspectRequest", "InspectResponse", "LabelInfo", "LegacyItem", "TailRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest(Map):
    """As a stream request, but an empty page waits for entries up to `wait_sec` seconds."""

    KIND: ClassVar[str] = "tail request"

    label: Bytes32
    from_seq: Uint
    wait_sec: Uint
    max_items: Uint | None = None
    with_receipts: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyItem(Part):
    """An element of the legacy GET stream (001 spec-1 §16)."""

    KIND: ClassVar[str] = "legacy stream item"

    receipt: Receipt
    msg: Msg
    mmr_proof: MmrProof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest(Map):
    """One label, or all of them by (epoch, label) behind `after_epoch` and `after`."""

    KIND: ClassVar[str] = "inspect request"

    label: Bytes32 | None = None
    after_epoch: Uint | None = None
    after: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelInfo(Part):
    """What the hub knows about a label without reading any entry."""

    KIND: ClassVar[str] = "label info"

    label: Bytes32
    epoch: Uint
    last_stream_seq: Uint
    last_mmr_root: Bytes32
    last_hub_ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectResponse(Map):
    """`label_count` is of the whole hub; `more` says that the list goes on."""

    KIND: ClassVar[str] = "inspect response"

    label_count: Uint
    labels: Annotated[tuple[LabelInfo, ...], Length(0, MAX_LISTED)]
    more: bool
