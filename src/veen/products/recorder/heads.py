"""Heads of all streams of a recorder, each signed by the hub, and checkpoints over them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.client.errors import HubRefused
from veen.client.generations.records import KEY_SCHEMAS
from veen.client.identity.keyring import StreamKeys
from veen.client.transport.calls import is_not_found
from veen.core.labels import stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.verdict import Coverage, StatedBy
from veen.overlays.framework.decode import Issue, Typed, decode
from veen.overlays.recorder.checkpoint import CHECKPOINT, EMPTY_ROOT, RecorderCheckpoint, StreamHead, checkpoint
from veen.overlays.recorder.config import Configuration
from veen.products.recorder.events import CHECKPOINTS_STREAM


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
