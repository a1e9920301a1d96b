"""A log without a hub: events as a reader would have them, for tests of overlays."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from veen.core.event import Event
from veen.core.hashing import H, Ht, u64be
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays.framework.schema import Draft


def label_of(stream: str, epoch: int = 0) -> bytes:
    """Return a label for a stream. Overlays accept any 32 bytes."""
    return Ht("test/label", H(stream.encode()) + u64be(epoch))


@dataclass
class FakeLog:
    """Streams by name; every label is contiguous from 1, and ts* never decreases within it."""

    now: int = 1_000
    by_label: dict[bytes, list[Event]] = field(default_factory=dict)

    def append(
        self,
        draft: Draft,
        *,
        stream: str = "main",
        epoch: int = 0,
        client: str = "alice",
        ts: int | None = None,
        att_root: bytes | None = None,
    ) -> Event:
        """Send `draft`; `ts` is hub_ts and sets the clock of the log, also backwards: another hub has another clock."""
        self.now = self.now if ts is None else ts
        label = label_of(stream, epoch)
        events = self.by_label.setdefault(label, [])
        client_id = H(client.encode())
        event = Event.from_message(
            PayloadHdr(schema=draft.schema, parent_id=draft.parent_id, att_root=att_root, expires_at=draft.expires_at),
            draft.body,
            stream_id=H(stream.encode()),
            label=label,
            epoch=epoch,
            stream_seq=len(events) + 1,
            leaf_hash=H(label + u64be(len(events)) + client_id + draft.body),
            client_id=client_id,
            auth_ref=None,
            hub_ts=self.now,
            ts=max(self.now, events[-1].ts if events else 0),
        )
        events.append(event)
        return event

    def extend(self, drafts: Iterable[Draft], *, stream: str = "main", client: str = "alice") -> list[Event]:
        """Send each draft, a second apart."""
        return [self.append(draft, stream=stream, client=client, ts=self.now + 1) for draft in drafts]

    def mirror(self, event: Event, *, stream: str, bridge: str = "bridge") -> Event:
        """Copy an event as a bridge does (D-85): same schema and body, parent_id = its msg_id."""
        draft = Draft(schema=event.hdr.schema, body=event.body, parent_id=event.msg_id, expires_at=event.hdr.expires_at)
        return self.append(draft, stream=stream, client=bridge)

    def heads(self) -> dict[bytes, int]:
        """Return the number of entries of each label."""
        return {label: len(events) for label, events in self.by_label.items()}

    def events(self, label: bytes, from_seq: int, to_seq: int) -> Iterable[Event]:
        """Return the events from_seq … to_seq of a label: the source of a runner."""
        return self.by_label.get(label, [])[from_seq - 1 : to_seq]

    def all(self) -> list[Event]:
        """Return all events in logical order."""
        return sorted((event for events in self.by_label.values() for event in events), key=lambda event: event.order)
