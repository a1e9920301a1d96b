"""Anchors of a label as listed by its hub, each with its checkpoint, both verified (ANC-04).

Errors of anchors.

Anchors in the log of another hub: a statement, its receipt, and a file that proves both to anyone (D-104).

An anchor_ref is hub_id 32 · label 32 · stream_seq u64 · leaf_hash 32 of the statement. The evidence file has the
message, its opening, its receipt and its inclusion proof: the key of the other hub is enough to verify it.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

from veen.client.client import Client
from veen.client.errors import BadAnswer
from veen.client.evidence_file import TrustedKeys, verify_evidence
from veen.client.session import HubSession
from veen.core import cbor
from veen.core.errors import FormatError, VerifyError
from veen.core.evidence_check import CheckedEntry
from veen.core.evidence_file import EvidenceFile
from veen.core.hashing import u64be
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import AnchorPublish, ControlRecord
from veen.core.objects.tooling import AnchorRequest, AnchorResponse, AnchorsResponse
from veen.overlays.anchoring import ANCHOR, AnchorStatement, state_root


class AnchorInvalid(VerifyError, code="ANCHOR.INVALID"):
    """An anchor does not verify: it is damaged, of another root, or not by a trusted key."""


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


BACKEND: Final = "hub"


async def publish_statement(
    client: Client, stream: str, hub_id: bytes, checkpoint: Checkpoint
) -> tuple[bytes, EvidenceFile]:
    """State a root of the hub `hub_id` on a stream of the hub of `client`; return the anchor_ref and its evidence."""
    draft = state_root(hub_id, checkpoint)
    sent = await client.send(stream, draft.body, schema=draft.schema)
    evidence = await client.evidence(stream, selection=[(sent.label, sent.seq)], contents="openings")
    return client.hub_id + sent.label + u64be(sent.seq) + sent.receipt.leaf_hash, evidence


def check_statement(data: bytes, trusted: TrustedKeys | None, root: bytes) -> CheckedEntry:
    """Return the entry of the other hub that states `root`, offline. Raise AnchorInvalid if the file has none.

    Raise EvidenceFault if anything in the file is wrong.
    """
    for entry, statement in _statements(data, trusted):
        if statement.mmr_root == root and entry.content == "opened":
            return entry
    raise AnchorInvalid(f"no entry of the evidence states the root {root.hex()[:16]}…")


def read_position(data: bytes, label: bytes) -> int | None:
    """Return the position of the root that an evidence file states for a log; None if it has no such statement.

    The keys in the file itself are used: the position only selects the root to ask for, and proves nothing.
    """
    return max((said.upto_seq for _, said in _statements(data, None) if said.label == label), default=None)


def _statements(data: bytes, trusted: TrustedKeys | None) -> Iterator[tuple[CheckedEntry, AnchorStatement]]:
    for entry in verify_evidence(data, trusted).entries:
        if entry.hdr is None or entry.body is None or entry.hdr.schema != ANCHOR.id:
            continue
        try:
            yield entry, AnchorStatement.from_tree(cbor.decode(entry.body, what=ANCHOR.name))
        except FormatError:
            continue
