"""Protocols of a client that an overlay needs: send, read and follow. `veen.client.Client` implements them."""

from collections.abc import AsyncGenerator
from typing import Protocol

from veen.core.event import Event
from veen.overlays.framework.schema import Draft

Stream = str | bytes  # a name, or a stream_id


class Receipted(Protocol):
    """A message that the hub has put into the log."""

    @property
    def msg_id(self) -> bytes: ...

    @property
    def seq(self) -> int: ...


class Seen(Protocol):
    """An entry of the log; no event if it could not be opened."""

    @property
    def event(self) -> Event | None: ...

    @property
    def seq(self) -> int: ...


class Sender(Protocol):
    async def send(
        self,
        stream: Stream,
        body: bytes,
        *,
        schema: bytes,
        parent: bytes | None = None,
        expires_at: int | None = None,
    ) -> Receipted: ...


class Follower(Protocol):
    def read(self, stream: Stream, *, from_seq: int | None = None) -> AsyncGenerator[Seen, None]:
        """Yield the entries that are in the log now, then end."""

    def follow(self, stream: Stream, *, from_seq: int | None = None) -> AsyncGenerator[Seen, None]:
        """Yield the entries from `from_seq` on, then wait for new ones."""


class Link(Sender, Follower, Protocol):
    """A client that sends and reads."""


async def send(sender: Sender, stream: Stream, draft: Draft) -> Receipted:
    """Send a draft."""
    return await sender.send(
        stream, draft.body, schema=draft.schema, parent=draft.parent_id, expires_at=draft.expires_at
    )
