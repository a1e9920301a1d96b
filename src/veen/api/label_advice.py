"""Label classes as senders follow them (LCLASS0, 001 spec-2 §6.2, D-103): padding, expiry and rate.

    class           padding                       rate
    user, wallet    256 or 1024, the first that   as the hub allows
                    a profile of the hub has
    log, metric     none, if a profile has none   as the hub allows
    admin, control  the hub's default             as the hub allows
    bulk            the hub's default             a quarter of the hub's `max_cap_rate_per_sec`
    others, none    the hub's default             as the hub allows

A retention hint becomes `expires_at` of messages without one. The records are read once for each connection,
with the read key of the realm's stream; only those of its owner count. Classes advise: nothing is refused.
"""

from typing import Final

from veen.client.client import Client
from veen.client.errors import HubRefused, UnknownStream
from veen.client.generations.owning import owner_keys
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import LabelAdvice
from veen.client.transport.calls import is_not_found
from veen.core.event import Event
from veen.core.labels import label_of, routing_key_of
from veen.core.objects.speaking import AuthorKey
from veen.overlays.federation.realm import DEFAULT_REALM, admin_streams
from veen.overlays.naming.label_class import LABEL_CLASS, LabelClasses, LabelClassFold

TIGHTER: Final = 4  # a sender of the class "bulk" uses a quarter of the rate that the hub allows
_EPOCHS: Final = 4_096  # number of earlier labels of the stream that are searched for a class


class LabelClassAdvisor:
    """The classes of the default realm, read when the first message is sent. Used by one client."""

    def __init__(self) -> None:
        self._classes: LabelClasses | None = None

    async def advice(self, client: Client, keys: StreamKeys, label: bytes) -> LabelAdvice | None:
        """Return the advice of a label's class to its sender; None without a class."""
        if keys.stream_id == admin_streams(DEFAULT_REALM).label_class:
            return None
        if self._classes is None:
            self._classes = await read_classes(client)
        siblings = self._siblings(client, keys.stream_id, label)
        if self._classes.class_of(label, siblings) is None:
            return None
        advised = self._classes.advice(label, siblings)
        per_sec = client.limits.max_cap_rate_per_sec // TIGHTER if advised.rate == "tighter" else None
        return LabelAdvice(pad_blocks=advised.pad_blocks, retention_sec=advised.retention_sec, per_sec=per_sec)

    def _siblings(self, client: Client, stream_id: bytes, label: bytes) -> list[bytes]:
        """Return earlier labels of the stream that have a class, where labels rotate."""
        if self._classes is None or not self._classes.labels or not client.session.epoch_sec:
            return []
        now, routing_key = client.session.epoch_now(), routing_key_of(client.hub_id)
        earlier = (label_of(routing_key, stream_id, epoch) for epoch in range(now, max(now - _EPOCHS, -1), -1))
        return [each for each in earlier if each in self._classes.labels and each != label]


async def read_classes(client: Client) -> LabelClasses:
    """Read the classes of the default realm at this hub, by records of the owner of their stream."""
    stream_id = admin_streams(DEFAULT_REALM).label_class
    events: list[Event] = []
    emitters: dict[bytes, AuthorKey | None] = {}
    try:
        keys, owner_pk = client.keyring.for_stream(stream_id), client.keyring.owner_of(stream_id)
        if keys.can_read and owner_pk is not None:
            events = [entry.event async for entry in client.read(stream_id) if entry.event is not None]
            emitters = await owner_keys(client, stream_id)
    except UnknownStream:
        pass
    except HubRefused as exc:
        if not is_not_found(exc):
            raise
    fold = LabelClassFold(emitters={stream_id: emitters})
    return fold.view(fold.summarize(event for event in events if event.hdr.schema == LABEL_CLASS.id))
