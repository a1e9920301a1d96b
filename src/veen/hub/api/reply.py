"""Answers of the hub, for every transport (spec §10.3, §10.4, §10.6)."""

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, Literal

from veen.core.catalogue import catalogue
from veen.core.errors import ApiCode, FormatError, MalformedError, Refusal, VeenError, VersionError
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.wire import Json, Wire
from veen.hub.admission.decide import Refuse, next_request_id

Form = Literal["cbor", "json"]

CBOR: Final = "application/cbor"
CBOR_SEQ: Final = "application/cbor-seq"
JSON: Final = "application/json"
RETRY_SECONDS: Final = 1  # Retry-After of a 503
_MAX_MESSAGE: Final = 160  # a fault may name a field that the client invented


@dataclass(slots=True)
class Reply:
    """One answer. `stream` takes the place of `body` if the length is not known when it begins."""

    status: int
    body: bytes = b""
    content_type: str = CBOR
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncGenerator[bytes, None] | None = None
    code: str = ""  # of an error, for logs and metrics


CLOCK_STEP: Final = "the hub's clock jumped forward and is not trusted; see `veen explain E.CLOCK`"
REASONS: Final = {CLOCK_STEP: "CLOCK_STEP"}  # reasons why nothing is admitted: text -> name for programs


class ApiError(VeenError):
    """Failure of a request outside of admission (spec §10.6)."""

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
        self.code, self.message, self.detail = code.code, message, detail
        self.retry_after, self.status, self.headers = retry_after, status or code.http_status, headers

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"

    @classmethod
    def of_format(cls, fault: FormatError) -> "ApiError":
        """Return the error for a fault of the request. It names fields of the protocol and short reasons, never the
        body."""
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
        detail = {"reason": REASONS[message]} if message in REASONS else None
        return cls(ApiCode.UNAVAILABLE, message, detail=detail, retry_after=RETRY_SECONDS)


def dump_json(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A request that failed outside admission, for the log."""

    operation: str  # empty if the request was not understood so far
    code: str
    status: int
    request_id: str
    reason: str
    field: str = ""
    detail: str = ""  # the check that failed, if it is one of admission
    address: str = ""


class Replies:
    """Answers in either form. Each error gets a request id of its own.

    `report` is called with every failure outside of admission and its request id, so that the log has a line for it.
    """

    def __init__(self, report: "Callable[[Failure], None] | None" = None) -> None:
        self._report = report
        self._reason, self._unavailable = "", dict[Form, Reply]()
        # Read at the start: a refusal must not wait for a file, nor fail because no more can be opened.
        self._messages = {refusal: catalogue()[refusal.detail_enum].message for refusal in Refusal}

    def ok(self, answer: Wire, form: Form, *, status: int = 200) -> Reply:
        if form == "json":
            return Reply(status, dump_json(answer.to_json()), JSON)
        return Reply(status, answer.to_bytes())

    def sequence(self, items: Iterable[bytes], form: Form) -> Reply:
        """Return many encoded objects: a CBOR sequence, or a JSON array."""
        if form == "json":
            return Reply(200, b"[" + b",".join(items) + b"]", JSON)
        return Reply(200, b"".join(items), CBOR_SEQ)

    def refusal(self, refuse: Refuse) -> ErrorEnvelope:
        return ErrorEnvelope.refusal(
            refuse.refusal,
            self._messages[refuse.refusal],
            detail=dict(refuse.detail),
            retry_after=refuse.retry_after,
            request_id=refuse.request_id,
        )

    def of_refusal(self, refuse: Refuse, form: Form) -> Reply:
        return self._error(self.refusal(refuse), refuse.refusal.http_status, form, ())

    def envelope(self, error: ApiError) -> ErrorEnvelope:
        return ErrorEnvelope(
            code=error.code,
            message=error.message,
            detail=error.detail,
            retry_after=error.retry_after,
            request_id=next_request_id(),
        )

    def of_error(self, error: ApiError, form: Form, *, operation: str = "", address: str = "") -> Reply:
        """Return the answer to a failed request, and report it. `operation` and `address` are those of the request,
        if known."""
        envelope = self.envelope(error)
        if self._report is not None and error.status != HTTPStatus.NOT_FOUND:  # a lookup without a result is no failure
            field = (error.detail or {}).get("field")
            self._report(
                Failure(
                    operation=operation,
                    code=error.code,
                    status=error.status,
                    request_id=envelope.request_id or "",
                    reason=error.message,
                    field=field if isinstance(field, str) else "",
                    address=address,
                )
            )
        return self._error(envelope, error.status, form, error.headers)

    def unavailable(self, reason: str, form: Form) -> Reply:
        """Return the answer to a message that is refused for `reason`.

        It is made once for all, hence without a request id: thousands of these leave just when there is no time for
        them.
        """
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
