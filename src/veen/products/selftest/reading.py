"""What several readers make of a stream, and whether they make the same of it."""

from typing import Any, NamedTuple

from veen.client.client import Client
from veen.client.identity.keyring import StreamKeys
from veen.core.event import Event
from veen.overlays.framework.decode import Issue
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.state import state_hash
from veen.products.selftest.suite import expect


class Found(NamedTuple):
    """A state and what had no effect."""

    state: Any
    issues: tuple[Issue, ...]


async def events_of(client: Client, *streams: StreamKeys | bytes) -> list[Event]:
    """The events of some streams, read and verified; all of them must open."""
    events = []
    for stream in streams:
        async for entry in client.read(stream):
            expect(entry.event is not None, f"entry {entry.seq} does not open: {entry.error}")
            if entry.event is not None:
                events.append(entry.event)
    return events


async def folded(client: Client, fold: AnyFold, *streams: StreamKeys | bytes) -> Found:
    summary = fold.summarize(await events_of(client, *streams))
    return Found(fold.view(summary), fold.issues(summary))


async def same_state(fold: AnyFold, streams: StreamKeys | list[StreamKeys], *readers: Client) -> Any:
    """The state that all readers hold."""
    named = streams if isinstance(streams, list) else [streams]
    states = [(await folded(reader, fold, *named)).state for reader in readers]
    hashes = {state_hash(fold.name, state) for state in states}
    expect(len(hashes) == 1, f"{len(readers)} readers hold {len(hashes)} states")
    return states[0]
