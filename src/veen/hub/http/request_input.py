"""Requests parsed from bytes: httptools parses, this module bounds. Nothing is kept without a bound.

URL, headers and body have limits, and that of the body is checked before it is read; bodies beyond 64 KiB count
against the buffer of the whole server. A request that can be read but is wrong (no such path, for example) is passed
on with its error, and the connection continues. A request that cannot be read to its end ends the input of its
connection.

Refusal of requests that a web page had a browser send, because the page may be anybody's (cross-site request
forgery).

A browser sends a POST without a content type, or with a plain one, to any address before it asks the server, even to
a hub on the user's own machine or with the user's client certificate. Browsers mark such requests by
`Sec-Fetch-Site`, older ones by `Origin`; no other client sends these headers. A hub serves no pages, so it loses no
request of its own.

A name that an attacker points at loopback (DNS rebinding) makes such a page look like the hub's own; only the Host
header shows it. A hub for trials, which admits anybody's messages, therefore answers only to names of loopback
(decisions.md 68).
"""

import logging
import re
from collections.abc import Mapping
from copy import copy
from typing import Final, Protocol
from urllib.parse import urlsplit

import httptools

from veen.core.errors import ApiCode
from veen.core.limits import Limits
from veen.hub.api.reply import ApiError, Form, Reply
from veen.hub.api.routes import SUBMIT, Route, find_methods, find_route, no_such_path
from veen.hub.http.states import InputEvent, InputState, after_input
from veen.io.addresses import is_loopback
from veen.io.shares import LARGE

_log: Final = logging.getLogger(__name__)
_MAX_HEADER_BYTES: Final = 16 * 1024
_MAX_URL: Final = 16 * 1024
_MAX_QUIET: Final = 64 * 1024  # bytes in which the parser found nothing, for example one endless header
# A head that no two parsers could read differently: no folded or empty line, no bare CR or LF, one space
# after each colon, one length in plain digits, no transfer coding.
_HARMLESS: Final = rb"(?:(?!content-length:|transfer-encoding:|upgrade:)[-0-9a-z]+: [!-~](?:[ -~]*[!-~])?\r\n)*"
_PLAIN_HEAD: Final = re.compile(
    rb"POST /[!-~]* HTTP/1\.1\r\n" + _HARMLESS + rb"content-length: (0|[1-9][0-9]{0,8})\r\n" + _HARMLESS + rb"\r\n",
    re.IGNORECASE,
)
_WANTED: Final = frozenset(
    (
        b"accept",
        b"authorization",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"last-event-id",
        b"origin",
        b"sec-fetch-site",
        b"transfer-encoding",
        b"veen-cap",
        b"veen-pow",
    )
)
# Headers that the parser itself interprets.
_STEERING: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade"))
# A line of a head that has no meaning here, as `_HARMLESS` allows it.
_IGNORED: Final = re.compile(
    rb"\r\n(?!(?:%b):)[-0-9a-z]+: [!-~](?:[ -~]*[!-~])?(?=\r\n)" % b"|".join(sorted(_WANTED | _STEERING)),
    re.IGNORECASE,
)
_POW_LINE: Final = re.compile(rb"\r\nveen-pow: ([0-9a-f]+)(?=\r\n)", re.IGNORECASE)
# Read for every request: a global name costs a tenth of the access to a member of an Enum.
_IDLE: Final = InputState.IDLE
_HEAD: Final = InputState.HEAD
_BODY: Final = InputState.BODY
_ENDED: Final = InputState.ENDED
_BEGIN: Final = InputEvent.BEGIN
_HEADERS: Final = InputEvent.HEADERS
_COMPLETE: Final = InputEvent.COMPLETE
_LAST: Final = InputEvent.LAST


def plain_body_bytes(head: bytes) -> int | None:
    """Return the length of the body after `head` if every parser reads the same length; None for any other head."""
    match = _PLAIN_HEAD.fullmatch(head)
    return None if match is None else int(match[1])


def split_head(head: bytes) -> tuple[bytes, str | None]:
    """Return a head without lines that have no meaning here (identifiers, times) and without its proof of work, and
    that proof. Heads with the same rest mean the same."""
    rest = _IGNORED.sub(b"", head)
    match = _POW_LINE.search(rest)
    if match is None:
        return rest, None
    return rest[: match.start()] + rest[match.end() :], match[1].decode("ascii")


class Request:
    """One request, or the part of it that has arrived."""

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
        self.ready: Reply | None = None  # the answer, if it needs no operation

    def without_body(self) -> "Request":
        """Return a copy with the head alone."""
        head = copy(self)
        head.body = b""
        return head

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Sink(Protocol):
    """The receiver of requests."""

    def take(self, request: Request) -> None:
        """Handle a complete request."""

    def reject(self, error: ApiError | None, request: Request) -> None:
        """Answer and end the input; without an error, answer a submit that is too large."""

    def begin_body(self, *, wants_continue: bool) -> None: ...
    def begin_message(self) -> None: ...
    def reserve(self, size: int) -> bool: ...
    def limits(self) -> Limits: ...
    def screen(self, request: Request) -> None:
        """Raise ApiError if the head alone shows that this request is refused."""


