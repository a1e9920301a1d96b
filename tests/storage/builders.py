"""Small data directories with everything in them: identity, control journal, sealed and active chunks, rotations."""

from tests.storage.driver import CLIENTS, HUB, POLICIES, START, STREAMS, TOKENS

from veen.core.labels import hub_id_of, label_of, routing_key_of
from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import CapAuthorize, ControlRecord, LabelOpen, LimitsSet, StreamRegister
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.storage import frame
from veen.storage.index import Index
from veen.storage.keys import identity
from veen.storage.keys.identity import HubKeys
from veen.storage.store import Group, Store
from veen.testing.memfs import MemFs

LIMITS = Limits(max_checkpoint_interval=3)
HUB_ID = hub_id_of(HUB.public)
LABELS = [label_of(routing_key_of(HUB_ID), stream, 0) for stream in STREAMS]


class World:
    """A hub without admission: what it is told to accept, it accepts."""

    def __init__(self, fs=None, *, limits=LIMITS, segment_bytes=1 << 20) -> None:
        self.fs = fs if fs is not None else MemFs()
        self.keys: HubKeys = (
            identity.load(self.fs) if identity.exists(self.fs) else identity.create(self.fs, HUB.seed, START)
        )
        self.limits = limits
        self.store = Store.open(self.fs, limits, self.seal, segment_bytes=segment_bytes)
        self.frames: list[frame.Frame] = []
        self.now = max(START, self.store.state.hub_ts)

    def seal(self, files, upto_seq, mmr_root, hub_ts) -> Checkpoint:
        return Checkpoint.issue(
            self.keys.signing_key_at(hub_ts),
            label_prev=files.label,
            label_curr=files.label,
            upto_seq=upto_seq,
            mmr_root=mmr_root,
            epoch=files.epoch,
            witnesses=self.keys.witnesses_at(hub_ts),
        )

    # --- one group each ----------------------------------------------------------------------------------

    def commit(self, group: Group) -> None:
        self.store.journal.write(group.payload())
        self.store.apply(group)

    def control(self, body, group=None) -> ControlRecord:
        own = group if group is not None else Group()
        record = ControlRecord.issue(
            self.keys.signing_key_at(self.now), self.store.state.control, body, hub_ts=self.now
        )
        self.store.stage_control(record)
        own.add_control(record)
        if group is None:
            self.commit(own)
        return record

    def send(self, label=0, client=0, size=20, *, token=True, group=None) -> frame.Frame:
        """One message, with the records it needs before it."""
        own = group if group is not None else Group()
        state, name, writer = self.store.state, LABELS[label], CLIENTS[client]
        auth_ref = TOKENS[client].auth_ref() if token else None
        if auth_ref is not None and auth_ref not in state.caps:
            self.control(CapAuthorize.of(TOKENS[client]), own)
        if name not in state.labels:
            self.control(LabelOpen(label=name, epoch=0, stream_id=STREAMS[label]), own)
        cursor = state.client(state.labels[name], writer.public)
        msg = Msg.compose(
            writer,
            profile_id=PRESETS["bulk"].profile_id(),
            label=name,
            client_seq=cursor.client_seq + 1 if cursor else 1,
            prev_ack=state.labels[name].size // 2,
            auth_ref=auth_ref,
            ciphertext=bytes([size % 256]) * size,
        )
        raw = msg.to_bytes()
        admitted = state.admit(
            state.labels[name],
            client_id=msg.client_id,
            client_seq=msg.client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref,
            leaf_hash=msg.leaf_hash(),
            hub_ts=self.now,
        )
        receipt = Receipt.issue(
            self.keys.signing_key_at(self.now),
            label=name,
            stream_seq=admitted.stream_seq,
            leaf_hash=admitted.leaf_hash,
            mmr_root=admitted.mmr_root,
            hub_ts=self.now,
        )
        framed = frame.encode(name, admitted.stream_seq, raw, receipt.to_bytes())
        own.add_entry(admitted, framed.msg, framed.receipt)
        if group is None:
            self.commit(own)
        self.frames.append(framed)
        return framed

    def bind(self) -> None:
        index = Index(self.fs)
        identity.write_binding(self.fs, self.keys.identity, index)
        index.close()

    def reopen(self, **settings) -> "World":
        return World(self.fs, limits=self.limits, **settings)


def fill(world: World, count: int, *, retire_every: int = 0) -> None:
    """Messages of several writers into two labels, seconds apart."""
    for number in range(count):
        world.now += number % 2
        world.send(label=number * 5 // 3 % 2, client=number % 3, size=17 + number * 7 % 60, token=number % 4 != 3)
        if retire_every and number % retire_every == retire_every - 1:
            world.store.retire()


def small(count: int = 10) -> World:
    """A directory at rest: two labels, sealed and active chunks, identity, control journal, limits, binding."""
    world = World()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    world.control(StreamRegister(stream_id=STREAMS[0]))
    for body in POLICIES.values():
        world.control(body)
    fill(world, count)
    world.store.close()
    world.bind()
    return world


def copy_of(fs: MemFs, **changed: bytes | None) -> MemFs:
    """The same directory, with some files changed or, if None, removed."""
    files = fs.files()
    for path, data in changed.items():
        if data is None:
            del files[path]
        else:
            files[path] = data
    return MemFs(files, fs.database_bytes())


def identity_of(world: World) -> HubIdentity:
    return world.keys.identity
