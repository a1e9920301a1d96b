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
from typing import Any, ClassVar, Final, Self

from veen.core.crypto import hpke
from veen.core.errors import FormatError, OpenError, VerifyError
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.receipt import Receipt
from veen.core.sealing.attachments import open_one
from veen.core.wire import Bytes32, Fields, Uint
from veen.overlays.framework.body import Body, InvalidBody
from veen.overlays.framework.decode import Issue, Typed, decode
from veen.overlays.framework.schema import Schema, SchemaSet

__all__ = [
    "IMPORT",
    "OFFLINE",
    "ONLINE",
    "REPORT",
    "RESULTS",
    "SCHEMAS",
    "WITHHELD",
    "ImportTarget",
    "ImportedEvent",
    "OfflineRecord",
    "OnlineRecord",
    "ReportRecord",
    "WithheldEvent",
    "origin_event",
    "read_crossed",
]

MAX_TARGETS: Final = 1_024
RESULTS: Final = ("imported", "resumed", "rejected", "received")


def _receipt(data: bytes) -> Receipt:
    try:
        return Receipt.from_bytes(data)
    except FormatError as exc:
        raise InvalidBody("AGB.RECEIPT", f"origin_receipt: {exc}") from exc


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ImportedEvent(Body):
    """agb.import.v1: an event of another zone. Opened (header and body), or sealed as it was (origin_msg).

    `origin_digest` and `origin_sig` are what the author signed and the signature; the verifier of the bundle checked
    that the digest is that of the message, and everybody can check the signature.
    """

    KIND: ClassVar[str] = "agb.import.v1"

    origin_stream_id: bytes
    origin_epoch: int
    origin_schema: bytes | None = None
    origin_header: bytes | None = None
    origin_body: bytes | None = None
    origin_msg: bytes | None = None
    origin_digest: bytes
    origin_sig: bytes
    origin_msg_id: bytes
    origin_client: bytes
    origin_receipt: bytes
    origin_hub_id: bytes
    bundle_id: bytes
    position: int  # in the bundle, from 0
    import_time: int
    bridge_id: bytes
    attachments: tuple[bytes, ...] = ()  # coids of those that crossed, by index; none or all of the event
    opening: bytes | None = None  # with `aad` it opens the attachments of an event that crossed opened
    aad: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            origin_stream_id=f.bstr("origin_stream_id", 32),
            origin_epoch=f.uint("origin_epoch"),
            origin_schema=f.optional(f.bstr, "origin_schema", 32),
            origin_header=f.optional(f.blob, "origin_header"),
            origin_body=f.optional(f.blob, "origin_body"),
            origin_msg=f.optional(f.blob, "origin_msg"),
            origin_digest=f.bstr("origin_digest", 32),
            origin_sig=f.bstr("origin_sig", 64),
            origin_msg_id=f.bstr("origin_msg_id", 32),
            origin_client=f.bstr("origin_client", 32),
            origin_receipt=f.blob("origin_receipt"),
            origin_hub_id=f.bstr("origin_hub_id", 32),
            bundle_id=f.bstr("bundle_id", 32),
            position=f.uint("position"),
            import_time=f.uint("import_time"),
            bridge_id=f.bstr("bridge_id", 32),
            attachments=f.optional(f.bstrs, "attachments", 32, at_most=DEFAULT_LIMITS.max_attachments_per_msg) or (),
            opening=f.optional(f.bstr, "opening", 32),
            aad=f.optional(f.bstr, "aad", 32),
        )
        if (body.opening is None) != (body.aad is None) or (body.opening is not None and not body.attachments):
            raise InvalidBody("AGB.CONTENT", "opening and aad are there together, for attachments")
        opened = [part is not None for part in (body.origin_schema, body.origin_header, body.origin_body)]
        if any(opened) != all(opened) or all(opened) == (body.origin_msg is not None):
            raise InvalidBody("AGB.CONTENT", "an imported event is either opened or sealed")
        if _receipt(body.origin_receipt).leaf_hash != body.origin_msg_id:
            raise InvalidBody("AGB.RECEIPT", "origin_receipt is of another message than origin_msg_id")
        return body

    def _write(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _IMPORT_FIELDS} | {"attachments": self.attachments or None}

    @property
    def is_opened(self) -> bool:
        return self.origin_body is not None

    def open_attachment(self, index: int, ciphertext: bytes) -> bytes:
        """The plaintext of an attachment. VerifyError if it is another one, OpenError if the event crossed sealed."""
        if H(ciphertext) != self.attachments[index]:
            raise VerifyError(f"attachment {index} does not have the hash that the event names")
        if self.opening is None or self.aad is None:
            raise OpenError
        return open_one(hpke.receiver_of_secret(self.opening), self.aad, index, ciphertext, DEFAULT_LIMITS)

    @property
    def receipt(self) -> Receipt:
        return _receipt(self.origin_receipt)


_IMPORT_FIELDS: Final = (
    "origin_stream_id", "origin_epoch", "origin_schema", "origin_header", "origin_body", "origin_msg", "origin_digest",
    "origin_sig", "origin_msg_id", "origin_client", "origin_receipt", "origin_hub_id", "bundle_id", "position",
    "import_time", "bridge_id", "attachments", "opening", "aad",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WithheldEvent(Body):
    """agb.withheld.v1: an event of another zone that was kept back there; its receipt shows that it exists."""

    KIND: ClassVar[str] = "agb.withheld.v1"

    origin_stream_id: bytes
    origin_epoch: int
    origin_receipt: bytes
    origin_hub_id: bytes
    reason: str
    bundle_id: bytes
    position: int
    import_time: int
    bridge_id: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            origin_stream_id=f.bstr("origin_stream_id", 32),
            origin_epoch=f.uint("origin_epoch"),
            origin_receipt=f.blob("origin_receipt"),
            origin_hub_id=f.bstr("origin_hub_id", 32),
            reason=f.text("reason"),
            bundle_id=f.bstr("bundle_id", 32),
            position=f.uint("position"),
            import_time=f.uint("import_time"),
            bridge_id=f.bstr("bridge_id", 32),
        )
        _receipt(body.origin_receipt)
        return body

    def _write(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _WITHHELD_FIELDS}

    @property
    def receipt(self) -> Receipt:
        return _receipt(self.origin_receipt)


