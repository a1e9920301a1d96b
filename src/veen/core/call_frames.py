"""Calls as frames, for every transport but HTTP (D-113, D-148): one request and one response, both in CBOR.

    request    [1, operation, body, headers?]     operation: text such as "v1/submit"; body: bytes
    response   [1, status, body, headers?]        status: the numbers of spec §10.6

Headers are a map from text to text, names in lower case and sorted, left out where there are none. Bodies are byte
strings, as not every body of an operation is one CBOR item (a batch, an attachment, metrics).

Frames come from strangers. `request_head` reads what precedes the body, so that a transport knows operation and size
before it has taken the body in; nothing here takes more time or memory than the bytes it is given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from veen.core import cbor
from veen.core.errors import FieldSizeError, MalformedError, VersionError

_VERSION: Final = 1
_WHAT_REQUEST: Final = "request frame"
_WHAT_RESPONSE: Final = "response frame"
_MAX_OPERATION_BYTES: Final = 2_048  # as the longest URL of the HTTP transport
_MAX_HEADERS: Final = 16
MAX_HEADERS_BYTES: Final = 16 * 1024
MAX_HEAD_BYTES: Final = 1 + 1 + 3 + _MAX_OPERATION_BYTES + 9  # before the body
MAX_OVERHEAD_BYTES: Final = MAX_HEAD_BYTES + MAX_HEADERS_BYTES  # of a frame around its body
_ARRAYS: Final = {0x83: False, 0x84: True}  # the head of the array: whether headers follow
_TEXT: Final = 0x60
_BYTES: Final = 0x40


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Head of a request: all that precedes its body."""

    operation: str
    body_start: int
    body_bytes: int
    has_headers: bool


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """Request of one call."""

    operation: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        _check_operation(self.operation)
        return _join(cbor.encode(self.operation), self.body, self.headers, _WHAT_REQUEST)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one encoding; anything else is a FormatError."""
        head = request_head(data)
        if head is None:
            raise MalformedError("the frame ends in the middle of its head", _WHAT_REQUEST)
        end = head.body_start + head.body_bytes
        headers = _headers_of(data, end, head.has_headers, _WHAT_REQUEST)
        return cls(head.operation, data[head.body_start : end], headers)


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """Response to one call."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return _join(cbor.uint(self.status), self.body, self.headers, _WHAT_RESPONSE)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one encoding; anything else is a FormatError."""
        try:
            has_headers, pos = _array_at(data, _WHAT_RESPONSE)
            status, pos = _uint_at(data, pos)
            size, start = _uint_at(data, pos, _BYTES)
        except (IndexError, ValueError) as exc:
            raise MalformedError("not the frame of a call", _WHAT_RESPONSE) from exc
        if not 100 <= status <= 599:
            raise MalformedError("expected a status from 100 to 599", _WHAT_RESPONSE)
        headers = _headers_of(data, start + size, has_headers, _WHAT_RESPONSE)
        return cls(status, data[start : start + size], headers)


def request_head(data: bytes) -> RequestHead | None:
    """Return operation and size of the request that `data` begins with; None if more bytes are needed.

    Raise a FormatError as soon as no request can begin with these bytes. At most `MAX_HEAD_BYTES` are needed.
    """
    try:
        has_headers, pos = _array_at(data, _WHAT_REQUEST)
        length, start = _uint_at(data, pos, _TEXT)
        if length > _MAX_OPERATION_BYTES:
            raise FieldSizeError("operation", f"at most {_MAX_OPERATION_BYTES} bytes", length)
        end = start + length
        if end > len(data):
            return None
        operation = _check_operation(data[start:end].decode("latin-1"))
        body_bytes, body_start = _uint_at(data, end, _BYTES)
    except IndexError:
        return None
    except ValueError as exc:
        raise MalformedError("not the frame of a call", _WHAT_REQUEST) from exc
    return RequestHead(operation, body_start, body_bytes, has_headers)


def _uint_at(data: bytes, pos: int, major: int = 0x00) -> tuple[int, int]:
    """Read a number as `cbor.uint_at` does, but raise IndexError where `data` ends inside it."""
    first = data[pos] - major
    if 24 <= first < 28 and pos + 1 + (1 << (first - 24)) > len(data):
        raise IndexError
    return cbor.uint_at(data, pos, major)


def _array_at(data: bytes, what: str) -> tuple[bool, int]:
    """Return True if headers follow, and the position of the second element; IndexError if bytes are missing."""
    has_headers = _ARRAYS.get(data[0])
    if has_headers is None:
        raise MalformedError("not the frame of a call: expected an array of three or four", what)
    if data[1] != _VERSION:
        if data[1] < 24:
            raise VersionError(what, data[1])
        raise MalformedError("not the frame of a call: expected a version", what)
    return has_headers, 2


def _check_operation(operation: str) -> str:
    if not operation or not operation.isascii() or not operation.isprintable() or " " in operation:
        raise MalformedError("an operation name must be printable ASCII without spaces", "operation")
    return operation


def _join(second: bytes, body: bytes, headers: Mapping[str, str], what: str) -> bytes:
    parts = [b"\x84\x01" if headers else b"\x83\x01", second, cbor.bstr_head(len(body)), body]
    if headers:
        _check_headers(headers, what)
        parts.append(cbor.encode_sorted(dict(headers)))
    return b"".join(parts)


def _headers_of(data: bytes, start: int, has_headers: bool, what: str) -> dict[str, str]:
    """Read the headers that end the frame, from `start`, the end of the body."""
    left = len(data) - start
    if left < 0:
        raise MalformedError("the frame ends in the middle of its body", what)
    if not has_headers:
        if left:
            raise MalformedError("bytes follow the frame", what)
        return {}
    if left > MAX_HEADERS_BYTES:
        raise FieldSizeError("headers", f"at most {MAX_HEADERS_BYTES} bytes", left)
    headers = cbor.decode(data[start:], what=what)
    if type(headers) is not dict or not headers or not cbor.is_sorted(headers):
        raise MalformedError("headers must be a sorted map that is not empty", what)
    _check_headers(headers, what)
    return headers


def _check_headers(headers: Mapping[str, str], what: str) -> None:
    if len(headers) > _MAX_HEADERS:
        raise FieldSizeError("headers", f"at most {_MAX_HEADERS}", len(headers))
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str or not name or name != name.lower():
            raise MalformedError("a header must have a lower-case name and a text value", what)
        if not (name.isascii() and name.isprintable() and value.isascii() and value.isprintable()):
            raise MalformedError("a header must be printable ASCII", what)
