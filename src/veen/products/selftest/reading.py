"""Reading by several clients, and comparison of their states."""

from typing import Any, NamedTuple

from veen.client.client import Client
from veen.client.identity.keyring import StreamKeys
from veen.core.event import Event
from veen.overlays.framework.decode import Issue
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.state import state_hash
from veen.products.selftest.suite import expect


class FoldedState(NamedTuple):
    """A state and the events without effect."""

    state: Any
    issues: tuple[Issue, ...]


async def events_of(client: Client, *streams: StreamKeys | bytes) -> list[Event]:
    """Return the events of some streams, read and verified; all of them must open."""
    events = []
    for stream in streams:
        async for entry in client.read(stream):
            expect(entry.event is not None, f"entry {entry.seq} does not open: {entry.error}")
            if entry.event is not None:
                events.append(entry.event)
    return events


async def fold_over(client: Client, fold: AnyFold, *streams: StreamKeys | bytes) -> FoldedState:
    summary = fold.summarize(await events_of(client, *streams))
    return FoldedState(fold.view(summary), fold.issues(summary))


async def same_state(fold: AnyFold, streams: StreamKeys | list[StreamKeys], *readers: Client) -> Any:
    """Return the state, after checking that all readers have the same one."""
    named = streams if isinstance(streams, list) else [streams]
    states = [(await fold_over(reader, fold, *named)).state for reader in readers]
    hashes = {state_hash(fold.name, state) for state in states}
    expect(len(hashes) == 1, f"{len(readers)} readers hold {len(hashes)} states")
    return states[0]
