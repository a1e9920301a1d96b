"""Base of the transports that carry frames: from a request to its bytes, and from bytes to an answer."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from veen.client.errors import BadAnswer, TimedOut
from veen.client.transport.base import NO_HEADERS, Answer
from veen.client.transport.http import CALL_SECONDS, read_token
from veen.core import cbor
from veen.core.call_frames import MAX_OVERHEAD_BYTES, RequestFrame, ResponseFrame
from veen.core.errors import FormatError


class FramedTransport(ABC):
    """One hub that is reached by frames: a request and its response are one sequence of bytes each."""

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        timeout: float = CALL_SECONDS,
        max_answer_bytes: int = cbor.MAX_ITEM_BYTES,
    ) -> None:
        self.url, self._timeout, self._max_answer = url, timeout, max_answer_bytes
        self._max_frame = max_answer_bytes + MAX_OVERHEAD_BYTES
        self._headers = {} if token_file is None else {"authorization": f"Bearer {read_token(token_file)}"}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of every transport
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        limit = self._timeout if timeout is None else timeout
        try:
            return await self._exchange(operation, body, headers, limit)
        except TimeoutError as exc:
            raise TimedOut(f"{self.url}: no answer to {operation} within {limit:g} s") from exc

    @abstractmethod
    async def _exchange(self, operation: str, body: bytes, headers: Mapping[str, str], limit: float) -> Answer:
        """Deliver a request and return its answer. Raise TimeoutError after `limit` seconds."""

    def _request(self, operation: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the frame of a call; `headers` of the call override those of the transport."""
        lower = {name.lower(): value for name, value in headers.items()}
        return RequestFrame(operation, body, {**self._headers, **lower}).to_bytes()

    def _answer(self, data: bytes) -> Answer:
        try:
            response = ResponseFrame.from_bytes(data)
        except FormatError as exc:
            raise BadAnswer(f"{self.url}: the answer is not a frame: {exc}") from exc
        return Answer(response.status, response.body, response.headers)

    @abstractmethod
    async def aclose(self) -> None: ...
