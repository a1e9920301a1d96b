"""AGB0: the bodies that an air-gap bridge writes into logs (001 products §4.5, §4.6, D-129, D-132).

In the receiving zone every event of a bundle becomes one message: `agb.import.v1` has the origin's event inside, with
the receipt of the origin's hub; `agb.withheld.v1` stands for an event that the sending zone did not let out, of
which only the receipt crossed. Their parent_id is the origin's msg_id. `agb.online.v1` and `agb.offline.v1` are the
audit records of the two zones.

    AGB.RECEIPT   origin_receipt is no receipt, or not that of parent_id
    AGB.CONTENT   neither the opened event nor the sealed message is there, or parts of both are
    AGB.RESULT    the result of an import is none of the four words, or a refusal without a code
"""

from dataclasses import dataclass
from typing import Annotated, Final

from veen.core.crypto import hpke
from veen.core.errors import FormatError, OpenError, VerifyError
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import open_one
from veen.core.wire import LEFT_OUT_EMPTY, Bytes32, Bytes64, Length, Uint
from veen.overlays.framework.schema import Body, InvalidBody, Issue, Schema, SchemaSet, Typed, decode

MAX_TARGETS: Final = 1_024
RESULTS: Final = ("imported", "resumed", "rejected", "received")


def _receipt(data: bytes) -> Receipt:
    try:
        return Receipt.from_bytes(data)
    except FormatError as exc:
        raise InvalidBody("AGB.RECEIPT", f"origin_receipt: {exc}") from exc


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImportedEvent(Body, kind="agb.import.v1"):
    """An event of another zone. Opened (header and body), or sealed as it was (origin_msg).

    `origin_digest` and `origin_sig` are what the author signed and the signature; the verifier of the bundle checked
    that the digest is that of the message, and everybody can check the signature.
    """

    origin_stream_id: Bytes32
    origin_epoch: Uint
    origin_schema: Bytes32 | None = None
    origin_header: bytes | None = None
    origin_body: bytes | None = None
    origin_msg: bytes | None = None
    origin_digest: Bytes32
    origin_sig: Bytes64
    origin_msg_id: Bytes32
    origin_client: Bytes32
    origin_receipt: bytes
    origin_hub_id: Bytes32
    bundle_id: Bytes32
    position: Uint  # in the bundle, from 0
    import_time: Uint
    bridge_id: Bytes32
    # coids of those that crossed, by index; none or all of the event
    attachments: Annotated[tuple[Bytes32, ...], Length(0, DEFAULT_LIMITS.max_attachments_per_msg), LEFT_OUT_EMPTY] = ()
    opening: Bytes32 | None = None  # with `aad` it opens the attachments of an event that crossed opened
    aad: Bytes32 | None = None

    def _check(self) -> None:
        if (self.opening is None) != (self.aad is None) or (self.opening is not None and not self.attachments):
            raise InvalidBody("AGB.CONTENT", "opening and aad must be given together, for attachments")
        opened = [part is not None for part in (self.origin_schema, self.origin_header, self.origin_body)]
        if any(opened) != all(opened) or all(opened) == (self.origin_msg is not None):
            raise InvalidBody("AGB.CONTENT", "an imported event must be either opened or sealed")
        if self.receipt.leaf_hash != self.origin_msg_id:
            raise InvalidBody("AGB.RECEIPT", "origin_receipt is of another message than origin_msg_id")

    @property
    def is_opened(self) -> bool:
        return self.origin_body is not None

    def open_attachment(self, index: int, ciphertext: bytes) -> bytes:
        """Return the plaintext of an attachment. Raise VerifyError for another one, OpenError if it crossed sealed."""
        if H(ciphertext) != self.attachments[index]:
            raise VerifyError(f"attachment {index} does not have the hash that the event names")
        if self.opening is None or self.aad is None:
            raise OpenError
        return open_one(hpke.receiver_of_secret(self.opening), self.aad, index, ciphertext, DEFAULT_LIMITS)

    @property
    def receipt(self) -> Receipt:
        return _receipt(self.origin_receipt)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithheldEvent(Body, kind="agb.withheld.v1"):
    """An event withheld by its zone. The receipt proves that it exists."""

    origin_stream_id: Bytes32
    origin_epoch: Uint
    origin_receipt: bytes
    origin_hub_id: Bytes32
    reason: str
    bundle_id: Bytes32
    position: Uint
    import_time: Uint
    bridge_id: Bytes32

    def _check(self) -> None:
        _receipt(self.origin_receipt)

    @property
    def receipt(self) -> Receipt:
        return _receipt(self.origin_receipt)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRecord(Body, kind="agb.online.v1"):
    """Record of a bundle made (AGB-11)."""

    bundle_id: Bytes32
    bundle_hash: Bytes32  # SHA-256 of the file
    bridge_id: Bytes32
    bundle_seq: Uint
    export_stream_id: Bytes32
    label: Bytes32
    epoch: Uint
    seq_from: Uint
    seq_to: Uint  # seq_from - 1 in a heartbeat
    count: Uint
    withheld: Uint
    checkpoint_id: Bytes32  # H of the bytes of the CHECKPOINT
    operator: str
    ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecord(Body, kind="agb.report.v1"):
    """Record of a reconciliation report. An anchor of the stream then covers it (AGB-17)."""

    report_hash: Bytes32  # Ht("veen/bridge-report", canonical JSON), which its signer signed
    signer: Bytes32
    is_clean: bool
    operator: str
    ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget(Body, kind="agb.offline.v1 target"):
    """Destination of a bundle: a run of one import stream. `seq_from` is 0 if the receipts were lost."""

    stream_id: Bytes32
    epoch: Uint
    seq_from: Uint
    seq_to: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRecord(Body, kind="agb.offline.v1"):
    """Result of an import (AGB-10, AGB-11)."""

    bundle_id: Bytes32 | None = None  # absent if the file does not tell it
    bundle_hash: Bytes32  # SHA-256 of the file
    result: str  # one of RESULTS
    code: str | None = None
    position: Uint | None = None  # of the event that the refusal is about
    detail: str | None = None
    targets: Annotated[tuple[ImportTarget, ...], Length(0, MAX_TARGETS)] = ()
    count: Uint
    operator: str
    ts: Uint

    def _check(self) -> None:
        if self.result not in RESULTS or (self.result == "rejected") != (self.code is not None):
            raise InvalidBody("AGB.RESULT", "result must be one of the four words, with a code for a refusal")


