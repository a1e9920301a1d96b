"""Anchors of a label as listed by its hub, each with its checkpoint, both verified (ANC-04)."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from veen.client.errors import BadAnswer
from veen.client.session import HubSession
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import AnchorPublish, ControlRecord
from veen.core.objects.tooling import AnchorRequest, AnchorResponse, AnchorsResponse
from veen.products.anchoring.errors import AnchorInvalid

_OPERATION: Final = "tooling/anchor"
_MAX_PAGES: Final = 100_000


@dataclass(frozen=True, slots=True)
class ListedAnchor:
    """An anchor in the hub's journal, signed by the hub."""

    record: ControlRecord
    body: AnchorPublish
    checkpoint: Checkpoint | None  # None once the key of its time was retired


async def anchors_of(session: HubSession, label: bytes) -> AsyncIterator[ListedAnchor]:
    """Yield anchors by upto_seq.

    Raise AnchorInvalid if record and checkpoint have different roots: history was changed.
    """
    first, count = 0, 0
    places: set[int] = set()
    for _ in range(_MAX_PAGES):
        page = await session.calls.ask(f"{_OPERATION}?label={label.hex()}&from={first}", None, AnchorsResponse)
        for anchored in page.anchors:
            listed = _check(session, label, anchored.record, anchored.checkpoint)
            if listed.record.seq in places:
                continue  # a page begins with all anchors of a position
            if listed.body.upto_seq < first:
                raise BadAnswer(f"{_OPERATION}: anchors that do not ascend")
            places.add(listed.record.seq)
            first = listed.body.upto_seq
            yield listed
        if not page.more:
            return
        if len(places) == count:
            raise BadAnswer(f"{_OPERATION}: the list goes on, and no further anchor is listed")
        count = len(places)
    raise BadAnswer(f"{_OPERATION}: the list does not end")


async def publish_at_hub(session: HubSession, label: bytes, upto_seq: int | None) -> ListedAnchor:
    """Have the hub anchor a checkpoint at the backend of its configuration."""
    request = AnchorRequest(label=label, upto_seq=upto_seq)
    answer = await session.calls.ask_once(
        _OPERATION, request, AnchorResponse, again=False
    )  # each attempt counts as a failure
    return _check(session, label, answer.record, answer.checkpoint)


async def record_at_hub(session: HubSession, checkpoint: Checkpoint, backend: str, anchor_ref: bytes) -> ListedAnchor:
    """Have the hub record that a checkpoint was anchored elsewhere."""
    request = AnchorRequest(
        label=checkpoint.label_curr, upto_seq=checkpoint.upto_seq, backend=backend, anchor_ref=anchor_ref
    )
    answer = await session.calls.ask(_OPERATION, request, AnchorResponse)
    listed = _check(session, checkpoint.label_curr, answer.record, answer.checkpoint)
    if (listed.body.backend, listed.body.anchor_ref) != (backend, anchor_ref):
        raise BadAnswer(f"{_OPERATION}: the record of another anchor")
    return listed


def _check(session: HubSession, label: bytes, record: ControlRecord, checkpoint: Checkpoint | None) -> ListedAnchor:
    session.pin.check_control(record)
    body = record.body
    if not isinstance(body, AnchorPublish) or body.label != label:
        raise BadAnswer(f"{_OPERATION}: a record that is no anchor of this label")
    if checkpoint is not None:
        session.pin.check_checkpoint(checkpoint, session.epoch_sec)
        if (checkpoint.label_curr, checkpoint.upto_seq) != (label, body.upto_seq):
            raise BadAnswer(f"{_OPERATION}: the checkpoint of another position")
        if checkpoint.mmr_root != body.mmr_root:
            raise AnchorInvalid(
                f"position {body.upto_seq} was anchored with the root {body.mmr_root.hex()[:16]}… and has"
                f" {checkpoint.mmr_root.hex()[:16]}… now: the history before it was changed"
            )
    return ListedAnchor(record, body, checkpoint)
