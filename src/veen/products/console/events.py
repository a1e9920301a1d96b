"""Opened events of streams, read through the client and cached, for the pages over overlays.

A stream is read once; afterwards only its new entries. The client proves each time that the log continues the known
one. A stream of more than `MAX_EVENTS` entries is not folded here, and the page says so.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from veen.cli.shared.folding import event_of
from veen.client.client import Client
from veen.client.errors import HubRefused
from veen.client.identity.keyring import StreamKeys
from veen.client.transport.calls import is_not_found
from veen.core.event import Event
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.schema import Issue
from veen.overlays.framework.stream import fold_events

MAX_EVENTS: Final = 20_000  # of one stream
_SEALED: Final = bytes(32)


@dataclass(slots=True)
class StreamEvents:
    """One stream. `is_cut`: it has more entries than the limit, or its first ones were pruned."""

    keys: StreamKeys
    events: list[Event] = field(default_factory=list)
    is_cut: bool = False

    @property
    def unopened(self) -> int:
        return sum(event.hdr.schema == _SEALED for event in self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedStreams:
    """A state and its inputs."""

    state: Any
    summary: Any
    as_of: int
    issues: tuple[Issue, ...]
    streams: tuple[StreamEvents, ...]  # that have events of the overlay
    left_out: tuple[StreamKeys, ...]  # that are too long to be folded here

    def stream_at(self, label: bytes) -> tuple[StreamKeys, int] | None:
        """Return the stream of a label, and its epoch."""
        for stream in self.streams:
            for event in stream.events:
                if event.label == label:
                    return stream.keys, event.epoch
        return None

    def events(self) -> Iterable[Event]:
        """Return the events in logical order."""
        return heapq.merge(*(stream.events for stream in self.streams), key=lambda event: event.order)

    def about(self) -> dict[str, Any]:
        """Return the inputs of the state, for the twin of a page."""
        return {
            "as_of": self.as_of,
            "streams": [
                {
                    "stream": str(stream.keys),
                    "stream_id": stream.keys.stream_id.hex(),
                    "entries": len(stream.events),
                    "unopened": stream.unopened,
                }
                for stream in self.streams
            ],
            "streams_left_out": [str(keys) for keys in self.left_out],
            "issues": [
                {"label": issue.label.hex(), "stream_seq": issue.stream_seq, "code": issue.code, "what": issue.what}
                for issue in self.issues
            ],
        }


class EventStore:
    """The events of the streams of one console. Used on the loop of the console only."""

    def __init__(self, client: Client, streams: Sequence[StreamKeys]) -> None:
        self._client, self._streams = client, tuple(streams)
        self._by_stream: dict[bytes, StreamEvents] = {}
        self._locks: dict[bytes, asyncio.Lock] = {}

    async def of(self, keys: StreamKeys) -> StreamEvents:
        """Return all readable events of a stream, up to the limit."""
        async with self._locks.setdefault(keys.stream_id, asyncio.Lock()):
            stored = self._by_stream.setdefault(keys.stream_id, StreamEvents(keys))
            rotates = bool(self._client.session.epoch_sec)
            events = [] if rotates else list(stored.events)
            is_cut = False
            try:
                async for entry in self._client.read(keys, from_seq=None if rotates else len(events) + 1):
                    if len(events) >= MAX_EVENTS:
                        is_cut = True
                        break
                    events.append(event_of(entry, keys.stream_id))
            except HubRefused as exc:
                if not is_not_found(exc):
                    raise
                is_cut = exc.detail.get("reason") == "pruned"  # a state without its beginning is none
            stored.events, stored.is_cut = events, is_cut
            return stored

    async def with_schemas(
        self, schemas: Iterable[bytes], only: Callable[[StreamKeys], bool] = lambda _: True
    ) -> tuple[list[StreamEvents], list[StreamKeys]]:
        """Return the streams that have an event of these schemas, and those that are too long to know."""
        wanted = set(schemas)
        matching: list[StreamEvents] = []
        left_out: list[StreamEvents] = []
        for keys in self._streams:
            if not keys.can_read or not only(keys):
                continue
            stream = await self.of(keys)
            if stream.is_cut and not stream.events:
                left_out.append(stream)  # its contents are unknown
            elif any(event.hdr.schema in wanted for event in stream.events):
                (left_out if stream.is_cut else matching).append(stream)
        return matching, [stream.keys for stream in left_out]

    async def fold(
        self, fold: AnyFold, *, now: int, only: Callable[[StreamKeys], bool] = lambda _: True
    ) -> FoldedStreams:
        """Fold every stream with events of a fold; state that expired by `now` is removed (D-80)."""
        streams, left_out = await self.with_schemas(fold.schemas, only)
        events = heapq.merge(*(stream.events for stream in streams), key=lambda event: event.order)
        summary = await asyncio.to_thread(fold_events, fold, list(events))
        as_of = max([now, *(stream.events[-1].ts for stream in streams)])
        return FoldedStreams(
            state=fold.view(summary, as_of),
            summary=summary,
            as_of=as_of,
            issues=tuple(fold.issues(summary)),
            streams=tuple(streams),
            left_out=tuple(left_out),
        )
