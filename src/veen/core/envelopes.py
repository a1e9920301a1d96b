"""Requests and responses of the data plane (spec §10.4, §10.6): the same for every transport."""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.checkpoint import Checkpoint
from veen.core.errors import ApiCode, MalformedError, Refusal
from veen.core.msg import Msg
from veen.core.proof import MmrProof
from veen.core.receipt import Receipt
from veen.core.wire import Fields, Form, Wire

__all__ = [
    "MAX_PAGE_ITEMS",
    "SUBMIT_PREFIX",
    "CheckpointRequest",
    "CheckpointResponse",
    "ErrorEnvelope",
    "ProofRequest",
    "ProofResponse",
    "ReceiptRequest",
    "ReceiptResponse",
    "StreamItem",
    "StreamRequest",
    "StreamResponse",
    "SubmitRequest",
    "SubmitResponse",
]

MAX_PAGE_ITEMS: Final = 1_000  # D-63
SUBMIT_PREFIX: Final = b"\xa2\x01\x01\x02"  # {1: 1, 2: …: the four envelope bytes before a MSG


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(Wire):
    """Ask for a MSG to be admitted."""

    KIND: ClassVar[str] = "submit request"
    FORM: ClassVar[Form] = "map"

    msg: Msg

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(msg=f.object("msg", Msg))

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, "msg": self.msg}

    def to_bytes(self) -> bytes:
        return SUBMIT_PREFIX + self.msg.to_bytes()

    @staticmethod
    def split(data: bytes) -> bytes:
        """The raw MSG inside a request, with the envelope checked and the MSG not.

        Faults of the envelope and faults of the MSG get different codes (D-54), so they are judged apart.
        """
        if data[:4] != SUBMIT_PREFIX:
            SubmitRequest.from_bytes(data)  # names the fault: a canonical request begins with these bytes
        try:
            end = cbor.item_end(data, 4)
        except MalformedError:
            return data[4:]  # not even an item: for the reader of the MSG to say
        if end != len(data):
            raise MalformedError("bytes follow the request", SubmitRequest.KIND)
        return data[4:]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitResponse(Wire):
    KIND: ClassVar[str] = "submit response"
    FORM: ClassVar[Form] = "map"

    receipt: Receipt
    server_version: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(receipt=f.object("receipt", Receipt), server_version=f.optional(f.text, "server_version"))

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, "receipt": self.receipt, "server_version": self.server_version}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest(Wire):
    """Read a range. Bounds are inclusive; `cursor` overrides `from_seq` (spec §10.5)."""

    KIND: ClassVar[str] = "stream request"
    FORM: ClassVar[Form] = "map"

    label: bytes
    from_seq: int
    to_seq: int | None = None
    max_items: int | None = None
    cursor: int | None = None
    with_receipts: bool | None = None
    with_mmr_proof: bool | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.bstr("label", 32),
            from_seq=f.uint("from_seq"),
            to_seq=f.optional(f.uint, "to_seq"),
            max_items=f.optional(f.uint, "max_items"),
            cursor=f.optional(f.uint, "cursor"),
            with_receipts=f.optional(f.flag, "with_receipts"),
            with_mmr_proof=f.optional(f.flag, "with_mmr_proof"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "ver": 1,
            "label": self.label,
            "from_seq": self.from_seq,
            "to_seq": self.to_seq,
            "max_items": self.max_items,
            "cursor": self.cursor,
            "with_receipts": self.with_receipts,
            "with_mmr_proof": self.with_mmr_proof,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem(Wire):
    KIND: ClassVar[str] = "stream item"
    FORM: ClassVar[Form] = "map"

    stream_seq: int
    msg: Msg
    receipt: Receipt | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            stream_seq=f.uint("stream_seq"),
            msg=f.object("msg", Msg),
            receipt=f.optional(f.object, "receipt", Receipt),
        )

    def _write(self) -> dict[str, Any]:
        return {"stream_seq": self.stream_seq, "msg": self.msg, "receipt": self.receipt}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResponse(Wire):
    """One page. `mmr_proof` is for the last item of the page, under the root of its receipt."""

    KIND: ClassVar[str] = "stream response"
    FORM: ClassVar[Form] = "map"

    label: bytes
    from_seq: int
    to_seq: int | None = None
    items: tuple[StreamItem, ...]
    next_cursor: int | None = None
    mmr_proof: MmrProof | None = None
    server_version: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            label=f.bstr("label", 32),
            from_seq=f.uint("from_seq"),
            to_seq=f.optional(f.uint, "to_seq"),
            items=f.objects("items", StreamItem, at_most=MAX_PAGE_ITEMS),
            next_cursor=f.optional(f.uint, "next_cursor"),
            mmr_proof=f.optional(f.object, "mmr_proof", MmrProof),
            server_version=f.optional(f.text, "server_version"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "ver": 1,
            "label": self.label,
            "from_seq": self.from_seq,
            "to_seq": self.to_seq,
            "items": self.items,
            "next_cursor": self.next_cursor,
            "mmr_proof": self.mmr_proof,
            "server_version": self.server_version,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeqRequest(Wire):
    """Receipt and proof requests name one entry and look the same."""

    FORM: ClassVar[Form] = "map"

    label: bytes
    stream_seq: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32), stream_seq=f.uint("stream_seq"))

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, "label": self.label, "stream_seq": self.stream_seq}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptRequest(_SeqRequest):
    KIND: ClassVar[str] = "receipt request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptResponse(SubmitResponse):
    """The same shape as the answer to a submit."""

    KIND: ClassVar[str] = "receipt response"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRequest(_SeqRequest):
    KIND: ClassVar[str] = "proof request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResponse(Wire):
    KIND: ClassVar[str] = "proof response"
    FORM: ClassVar[Form] = "map"

    mmr_proof: MmrProof
    server_version: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(mmr_proof=f.object("mmr_proof", MmrProof), server_version=f.optional(f.text, "server_version"))

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, "mmr_proof": self.mmr_proof, "server_version": self.server_version}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest(Wire):
    KIND: ClassVar[str] = "checkpoint request"
    FORM: ClassVar[Form] = "map"

    label: bytes
    upto_seq: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32), upto_seq=f.uint("upto_seq"))

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, "label": self.label, "upto_seq": self.upto_seq}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResponse(Wire):
    KIND: ClassVar[str] = "checkpoint response"
    FORM: ClassVar[Form] = "map"

    checkpoint: Checkpoint
    server_version: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(checkpoint=f.object("checkpoint", Checkpoint), server_version=f.optional(f.text, "server_version"))

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, "checkpoint": self.checkpoint, "server_version": self.server_version}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEnvelope(Wire):
    """Every refusal over the wire (spec §10.6). `message` is for people and never compared (D-57)."""

    KIND: ClassVar[str] = "error"
    FORM: ClassVar[Form] = "map"

    code: str
    message: str
    detail: dict[str, Any] | None = None
    retry_after: int | None = None
    request_id: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            code=f.text("code"),
            message=f.text("message"),
            detail=f.optional(f.free, "detail"),
            retry_after=f.optional(f.uint, "retry_after"),
            request_id=f.optional(f.text, "request_id"),
        )

    def _write(self) -> dict[str, Any]:
        detail = None if self.detail is None else cbor.sort_keys(self.detail)
        return {
            "ver": 1,
            "code": self.code,
            "message": self.message,
            "detail": detail,
            "retry_after": self.retry_after,
            "request_id": self.request_id,
        }

    @classmethod
    def refusal(
        cls,
        refusal: Refusal,
        message: str,
        *,
        detail: dict[str, Any] | None = None,
        retry_after: int | None = None,
        request_id: str | None = None,
    ) -> Self:
        """An admission error: stage and detail_enum always travel in `detail` (spec §8.2)."""
        admission = {"stage": refusal.stage.value, "detail_enum": refusal.detail_enum}
        return cls(
            code=refusal.code,
            message=message,
            detail={**(detail or {}), **admission},
            retry_after=retry_after,
            request_id=request_id,
        )

    @classmethod
    def api(
        cls, code: ApiCode, message: str, *, detail: dict[str, Any] | None = None, request_id: str | None = None
    ) -> Self:
        """A fault of the request itself."""
        return cls(code=code.code, message=message, detail=detail, request_id=request_id)
