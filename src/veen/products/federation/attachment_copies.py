"""Copies of a primary's attachments on its replica.

The log does not list attachments: their hashes are in sealed headers. So the primary lists its records of them in the
order of change, and the replica asks for those behind the last change that it has. Bytes are hashed before they are
written; a file and its row are durable before the number of the change is. A replica that is killed in between asks for
some of them again and finds the files.

A missing attachment blocks nothing: a hub that loses one loses nothing that it signed. It is counted, and requested
again after a while.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from veen.client.errors import BadAnswer, HubRefused
from veen.client.session import HubSession
from veen.client.transport.base import ATTACHMENT
from veen.client.transport.calls import is_not_found, is_transient
from veen.core.hashing import H
from veen.core.objects.tooling import AttachmentsRequest, AttachmentsResponse, StoredAttachment
from veen.hub.process.housekeeping import in_thread
from veen.storage.attachments import AttachmentFiles, AttachmentRecord, EntryRef

_AGAIN_SECONDS: Final = 60.0  # after which those that could not be had are asked for again


class AttachmentFollower:
    """Copies attachments for one replica. Fields belong to the event loop; files are written in a helper thread."""

    def __init__(
        self, files: AttachmentFiles, session: HubSession, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files, self._session, self._clock = files, session, clock
        self._instance: bytes | None = None
        self._after = 0  # the last change read; ahead of the stored one while something is missing
        self._noted: tuple[bytes | None, int] = (None, 0)  # the same as stored on disk
        self._begun = False
        self._missing: dict[bytes, int] = {}  # coid -> the number of its change
        self._asked_at = 0.0  # when those that are missing were last asked for
        self.copied_bytes = 0

    @property
    def missing(self) -> int:
        """Number of attachments that the primary lists but does not deliver."""
        return len(self._missing)

    async def step(self) -> bool:
        """Copy new attachments; return True if all available ones are here."""
        if not self._begun:
            self._noted = self._instance, self._after = await in_thread(self._files.copy_position)
            self._begun = True
        if self._missing and self._clock() - self._asked_at >= _AGAIN_SECONDS:
            self._after = min(self._missing.values()) - 1
            self._missing.clear()  # attachments erased meanwhile are no longer listed
        while True:
            request = AttachmentsRequest(after=self._after, instance=self._instance)
            try:
                answer = await self._session.calls.ask("tooling/attachments", request, AttachmentsResponse)
            except HubRefused as exc:
                if is_not_found(exc):  # an older hub, or one that keeps none
                    return True
                raise
            if answer.instance != self._instance:  # the numbers of before mean nothing any more
                self._instance, self._after = answer.instance, 0
                self._missing.clear()
            _check_order(answer, self._after)
            for stored in answer.attachments:
                await self._copy(stored)
                self._after = stored.number
            if not answer.attachments:
                self._after = max(self._after, answer.last)
            await self._note()
            if not answer.attachments:
                return True

    async def _copy(self, stored: StoredAttachment) -> None:
        entries = tuple(EntryRef(entry.label, entry.client_id, entry.client_seq) for entry in stored.entries)
        record = AttachmentRecord(stored.coid, stored.size, stored.owner, stored.pinned, entries)
        data = None
        if not await in_thread(self._files.has, stored.coid):
            data = await self._fetch(stored)
            if data is None:
                self._asked_at = self._clock()
                self._missing[stored.coid] = stored.number
                return
            self.copied_bytes += len(data)
        await in_thread(self._files.keep_copy, record, data)

    async def _fetch(self, stored: StoredAttachment) -> bytes | None:
        """Return the bytes; None if the primary does not have them, or if they do not match the hash."""
        try:
            data = (await self._session.calls.send(f"{ATTACHMENT}{stored.coid.hex()}", b"")).body
        except HubRefused as exc:
            if is_transient(exc):
                raise
            return None
        return data if len(data) == stored.size and H(data) == stored.coid else None

    async def _note(self) -> None:
        """Store the change where a restarted replica continues: before the first missing attachment."""
        upto = min([self._after, *(number - 1 for number in self._missing.values())])
        if self._instance is not None and upto and (self._instance, upto) != self._noted:
            await in_thread(self._files.note_copied, self._instance, upto)
            self._noted = (self._instance, upto)


def _check_order(answer: AttachmentsResponse, after: int) -> None:
    numbers = [after, *(stored.number for stored in answer.attachments)]
    rising = all(before < number for before, number in pairwise(numbers))
    if not rising or numbers[-1] > max(after, answer.last):
        raise BadAnswer("tooling/attachments: changes that were not asked for, or not in their order")