IMPORT: Final = Schema(ImportedEvent.KIND, ImportedEvent, needs_parent=True)
WITHHELD: Final = Schema(WithheldEvent.KIND, WithheldEvent, needs_parent=True)
ONLINE: Final = Schema(OnlineRecord.KIND, OnlineRecord)
OFFLINE: Final = Schema(OfflineRecord.KIND, OfflineRecord)
REPORT: Final = Schema(ReportRecord.KIND, ReportRecord)
SCHEMAS: Final = SchemaSet((IMPORT, WITHHELD, ONLINE, OFFLINE, REPORT))


def read_crossed(event: Event) -> Typed[ImportedEvent] | Typed[WithheldEvent] | Issue | None:
    """Decode an event that a bridge imported, or return its Issue; None if the event is of another schema."""
    crossed: Typed[ImportedEvent] | Typed[WithheldEvent] | Issue
    if event.hdr.schema == IMPORT.id:
        crossed = decode(event, IMPORT)
    elif event.hdr.schema == WITHHELD.id:
        crossed = decode(event, WITHHELD)
    else:
        return None
    if isinstance(crossed, Typed) and crossed.body.receipt.leaf_hash != event.hdr.parent_id:
        return Issue(event.label, event.stream_seq, "AGB.RECEIPT", "origin_receipt is not that of parent_id")
    return crossed


def origin_event(body: ImportedEvent, ts: int) -> Event | None:
    """Return the event as its own zone has it; None if it crossed sealed, or its header is malformed.

    `ts` is ts* of the origin's label at that place, which only who reads the label in order knows (D-27).
    """
    if body.origin_header is None or body.origin_body is None:
        return None
    try:
        hdr = PayloadHdr.from_bytes(body.origin_header)
    except FormatError:
        return None
    receipt = body.receipt
    return Event(
        stream_id=body.origin_stream_id,
        label=receipt.label,
        epoch=body.origin_epoch,
        stream_seq=receipt.stream_seq,
        leaf_hash=receipt.leaf_hash,
        client_id=body.origin_client,
        auth_ref=None,
        hub_ts=receipt.hub_ts,
        ts=ts,
        hdr=hdr,
        body=body.origin_body,
    )
