"""A client without a hub: sends to and reads from a log in memory, for tests of programs that use streams."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial

from veen.client.read.streams import ErasedRange
from veen.core.errors import VeenError
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.objects.receipt import Receipt
from veen.overlays.framework.schema import Draft
from veen.testing.events import FakeLog, label_of


class NoSuchStream(VeenError):
    """A stream that is missing in the keyring."""


@dataclass(frozen=True, slots=True)
class FakeMsg:
    """The part of a message that everybody can read."""

    client_id: bytes


@dataclass(frozen=True, slots=True)
class FakeEntry:
    """Result of sending and reading. `event` is None for a reader who cannot open it; `error` is the reason."""

    event: Event | None
    receipt: Receipt
    msg: FakeMsg
    error: str | None = None

    @classmethod
    def of(cls, event: Event, error: str | None = None) -> "FakeEntry":
        receipt = Receipt(
            label=event.label,
            stream_seq=event.stream_seq,
            leaf_hash=event.leaf_hash,
            mmr_root=H(event.leaf_hash),
            hub_ts=event.hub_ts,
            hub_sig=bytes(64),
        )
        return cls(event if error is None else None, receipt, FakeMsg(event.client_id), error)

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash

    @property
    def seq(self) -> int:
        return self.receipt.stream_seq


class FakeHub:
    """A log that wakes its followers."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.names: dict[bytes, str] = {}
        self.sealed: dict[tuple[str, int], str] = {}  # by stream and position: why readers cannot open the entry
        self.erased: dict[str, int] = {}  # by stream: up to here the payloads are erased
        self.served = 0  # entries that were read
        self._grown = asyncio.Condition()

    def link(self, client: str) -> "FakeLink":
        """Return what a client of this name holds in the place of a connection."""
        return FakeLink(self, client)

    def name_of(self, stream: str | bytes) -> str:
        """Return the name of a stream that was used by name before."""
        if isinstance(stream, str):
            self.names[H(stream.encode())] = stream
            return stream
        if stream not in self.names:
            raise NoSuchStream
        return self.names[stream]

    async def append(self, draft: Draft, stream: str | bytes, client: str) -> FakeEntry:
        """Append a draft as a client, and wake those who wait for entries."""
        event = self.log.append(draft, stream=self.name_of(stream), client=client)
        async with self._grown:
            self._grown.notify_all()
        return FakeEntry.of(event)

    async def wait_for(self, grown: Callable[[], bool]) -> None:
        """Wait until the condition holds; it is asked after each entry."""
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
            yield self._entry(stream, event)

    async def read_kept(
        self, stream: str | bytes, *, after: Mapping[bytes, int] | None = None
    ) -> AsyncGenerator[FakeEntry | ErasedRange, None]:
        label, erased = label_of(self._hub.name_of(stream)), self._hub.erased.get(self._hub.name_of(stream), 0)
        first = (after or {}).get(label, 0) + 1
        if first <= erased:
            yield ErasedRange(label, first, erased)
        for event in self._events(stream)[max(first - 1, erased) :]:
            yield self._entry(stream, event)

    async def labels_of(self, stream: str | bytes) -> dict[bytes, int]:
        return {label_of(self._hub.name_of(stream)): 0} if self._events(stream) else {}

    async def receipt(self, stream: str | bytes, seq: int, *, epoch: int | None = None) -> Receipt:
        return FakeEntry.of(self._events(stream)[seq - 1]).receipt

    async def follow(self, stream: str | bytes, *, from_seq: int | None = None) -> AsyncGenerator[FakeEntry, None]:
        position = len(self._events(stream)) if from_seq is None else from_seq - 1
        while True:
            while position < len(self._events(stream)):
                position += 1
                yield self._entry(stream, self._events(stream)[position - 1])
            await self._hub.wait_for(partial(self._has_more, stream, position))

    def _entry(self, stream: str | bytes, event: Event) -> FakeEntry:
        self._hub.served += 1
        return FakeEntry.of(event, self._hub.sealed.get((self._hub.name_of(stream), event.stream_seq)))

    def _has_more(self, stream: str | bytes, position: int) -> bool:
        return len(self._events(stream)) > position

    def _events(self, stream: str | bytes) -> list[Event]:
        return self._hub.log.by_label.get(label_of(self._hub.name_of(stream)), [])
