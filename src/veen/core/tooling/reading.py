"""Following a label, the older way of reading, and inspection."""

from dataclasses import dataclass
from typing import ClassVar, Self

from veen.core.msg import Msg
from veen.core.proof import MmrProof
from veen.core.receipt import Receipt
from veen.core.tooling.base import MAX_LISTED, Map, Part
from veen.core.wire import Fields

__all__ = ["InspectRequest", "InspectResponse", "LabelInfo", "LegacyItem", "TailRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRequest(Map):
    """As a stream request, but an empty page waits for entries up to `wait_sec` seconds."""

    KIND: ClassVar[str] = "tail request"

    label: bytes
    from_seq: int
    wait_sec: int
    max_items: int | None = None
    with_receipts: bool | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.bstr("label", 32),
            from_seq=f.uint("from_seq"),
            wait_sec=f.uint("wait_sec"),
            max_items=f.optional(f.uint, "max_items"),
            with_receipts=f.optional(f.flag, "with_receipts"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LegacyItem(Part):
    """An element of the legacy GET stream (001 spec-1 §16)."""

    KIND: ClassVar[str] = "legacy stream item"

    receipt: Receipt
    msg: Msg
    mmr_proof: MmrProof | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            receipt=f.object("receipt", Receipt),
            msg=f.object("msg", Msg),
            mmr_proof=f.optional(f.object, "mmr_proof", MmrProof),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest(Map):
    """One label, or all of them by (epoch, label) behind `after_epoch` and `after`."""

    KIND: ClassVar[str] = "inspect request"

    label: bytes | None = None
    after_epoch: int | None = None
    after: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.optional(f.bstr, "label", 32),
            after_epoch=f.optional(f.uint, "after_epoch"),
            after=f.optional(f.bstr, "after", 32),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelInfo(Part):
    """What the hub knows about a label without reading any entry."""

    KIND: ClassVar[str] = "label info"

    label: bytes
    epoch: int
    last_stream_seq: int
    last_mmr_root: bytes
    last_hub_ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            label=f.bstr("label", 32),
            epoch=f.uint("epoch"),
            last_stream_seq=f.uint("last_stream_seq"),
            last_mmr_root=f.bstr("last_mmr_root", 32),
            last_hub_ts=f.uint("last_hub_ts"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectResponse(Map):
    """`label_count` is of the whole hub; `more` says that the list goes on."""

    KIND: ClassVar[str] = "inspect response"

    label_count: int
    labels: tuple[LabelInfo, ...]
    more: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label_count=f.uint("label_count"),
            labels=f.objects("labels", LabelInfo, at_most=MAX_LISTED),
            more=f.flag("more"),
        )
