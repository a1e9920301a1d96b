"""Attachments: stored by the hash of their ciphertext, and opened only as declared (spec §4.6, D-15, D-16).

The hub keeps bytes it cannot read. A reader checks the hash of a fetched file, the root over all declared ids, and the
declared size; one attachment is opened at a time, so a message of a thousand files needs the memory of one.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from veen.client.errors import Dropped, HubRefused, ProofInvalid
from veen.client.read.reading import Entry
from veen.client.send.sealing import Prepared
from veen.client.session import HubSession
from veen.client.transport.calls import ATTACHMENT, CAP_HEADER, NO_HEADERS, Calls, is_not_found
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import VeenError
from veen.core.hashing import H
from veen.core.objects.tooling import AttachmentGrant
from veen.core.sealing.ciphertext import Attachment, open_attachment

_AT_ONCE: Final = 8  # uploads in flight


class Attachments:
    """Upload and download of attachments by coid."""

    def __init__(self, session: HubSession, key: SigningKey) -> None:
        self._session, self._key = session, key

    @property
    def _calls(self) -> Calls:
        return self._session.calls

    async def put(self, ciphertext: bytes, auth_ref: bytes | None = None, *, message: Prepared | None = None) -> bytes:
        """Store one ciphertext and return its coid; the holder of a capability vouches for it (GEN-12).

        With the `message` that it belongs to, the hub erases it together with that entry; without, it never does.
        """
        coid = H(ciphertext)
        entry = ""
        if message is not None:
            client_id = self._key.public.hex()
            entry = f"?label={message.label.hex()}&client_id={client_id}&client_seq={message.client_seq}"
        headers = NO_HEADERS
        if auth_ref is not None:
            headers = {CAP_HEADER: AttachmentGrant.issue(self._key, auth_ref, coid).to_bytes().hex()}
        await self._calls.send(f"{ATTACHMENT}{coid.hex()}{entry}", ciphertext, headers=headers)
        return coid

    async def put_all(self, message: Prepared) -> None:
        """Store the attachments of a sealed message. Repeating this stores nothing twice."""
        if message.attachments is None:
            return
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(ciphertext: bytes) -> None:
            async with turns:
                await self.put(ciphertext, message.auth_ref, message=message)

        try:
            async with asyncio.TaskGroup() as group:
                for ciphertext in message.attachments.ciphertexts:
                    group.create_task(one(ciphertext))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # any one of the refusals

    async def fetch(self, coid: bytes) -> bytes:
        """Fetch the ciphertext with this coid, as it was stored."""
        try:
            data = (await self._calls.send(f"{ATTACHMENT}{coid.hex()}", b"")).body
        except HubRefused as exc:
            if is_not_found(exc):
                raise Dropped("the hub does not have an attachment", expected=coid) from exc
            raise
        if H(data) != coid:
            raise ProofInvalid("the hub answers with another attachment", expected=coid, found=H(data))
        return data

    async def get(self, entry: Entry, index: int) -> bytes:
        """Fetch and open one attachment of an opened entry."""
        declared: Sequence[Attachment] = entry.attachments
        wanted = declared[index]
        ciphertext = await self.fetch(wanted.coid)
        try:
            data = open_attachment(entry.opened_with, entry.msg, index, ciphertext, limits=self._session.limits)
        except VeenError as exc:
            raise ProofInvalid(f"attachment {index}: {exc}", label=entry.msg.label, seq=entry.seq) from exc
        if len(data) != wanted.size:
            raise ProofInvalid(
                f"attachment {index} does not have the declared size",
                label=entry.msg.label,
                seq=entry.seq,
                expected=wanted.size,
                found=len(data),
            )
        return data
