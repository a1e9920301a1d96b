"""federation.mirror.v1: statements in the log of a hub about entries that another hub signed (001 spec-3 §10, D-149).

Two hubs that state each other's roots cannot show two histories without both logs showing it. A statement holds facts
of a receipt and no payload. `attest` verifies before anything is stated (F1); `differences` compares a statement with
the receipt of the source (§10.4).

    MIRR.FORM           source_hub_identifier is neither hub:<hub_id> nor vesn:<hub_pk>, or the position is 0
    MIRR.AUTHOR         the sender is none of those who may state
    MIRR.PARENT         parent_id of the header is not source_leaf_hash
    MIRR.DUPLICATE      the position was stated before (F2)
    MIRR.CONTRADICTION  another leaf or root was stated for this position before: one of the two hubs lies
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.core.checks import Given, check
from veen.core.errors import VerifyError
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import MmrProof
from veen.core.wire import Anything, Bytes32, Uint
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, InvalidBody, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.speaking import STATEMENT_TYPES, Speaking, SpeakingKey, SpeakingRecord
from veen.overlays.framework.state import state_record
from veen.overlays.framework.typed_table import StateTable
from veen.overlays.operations.common import Operation

_IDENTIFIER: Final = re.compile("(hub|vesn):[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationMirror(Operation, kind="federation.mirror.v1"):
    """A statement about an entry of another hub."""

    source_hub_identifier: str
    source_label: Bytes32
    source_stream_seq: Uint
    source_leaf_hash: Bytes32
    source_receipt_root: Bytes32
    target_label: Bytes32
    mirror_time: Uint | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if _IDENTIFIER.fullmatch(self.source_hub_identifier) is None or self.source_stream_seq == 0:
            raise InvalidBody("MIRR.FORM", "a source is hub: or vesn: and 64 hex digits, and positions count from 1")


MIRROR: Final = Schema(FederationMirror.KIND, FederationMirror, needs_parent=True)


def hub_identifier(hub_id: bytes) -> str:
    """Return the name of a hub in mirror records. Addresses belong to discovery (D-149)."""
    return f"hub:{hub_id.hex()}"


def attest(
    msg: Msg,
    receipt: Receipt,
    *,
    hub_id: bytes,
    hub_pks: Collection[bytes],
    target_label: bytes,
    proof: MmrProof | None = None,
    root: bytes | None = None,
    tree_size: int | None = None,
    mirror_time: int | None = None,
    metadata: Any = None,
) -> Draft:
    """Build a statement about an entry of the source. Raise VerifyError or SignatureError if a check fails (F1).

    Checked are the signature of the client, I1, I2 and hub_sig under one of `hub_pks`, and with `proof` that the entry
    stands under `root` of `tree_size` entries, a root that the caller trusts (I3).
    """
    check(msg, Given(hub_pks=tuple(hub_pks), related=(receipt,)))
    if proof is not None:
        if root is None or tree_size is None:
            raise VerifyError("a proof leads to a trusted root of a known size: give root and tree_size")
        proof.verify(
            leaf_hash=receipt.leaf_hash, stream_seq=receipt.stream_seq, tree_size=tree_size, expected_root=root
        )
    body = FederationMirror(
        source_hub_identifier=hub_identifier(hub_id),
        source_label=receipt.label,
        source_stream_seq=receipt.stream_seq,
        source_leaf_hash=receipt.leaf_hash,
        source_receipt_root=receipt.mmr_root,
        target_label=target_label,
        mirror_time=mirror_time,
        metadata=metadata,
    )
    return MIRROR.draft(body, parent_id=receipt.leaf_hash)


@state_record
class Mirrored:
    """Statement about one position of a source."""

    msg_id: bytes
    client_id: bytes
    leaf_hash: bytes
    root: bytes
    target_labels: tuple[bytes, ...]


def differences(stated: Mirrored, receipt: Receipt) -> list[str]:
    """Return the differences between a statement and the source's receipt (§10.4). The caller verifies the receipt."""
    findings = []
    if stated.leaf_hash != receipt.leaf_hash:
        findings.append(f"leaf_hash is stated as {stated.leaf_hash.hex()}, the source has {receipt.leaf_hash.hex()}")
    if stated.root != receipt.mmr_root:
        findings.append(f"mmr_root is stated as {stated.root.hex()}, the source has {receipt.mmr_root.hex()}")
    return findings


