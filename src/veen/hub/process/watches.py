"""The one writer of a log: marks in the directory, and a watch for promoted replicas (D-78, decisions.md 224).

A primary that died and comes back still has its key. It asks the replicas that its configuration names for the record
by which one of them was promoted. That record is signed by the key of the identity, so nobody can forge it; a hub
whose control journal does not have it was replaced. It stores the record and never starts again.

The reachability of a tenant's authority hub, which is part of being ready (spec-4 §10.1).
"""

import asyncio
import http.client
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from veen.core.errors import ApiCode, FormatError, VerifyError
from veen.core.objects.control import ControlRecord, HubPromote
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.identity import HubIdentity
from veen.core.objects.tooling import RecordResponse, VersionRequest
from veen.hub.admission.control_index import ControlIndex
from veen.hub.process.logs import EventLog
from veen.hub.sequencer.sequencer import Sequencer
from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.storage import layout

_EVERY_SECONDS: Final = 10.0
_TIMEOUT_SECONDS: Final = 3.0
_MAX_BYTES: Final = 16_384


class ReplicaDirectoryError(StorageError, code="E.STORAGE.REPLICA"):
    """The directory follows another hub."""


class ReplacedError(StorageError, code="E.STORAGE.REPLACED"):
    """A replica was promoted in the place of this hub."""


def check_writer(fs: Fs) -> None:
    """Raise if another hub writes the log of this directory. The caller holds its lock."""
    if fs.exists(layout.REPLICA):
        raise ReplicaDirectoryError(f"{layout.REPLICA}: this directory is a replica, and its primary writes the log")
    if fs.exists(layout.REPLACED):
        raise ReplacedError(f"{layout.REPLACED}: a replica was promoted in the place of this hub")


class ReplicaWatch:
    """Requests to the replicas of a hub, to learn if one of them was promoted. Owned by the event loop's thread.

    There are three outcomes: promoted, not promoted, unknown. An unknown one is logged once and counted in `unknown`.
    """

    def __init__(self, fs: Fs, sequencer: Sequencer, identity: Callable[[], HubIdentity], log: EventLog) -> None:
        """Set up the watch. `identity` returns the present identity: a rotation changes it."""
        self._fs, self._sequencer, self._identity, self._log = fs, sequencer, identity, log
        self.unknown: dict[str, str] = {}  # address -> the reason why it could not be asked

    def fault(self) -> str | None:
        """Return the reason why it is unknown if this hub was replaced; None if every replica answered."""
        for url in self.unknown:
            return f"the replica at {url} cannot be asked whether it was promoted"
        return None

    async def ask(self, urls: Sequence[str], ca_file: Path | None = None) -> None:
        """Ask at a start, before anything is admitted. Raise ReplacedError if this hub was replaced."""
        if (record := await self._promotion(urls, ca_file)) is not None:
            self._keep(record)
            check_writer(self._fs)

    async def run(self, settings: Callable[[], tuple[Sequence[str], Path | None]]) -> None:
        """Run until cancelled. Read addresses and certificates on each pass: a reload may change them."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            if not self._sequencer.replaced and (record := await self._promotion(*settings())) is not None:
                self._sequencer.replaced = True
                self._keep(record)
                self._log.event(
                    "error", "replaced", "a replica was promoted in the place of this hub: refusing submits"
                )

    async def _promotion(self, urls: Sequence[str], ca_file: Path | None) -> ControlRecord | None:
        """Ask the replicas; return a record that proves that this hub was replaced, if there is one."""
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*(loop.run_in_executor(None, _ask, url, ca_file) for url in urls))
        unknown = {url: answer for url, answer in zip(urls, answers, strict=True) if isinstance(answer, str)}
        for url, reason in unknown.items():
            if url not in self.unknown:
                message = f"{url} cannot be asked whether it was promoted in the place of this hub: {reason}"
                self._log.event("warning", "replicas", message, url=url)
        for url in self.unknown.keys() - unknown.keys():
            self._log.event("info", "replicas", "the replica answers again", url=url)
        self.unknown = unknown
        for record in answers:
            if isinstance(record, ControlRecord) and self._replaces(record):
                return record
        return None

    def _replaces(self, record: ControlRecord) -> bool:
        """Return True if a key of this identity signed the record and the control journal here does not have it."""
        if not isinstance(record.body, HubPromote):
            return False
        try:
            self._identity().verify_control(record)
        except VerifyError:
            return False
        own = ControlIndex(self._sequencer.store).newest(HubPromote.KIND)
        return own is None or own.seq < record.seq or (own.seq == record.seq and own != record)

    def _keep(self, record: ControlRecord) -> None:
        self._fs.replace(layout.REPLACED, record.to_bytes())


def _ask(url: str, ca_file: Path | None) -> ControlRecord | str | None:
    """Return the record that a replica shows, None if it was not promoted, or the reason why that is unknown."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
            connection = http.client.HTTPSConnection(host, parts.port, timeout=_TIMEOUT_SECONDS, context=tls)
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=_TIMEOUT_SECONDS)
        try:
            headers = {"Content-Type": "application/cbor", "Accept": "application/cbor"}
            path = f"{parts.path.rstrip('/')}/tooling/promotion"
            connection.request("POST", path, VersionRequest().to_bytes(), headers)
            response = connection.getresponse()
            data = response.read(_MAX_BYTES)
        finally:
            connection.close()
        if response.status == 404 and ErrorEnvelope.from_bytes(data).code == ApiCode.NOT_FOUND.code:
            return None
        if response.status != 200:
            return f"it answers with status {response.status}"
        return RecordResponse.from_bytes(data).record
    except (OSError, http.client.HTTPException, FormatError, ValueError) as exc:
        return str(exc) or type(exc).__name__


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
