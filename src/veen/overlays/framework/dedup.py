"""One event, however often it was copied: mirrored events count once (D-85, spec §11.1)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from veen.core.event import Event


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Which events are copies: sent by a registered bridge, or of a schema whose every parent_id means a copy.

    A copy carries the msg_id of its original as parent_id. This is configuration of the reader, like the labels that it
    folds: two readers with the same labels and the same mirrors hold the same state.
    """

    bridges: frozenset[bytes] = frozenset()  # client_ids
    schemas: frozenset[bytes] = frozenset()

    @classmethod
    def by(cls, bridges: Iterable[bytes] = (), schemas: Iterable[bytes] = ()) -> "Mirrors":
        return cls(frozenset(bridges), frozenset(schemas))

    def __bool__(self) -> bool:
        return bool(self.bridges or self.schemas)

    def original_of(self, event: Event) -> bytes | None:
        """The msg_id of the event that this one copies; None if it is no copy."""
        if event.client_id in self.bridges or event.hdr.schema in self.schemas:
            return event.hdr.parent_id
        return None

    def identity(self, event: Event) -> bytes:
        """What two copies of one event have in common."""
        if event.client_id in self.bridges or event.hdr.schema in self.schemas:
            return event.hdr.parent_id or event.leaf_hash
        return event.leaf_hash


NO_MIRRORS: Final = Mirrors()
