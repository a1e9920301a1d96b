"""Mirrors a verified set into a hub of VEEN: a federation.mirror.v1 record for each receipt (spec-3 §10, D-117, D-149).

The target stream is the state: a run first finishes the work of an interrupted one, then reads the mirrored receipts,
then sends the others in order. A killed run is simply started again.

The hub that signed a VESN log usually no longer exists, so nobody could fetch the RECEIPT to compare it with the
record. Every record therefore carries its RECEIPT in `metadata` (decision 88), and counts as mirrored only if that
receipt verifies under the given key and agrees with the record: a forged record blocks nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Final, Self

from veen.client.client import Client
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.core.errors import FormatError, MalformedError
from veen.core.objects.captoken import CapToken
from veen.overlays.operations.mirror import MIRROR, FederationMirror
from veen.products.vesn.errors import Violation
from veen.products.vesn.objects import Receipt

_METADATA_KEY: Final = "vesn_receipt"
_BATCH: Final = 64


def source_identifier(hub_pk: bytes) -> str:
    """Return the source_hub_identifier of a VESN hub (D-149)."""
    return f"vesn:{hub_pk.hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRecord(FederationMirror):
    """The statement about an entry of a VESN log (spec-3 §10), with its RECEIPT."""

    MAX_BYTES: ClassVar[int] = 64 * 1024

    @classmethod
    def of(cls, receipt: Receipt, *, hub_pk: bytes, target_label: bytes, now: int) -> Self:
        return cls(
            source_hub_identifier=source_identifier(hub_pk),
            source_label=receipt.label,
            source_stream_seq=receipt.stream_seq,
            source_leaf_hash=receipt.leaf_hash,
            source_receipt_root=receipt.mmr_root,
            target_label=target_label,
            mirror_time=now,
            metadata={_METADATA_KEY: receipt.to_bytes()},
        )

    def receipt(self) -> Receipt:
        """Return the RECEIPT inside, which must agree with the record. Raise FormatError if it is missing or does
        not.
        """
        raw = self.metadata.get(_METADATA_KEY) if type(self.metadata) is dict else None
        if type(raw) is not bytes:
            raise MalformedError("metadata has no VESN RECEIPT", self.KIND)
        receipt = Receipt.from_bytes(raw)
        if (receipt.label, receipt.stream_seq, receipt.leaf_hash, receipt.mmr_root) != (
            self.source_label,
            self.source_stream_seq,
            self.source_leaf_hash,
            self.source_receipt_root,
        ):
            raise MalformedError("the VESN RECEIPT in metadata is not that of the record", self.KIND)
        return receipt


@dataclass(slots=True)
class Mirrored:
    """Result of a run, and the receipts in the target stream."""

    sent: int = 0
    existed: int = 0
    unreadable: int = 0  # entries of the target stream that no available key opens
    first_seq: int | None = None  # of the records that this run sent, in the target stream
    last_seq: int | None = None
    _runs: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # by source label: all from … to … are there
    _others: set[tuple[bytes, int]] = field(default_factory=set)

    def has(self, receipt: Receipt) -> bool:
        first, last = self._runs.get(receipt.label, (1, 0))
        return first <= receipt.stream_seq <= last or (receipt.label, receipt.stream_seq) in self._others

    def add(self, receipt: Receipt) -> None:
        """Add a receipt. Records are almost always in order, so two numbers per label cover most of them."""
        label, seq = receipt.label, receipt.stream_seq
        first, last = self._runs.get(label, (seq, seq - 1))
        if seq == last + 1:
            self._runs[label] = (first, seq)
        else:
            self._others.add((label, seq))


async def mirror(
    client: Client,
    stream: str | bytes,
    receipts: Iterable[bytes],
    *,
    hub_pks: Sequence[bytes],
    now: Callable[[], int],
    capability: CapToken | None = None,
    on_progress: Callable[[Mirrored], None] | None = None,
) -> Mirrored:
    """Send a record for each receipt that the stream does not have. The receipts are those of a verified set (F1).

    The first of `hub_pks` names the source; receipts may be signed by any of them. Needs the read key of the stream. An
    interrupted run leaves only whole records.
    """
    await client.recover(stream)
    done = await _read_mirrored(client, stream, hub_pks)
    todo = (receipt for raw in receipts if not _is_mirrored(done, receipt := Receipt.from_bytes(raw)))
    while batch := list(islice(todo, _BATCH)):
        target_label = client.label(stream)
        drafts = [_draft(receipt, hub_pks[0], target_label, now()) for receipt in batch]
        outcomes = await client.send_many(stream, drafts, capability=capability)
        for receipt, outcome in zip(batch, outcomes, strict=True):
            if not isinstance(outcome, Sent):
                raise outcome
            done.add(receipt)
            done.sent += 1
            done.first_seq = done.first_seq or outcome.seq
            done.last_seq = outcome.seq
        if on_progress is not None:
            on_progress(done)
    return done


def _draft(receipt: Receipt, hub_pk: bytes, target_label: bytes, now: int) -> Draft:
    record = MirrorRecord.of(receipt, hub_pk=hub_pk, target_label=target_label, now=now)
    return Draft(body=record.to_bytes(), schema=MIRROR.id, parent=receipt.leaf_hash)


def _is_mirrored(done: Mirrored, receipt: Receipt) -> bool:
    if not done.has(receipt):
        return False
    done.existed += 1
    return True


async def _read_mirrored(client: Client, stream: str | bytes, hub_pks: Sequence[bytes]) -> Mirrored:
    """Return the records of this source in the target stream."""
    done = Mirrored()
    identifier = source_identifier(hub_pks[0])
    async for entry in client.read(stream):
        if entry.event is None:
            done.unreadable += 1
            continue
        if entry.event.hdr.schema != MIRROR.id:
            continue
        try:
            record = MirrorRecord.from_bytes(entry.body)
            receipt = record.receipt()
            receipt.verify(hub_pks)
        except (FormatError, Violation):
            continue
        if record.source_hub_identifier == identifier and not done.has(receipt):
            done.add(receipt)
    return done
