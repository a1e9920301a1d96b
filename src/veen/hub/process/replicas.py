"""Which hub writes a log: marks in its directory, and the replicas that may have been promoted meanwhile (D-78).

A primary that died and comes back has its key still. It asks the replicas that its configuration names for the record
by which one of them was promoted. That record is signed by the key of the identity, so nobody can make it up; a hub
whose control journal does not have it was replaced. It keeps the record, and does not start any more.
"""

import asyncio
import http.client
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from veen.core.errors import FormatError, VerifyError
from veen.core.objects.control import ControlRecord, HubPromote
from veen.core.objects.identity import HubIdentity
from veen.core.objects.tooling import RecordResponse, VersionRequest
from veen.fs.errors import StorageError
from veen.fs.local import Fs
from veen.hub.admission.control_index import ControlIndex
from veen.hub.process.logs import EventLog
from veen.hub.sequencer.sequencer import Sequencer
from veen.storage import layout

_EVERY_SECONDS: Final = 10.0
_TIMEOUT_SECONDS: Final = 3.0
_MAX_BYTES: Final = 16_384


class ReplicaDirectoryError(StorageError, code="E.STORAGE.REPLICA"):
    """The directory follows another hub."""


class ReplacedError(StorageError, code="E.STORAGE.REPLACED"):
    """A replica was promoted in the place of this hub."""


def check_writer(fs: Fs) -> None:
    """Refuse a directory that another hub writes the log of; the caller holds its lock."""
    if fs.exists(layout.REPLICA):
        raise ReplicaDirectoryError(f"{layout.REPLICA}: this directory is a replica, and its primary writes the log")
    if fs.exists(layout.REPLACED):
        raise ReplacedError(f"{layout.REPLACED}: a replica was promoted in the place of this hub")


class ReplicaWatch:
    """Asks the replicas of a hub whether one of them was promoted."""

    def __init__(self, fs: Fs, sequencer: Sequencer, identity: HubIdentity, log: EventLog) -> None:
        self._fs, self._sequencer, self._identity, self._log = fs, sequencer, identity, log

    async def ask(self, urls: Sequence[str]) -> None:
        """At a start, before anything is admitted; ReplacedError if this hub was replaced."""
        if (record := await self._promotion(urls)) is not None:
            self._keep(record)
            check_writer(self._fs)

    async def run(self, urls: Callable[[], Sequence[str]]) -> None:
        """For ever; the addresses are asked for each time, as a reload may change them."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            if not self._sequencer.replaced and (record := await self._promotion(urls())) is not None:
                self._sequencer.replaced = True
                self._keep(record)
                self._log.event(
                    "error", "replaced", "a replica was promoted in the place of this hub: refusing submits"
                )

    async def _promotion(self, urls: Sequence[str]) -> ControlRecord | None:
        """A record that says that this hub was replaced, if one of the replicas shows one."""
        if not urls:
            return None
        loop = asyncio.get_running_loop()
        answers = await asyncio.gather(*(loop.run_in_executor(None, _ask, url) for url in urls))
        for record in answers:
            if record is not None and self._replaces(record):
                return record
        return None

    def _replaces(self, record: ControlRecord) -> bool:
        """Whether a key of this identity signed it, and it is not in the control journal here."""
        if not isinstance(record.body, HubPromote):
            return False
        try:
            self._identity.verify_control(record)
        except VerifyError:
            return False
        own = ControlIndex(self._sequencer.store).newest(HubPromote.KIND)
        return own is None or own.seq < record.seq or (own.seq == record.seq and own != record)

    def _keep(self, record: ControlRecord) -> None:
        self._fs.replace(layout.REPLACED, record.to_bytes())


def _ask(url: str) -> ControlRecord | None:
    """What a replica answers; None for anything that is no record."""
    try:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
        try:
            headers = {"Content-Type": "application/cbor", "Accept": "application/cbor"}
            path = f"{parts.path.rstrip('/')}/tooling/promotion"
            connection.request("POST", path, VersionRequest().to_bytes(), headers)
            response = connection.getresponse()
            data = response.read(_MAX_BYTES)
            return RecordResponse.from_bytes(data).record if response.status == 200 else None
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, FormatError, ValueError):
        return None