class Reader:
    """The parser of one connection and its callbacks. All fields are owned by the event loop's thread.

    `state` changes only by `states.INPUT_TABLE`. `_body` is empty unless the state is BODY. The parser goes on calling
    back after the state became ENDED, until the piece of input that it was fed is used up; such calls change nothing.
    """

    __slots__ = ("_body", "_parser", "_quiet", "_sink", "progress", "request", "state")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._parser = httptools.HttpRequestParser(self)
        self.state: InputState = _IDLE  # also changed by the connection, through `advance`
        self.request = Request()  # in HEAD and BODY the one being read; otherwise the last one
        self.progress = False  # True if the last `feed` had a part of a request; empty lines are none
        self._quiet = 0  # bytes fed since the last progress
        # The first piece as it came, then a bytearray: a list of tiny chunks would take twenty times the body.
        self._body: bytes | bytearray = b""

    @property
    def in_message(self) -> bool:
        """True if a request has begun and is not complete."""
        return self.state is _HEAD or self.state is _BODY

    @property
    def in_chunks(self) -> bool:
        """True while a chunked body is being read, whose chunks may be tiny."""
        return self.state is _BODY and b"transfer-encoding" in self.request.headers

    @property
    def missing_bytes(self) -> int:
        """Missing bytes of a body of known length; 0 while none is being read."""
        if self.state is not _BODY or b"content-length" not in self.request.headers:
            return 0
        return int(self.request.headers[b"content-length"]) - self.request.size

    def advance(self, event: InputEvent) -> None:
        """Change the state. Raise IllegalEventError if the table has no such transition."""
        self.state = after_input(self.state, event)
        if self.state is _ENDED:
            self._body = b""

    def feed(self, data: bytes) -> None:
        self.progress = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.advance(InputEvent.STOP)  # the request was answered as if it had not asked for another protocol
        except httptools.HttpParserCallbackError:
            _log.exception("a request could not be handled")  # a fault of the hub; the client gets no traceback
            self.advance(InputEvent.STOP)  # legal in each state: the fault may have come after the end
            self._sink.reject(ApiError(ApiCode.UNAVAILABLE, "the hub failed on this request", status=500), self.request)
        except httptools.HttpParserError:
            if self.state is not _ENDED:
                self._reject(ApiError(ApiCode.BAD_REQUEST, "not an HTTP request"))
        else:
            self._quiet = 0 if self.progress else self._quiet + len(data)
            if self._quiet > _MAX_QUIET and self.state is not _ENDED:
                self._reject(_headers_too_large())

    def _reject(self, error: ApiError | None) -> None:
        if self.state is _HEAD:  # the form that is known so far; a GET is answered in JSON by default
            default: Form | None = "json" if self._parser.get_method() == b"GET" else None
            self.request.answer = _answer_form(self.request.headers.get(b"accept"), default)
        self.advance(InputEvent.REFUSE)
        self._sink.reject(error, self.request)

    # --- callbacks of the parser -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.state is _ENDED:
            return
        self.state = after_input(self.state, _BEGIN)
        self.progress = True
        self.request = Request()
        self._sink.begin_message()

    def on_url(self, url: bytes) -> None:
        self.progress = True
        request = self.request
        request.url += url
        # The routes refuse a shorter URL that is still too long, in the form that the headers request.
        if len(request.url) > _MAX_URL and self.state is not _ENDED:
            self._reject(ApiError(ApiCode.LIMIT, "the URL is too long", status=414))

    def on_header(self, name: bytes, value: bytes) -> None:
        self.progress = True
        request = self.request
        if self.state is _BODY:  # a trailer of a chunked body: dropped, but bounded
            request.size += len(name) + len(value) + 4
            if request.size > request.max_body:
                self._too_large()
            return
        request.size += len(name) + len(value) + 4
        if request.size > _MAX_HEADER_BYTES:
            if self.state is not _ENDED:
                self._reject(_headers_too_large())
        elif (name := name.lower()) in _WANTED:
            # Two values of one header: another parser may use the other one.
            if name in request.headers and name != b"accept" and self.state is not _ENDED:
                detail = {"field": name.decode()}
                self._reject(ApiError(ApiCode.BAD_REQUEST, "a header is repeated that may not be", detail=detail))
                return
            request.headers[name] = value

    def on_headers_complete(self) -> None:
        if self.state is _ENDED:
            return
        self.state = after_input(self.state, _HEADERS)
        request, headers = self.request, self.request.headers
        request.size = 0
        request.method = self._parser.get_method()
        version = self._parser.get_http_version()
        request.http10 = version == "1.0"
        if version not in ("1.0", "1.1"):  # the parser knows older ones and newer ones
            self._reject(ApiError(ApiCode.BAD_REQUEST, "this hub speaks HTTP/1.1", status=505))
            return
        if b"host" not in headers and not request.http10:  # other parsers refuse this, so this one does, too
            detail = {"field": "Host"}
            self._reject(ApiError(ApiCode.BAD_REQUEST, "the Host header is missing", detail=detail))
            return
        if request.http10 and b"transfer-encoding" in headers:  # unknown to HTTP/1.0: a proxy may find another end
            detail = {"field": "Transfer-Encoding"}
            self._reject(ApiError(ApiCode.BAD_REQUEST, "HTTP/1.0 has no transfer coding", detail=detail))
            return
        try:
            _understand(request)
            self._sink.screen(request)
        except ApiError as exc:
            request.error = exc
        except ValueError:  # the query has too many fields
            request.error = ApiError(ApiCode.BAD_REQUEST, "the query has too many fields")
        length = int(headers.get(b"content-length", b"0"))
        wants_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        if request.error is not None:
            request.max_body = LARGE  # read and dropped, so that the connection can continue
            if length > LARGE or wants_continue:
                self._reject(request.error)
            return
        if request.route is not None:
            request.max_body = request.route.max_body(self._sink.limits(), request.form)
        if length > request.max_body:
            request.size = length
            self._too_large()
        elif length <= LARGE or self._sink.reserve(length):
            if length or wants_continue:
                self._sink.begin_body(wants_continue=wants_continue)
        else:
            self._reject(ApiError.unavailable("too much is being sent at once"))

    def on_body(self, body: bytes) -> None:
        if self.state is _ENDED:
            return
        self.progress = True
        request = self.request
        request.size += len(body)
        if request.size > request.max_body:
            self._too_large()
        elif request.size > LARGE and not self._sink.reserve(request.size):
            self._reject(ApiError.unavailable("too much is being sent at once"))
        elif request.error is None:
            if not self._body:
                self._body = body
                return
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += body

    def _too_large(self) -> None:
        request = self.request
        if request.route is SUBMIT:
            self._reject(None)
            return
        detail = {"actual": request.size, "max_allowed": request.max_body}
        self._reject(ApiError(ApiCode.LIMIT, "the request is too large", detail=detail))

    def on_message_complete(self) -> None:
        if self.state is _ENDED:
            return
        self.progress = True
        request, parser = self.request, self._parser
        request.body, self._body = bytes(self._body), b""  # no copy of what is bytes already
        request.keep_alive = parser.should_keep_alive() and not parser.should_upgrade()
        self.state = after_input(self.state, _COMPLETE if request.keep_alive else _LAST)
        self._sink.take(request)


