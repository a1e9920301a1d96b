"""Configuration at the hub: writes and reads the records of sdr.config.v1 and the label classes.

Heads of all streams of a recorder, each signed by the hub, and checkpoints over them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.client.errors import HubRefused, UnknownStream
from veen.client.generations.owning import announce_card, owner_keys
from veen.client.generations.records import KEY_SCHEMAS
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.transport.calls import is_not_found
from veen.core.event import Event
from veen.core.labels import stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.verdict import Coverage, StatedBy
from veen.overlays.federation.realm import DEFAULT_REALM, admin_streams
from veen.overlays.framework.schema import Draft, Issue, Typed, decode
from veen.overlays.naming.label_class import LABEL_CLASS, LabelClassFold, classify
from veen.overlays.recorder.checkpoint import CHECKPOINT, EMPTY_ROOT, RecorderCheckpoint, StreamHead, checkpoint
from veen.overlays.recorder.config import LONG_TERM_SEC, Configuration, History, change, history_of
from veen.products.recorder.events import CHANGES_STREAM, CHECKPOINTS_STREAM, MAX_PAYLOAD
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


def select_covered(streams: Sequence[StreamKeys]) -> list[StreamKeys]:
    """Return the streams that a checkpoint covers: all except its own (D-123)."""
    own = stream_id_of(CHECKPOINTS_STREAM)
    return [keys for keys in streams if keys.stream_id != own]


async def heads_of(client: Client, streams: Sequence[StreamKeys]) -> list[StreamHead]:
    """Return the head of every label of every stream, with the hub's CHECKPOINT, verified against earlier proofs."""
    heads = []
    for keys in streams:
        signed = await _checkpoints(client, keys)
        heads += [
            StreamHead(
                stream_id=keys.stream_id,
                label=entry.label_curr,
                epoch=entry.epoch,
                last_seq=entry.upto_seq,
                mmr_root=entry.mmr_root,
                checkpoint=entry.to_bytes(),
            )
            for entry in signed
        ]
        if not signed:
            epoch = (await client.status()).epoch
            label = client.label(keys, epoch)
            heads.append(
                StreamHead(
                    stream_id=keys.stream_id, label=label, epoch=epoch, last_seq=0, mmr_root=EMPTY_ROOT, checkpoint=b""
                )
            )
    return heads


async def _checkpoints(client: Client, keys: StreamKeys) -> list[Checkpoint]:
    try:
        return await client.checkpoints(keys)
    except HubRefused as exc:
        if is_not_found(exc):
            return []
        raise


@dataclass(frozen=True, slots=True)
class RecordedHead:
    """A checkpoint in the log and its position."""

    body: RecorderCheckpoint
    msg_id: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The checkpoints of a recorder in order, and the faults of their stream."""

    records: tuple[RecordedHead, ...]
    issues: tuple[Issue, ...]
    compared: tuple[Coverage, ...] = ()  # one row for each label; none if the hub has no entry of the stream

    @property
    def last(self) -> RecordedHead | None:
        return self.records[-1] if self.records else None


async def read_chain(client: Client, admins: Collection[bytes] | None) -> Chain:
    """Read the stream of checkpoints and check form, author and the chain of `prev`."""
    records: list[RecordedHead] = []
    issues: list[Issue] = []
    heads = await _heads(client)
    read: dict[int, int] = {}
    async for entry in client.read(CHECKPOINTS_STREAM):
        label, seq = entry.receipt.label, entry.seq
        read[entry.epoch] = seq
        if entry.event is None:
            issues.append(Issue(label, seq, "SDR.UNREADABLE", entry.error or "it cannot be opened"))
            continue
        if entry.event.hdr.schema in KEY_SCHEMAS:
            continue  # for the client: whose key it is
        if entry.event.hdr.schema != CHECKPOINT.id:
            issues.append(Issue(label, seq, "SDR.FOREIGN_SCHEMA", "not a checkpoint of a recorder"))
            continue
        typed = decode(entry.event, CHECKPOINT)
        if not isinstance(typed, Typed):
            issues.append(typed)
            continue
        if admins is not None and entry.event.client_id not in admins:
            issues.append(Issue(label, seq, "SDR.ADMIN", "a checkpoint by another client than the admin"))
            continue
        expected = records[-1].msg_id if records else None
        if typed.body.prev != expected:
            issues.append(Issue(label, seq, "SDR.CHAIN", "prev does not name the checkpoint before it"))
        records.append(RecordedHead(typed.body, entry.msg_id, seq))
    compared = [
        Coverage(
            log=CHECKPOINTS_STREAM if epoch == 0 else f"{CHECKPOINTS_STREAM} epoch {epoch}",
            read=read.get(epoch, 0),
            head=heads.get(epoch),
            stated_by=StatedBy.HUB if epoch in heads else StatedBy.NOBODY,
            identity=identity_of(client),
        )
        for epoch in sorted({*heads, *read})
    ]
    return Chain(tuple(records), tuple(issues), tuple(compared))


def identity_of(client: Client) -> str:
    """Return the newest hub key of the client's pin: the key that signatures are verified with."""
    return f"ed25519:{client.pin.keys[-1].hub_pk.hex()}"


async def _heads(client: Client) -> dict[int, int]:
    """Return the signed end of each label of the checkpoint stream, by epoch."""
    try:
        return {signed.epoch: signed.upto_seq for signed in await client.checkpoints(CHECKPOINTS_STREAM)}
    except HubRefused as exc:
        if is_not_found(exc):
            return {}
        raise


def is_due(last: RecordedHead | None, events: int, now: int, configuration: Configuration) -> bool:
    """Return True if a checkpoint is due by time or by number of events. Streams without new entries need none.

    A clock that was set back makes one due: it could otherwise take days to pass the time of the last one again.
    """
    if last is None:
        return True
    grown = events - last.body.events
    by_time = bool(configuration.every_sec) and not 0 <= now - last.body.ts < configuration.every_sec
    by_volume = bool(configuration.every_events) and grown >= configuration.every_events
    return grown > 0 and (by_time or by_volume)


async def take(
    authority: TokenAuthority,
    streams: Sequence[StreamKeys],
    configuration: Configuration,
    last: RecordedHead | None,
    *,
    now: int,
) -> RecordedHead:
    """Write a checkpoint of all streams, chained to the last one."""
    client = authority.client
    status = await client.status()
    draft = checkpoint(
        await heads_of(client, select_covered(streams)),
        hub_id=client.hub_id,
        hub_pk=status.hub_pk,
        profile_id=status.profiles[0].profile_id(),
        sdr_profile_id=configuration.profile_id(),
        ts=now,
        prev=None if last is None else last.msg_id,
    )
    sent = await authority.send(stream_id_of(CHECKPOINTS_STREAM), draft)
    return RecordedHead(RecorderCheckpoint.from_bytes(draft.body), sent.msg_id, sent.seq)
