"""Requests out of bytes: httptools parses, this module bounds. Nothing is kept that is not bounded here.

URL, headers and body have limits, the last one before it is read; bodies beyond 64 KiB count against what the whole
server may buffer. A request that is understood but wrong (no such path, say) is passed on with its error, and the
connection goes on; one that cannot be read to its end ends the input of its connection.
"""

import logging
from copy import copy
from typing import Final, Protocol

import httptools

from veen.core.errors import ApiCode
from veen.core.limits import Limits
from veen.hub.reply import ApiError, Form, Reply
from veen.hub.routes import SUBMIT, Route, allowed, find_route

__all__ = ["Reader", "Request", "Sink"]

_log: Final = logging.getLogger(__name__)
_MAX_HEADER_BYTES: Final = 16 * 1024
_MAX_URL: Final = 4096
_MAX_QUIET: Final = 64 * 1024  # bytes in which the parser found nothing: one endless header, say
_LARGE: Final = 64 * 1024
_WANTED: Final = frozenset(
    (
        b"accept",
        b"authorization",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"last-event-id",
        b"veen-cap",
        b"veen-pow",
    )
)


class Request:
    """One request, as far as it has arrived."""

    __slots__ = (
        "answer",
        "body",
        "error",
        "form",
        "headers",
        "http10",
        "keep_alive",
        "max_body",
        "method",
        "query",
        "ready",
        "route",
        "size",
        "url",
    )

    def __init__(self) -> None:
        self.url = self.method = self.body = b""
        self.headers: dict[bytes, bytes] = {}
        self.size = self.max_body = 0  # bytes of headers first, then of the body
        self.route: Route | None = None
        self.query: dict[str, str] = {}
        self.form: Form = "cbor"
        self.answer: Form = "cbor"
        self.keep_alive, self.http10 = True, False
        self.error: ApiError | None = None
        self.ready: Reply | None = None  # needs no operation

    def without_body(self) -> "Request":
        """What the head alone said."""
        known = copy(self)
        known.body = b""
        return known

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Sink(Protocol):
    """Who gets the requests."""

    def take(self, request: Request) -> None:
        """A request is complete."""

    def reject(self, error: ApiError | None, request: Request) -> None:
        """Answer and end the input; no error stands for a submit that is too large."""

    def begin_body(self, *, wants_continue: bool) -> None: ...
    def begin_message(self) -> None: ...
    def reserve(self, size: int) -> bool: ...
    def limits(self) -> Limits: ...


