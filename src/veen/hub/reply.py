"""Answers: what leaves the hub, whatever the transport (spec §10.3, §10.4, §10.6)."""

import json
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final, Literal

from veen.core.envelopes import ErrorEnvelope
from veen.core.errors import ApiCode, FormatError, MalformedError, Refusal, VeenError, VersionError
from veen.core.wire import Json, Wire
from veen.hub.admission import Refuse

__all__ = ["CBOR", "CBOR_SEQ", "JSON", "RETRY_SECONDS", "ApiError", "Form", "Replies", "Reply", "dump_json"]

Form = Literal["cbor", "json"]

CBOR: Final = "application/cbor"
CBOR_SEQ: Final = "application/cbor-seq"
JSON: Final = "application/json"
RETRY_SECONDS: Final = 1  # when to come back after a 503
_MAX_MESSAGE: Final = 160  # a fault may name a field that the client invented

_MESSAGES: Final[Mapping[Refusal, str]] = {
    Refusal.SIZE_PREFILTER: "the message is larger than this hub accepts",
    Refusal.PREFILTER_REJECT: "the request is refused before it is looked at",
    Refusal.CBOR_INVALID: "the message is not the canonical encoding of a MSG",
    Refusal.FIELD_SIZE: "a field of the message has a size that is not allowed",
    Refusal.VERSION: "the message speaks a version this hub does not know",
    Refusal.PROFILE: "the profile of the message is not supported by this hub",
    Refusal.CT_HASH: "ct_hash is not the hash of the ciphertext",
    Refusal.CT_PADDING: "the padding of the ciphertext holds a non-zero byte",
    Refusal.ATT_ROOT: "att_root does not match the attachments",
    Refusal.SIG_INVALID: "the signature does not verify under client_id",
    Refusal.NOT_PRIMARY: "this hub is not the primary of the stream",
    Refusal.CAP_MISSING: "a capability is needed, and auth_ref names none this hub knows: authorize the token first",
    Refusal.CAP_INVALID: "the capability is not valid here: its issuer is not trusted for its streams",
    Refusal.AUTH_REF: "the capability was issued to another client",
    Refusal.CAP_SCOPE: "the label is of no stream that this message may be written to",
    Refusal.CAP_REVOKED: "the capability was revoked",
    Refusal.CLIENT_REVOKED: "the client key was revoked",
    Refusal.CAP_TTL: "the capability has expired: renew it",
    Refusal.CAP_RATE: "the capability's rate is used up for now",
    Refusal.CLIENT_LIFETIME: "the client key is too old: rotate it",
    Refusal.CLIENT_QUOTA: "the client key has sent as many messages as it may: rotate it",
    Refusal.PREV_ACK: "prev_ack is beyond the log or behind this client's last one: resync",
    Refusal.DUPLICATE: "this client_seq was accepted before",
    Refusal.CLIENT_SEQ: "client_seq is not the next one of this client in this label",
    Refusal.EPOCH: "the label's epoch is outside the accepted window: align with the hub's clock",
}


@dataclass(slots=True)
class Reply:
    """One answer. `stream` takes the place of `body` where the end is not known when it begins."""

    status: int
    body: bytes = b""
    content_type: str = CBOR
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncGenerator[bytes, None] | None = None
    code: str = ""  # of an error, for logs and metrics


class ApiError(VeenError):
    """A request fails outside admission (spec §10.6)."""

    hint = "`veen explain CODE` tells what the code means and how to go on."

    def __init__(
        self,
        code: ApiCode,
        message: str,
        *,
        detail: dict[str, Any] | None = None,
        retry_after: int | None = None,
        status: int | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(code, message)
        self.code, self.message, self.detail = code, message, detail
        self.retry_after, self.status, self.headers = retry_after, status or code.http_status, headers

    def __str__(self) -> str:
        return f"{self.code.code}: {self.message}"

    @classmethod
    def of_format(cls, fault: FormatError) -> "ApiError":
        """A fault of the request itself; only field names of ours and short reasons are told, never the body."""
        if isinstance(fault, VersionError):
            return cls(ApiCode.VERSION, "version of the request", detail={"field": "ver", "expected": 1})
        where = str(getattr(fault, "where", "")).rpartition(".")[2]
        what = fault.what if isinstance(fault, MalformedError) else str(fault)
        message = "".join(char for char in what[:_MAX_MESSAGE] if char.isprintable())
        return cls(ApiCode.BAD_REQUEST, message, detail={"field": where} if where else None)

    @classmethod
    def timeout(cls, message: str) -> "ApiError":
        return cls(ApiCode.BAD_REQUEST, message, status=408)

    @classmethod
    def unavailable(cls, message: str) -> "ApiError":
        return cls(ApiCode.UNAVAILABLE, message, retry_after=RETRY_SECONDS)


def dump_json(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Replies:
    """Makes answers in either form; errors get a request id that no two answers share."""

    def __init__(self) -> None:
        self._run = secrets.token_hex(4)
        self._numbers = count(1)
        self._reason, self._unavailable = "", dict[Form, Reply]()

    def ok(self, answer: Wire, form: Form, *, status: int = 200) -> Reply:
        if form == "json":
            return Reply(status, dump_json(answer.to_json()), JSON)
        return Reply(status, answer.to_bytes())

    def sequence(self, items: Iterable[bytes], form: Form) -> Reply:
        """Many objects, encoded already: a CBOR sequence, or a JSON array."""
        if form == "json":
            return Reply(200, b"[" + b",".join(items) + b"]", JSON)
        return Reply(200, b"".join(items), CBOR_SEQ)

    def refusal(self, refuse: Refuse) -> ErrorEnvelope:
        return ErrorEnvelope.refusal(
            refuse.refusal,
            _MESSAGES[refuse.refusal],
            detail=dict(refuse.detail),
            retry_after=refuse.retry_after,
            request_id=self._request_id(),
        )

    def refused(self, refuse: Refuse, form: Form) -> Reply:
        return self._error(self.refusal(refuse), refuse.refusal.http_status, form, ())

    def envelope(self, error: ApiError) -> ErrorEnvelope:
        return ErrorEnvelope(
            code=error.code.code,
            message=error.message,
            detail=error.detail,
            retry_after=error.retry_after,
            request_id=self._request_id(),
        )

    def failed(self, error: ApiError, form: Form) -> Reply:
        return self._error(self.envelope(error), error.status, form, error.headers)

    def unavailable(self, reason: str, form: Form) -> Reply:
        """A message is turned away for `reason`. Made once for all, hence without a request id: this is the answer that
        leaves in thousands, and just when there is no time for it."""
        if reason != self._reason:
            self._reason, self._unavailable = reason, {}
        reply = self._unavailable.get(form)
        if reply is None:
            error = ApiError.unavailable(reason)
            reply = self._error(replace(self.envelope(error), request_id=None), error.status, form, error.headers)
            self._unavailable[form] = reply
        return reply

    def _error(self, envelope: ErrorEnvelope, status: int, form: Form, headers: tuple[tuple[str, str], ...]) -> Reply:
        reply = self.ok(envelope, form, status=status)
        reply.code = envelope.code
        if envelope.retry_after is not None:
            headers = (*headers, ("Retry-After", str(envelope.retry_after)))
        reply.headers = headers
        return reply

    def _request_id(self) -> str:
        return f"{self._run}-{next(self._numbers):x}"
