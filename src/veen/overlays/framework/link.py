"""What the two ends of an overlay need of a client: to send, to read and to follow. `veen.client.Client` fits."""

from collections.abc import AsyncGenerator
from typing import Protocol

from veen.core.event import Event
from veen.overlays.framework.body import Draft

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
        """What is in the log, then end."""

    def follow(self, stream: Stream, *, from_seq: int | None = None) -> AsyncGenerator[Seen, None]:
        """What is in the log from `from_seq` on, then wait for more."""


class Link(Sender, Follower, Protocol):
    """Both."""


async def send(sender: Sender, stream: Stream, draft: Draft) -> Receipted:
    """Send what one of the functions that build drafts has made."""
    return await sender.send(
        stream, draft.body, schema=draft.schema, parent=draft.parent_id, expires_at=draft.expires_at
    )
