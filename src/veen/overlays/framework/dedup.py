"""Deduplication of mirrored events: an event and its copies count once (D-85, spec §11.1)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from veen.core.event import COPY_SCHEMA, Event, copy_body, origin_passed_on
from veen.overlays.framework.body import Draft


@dataclass(frozen=True, slots=True)
class Mirrors:
    """Rules that tell copies from originals: sent by a bridge, or of a schema in which every parent_id means a copy.

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
        """Return the msg_id of the original if this event is a copy, else None."""
        if event.client_id in self.bridges or event.hdr.schema in self.schemas:
            return event.hdr.parent_id
        return None

    def with_origin_times(self, event: Event) -> Event:
        """Return the event with the times that folds compare: for a copy, those of the original by its bridge (D-193).

        Its place in the logical order stays that of the copy. What anybody else states of an origin has no effect.
        """
        origin = event.origin
        if origin is None or event.client_id not in self.bridges or event.placed is not None:
            return event
        return replace(event, hub_ts=origin.hub_ts, ts=origin.ts, placed=event.ts)

    def identity(self, event: Event) -> bytes:
        """Return the id that all copies of an event share: the msg_id of the original."""
        if event.client_id in self.bridges or event.hdr.schema in self.schemas:
            return event.hdr.parent_id or event.leaf_hash
        return event.leaf_hash


NO_MIRRORS: Final = Mirrors()


def copy_draft(event: Event, *, hub_id: bytes, mirrors: Mirrors = NO_MIRRORS) -> Draft:
    """Return the message by which a bridge copies an event of the hub `hub_id`, with its origin (D-187, D-193).

    The origin of a copy is kept if one of the bridges of `mirrors` sent it.
    """
    origin = origin_passed_on(
        event.origin,
        hub_id=hub_id,
        msg_id=event.msg_id if event.origin is not None else mirrors.original_of(event) or event.msg_id,
        hub_ts=event.hub_ts,
        ts=event.ts,
        is_bridge=event.client_id in mirrors.bridges,
    )
    return Draft(
        schema=COPY_SCHEMA,
        body=copy_body(event.hdr.schema, event.body, origin),
        parent_id=origin.msg_id,
        expires_at=event.hdr.expires_at,
    )
