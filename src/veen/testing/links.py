"""A client without a hub: sends to and reads from a log in memory, for tests of what talks over streams."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial

from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.hashing import H
from veen.overlays.framework.body import Draft
from veen.testing.events import FakeLog, label_of


class NoSuchStream(VeenError):
    """The keyring does not have it."""


@dataclass(frozen=True, slots=True)
class FakeEntry:
    """What sending and reading give."""

    event: Event

    @property
    def msg_id(self) -> bytes:
        return self.event.msg_id

    @property
    def seq(self) -> int:
        return self.event.stream_seq


class FakeHub:
    """A log that wakes those who follow it."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.names: dict[bytes, str] = {}
        self._grown = asyncio.Condition()

    def link(self, client: str) -> "FakeLink":
        return FakeLink(self, client)

    def name_of(self, stream: str | bytes) -> str:
        if isinstance(stream, str):
            self.names[H(stream.encode())] = stream
            return stream
        if stream not in self.names:
            raise NoSuchStream
        return self.names[stream]

    async def append(self, draft: Draft, stream: str | bytes, client: str) -> FakeEntry:
        event = self.log.append(draft, stream=self.name_of(stream), client=client)
        async with self._grown:
            self._grown.notify_all()
        return FakeEntry(event)

    async def wait_for(self, grown: Callable[[], bool]) -> None:
        async with self._grown:
            await self._grown.wait_for(grown)


class FakeLink:
    """One client of a FakeHub: fits `veen.overlays.framework.link.Link`."""

    def __init__(self, hub: FakeHub, client: str) -> None:
        self._hub, self._client = hub, client
        self.client_id = H(client.encode())

    async def send(
        self,
        stream: str | bytes,
        body: bytes,
        *,
        schema: bytes,
        parent: bytes | None = None,
        expires_at: int | None = None,
    ) -> FakeEntry:
        draft = Draft(schema=schema, body=body, parent_id=parent, expires_at=expires_at)
        return await self._hub.append(draft, stream, self._client)

    async def read(self, stream: str | bytes, *, from_seq: int | None = None) -> AsyncGenerator[FakeEntry, None]:
        for event in self._events(stream)[(from_seq or 1) - 1 :]:
            yield FakeEntry(event)

    async def follow(self, stream: str | bytes, *, from_seq: int | None = None) -> AsyncGenerator[FakeEntry, None]:
        position = len(self._events(stream)) if from_seq is None else from_seq - 1
        while True:
            while position < len(self._events(stream)):
                position += 1
                yield FakeEntry(self._events(stream)[position - 1])
            await self._hub.wait_for(partial(self._has_more, stream, position))

    def _has_more(self, stream: str | bytes, position: int) -> bool:
        return len(self._events(stream)) > position

    def _events(self, stream: str | bytes) -> list[Event]:
        return self._hub.log.by_label.get(label_of(self._hub.name_of(stream)), [])
