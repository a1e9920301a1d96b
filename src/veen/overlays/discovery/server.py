"""Both ends of a query: the server, which answers from a folded directory, and the client (001 spec-5 §6.2, D-87).

The answer is the directory after everything that the discovery streams hold when the question is read, at the time of
the question in the log. So whoever folds the same prefix comes to the same answer, and can check one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Final

from veen.core.event import Event
from veen.overlays.discovery.bodies import (
    QUERY,
    RESULT,
    STREAMS,
    DiscoveryFault,
    DiscoveryQuery,
    DiscoveryResult,
)
from veen.overlays.discovery.directory import Directory, DirectoryFold, answer
from veen.overlays.framework.link import Follower, Link, Stream, send
from veen.overlays.framework.schema import Issue, decode
from veen.overlays.rpc.ends import NoAnswer

_UNREAD: Final = DiscoveryFault(code="DISC.FILTER", detail="the question cannot be read")


class FoldedDirectory:
    """The discovery streams, read through a link and folded. Belongs to one event loop."""

    def __init__(
        self,
        link: Follower,
        fold: DirectoryFold,
        streams: Mapping[str, Stream] | None = None,
        *,
        rotating: bool = False,
    ) -> None:
        """Prepare to read. `rotating`: labels change with epochs, so a stream is read from its beginning each time."""
        self._link, self._fold, self._rotating = link, fold, rotating
        self._streams = dict(streams or STREAMS)
        self._events: dict[tuple[bytes, int], Event] = {}
        self._next = dict.fromkeys(self._streams, 1)

    async def refresh(self) -> None:
        """Read and fold new entries."""
        for kind, stream in self._streams.items():
            first = None if self._rotating else self._next[kind]
            async with contextlib.aclosing(self._link.read(stream, from_seq=first)) as entries:
                async for entry in entries:
                    self._next[kind] = entry.seq + 1
                    if entry.event is not None:
                        self._events[entry.event.label, entry.event.stream_seq] = entry.event

    def at(self, as_of: int) -> Directory:
        return self._fold.view(self._fold.summarize(self._events.values()), as_of)

    def issues(self) -> tuple[Issue, ...]:
        return self._fold.issues(self._fold.summarize(self._events.values()))


class DiscoveryServer:
    """A server that answers the queries of a stream, one after another in the order of the log, each once."""

    def __init__(
        self,
        link: Link,
        stream: Stream,
        directory: FoldedDirectory,
        *,
        servers: Collection[bytes] | None = None,
        report: Callable[[DiscoveryQuery | None, DiscoveryResult], None] = lambda query, result: None,
    ) -> None:
        """Prepare to serve. Only answers of `servers` count as given; without it a stranger could answer first."""
        self._link, self._stream, self._directory, self._report = link, stream, directory, report
        self._servers = None if servers is None else frozenset(servers)

    async def run(self) -> None:
        """Serve until cancelled. Queries that have an answer are not answered again."""
        questions: dict[bytes, Event] = {}
        last = 0
        async with contextlib.aclosing(self._link.read(self._stream, from_seq=1)) as entries:
            async for entry in entries:
                last, event = entry.seq, entry.event
                if event is not None and event.hdr.schema == QUERY.id:
                    questions[event.msg_id] = event
                elif event is not None and event.hdr.schema == RESULT.id and self._counts(event):
                    questions.pop(event.hdr.parent_id or b"", None)
        for event in questions.values():
            await self._answer(event)
        async with contextlib.aclosing(self._link.follow(self._stream, from_seq=last + 1)) as entries:
            async for entry in entries:
                if entry.event is not None and entry.event.hdr.schema == QUERY.id:
                    await self._answer(entry.event)

    def _counts(self, event: Event) -> bool:
        return self._servers is None or event.client_id in self._servers

    async def _answer(self, event: Event) -> None:
        typed = decode(event, QUERY)
        if isinstance(typed, Issue):
            query, result = None, DiscoveryResult(ok=False, results=[], more=False, error=_UNREAD)
        else:
            query = typed.body
            await self._directory.refresh()
            result = answer(self._directory.at(event.hub_ts), query)
        self._report(query, result)
        await send(self._link, self._stream, RESULT.draft(result, parent_id=event.msg_id))


async def ask(
    link: Link,
    stream: Stream,
    query: DiscoveryQuery,
    *,
    servers: Collection[bytes] | None = None,
    timeout: float = 30.0,  # noqa: ASYNC109 - the time that a caller waits for others
) -> DiscoveryResult:
    """Return the first answer by one of `servers` (default: anyone). Raise NoAnswer if none arrives in time."""
    sent = await send(link, stream, QUERY.draft(query))
    try:
        async with asyncio.timeout(timeout):
            async with contextlib.aclosing(link.follow(stream, from_seq=sent.seq + 1)) as entries:
                async for entry in entries:
                    event = entry.event
                    if event is None or event.hdr.schema != RESULT.id or event.hdr.parent_id != sent.msg_id:
                        continue
                    if servers is not None and event.client_id not in servers:
                        continue
                    reply = decode(event, RESULT)
                    if not isinstance(reply, Issue):
                        return reply.body
    except TimeoutError:
        pass
    raise NoAnswer(QUERY.name, sent.msg_id)
