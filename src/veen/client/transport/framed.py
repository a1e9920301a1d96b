"""Base of the transports that carry frames: from a request to its bytes, and from bytes to an answer.

Calls through files: a request is put into the spool's `in/`, its response appears in `out/` (D-113).

`file:///spool` names the directory; its mode is the access control. The hub need not run yet, and somebody may carry
the directory, as long as the response comes within the timeout of a call. A request is not synced to the disk: after a
crash the caller sends it again.
"""

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from veen.client.errors import BadAnswer, LocalError, TimedOut, Unreachable
from veen.client.transport.calls import NO_HEADERS, Answer
from veen.client.transport.http import CALL_SECONDS, read_token
from veen.core import cbor
from veen.core.call_frames import MAX_OVERHEAD_BYTES, RequestFrame, ResponseFrame
from veen.core.errors import FormatError
from veen.io.spool_files import NotPlainFile, TooLargeFile, file_mode, put_file, read_plain


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


_FIRST_LOOK_SEC: Final = 0.002
_LOOK_SEC: Final = 0.05


def spool_of(url: str) -> Path:
    """Return the directory that `file:///spool` names; raise LocalError if it names none."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise LocalError(f"{url[:80]!r} is not the address of a spool: expected file:///DIRECTORY")
    if not path.startswith("/") or "\0" in path or path == "/":
        raise LocalError(f"{url[:80]!r} is not the address of a spool: expected file:///DIRECTORY")
    return Path(path)


class FileTransport(FramedTransport):
    """One hub behind one spool directory."""

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        timeout: float = CALL_SECONDS,
        max_answer_bytes: int = cbor.MAX_ITEM_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, token_file=token_file, timeout=timeout, max_answer_bytes=max_answer_bytes)
        self._directory, self._clock = spool_of(url), clock

    async def _exchange(self, operation: str, body: bytes, headers: Mapping[str, str], limit: float) -> Answer:
        frame = self._request(operation, body, headers)
        # Two calls with the same bytes are two requests: random bytes distinguish their names.
        name = f"{int(self._clock() * 1000):013d}-{sha256(frame + os.urandom(16)).hexdigest()[:32]}"
        request = self._directory / "in" / f"{name}.req"
        await self._put_request(request, frame)
        try:
            async with asyncio.timeout(limit):
                data = await self._response(self._directory / "out" / f"{name}.res")
        except TimeoutError as exc:
            if _take_back(request):  # no hub took it, so no hub has acted on it
                raise Unreachable(f"{self.url}: no hub took the request within {limit:g} s") from exc
            raise
        except BaseException:
            _take_back(request)
            raise
        return self._answer(data)

    async def _put_request(self, request: Path, frame: bytes) -> None:
        putting = asyncio.get_running_loop().run_in_executor(
            None, lambda: put_file(request, frame, file_mode(self._directory))
        )
        try:
            await asyncio.shield(putting)
        except OSError as exc:
            raise Unreachable(
                f"{self.url}: {exc.strerror or exc}: no hub serves this directory, or you may not use it"
            ) from exc
        except asyncio.CancelledError:
            await asyncio.wait((putting,))
            _take_back(request)
            raise

    async def _response(self, path: Path) -> bytes:
        pause = _FIRST_LOOK_SEC
        while True:
            try:
                data = read_plain(path, self._max_frame)
            except FileNotFoundError:
                await asyncio.sleep(pause)
                pause = min(1.5 * pause, _LOOK_SEC)
                continue
            except TooLargeFile as exc:
                raise BadAnswer(f"{self.url}: an answer of more than {self._max_answer} bytes") from exc
            except NotPlainFile as exc:
                raise BadAnswer(f"{self.url}: the answer is not a regular file, or not readable") from exc
            _take_back(path)
            return data

    async def aclose(self) -> None:
        return None


def _take_back(path: Path) -> bool:
    """Remove a file; return True if it was still there. A request that was still there was not run by any hub."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
