"""Checkpoints that are kept elsewhere, too."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.wire import Bytes32, Length, Map, Part, Uint

__all__ = ["AnchorRequest", "AnchorResponse", "AnchoredCheckpoint", "AnchorsResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRequest(Map):
    """Anchor a checkpoint, of the whole label if no `upto_seq` is given (D-104).

    With `backend` and `anchor_ref` somebody has done so elsewhere, and the hub only records it.
    """

    KIND: ClassVar[str] = "anchor request"

    label: Bytes32
    upto_seq: Uint | None = None
    backend: str | None = None
    anchor_ref: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorResponse(Map):
    """The checkpoint and the record of its anchor."""

    KIND: ClassVar[str] = "anchor response"

    checkpoint: Checkpoint
    record: ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredCheckpoint(Part):
    """An anchor beside its checkpoint, which is absent once the key of its time was taken away (D-41)."""

    KIND: ClassVar[str] = "anchored checkpoint"

    record: ControlRecord
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorsResponse(Map):
    """By upto_seq; `more` says that the list goes on."""

    KIND: ClassVar[str] = "anchors response"

    anchors: Annotated[tuple[AnchoredCheckpoint, ...], Length(0, MAX_LISTED)]
    more: bool