_WITHHELD_FIELDS: Final = (
    "origin_stream_id", "origin_epoch", "origin_receipt", "origin_hub_id", "reason", "bundle_id", "position",
    "import_time", "bridge_id",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineRecord(Body):
    """agb.online.v1: a bundle was made (AGB-11)."""

    KIND: ClassVar[str] = "agb.online.v1"

    bundle_id: bytes
    bundle_hash: bytes  # SHA-256 of the file
    bridge_id: bytes
    bundle_seq: int
    export_stream_id: bytes
    label: bytes
    epoch: int
    seq_from: int
    seq_to: int  # seq_from - 1 in a heartbeat
    count: int
    withheld: int
    checkpoint_id: bytes  # H of the bytes of the CHECKPOINT
    operator: str
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            bundle_id=f.bstr("bundle_id", 32),
            bundle_hash=f.bstr("bundle_hash", 32),
            bridge_id=f.bstr("bridge_id", 32),
            bundle_seq=f.uint("bundle_seq"),
            export_stream_id=f.bstr("export_stream_id", 32),
            label=f.bstr("label", 32),
            epoch=f.uint("epoch"),
            seq_from=f.uint("seq_from"),
            seq_to=f.uint("seq_to"),
            count=f.uint("count"),
            withheld=f.uint("withheld"),
            checkpoint_id=f.bstr("checkpoint_id", 32),
            operator=f.text("operator"),
            ts=f.uint("ts"),
        )

    def _write(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _ONLINE_FIELDS}


_ONLINE_FIELDS: Final = (
    "bundle_id", "bundle_hash", "bridge_id", "bundle_seq", "export_stream_id", "label", "epoch", "seq_from", "seq_to",
    "count", "withheld", "checkpoint_id", "operator", "ts",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRecord(Body):
    """agb.report.v1: a report of a reconciliation was made; an anchor of the stream then covers it (AGB-17)."""

    KIND: ClassVar[str] = "agb.report.v1"

    report_hash: Bytes32  # Ht("veen/bridge-report", canonical JSON), which its signer signed
    signer: Bytes32
    is_clean: bool
    operator: str
    ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportTarget(Body):
    """Where the events of a bundle went: a run of one import stream. `seq_from` is 0 if the receipts were lost."""

    KIND: ClassVar[str] = "agb.offline.v1 target"

    stream_id: bytes
    epoch: int
    seq_from: int
    seq_to: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            stream_id=f.bstr("stream_id", 32),
            epoch=f.uint("epoch"),
            seq_from=f.uint("seq_from"),
            seq_to=f.uint("seq_to"),
        )

    def _write(self) -> dict[str, Any]:
        return {"stream_id": self.stream_id, "epoch": self.epoch, "seq_from": self.seq_from, "seq_to": self.seq_to}


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineRecord(Body):
    """agb.offline.v1: what became of a bundle (AGB-10, AGB-11)."""

    KIND: ClassVar[str] = "agb.offline.v1"

    bundle_id: bytes | None = None  # absent if the file does not tell it
    bundle_hash: bytes  # SHA-256 of the file
    result: str  # one of RESULTS
    code: str | None = None
    position: int | None = None  # of the event that the refusal is about
    detail: str | None = None
    targets: tuple[ImportTarget, ...] = ()
    count: int
    operator: str
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            bundle_id=f.optional(f.bstr, "bundle_id", 32),
            bundle_hash=f.bstr("bundle_hash", 32),
            result=f.text("result"),
            code=f.optional(f.text, "code"),
            position=f.optional(f.uint, "position"),
            detail=f.optional(f.text, "detail"),
            targets=f.objects("targets", ImportTarget, at_most=MAX_TARGETS),
            count=f.uint("count"),
            operator=f.text("operator"),
            ts=f.uint("ts"),
        )
        if body.result not in RESULTS or (body.result == "rejected") != (body.code is not None):
            raise InvalidBody("AGB.RESULT", "a result is one of four words, and a refusal has a code")
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "bundle_id": self.bundle_id,
            "bundle_hash": self.bundle_hash,
            "result": self.result,
            "code": self.code,
            "position": self.position,
            "detail": self.detail,
            "targets": self.targets,
            "count": self.count,
            "operator": self.operator,
            "ts": self.ts,
        }


IMPORT: Final = Schema("agb.import.v1", ImportedEvent, needs_parent=True)
WITHHELD: Final = Schema("agb.withheld.v1", WithheldEvent, needs_parent=True)
ONLINE: Final = Schema("agb.online.v1", OnlineRecord)
OFFLINE: Final = Schema("agb.offline.v1", OfflineRecord)
REPORT: Final = Schema("agb.report.v1", ReportRecord)
SCHEMAS: Final = SchemaSet((IMPORT, WITHHELD, ONLINE, OFFLINE, REPORT))


def read_crossed(event: Event) -> Typed[ImportedEvent] | Typed[WithheldEvent] | Issue | None:
    """What a bridge brought, or why its body counts for nothing; None if the event is of another schema."""
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
    """The event as its own zone has it; None if it crossed sealed, or its header breaks the form.

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