@dataclass(frozen=True, slots=True)
class MirrorSource:
    """All statements about one label of a source."""

    positions: Mapping[int, Mirrored]  # by stream_seq, ascending

    @property
    def upto(self) -> int:
        """The highest position with a statement."""
        return max(self.positions, default=0)

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges of positions below `upto` without a statement, as (first, last)."""
        gaps, expected = [], 1
        for seq in sorted(self.positions):
            if seq > expected:
                gaps.append((expected, seq - 1))
            expected = seq + 1
        return gaps


_Key = tuple[str, bytes, int]  # (source_hub_identifier, source_label, source_stream_seq)


class MirrorFold(Speaking[_Key, Mirrored, dict[tuple[str, bytes], MirrorSource]]):
    """Fold of statements by source. It ignores `mirrors`: parent_id names the entry at the source and marks no copy.

    A copy of a statement that a bridge made has another parent_id, so it has no effect by MIRR.PARENT.

    `authors` are the identities that may state. None: everyone who may write to the stream; then whoever states a
    position first fixes it, and a true statement that comes later is a MIRR.CONTRADICTION.
    """

    name = "operation.mirror"
    version = 2  # client keys are bound to principals by statements of the stream (D-179)
    schemas = SchemaSet([MIRROR])
    TABLE = dict[_Key | SpeakingKey, Mirrored | SpeakingRecord]

    def __init__(
        self,
        *,
        authors: Collection[bytes] | None = None,
        mirrors: Mirrors = NO_MIRRORS,
        speaks: bool = True,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(speaks=speaks, realms=realms)
        self._authors = None if authors is None else frozenset(authors)

    def settings(self) -> Any:
        authors = None if self._authors is None else sorted(self._authors)
        return [authors, *more] if (more := self.voice_settings()) else authors

    def step(self, state: Table[_Key, Mirrored], event: Typed[Any]) -> None:
        e, body = event
        if type(body) in STATEMENT_TYPES:
            self.take_statement(state, event)
            return
        voice = self.voice(state, e)
        if self._authors is not None and not voice.any_of(self._authors):
            raise Violation("MIRR.AUTHOR", "the sender is not among the configured authors of statements")
        if e.hdr.parent_id != body.source_leaf_hash:
            raise Violation("MIRR.PARENT", "parent_id is not the message that the statement is about")
        key = (body.source_hub_identifier, body.source_label, body.source_stream_seq)
        before = state.get(key)
        labels: tuple[bytes, ...] = ()
        if before is not None:
            if (before.leaf_hash, before.root) != (body.source_leaf_hash, body.source_receipt_root):
                raise Violation(
                    "MIRR.CONTRADICTION", f"message {before.msg_id.hex()} states another leaf or root of this position"
                )
            if body.target_label in before.target_labels:
                raise Violation("MIRR.DUPLICATE", f"message {before.msg_id.hex()} has stated this position before")
            labels = before.target_labels
        state[key] = Mirrored(
            msg_id=e.leaf_hash if before is None else before.msg_id,
            client_id=e.client_id if before is None else before.client_id,
            leaf_hash=body.source_leaf_hash,
            root=body.source_receipt_root,
            target_labels=tuple(sorted((*labels, body.target_label))),
        )

    def show(self, state: Table[_Key, Mirrored], as_of: int) -> dict[tuple[str, bytes], MirrorSource]:
        positions: dict[tuple[str, bytes], dict[int, Mirrored]] = {}
        for (source, label, seq), record in sorted(self.records(state), key=lambda item: item[0]):
            positions.setdefault((source, label), {})[seq] = record
        return {key: MirrorSource(records) for key, records in positions.items()}


STATES: Final = (
    StateTable.of(
        MirrorFold.name,
        Mirrored,
        {"source_hub": "text", "source_label": "hex", "source_stream_seq": "integer"},
        lambda view: (
            ((hub, label, seq), record)
            for (hub, label), source in view.items()
            for seq, record in source.positions.items()
        ),
        about="entries of other hubs that were mirrored",
    ),
)
