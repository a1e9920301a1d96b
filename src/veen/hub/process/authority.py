"""The reachability of a tenant's authority hub, which is part of being ready (spec-4 §10.1)."""

import asyncio
import http.client
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

_HEALTH_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 1.0  # after a request without an answer: hubs of a universe start together
_HEALTH_TIMEOUT_SECONDS: Final = 3.0
_FRESH_SECONDS: Final = 60.0  # an answer proves the hub reachable for this long


class AuthorityWatch:
    """Health checks of the authority hub. An empty URL turns them off."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._answered: float | None = None

    def watch(self, url: str) -> None:
        """Watch another authority from now on. Answers of the one before no longer count."""
        if url != self._url:
            self._url, self._answered = url, None

    def fault(self) -> str | None:
        """Return the reason why the authority counts as unreachable; None if it is reachable."""
        if not self._url:
            return None
        if self._answered is None or self._clock() - self._answered > _FRESH_SECONDS:
            return "the authority hub cannot be reached"
        return None

    async def run(self) -> None:
        """Ask until cancelled. Any answer below 500 shows that the hub is reachable."""
        loop = asyncio.get_running_loop()
        while True:
            url = self._url
            answered = not url or await loop.run_in_executor(None, _is_reachable, url)
            if url and answered and url == self._url:  # it may have been replaced meanwhile
                self._answered = self._clock()
            await asyncio.sleep(_HEALTH_SECONDS if answered else _AGAIN_SECONDS)


def _is_reachable(url: str) -> bool:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_HEALTH_TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/healthz")
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