def _understand(request: Request) -> None:
    """Set operation and forms of a request from its head. Raise ApiError if they are invalid."""
    headers, method = request.headers, request.method
    request.answer = _answer_form(headers.get(b"accept"), None)
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
    methods = find_methods(url)
    if methods is None:
        raise no_such_path(url.partition("?")[0])
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
    """Return the form that the client prefers; quality values are ignored."""
    if accept is not None:
        if b"json" in accept:
            return "json"
        if b"cbor" in accept:
            return "cbor"
    return default or "cbor"


def _headers_too_large() -> ApiError:
    return ApiError(ApiCode.LIMIT, "the headers are too large", status=431)


_SAFE: Final = frozenset((b"GET", b"HEAD", b"OPTIONS"))  # these change nothing, and the page cannot read the answer
_OWN: Final = frozenset((b"same-origin", b"none"))  # none: typed into the address bar


def check_site(method: bytes, headers: Mapping[bytes, bytes], *, loopback_only: bool) -> None:
    """Raise ApiError if a page of another site sent this, or if `loopback_only` and the hub is called by another
    name."""
    host = headers.get(b"host")
    if loopback_only and host is not None and not _is_loopback_name(host):
        raise _refusal("this hub is for trials and answers only to names of loopback", "Host")
    if method in _SAFE:
        return
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None and site.strip().lower() not in _OWN:
        raise _refusal("a web page of another site sent this request", "Sec-Fetch-Site")
    if site is None and origin is not None and not _is_same(origin, host):
        raise _refusal("a web page of another site sent this request", "Origin")


def _is_loopback_name(host: bytes) -> bool:
    try:
        name = (urlsplit(b"//" + host.strip()).hostname or b"").decode("ascii").rstrip(".").lower()
    except ValueError:  # not ASCII, or brackets that do not match
        return False
    return is_loopback(name) or name.endswith(".localhost")


def _is_same(origin: bytes, host: bytes | None) -> bool:
    """Compare origin and host without the scheme: the owner of a host and port by http is its owner by https."""
    _, separator, place = origin.strip().lower().partition(b"://")
    return bool(separator) and host is not None and place == host.strip().lower()


def _refusal(message: str, field: str) -> ApiError:
    return ApiError(ApiCode.FORBIDDEN, message, detail={"field": field})