class Reader:
    """The callbacks of one connection's parser. `ended` means that nothing more is taken from this client."""

    __slots__ = ("_parser", "_parts", "_progress", "_quiet", "_sink", "ended", "in_body", "in_message", "request")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._parser = httptools.HttpRequestParser(self)
        self._quiet, self._progress = 0, False
        self._parts: list[bytes] = []
        self.request = Request()
        self.ended = self.in_message = self.in_body = False

    def feed(self, data: bytes) -> None:
        self._progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.ended = True  # the request was answered as if it had not asked for another protocol
        except httptools.HttpParserCallbackError:
            _log.exception("a request could not be taken")  # a defect of ours; the client gets no traceback
            self._reject(ApiError(ApiCode.UNAVAILABLE, "the hub failed on this request", status=500))
        except httptools.HttpParserError:
            if not self.ended:
                self._reject(ApiError(ApiCode.BAD_REQUEST, "not an HTTP request"))
        else:
            self._quiet = 0 if self._progress else self._quiet + len(data)
            if self._quiet > _MAX_QUIET and not self.ended:
                self._reject(_headers_too_large())

    def _reject(self, error: ApiError | None) -> None:
        self.ended = True
        self.in_message = self.in_body = False
        self._parts = []
        self._sink.reject(error, self.request)

    # --- callbacks of the parser -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.ended:
            return
        self._progress = self.in_message = True
        self.request = Request()
        self._sink.begin_message()

    def on_url(self, url: bytes) -> None:
        self._progress = True
        request = self.request
        request.url += url
        if len(request.url) > _MAX_URL and not self.ended:
            self._reject(ApiError(ApiCode.LIMIT, "the URL is too long", status=414))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._progress = True
        request = self.request
        if self.in_body:  # a trailer of a chunked body: of no use, but not for ever
            request.size += len(name) + len(value) + 4
            if request.size > request.max_body and not self.ended:
                self._too_large()
            return
        request.size += len(name) + len(value) + 4
        if request.size > _MAX_HEADER_BYTES:
            if not self.ended:
                self._reject(_headers_too_large())
        elif (name := name.lower()) in _WANTED:
            request.headers[name] = value

    def on_headers_complete(self) -> None:
        if self.ended:
            return
        self.in_body = True
        request, headers = self.request, self.request.headers
        request.size = 0
        request.method = self._parser.get_method()
        request.http10 = self._parser.get_http_version() == "1.0"
        try:
            _understand(request)
        except ApiError as exc:
            request.error = exc
        except ValueError:  # the query has too many fields
            request.error = ApiError(ApiCode.BAD_REQUEST, "the query is not understood")
        length = int(headers.get(b"content-length", b"0"))
        wants_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        if request.error is not None:
            request.max_body = _LARGE  # read and thrown away, so that the connection can go on
            if length > _LARGE or wants_continue:
                self._reject(request.error)
            return
        if request.route is not None:
            request.max_body = request.route.max_body(self._sink.limits(), request.form)
        if length > request.max_body:
            request.size = length
            self._too_large()
        elif length <= _LARGE or self._sink.reserve(length):
            if length or wants_continue:
                self._sink.begin_body(wants_continue=wants_continue)
        else:
            self._reject(ApiError.unavailable("too much is being sent at once"))

    def on_body(self, body: bytes) -> None:
        if self.ended:
            return
        self._progress = True
        request = self.request
        request.size += len(body)
        if request.size > request.max_body:
            self._too_large()
        elif request.size > _LARGE and not self._sink.reserve(request.size):
            self._reject(ApiError.unavailable("too much is being sent at once"))
        elif request.error is None:
            self._parts.append(body)

    def _too_large(self) -> None:
        request = self.request
        if request.route is SUBMIT:
            self._reject(None)
            return
        detail = {"actual": request.size, "max_allowed": request.max_body}
        self._reject(ApiError(ApiCode.LIMIT, "the request is too large", detail=detail))

    def on_message_complete(self) -> None:
        if self.ended:
            return
        self._progress = True
        self.in_message = self.in_body = False
        request, parts, parser = self.request, self._parts, self._parser
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._parts = []
        request.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        if not request.keep_alive:
            self.ended = True
        self._sink.take(request)


def _understand(request: Request) -> None:
    """What is asked for, and in which form; ApiError if that cannot be."""
    headers, method = request.headers, request.method
    request.answer = _answer_form(headers.get(b"accept"), None)
    if b"host" not in headers and not request.http10:
        raise ApiError(ApiCode.BAD_REQUEST, "the Host header is missing", detail={"field": "Host"})
    if method == b"POST" and request.url == b"/v1/submit":
        request.route = SUBMIT
    elif method == b"OPTIONS":
        request.ready = _options(request.url.decode("latin-1"))
        return
    else:
        request.route, request.query = find_route(method.decode(), request.url.decode("latin-1"))
    request.form = _form_of(headers.get(b"content-type"), method)
    request.answer = _answer_form(headers.get(b"accept"), request.route.answer or request.form)


def _options(url: str) -> Reply:
    methods = allowed(url)
    if methods is None:
        raise ApiError(ApiCode.NOT_FOUND, "no such path")
    return Reply(204, headers=(("Allow", methods),))


def _form_of(content_type: bytes | None, method: bytes) -> Form:
    if content_type is None or content_type == b"application/cbor" or method != b"POST":
        return "cbor"
    media = content_type.partition(b";")[0].strip().lower()
    if media == b"application/json":
        return "json"
    if media in (b"application/cbor", b"application/cbor-seq", b"application/octet-stream"):
        return "cbor"
    detail = {"field": "Content-Type", "expected": "application/cbor or application/json"}
    raise ApiError(ApiCode.BAD_REQUEST, "the Content-Type is not supported", status=415, detail=detail)


def _answer_form(accept: bytes | None, default: Form | None) -> Form:
    """What the client would rather have; quality values are not weighed."""
    if accept is not None:
        if b"json" in accept:
            return "json"
        if b"cbor" in accept:
            return "cbor"
    return default or "cbor"


def _headers_too_large() -> ApiError:
    return ApiError(ApiCode.LIMIT, "the headers are too large", status=431)
