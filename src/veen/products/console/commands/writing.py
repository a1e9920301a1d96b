"""Writes of a console, done as a command would do them: with the identity of the context, which is free in between."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from veen.cli.shared.authority import authority
from veen.cli.shared.command import CliSession

if TYPE_CHECKING:
    from veen.client.identity.keyring import StreamKeys
    from veen.client.send.writing import Sent
    from veen.core.objects.control import ControlRecord
    from veen.core.objects.policies import Revocation

T = TypeVar("T")


class SessionWriter:
    """A writer with a separate connection for each write. The console itself only reads, with its own state."""

    def __init__(self, session: CliSession) -> None:
        self._session = session

    async def send(self, keys: "StreamKeys", body: bytes) -> "Sent":
        def work(session: CliSession) -> "Sent":
            session.sends = True
            token = authority(session, f"hex:{keys.stream_id.hex()}", None)
            return session.client().send(keys.stream_id, body, capability=token, once=True)

        return await self._in_thread(work)

    async def anchor(self, keys: "StreamKeys") -> "ControlRecord":
        return await self._in_thread(lambda session: session.client().run(lambda client: client.anchor(keys)))

    async def revoke(self, revocations: "Sequence[Revocation]") -> "tuple[ControlRecord, ...]":
        return await self._in_thread(lambda session: session.client().run(lambda client: client.revoke(revocations)))

    async def _in_thread(self, work: Callable[[CliSession], T]) -> T:
        def run() -> T:
            session = self._session.renew()
            try:
                return work(session)
            except Exception as exc:
                session.note_waiting(exc)
                raise
            finally:
                session.close()

        return await asyncio.to_thread(run)
