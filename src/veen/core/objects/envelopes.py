"""Requests and responses of the data plane (spec §10.4, §10.6): the same for every transport."""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from veen.core import cbor
from veen.core.errors import ApiCode, MalformedError, Refusal
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import MmrProof
from veen.core.wire import Bytes32, Length, Map, Part, PlainMap, Uint

MAX_PAGE_ITEMS: Final = 1_000  # D-63
SUBMIT_PREFIX: Final = b"\xa2\x01\x01\x02"  # {1: 1, 2: …: the four envelope bytes before a MSG


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(Map, kind="submit request"):
    """Request to admit a MSG."""

    msg: Msg

    def to_bytes(self) -> bytes:
        return SUBMIT_PREFIX + self.msg.to_bytes()

    @staticmethod
    def split(data: bytes) -> bytes:
        """Check the envelope of a request and return the raw MSG inside, not checked.

        Faults of the envelope and faults of the MSG get different codes (D-54), so they are checked apart.
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
class SubmitResponse(Map, kind="submit response"):
    """The receipt of the message."""

    receipt: Receipt
    server_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest(Map, kind="stream request"):
    """Request for a range of entries. Bounds are inclusive; `cursor` overrides `from_seq` (spec §10.5)."""

    label: Bytes32
    from_seq: Uint
    to_seq: Uint | None = None
    max_items: Uint | None = None
    cursor: Uint | None = None
    with_receipts: bool | None = None
    with_mmr_proof: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem(Part, kind="stream item"):
    """One entry of a page."""

    stream_seq: Uint
    msg: Msg
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResponse(Map, kind="stream response"):
    """One page. `mmr_proof` is for the last item of the page, under the root of its receipt."""

    label: Bytes32
    from_seq: Uint
    to_seq: Uint | None = None
    items: Annotated[tuple[StreamItem, ...], Length(0, MAX_PAGE_ITEMS)]
    next_cursor: Uint | None = None
    mmr_proof: MmrProof | None = None
    server_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeqRequest(Map):
    """Request about one entry: the form of receipt and proof requests."""

    label: Bytes32
    stream_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptRequest(_SeqRequest, kind="receipt request"):
    """Request for the RECEIPT of an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptResponse(SubmitResponse, kind="receipt response"):
    """The RECEIPT of an entry, in the form of the answer to a submit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofRequest(_SeqRequest, kind="proof request"):
    """Request for the inclusion proof of an entry under its own root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResponse(Map, kind="proof response"):
    """The inclusion proof."""

    mmr_proof: MmrProof
    server_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest(Map, kind="checkpoint request"):
    """Request for a checkpoint of a prefix."""

    label: Bytes32
    upto_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResponse(Map, kind="checkpoint response"):
    """A signed checkpoint."""

    checkpoint: Checkpoint
    server_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEnvelope(Map, kind="error"):
    """Error response (spec §10.6). `message` is for people and never compared (D-57)."""

    code: str
    message: str
    detail: PlainMap | None = None
    retry_after: Uint | None = None
    request_id: str | None = None

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
        """Return an admission error; `detail` always has stage and detail_enum (spec §8.2)."""
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
        """Return an error about the request itself."""
        return cls(code=code.code, message=message, detail=detail, request_id=request_id)
