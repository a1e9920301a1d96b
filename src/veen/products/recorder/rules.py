"""Configuration of a recorder as its emitters enforce it (SDR-02, SDR-03, D-127).

A hub cannot read events, so the emitter refuses what `recorder verify` would report: an event whose type is mapped to
another stream, and a payload above the limit. The configuration is read from the log, from
record/infrastructure/changes, whose read key `recorder init` gives to every producer. Only records of client keys count
that the owner of that stream, the recorder's admin, proved to be hers. An emitter without the read key enforces
nothing, and `recorder verify` finds violations afterwards.

    SDR.MAPPING   the type of the event is mapped to another stream, or to none
    SDR.OVERSIZE  the payload is above the limit
"""

import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from veen.client.client import Client
from veen.client.errors import HubRefused, LocalError, UnknownStream
from veen.client.generations.owning import owner_keys
from veen.client.generations.records import KEY_SCHEMAS
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft
from veen.client.transport.calls import is_not_found
from veen.core import cbor
from veen.core.canonical import encode
from veen.core.errors import FormatError
from veen.core.labels import stream_id_of
from veen.lake.query.fields import payload_of
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.config import Configuration, history_of
from veen.products.recorder.events import (
    CHANGES_STREAM,
    CHECKPOINTS_STREAM,
    HEARTBEAT,
    LOSS,
    OPENING,
    OPENINGS_STREAM,
    OWN_STREAM,
    ROTATE,
    START,
    STOP,
)

RECORD_STREAMS: Final = ("record/app/*", "record/security/*", "record/infrastructure/*")
OWN_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys((HEARTBEAT, LOSS, ROTATE, START, STOP), OWN_STREAM),
    OPENING: OPENINGS_STREAM,
}
_CHANGES_ID: Final = stream_id_of(CHANGES_STREAM)
_ADMIN_IDS: Final = frozenset((_CHANGES_ID, stream_id_of(CHECKPOINTS_STREAM)))
_FRESH_SEC: Final = 60.0  # how long a configuration counts before it is read again


class MappingRefused(LocalError, code="SDR.MAPPING"):
    """The event type is mapped to another stream."""


class OversizeRefused(LocalError, code="SDR.OVERSIZE"):
    """The payload is above the recorder's limit."""


def find_mapping_fault(configuration: Configuration, event_type: str, stream_id: bytes) -> str | None:
    """Return the fault of an event type on a stream; None if the configuration allows it."""
    target = configuration.mapping.get(event_type)
    if target is None and event_type in OWN_TYPES:  # an agent must be able to say what it lost
        target = stream_id_of(OWN_TYPES[event_type])
    if not configuration.is_closed or target == stream_id:
        return None
    where = "no stream" if target is None else configuration.streams.get(target, target.hex())
    return f"{event_type} is mapped to {where}"


def find_size_fault(configuration: Configuration, size: int) -> str | None:
    """Return the fault of a payload of this size in bytes; None if it is within the limit."""
    if not configuration.max_payload or size <= configuration.max_payload:
        return None
    return f"{size} bytes, at most {configuration.max_payload} are allowed"


def payload_size(body: sdr.RecorderEvent) -> int:
    """Return the size of a payload in bytes; of a value that is not encoded yet, as JSON."""
    return len(body.payload) if isinstance(body.payload, bytes) else len(encode(payload_of(body.payload)))


class RecorderRules:
    """The recorder's rule for outgoing messages. Used from the client's event loop only."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at: float | None = None
        self._configuration: Configuration | None = None

    async def configuration(self, client: Client) -> Configuration | None:
        """Return the configuration in the log, at most a minute old; None if this client cannot read it."""
        now = self._clock()
        if self._read_at is None or not 0 <= now - self._read_at < _FRESH_SEC:
            self._configuration, self._read_at = await read_configuration(client), now
        return self._configuration

    async def check(
        self, client: Client, keys: StreamKeys, drafts: Sequence[Draft]
    ) -> Sequence[LocalError | None] | None:
        """Check messages to streams of the recorder; return an error for each that the configuration forbids."""
        if keys.stream_id in _ADMIN_IDS or not client.keyring.has(_CHANGES_ID):
            return None
        if keys.name is not None and not is_record_stream(keys.name):
            return None
        configuration = await self.configuration(client)
        if configuration is None or (keys.name is None and keys.stream_id not in configuration.streams):
            return None
        return [find_draft_fault(configuration, keys, draft) for draft in drafts]


def is_record_stream(name: str) -> bool:
    """Return True if a stream of this name is for events of a recorder."""
    return any(fnmatchcase(name, pattern) for pattern in RECORD_STREAMS)


def find_draft_fault(configuration: Configuration, keys: StreamKeys, draft: Draft) -> LocalError | None:
    """Return the error of a message that must not be sent to a stream of the recorder; None if it may be sent."""
    stream, event = str(keys), _event_of(draft)
    if event is not None and (what := find_mapping_fault(configuration, event.event_type, keys.stream_id)) is not None:
        return MappingRefused(f"{stream}: {what}: send it there, or have the admin map the type (veen recorder map)")
    size = len(draft.body) if event is None else payload_size(event)
    if draft.schema not in KEY_SCHEMAS and (what := find_size_fault(configuration, size)) is not None:
        return OversizeRefused(f"{stream}: the payload has {what}")
    return None


def _event_of(draft: Draft) -> sdr.RecorderEvent | None:
    """Return the event in a message; None if it has another schema or is malformed, which readers report."""
    if draft.schema != sdr.EVENT.id:
        return None
    try:
        return sdr.EVENT.body.from_tree(cbor.decode(draft.body))
    except FormatError:
        return None


async def read_configuration(client: Client) -> Configuration | None:
    """Read the configuration of the recorder at this hub; None without its read key or a known admin."""
    try:
        keys = client.keyring.for_stream(CHANGES_STREAM)
    except UnknownStream:
        return None
    owner_pk = client.keyring.owner_of(CHANGES_STREAM)
    if not keys.can_read or owner_pk is None:
        return None
    try:
        events = [entry.event async for entry in client.read(CHANGES_STREAM) if entry.event is not None]
        admins = await owner_keys(client, CHANGES_STREAM)
    except HubRefused as exc:
        if is_not_found(exc):
            return None
        raise
    history = history_of(events, admins)
    return history.now if history.moments else None
