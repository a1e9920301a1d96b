"""Writers of policy: named emitters, or the owner of the stream and no others (D-186).

A fold sees events and no keyring, so it does not know who owns a stream. Made without emitters it counts nobody, names
its streams in `unowned_streams`, and whoever has a keyring gives it the owner's client keys with `with_emitters`.

Emitters are client keys. Where they are a mapping, its values are what the emitter's identity proved of the key in the
stream (`AuthorKey`), or None: a record outside of the time of the key's binding, or behind its end, does not count.
"""

from collections.abc import Collection, Mapping
from copy import copy
from typing import Any, Protocol, Self, runtime_checkable

from veen.core.event import Event
from veen.core.objects.speaking import AuthorKey

Emitters = Collection[bytes] | Mapping[bytes, Collection[bytes]]


def is_by_emitter(named: Collection[bytes], event: Event) -> bool:
    """Return True if the client key of an event is among some emitters, at the place of the event."""
    client_id = event.client_id
    if client_id not in named:
        return False
    proof: AuthorKey | None = named[client_id] if isinstance(named, Mapping) else None
    return proof is None or proof.covers(event.ts, (event.epoch, event.stream_seq))


@runtime_checkable
class OwnerRuled(Protocol):
    """A fold whose records are valid by their writer."""

    @property
    def unowned_streams(self) -> tuple[bytes, ...]:
        """The streams whose owner decides but is unknown to the fold; empty if emitters were named."""

    def with_emitters(self, emitters: Mapping[bytes, Collection[bytes]]) -> Self:
        """Return the same fold for these client keys, by stream."""


class EmitterRule:
    """The part of such a fold that decides which writers are valid."""

    _emitters: Emitters | None  # None: everybody

    def _set_rule(self, emitters: Emitters | None, any_emitter: bool, streams: Collection[bytes]) -> None:
        if emitters is not None and any_emitter:
            raise ValueError("give one of emitters and any_emitter")
        self.unowned_streams = () if emitters is not None or any_emitter else tuple(streams)
        if emitters is None and not any_emitter:
            emitters = ()
        self._emitters = emitters if emitters is None or isinstance(emitters, Mapping) else frozenset(emitters)

    def with_emitters(self, emitters: Mapping[bytes, Collection[bytes]]) -> Self:
        """Return the same fold for these client keys, by stream; a stream that is not named has none."""
        fold = copy(self)
        fold._emitters, fold.unowned_streams = dict(emitters), ()
        return fold

    def may_emit(self, stream_id: bytes, client_id: bytes) -> bool:
        """Return True if records of this client key count on the stream, at some place."""
        return self._emitters is None or client_id in self._select_emitters(self._emitters, stream_id)

    def is_emitted(self, event: Event) -> bool:
        """Return True if a record counts by who wrote it, at its place."""
        return self._emitters is None or is_by_emitter(self._select_emitters(self._emitters, event.stream_id), event)

    @staticmethod
    def _select_emitters(emitters: Emitters, stream_id: bytes) -> Collection[bytes]:
        return emitters.get(stream_id, ()) if isinstance(emitters, Mapping) else emitters

    def _rule_settings(self) -> Any:
        if isinstance(self._emitters, Mapping):
            return [[stream_id, _settings_of(named)] for stream_id, named in sorted(self._emitters.items())]
        return None if self._emitters is None else sorted(self._emitters)


def _settings_of(named: Collection[bytes]) -> list[Any]:
    if not isinstance(named, Mapping):
        return sorted(named)
    return [
        client_id if named[client_id] is None else [client_id, named[client_id].to_bytes()]
        for client_id in sorted(named)
    ]
