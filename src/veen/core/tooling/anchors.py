"""Checkpoints that are kept elsewhere, too."""

from dataclasses import dataclass
from typing import ClassVar, Self

from veen.core.checkpoint import Checkpoint
from veen.core.control import ControlRecord
from veen.core.tooling.base import MAX_LISTED, Map, Part
from veen.core.wire import Fields

__all__ = ["AnchorRequest", "AnchorResponse", "AnchoredCheckpoint", "AnchorsResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRequest(Map):
    """Anchor a checkpoint, of the whole label if no `upto_seq` is given (D-104).

    With `backend` and `anchor_ref` somebody has done so elsewhere, and the hub only records it.
    """

    KIND: ClassVar[str] = "anchor request"

    label: bytes
    upto_seq: int | None = None
    backend: str | None = None
    anchor_ref: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.bstr("label", 32),
            upto_seq=f.optional(f.uint, "upto_seq"),
            backend=f.optional(f.text, "backend"),
            anchor_ref=f.optional(f.blob, "anchor_ref"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorResponse(Map):
    KIND: ClassVar[str] = "anchor response"

    checkpoint: Checkpoint
    record: ControlRecord

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(checkpoint=f.object("checkpoint", Checkpoint), record=f.object("record", ControlRecord))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredCheckpoint(Part):
    """An anchor beside its checkpoint, which is absent once the key of its time was taken away (D-41)."""

    KIND: ClassVar[str] = "anchored checkpoint"

    record: ControlRecord
    checkpoint: Checkpoint | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(record=f.object("record", ControlRecord), checkpoint=f.optional(f.object, "checkpoint", Checkpoint))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorsResponse(Map):
    """By upto_seq; `more` says that the list goes on."""

    KIND: ClassVar[str] = "anchors response"

    anchors: tuple[AnchoredCheckpoint, ...]
    more: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(anchors=f.objects("anchors", AnchoredCheckpoint, at_most=MAX_LISTED), more=f.flag("more"))
