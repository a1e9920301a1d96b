"""Calls as frames, for the transports that carry them: from a request to its bytes, and from bytes to an answer."""

from collections.abc import Mapping

from veen.client.errors import BadAnswer
from veen.client.transport.base import Answer
from veen.core.call_frames import RequestFrame, ResponseFrame
from veen.core.errors import FormatError


def request_bytes(operation: str, body: bytes, own: Mapping[str, str], headers: Mapping[str, str]) -> bytes:
    """The frame of a call; `headers` of the call count more than the transport's own."""
    return RequestFrame(operation, body, {**own, **{name.lower(): value for name, value in headers.items()}}).to_bytes()


def answer_of(url: str, data: bytes) -> Answer:
    try:
        response = ResponseFrame.from_bytes(data)
    except FormatError as exc:
        raise BadAnswer(f"{url}: the answer is not a frame: {exc}") from exc
    return Answer(response.status, response.body, response.headers)
