"""Checkpoints that are also kept elsewhere."""

from dataclasses import dataclass
from typing import Annotated

from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.wire import Bytes32, Length, Map, Part, Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRequest(Map, kind="anchor request"):
    """Request to anchor a checkpoint, of the whole label if no `upto_seq` is given (D-104).

    With `backend` and `anchor_ref` the checkpoint is anchored already, and the hub only records it. A repeated request
    with the same `request_id` changes nothing and is answered with the record of the first.
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
    """An anchor with its checkpoint, which is absent once the key of its time was removed (D-41)."""

    record: ControlRecord
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorsResponse(Map, kind="anchors response"):
    """Anchors by upto_seq; `more` is true if the list is not complete."""

    anchors: Annotated[tuple[AnchoredCheckpoint, ...], Length(0, MAX_LISTED)]
    more: bool
