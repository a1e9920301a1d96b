"""Anchors in the log of another hub: a statement, its receipt, and a file that proves both to anyone (D-104).

An anchor_ref is hub_id 32 · label 32 · stream_seq u64 · leaf_hash 32 of the statement. The evidence file has the
message, its opening, its receipt and its inclusion proof: the key of the other hub is enough to verify it.
"""

from collections.abc import Iterator
from typing import Final

from veen.client.client import Client
from veen.client.evidence_file import TrustedKeys, verify_evidence
from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.evidence_check import CheckedEntry
from veen.core.evidence_file import EvidenceFile
from veen.core.hashing import u64be
from veen.core.objects.checkpoint import Checkpoint
from veen.overlays.anchoring import ANCHOR, AnchorStatement, state_root
from veen.products.anchoring.errors import AnchorInvalid

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
