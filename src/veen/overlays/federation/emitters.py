"""Who may write policy: named emitters, or the owner of the stream and no others (D-186).

A fold sees events and no keyring, so it does not know who owns a stream. Made without emitters it counts nobody, names
its streams in `unowned_streams`, and whoever has a keyring gives it the owner's client keys with `with_emitters`.
"""

from collections.abc import Collection, Mapping
from copy import copy
from typing import Any, Protocol, Self, runtime_checkable

Emitters = Collection[bytes] | Mapping[bytes, Collection[bytes]]


@runtime_checkable
class OwnerRuled(Protocol):
    """A fold whose records count by who wrote them."""

    @property
    def unowned_streams(self) -> tuple[bytes, ...]:
        """The streams whose owner decides and is not known to the fold; empty if emitters were named."""

    def with_emitters(self, emitters: Mapping[bytes, Collection[bytes]]) -> Self:
        """Return the same fold for these client keys, by stream."""


class EmitterRule:
    """The part of such a fold that decides whose records count."""

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
        """Return True if the records of this client key count on the stream."""
        if self._emitters is None:
            return True
        named = self._emitters.get(stream_id, ()) if isinstance(self._emitters, Mapping) else self._emitters
        return client_id in named

    def _rule_settings(self) -> Any:
        if isinstance(self._emitters, Mapping):
            return [[stream_id, sorted(named)] for stream_id, named in sorted(self._emitters.items())]
        return None if self._emitters is None else sorted(self._emitters)
