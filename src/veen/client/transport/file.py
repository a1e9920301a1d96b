"""Files to a hub: a request is put into the spool's `in/`, its response is awaited in `out/` (D-113).

`file:///spool` names the directory; its modes say who may call. The hub need not run yet, and somebody may carry the
directory: what counts is that the response comes within the time that a call may take.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from veen.client.errors import BadAnswer, LocalError, TimedOut, Unreachable
from veen.client.transport.base import NO_HEADERS, Answer
from veen.client.transport.framed import answer_of, request_bytes
from veen.client.transport.http import CALL_SECONDS, read_token
from veen.core import cbor
from veen.core.call_frames import MAX_OVERHEAD_BYTES
from veen.fs.spool_files import NotPlainFile, TooLargeFile, file_mode, put_file, read_plain

_FIRST_LOOK_SEC: Final = 0.002
_LOOK_SEC: Final = 0.05


def spool_of(url: str) -> Path:
    """The directory that `file:///spool` names; LocalError if it names none."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise LocalError(f"{url[:80]!r} is not the address of a spool: expected file:///DIRECTORY")
    if not path.startswith("/") or "\0" in path or path == "/":
        raise LocalError(f"{url[:80]!r} is not the address of a spool: expected file:///DIRECTORY")
    return Path(path)


class FileTransport:
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
        self.url, self._directory = url, spool_of(url)
        self._timeout, self._max_answer, self._clock = timeout, max_answer_bytes, clock
        self._headers = {} if token_file is None else {"authorization": f"Bearer {read_token(token_file)}"}

    def __repr__(self) -> str:
        return f"FileTransport({self.url!r})"

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of every transport
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        limit = self._timeout if timeout is None else timeout
        frame = request_bytes(operation, body, self._headers, headers)
        # Two calls of the same bytes are two calls: random bytes tell them apart.
        name = f"{int(self._clock() * 1000):013d}-{sha256(frame + os.urandom(16)).hexdigest()[:32]}"
        request = self._directory / "in" / f"{name}.req"
        await self._put(request, frame)
        try:
            async with asyncio.timeout(limit):
                data = await self._response(self._directory / "out" / f"{name}.res")
        except TimeoutError as exc:
            if _take_back(request):
                raise Unreachable(f"{self.url}: no hub took the request within {limit:g} s") from exc
            raise TimedOut(f"{self.url}: no answer to {operation} within {limit:g} s") from exc
        except BaseException:
            _take_back(request)
            raise
        return answer_of(self.url, data)

    async def _put(self, request: Path, frame: bytes) -> None:
        putting = asyncio.get_running_loop().run_in_executor(
            None, lambda: put_file(request, frame, file_mode(self._directory))
        )
        try:
            await asyncio.shield(putting)
        except OSError as exc:
            raise Unreachable(f"{self.url}: {exc.strerror or exc}: no hub serves this directory, or not you") from exc
        except asyncio.CancelledError:
            await asyncio.wait((putting,))
            _take_back(request)
            raise

    async def _response(self, path: Path) -> bytes:
        pause = _FIRST_LOOK_SEC
        while True:
            try:
                data = read_plain(path, self._max_answer + MAX_OVERHEAD_BYTES)
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
    """Whether the file was still there. If it was a request, no hub has acted on it."""
    try:
        path.unlink()
    except OSError:
        return False
    return True
