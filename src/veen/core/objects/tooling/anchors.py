"""Checkpoints that are kept elsewhere, too."""

from dataclasses import dataclass
from typing import Annotated

from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.wire import Bytes32, Length, Map, Part, Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRequest(Map, kind="anchor request"):
    """Anchor a checkpoint, of the whole label if no `upto_seq` is given (D-104).

    With `backend` and `anchor_ref` somebody has done so elsewhere, and the hub only records it. A request with the
    `request_id` of an earlier one is answered with the record of that one, and changes nothing.
    """

    label: Bytes32
    upto_seq: Uint | None = None
    backend: str | None = None
    anchor_ref: bytes | None = None
    request_id: Bytes32 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorResponse(Map, kind="anchor response"):
    """The checkpoint and the record of its anchor."""

    checkpoint: Checkpoint
    record: ControlRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchoredCheckpoint(Part, kind="anchored checkpoint"):
    """An anchor beside its checkpoint, which is absent once the key of its time was taken away (D-41)."""

    record: ControlRecord
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorsResponse(Map, kind="anchors response"):
    """By upto_seq; `more` says that the list goes on."""

    anchors: Annotated[tuple[AnchoredCheckpoint, ...], Length(0, MAX_LISTED)]
    more: bool
