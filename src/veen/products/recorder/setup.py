"""Configuration at the hub: writes and reads the records of sdr.config.v1 and the label classes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.client.errors import HubRefused, UnknownStream
from veen.client.generations.owning import announce_card, owner_keys
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring
from veen.core.event import Event
from veen.core.labels import stream_id_of
from veen.overlays.federation.realm import DEFAULT_REALM, admin_streams
from veen.overlays.framework.body import Draft
from veen.overlays.naming.label_class import LABEL_CLASS, LabelClassFold, classify
from veen.overlays.recorder.config import LONG_TERM_SEC, Configuration, History, change, history_of
from veen.products.recorder.events import CHANGES_STREAM, MAX_PAYLOAD
from veen.products.recorder.roles import record_streams
from veen.products.recorder.rules import OWN_TYPES

DEFAULT_EVERY_SEC: Final = 300
DEFAULT_EVERY_EVENTS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wanted configuration. It is compared with the log, and only what is missing is written."""

    producers: Mapping[bytes, Sequence[str]]  # client_id -> streams
    mapping: Mapping[str, str]  # event_type -> stream
    every_sec: int | None = None  # None: what is configured, or the default
    every_events: int | None = None
    max_payload: int | None = None
    retention_sec: int = LONG_TERM_SEC
    withdrawn: Collection[bytes] = ()  # client_ids that record nothing any more


async def events_of(client: Client, stream: str | bytes) -> list[Event]:
    """Return every event of a stream that opens, read and verified; none if the stream is empty."""
    return [entry.event async for entry in client.read(stream) if entry.event is not None]


async def read_history(client: Client, admins: Collection[bytes] | None) -> History:
    """Return the history of the recorder's configuration at this hub."""
    return history_of(await events_of(client, CHANGES_STREAM), admins)


async def apply(authority: TokenAuthority, identity: Identity, ring: Keyring, wanted: Wanted, *, now: int) -> list[str]:
    """Write the missing records as the admin `identity`; return one line for each record written.

    The admin proves on the stream of changes that the client key is hers, so that emitters know whose records count.
    """
    await _announce(authority, identity)
    history = await read_history(authority.client, None)
    drafts = _drafts_of(history.now, wanted, _streams(ring, wanted), now)
    for _, draft in drafts:
        await authority.send(stream_id_of(CHANGES_STREAM), draft)
    lines = [line for line, _ in drafts]
    return lines + await _classes(authority, ring, wanted.retention_sec)


async def _announce(authority: TokenAuthority, identity: Identity) -> None:
    client = authority.client
    if client.keyring.owner_of(CHANGES_STREAM) != identity.id_sign_pk:
        return
    state = await client.key_state(CHANGES_STREAM)
    if state is None or state.author(client.client_id) is None:
        await authority.capability(stream_id_of(CHANGES_STREAM))
        await announce_card(client, identity, CHANGES_STREAM)


def _streams(ring: Keyring, wanted: Wanted) -> dict[bytes, str]:
    named = {keys.stream_id: str(keys) for keys in record_streams(ring)}
    for streams in wanted.producers.values():
        named.update({stream_id_of(stream): stream for stream in streams})
    return named


def _drafts_of(
    current: Configuration, wanted: Wanted, streams: Mapping[bytes, str], now: int
) -> list[tuple[str, Draft]]:
    drafts: list[tuple[str, Draft]] = []

    def add(line: str, kind: str, **fields: object) -> None:
        drafts.append((line, change(kind, ts=now, **fields)))

    max_payload = wanted.max_payload or current.max_payload or MAX_PAYLOAD
    if current.max_payload != max_payload:
        add(f"payload up to {max_payload} bytes", "payload", max_payload=max_payload)
    every_sec = wanted.every_sec or current.every_sec or DEFAULT_EVERY_SEC
    every_events = wanted.every_events or current.every_events or DEFAULT_EVERY_EVENTS
    if (current.every_sec, current.every_events) != (every_sec, every_events):
        line = f"checkpoint every {every_sec} s or {every_events} events"
        add(line, "checkpoint", every_sec=every_sec, every_events=every_events)
    for stream_id, stream in sorted(streams.items(), key=lambda pair: pair[1]):
        if current.retention.get(stream_id) != wanted.retention_sec:
            line = f"retention {stream} {wanted.retention_sec} s"
            add(line, "retention", stream_id=stream_id, stream=stream, retention_sec=wanted.retention_sec)
    for client_id, names in wanted.producers.items():
        for stream in names:
            if stream_id_of(stream) not in current.producers.get(client_id, ()):
                line = f"producer {client_id.hex()[:16]}… {stream}"
                add(line, "producer", producer=client_id, stream_id=stream_id_of(stream), stream=stream)
    for client_id in wanted.withdrawn:
        for stream_id in sorted(current.producers.get(client_id, ())):
            stream = current.streams.get(stream_id, stream_id.hex())
            line = f"withdraw {client_id.hex()[:16]}… {stream}"
            add(line, "withdraw", producer=client_id, stream_id=stream_id, stream=stream)
    # The recorder's own types are mapped with the first mapping: from then on every type must be (D-122).
    mapping = {**OWN_TYPES, **wanted.mapping} if wanted.mapping and not current.is_closed else dict(wanted.mapping)
    for kind, stream in mapping.items():
        if current.mapping.get(kind) != stream_id_of(stream):
            add(f"map {kind} to {stream}", "map", event_type=kind, stream_id=stream_id_of(stream), stream=stream)
    return drafts


async def _classes(authority: TokenAuthority, ring: Keyring, retention_sec: int) -> list[str]:
    """Set class "log" and the retention hint for the current label of each stream (SDR-03)."""
    stream_id = admin_streams(DEFAULT_REALM).label_class
    try:
        ring.for_stream(stream_id)
        events = await events_of(authority.client, stream_id)
    except (UnknownStream, HubRefused):
        return []
    proven = await owner_keys(authority.client, stream_id)
    fold = LabelClassFold(emitters={stream_id: {**dict.fromkeys(authority.client.client_ids), **proven}})
    classes = fold.view(fold.summarize(event for event in events if event.hdr.schema == LABEL_CLASS.id))
    lines = []
    for keys in record_streams(ring):
        label = authority.client.label(keys)
        current = classes.labels.get(label)
        if current is None or current.retention_hint != retention_sec:
            await authority.send(stream_id, classify(label, "log", retention_hint=retention_sec))
            lines.append(f"label class log {keys}")
    return lines
