"""The owners of streams, for folds of policy that were made without emitters (D-186)."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from veen.client.errors import UnknownStream
from veen.client.generations.fold import KeyFold, record_of
from veen.client.generations.records import control_keys
from veen.client.identity.keyring import Keyring
from veen.core.event import Event
from veen.core.objects.speaking import AuthorKey
from veen.lake.log.errors import OptionError
from veen.lake.log.events import LogEntry, read_events
from veen.lake.log.prefix import Prefix
from veen.overlays.federation.realm import OwnerRuled
from veen.overlays.framework.fold import AnyFold, Joined

NO_EMITTERS: Final = (
    "the fold has no emitters, and rows do not name the owner of a stream: make the fold with emitters= or "
    "any_emitter=True"
)


def streams_without_owner(fold: AnyFold) -> tuple[bytes, ...]:
    """Return the streams whose owner decides which records count, and is unknown to the fold."""
    members = fold.folds if isinstance(fold, Joined) else (fold,)
    return tuple(stream for member in members if isinstance(member, OwnerRuled) for stream in member.unowned_streams)


def by_owner(fold: AnyFold, emitters: Mapping[bytes, Collection[bytes]]) -> AnyFold:
    """Return the fold with the owners' client keys, by stream, where it was made without emitters."""
    if isinstance(fold, Joined):
        return Joined(by_owner(member, emitters) for member in fold.folds)
    if isinstance(fold, OwnerRuled) and fold.unowned_streams:
        return fold.with_emitters({stream: emitters.get(stream, ()) for stream in fold.unowned_streams})
    return fold


def owner_emitters(
    source: str | Path | Prefix, keyring: Keyring, streams: Iterable[bytes]
) -> dict[bytes, dict[bytes, AuthorKey]]:
    """Return the client keys that the owner of each stream has announced in it.

    Raise OptionError if the owner of a readable stream is unknown.
    """
    emitters = {}
    for stream_id in streams:
        try:
            owner_pk = keyring.owner_of(stream_id)
        except UnknownStream:
            continue  # it cannot be read either
        if owner_pk is None:
            raise OptionError(
                f"the owner of stream {stream_id.hex()} is unknown, so no records count: "
                "name her with `veen keys owner`, or make the fold with emitters= or any_emitter=True"
            )
        keys = KeyFold(stream_id=stream_id, owner_pk=owner_pk)
        ring = Keyring().with_keys(control_keys(stream_id, owner_pk))  # opens what is said about keys, and nothing else
        for event in _read_stream(source, ring, stream_id):
            if isinstance(event, Event) and (record := record_of(keys, event)) is not None:
                keys.apply(event, record)
        emitters[stream_id] = keys.state().keys_of((owner_pk, keys.owner))
    return emitters


def _read_stream(source: str | Path | Prefix, ring: Keyring, stream_id: bytes) -> Iterator[LogEntry]:
    if isinstance(source, Prefix):
        return (event for event in read_events(source, ring) if event.stream_id == stream_id)
    return read_events(str(source), ring, streams=(stream_id,))
