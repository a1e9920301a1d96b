"""Drives a Store as a hub would, from a fixed script, and knows what every outcome must look like."""

from dataclasses import dataclass, replace

from veen.core.crypto.ed25519 import SigningKey
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import CapAuthorize, ControlRecord, LabelOpen, PolicyAuthority, PolicyRevocation
from veen.core.objects.msg import Msg
from veen.core.objects.policies import Authority, Revocation, realm_id_of
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.storage import frame
from veen.storage.state import Capacity
from veen.storage.store import Group, Store

HUB = SigningKey(b"\x02" * 32)
ISSUER = SigningKey(b"\x09" * 32)
CLIENTS = [SigningKey(bytes([n]) * 32) for n in (1, 3, 4)]
LIMITS = Limits(max_checkpoint_interval=4)
START = 1_700_000_000
SEGMENT_BYTES = 4_000  # small, so that a short script retires several times
TINY = Capacity(labels=1, clients=1, caps=1)  # so that cursors are read again from the index all the time
STREAMS = [stream_id_of(name) for name in ("a", "b")]
LABELS = [label_of(routing_key_of(hub_id_of(HUB.public)), stream, 0) for stream in STREAMS]
TOKENS = [CapToken.issue(ISSUER, client.public, STREAMS, ttl=1_000_000) for client in CLIENTS]


@dataclass(frozen=True)
class Step:
    """One message of the script, ready to be admitted."""

    msg: Msg
    data: bytes
    hub_ts: int


def make_script(count: int) -> list[Step]:
    """Messages of several writers into several labels, of various sizes."""
    sent: dict[tuple[bytes, bytes], int] = {}
    steps = []
    for number in range(count):
        client = number * 7 % len(CLIENTS)
        label = LABELS[number * 5 // 3 % len(LABELS)]
        key = (label, CLIENTS[client].public)
        sent[key] = sent.get(key, 0) + 1
        msg = Msg.compose(
            CLIENTS[client],
            profile_id=PRESETS["bulk"].profile_id(),
            label=label,
            client_seq=sent[key],
            prev_ack=0,
            auth_ref=TOKENS[client].auth_ref(),
            ciphertext=bytes(40) + bytes([number % 256]) * (number * 13 % 200),
        )
        steps.append(Step(msg, msg.to_bytes(), START + number // 3))
    return steps


SCRIPT = make_script(40)
_GIVEN = Authority(
    realm_id=realm_id_of("default"),
    stream_id=STREAMS[0],
    primary_hub=hub_id_of(HUB.public),
    replica_hubs=(),
    policy="single-primary",
    ts=START,
    ttl=500,
)
POLICIES = {  # by the second before whose first entry they are journaled
    START + 2: PolicyRevocation(revocations=(Revocation(kind="client-id", target=bytes(32), ts=START),)),
    START + 4: PolicyAuthority(authorities=(_GIVEN, replace(_GIVEN, stream_id=STREAMS[1], ts=START + 90, ttl=2))),
    START + 7: PolicyRevocation(
        revocations=(
            Revocation(kind="auth-ref", target=bytes(32), ts=START, ttl=9),  # over before the script is
            Revocation(kind="cap-token", target=bytes(32), ts=2**64 - 2, ttl=2**64 - 1),
        )
    ),
}


def seal(files, upto_seq, mmr_root, hub_ts):
    return Checkpoint.issue(
        HUB, label_prev=files.label, label_curr=files.label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=files.epoch
    )


def open_store(fs) -> Store:
    return Store.open(fs, LIMITS, seal, segment_bytes=SEGMENT_BYTES, capacity=TINY)


def control(store: Store, group: Group, body, hub_ts: int) -> None:
    record = ControlRecord.issue(HUB, store.state.control, body, hub_ts=max(hub_ts, store.state.hub_ts))
    store.stage_control(record)
    group.add_control(record)


def stage(store: Store, group: Group, step: Step) -> frame.Frame:
    """What a hub does after it decided to accept."""
    msg = step.msg
    if msg.auth_ref is not None and msg.auth_ref not in store.state.caps:
        token = next(token for token in TOKENS if token.auth_ref() == msg.auth_ref)
        control(store, group, CapAuthorize.of(token), step.hub_ts)
    if msg.label not in store.state.labels:
        stream = STREAMS[LABELS.index(msg.label)]
        control(store, group, LabelOpen(label=msg.label, epoch=0, stream_id=stream), step.hub_ts)
    admitted = store.state.admit(
        store.state.labels[msg.label],
        client_id=msg.client_id,
        client_seq=msg.client_seq,
        prev_ack=msg.prev_ack,
        auth_ref=msg.auth_ref,
        leaf_hash=msg.leaf_hash(),
        hub_ts=step.hub_ts,
    )
    receipt = Receipt.issue(
        HUB,
        label=msg.label,
        stream_seq=admitted.stream_seq,
        leaf_hash=admitted.leaf_hash,
        mmr_root=admitted.mmr_root,
        hub_ts=step.hub_ts,
    )
    framed = frame.encode(msg.label, admitted.stream_seq, step.data, receipt.to_bytes())
    group.add_entry(admitted, framed.msg, framed.receipt)
    return framed


def stage_policy(store: Store, group: Group, body, hub_ts: int) -> None:
    """What a hub does with a view that is handed to it: journal what it did not know."""
    items = body.revocations if isinstance(body, PolicyRevocation) else body.authorities
    if any(store.state.policies.is_news(item, hub_ts) for item in items):
        control(store, group, body, hub_ts)


def remembered(store: Store):
    """What admission remembers besides the cursors: the policy view, and when each client began."""
    state = store.state
    return list(state.policies.in_force(state.hub_ts)), {key.public: state.first_ts(key.public) for key in CLIENTS}


def remaining(store: Store) -> list[Step]:
    """The steps that the store has not accepted yet."""
    rest = []
    for step in SCRIPT:
        label = store.state.labels.get(step.msg.label)
        cursor = store.state.client(label, step.msg.client_id) if label else None
        if cursor is None or step.msg.client_seq > cursor.client_seq:
            rest.append(step)
    return rest


def drive(
    store: Store, released: list[frame.Frame], sizes=(1, 3, 2, 5), *, policies: bool = False, at_most: int | None = None
) -> None:
    """Submit what remains, in groups; `released` grows as receipts leave. With `policies`, records of POLICIES too."""
    rest, turn = remaining(store)[:at_most], 0
    while rest:
        size = sizes[turn % len(sizes)]
        turn += 1
        group = Group()
        frames = []
        for step in rest[:size]:
            if policies and (body := POLICIES.get(step.hub_ts)) is not None:
                stage_policy(store, group, body, step.hub_ts)
            frames.append(stage(store, group, step))
        rest = rest[size:]
        store.journal.write(group.payload())
        released += frames  # from here on a client may hold these receipts
        store.apply(group)
        if store.journal_is_full:
            store.retire()


def check_released(store: Store, released: list[frame.Frame]) -> None:
    """Nothing acknowledged is lost or changed."""
    for framed in released:
        files = store.files(framed.label)
        assert files is not None
        assert files.size >= framed.stream_seq
        assert store.reader.frames(files, framed.stream_seq, framed.stream_seq, 0) == [framed]
