"""Logs of recorder events, really sealed and signed, for the tests of queries."""

import random
from hashlib import sha256
from typing import Any

from tests.storage.builders import HUB_ID, World
from tests.storage.driver import CLIENTS

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core import canonical
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.core.objects.control import LabelOpen
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Binding, seal
from veen.io.local import OsFs
from veen.overlays.recorder import events as sdr
from veen.storage import frame
from veen.storage.store import Group

STREAMS = ("record/app/http", "record/security/auth", "record/infra/disk")
KEYS = {name: StreamKeys.create(name, random=random.Random(name).randbytes) for name in STREAMS}
KEYRING = Keyring.of(KEYS.values())
CLIENTS_PUBLIC = [client.public for client in CLIENTS]
SUBJECTS = ("user:1", "user:2", "user:é", "svc")
TYPES = ("login", "logout", "read")
ORIGINS = ("gw-1", "gw-2")


class Recorder(World):
    """A hub without admission, and writers of recorder events."""

    def __init__(self, path, **settings):
        super().__init__(OsFs(path) if path is not None else None, **settings)  # None: in memory
        self.path = path
        self.sent = 0

    def emit(
        self, stream=STREAMS[0], *, client=0, epoch=0, profile="bulk", schema=None, body=None, keys=None, cap_ref=None,
        expires_at=None, **fields,
    ):  # fmt: skip
        """One event; what is not given is a function of how many came before."""
        number = self.sent
        self.sent += 1
        writer = CLIENTS[client]
        if body is None:
            event = {
                "subject_id": SUBJECTS[number % len(SUBJECTS)],
                "principal_id": writer.public,
                "event_type": TYPES[number % len(TYPES)],
                "event_time": self.now - 3,
                "origin": ORIGINS[number % len(ORIGINS)],
                "payload": {"n": number},
            }
            body = sdr.event(**(event | fields)).body
        label = label_of(routing_key_of(HUB_ID), stream_id_of(stream), epoch)
        state, group = self.store.state, Group()
        if label not in state.labels:
            self.control(LabelOpen(label=label, epoch=epoch, stream_id=stream_id_of(stream)), group)
        label_state = state.labels[label]
        cursor = state.client(label_state, writer.public)
        place: dict[str, Any] = {
            "profile_id": PRESETS[profile].profile_id(),
            "label": label,
            "client_seq": cursor.client_seq + 1 if cursor else 1,
            "prev_ack": label_state.size // 2,
            "auth_ref": None,
        }
        sealed = seal(
            (keys or KEYS[stream]).reader_pk,
            Binding(client_id=writer.public, **place),
            PayloadHdr(schema=schema or sdr.EVENT.id, cap_ref=cap_ref, expires_at=expires_at),
            body,
            ikm=sha256(b"ikm" + number.to_bytes(8, "big")).digest(),
            pad_block=PRESETS[profile].pad_block,
        )
        msg = Msg.compose(writer, ciphertext=sealed.ciphertext, **place)
        admitted = state.admit(
            label_state,
            client_id=msg.client_id,
            client_seq=msg.client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=None,
            leaf_hash=msg.leaf_hash(),
            hub_ts=self.now,
        )
        receipt = Receipt.issue(
            self.keys.signing_key_at(self.now),
            label=label,
            stream_seq=admitted.stream_seq,
            leaf_hash=admitted.leaf_hash,
            mmr_root=admitted.mmr_root,
            hub_ts=self.now,
        )
        framed = frame.encode(label, admitted.stream_seq, msg.to_bytes(), receipt.to_bytes())
        group.add_entry(admitted, framed.msg, framed.receipt)
        self.commit(group)
        self.frames.append(framed)
        return receipt

    def done(self):
        self.store.close()
        return str(self.path)


def filled(path, count, seed=0, *, noise=True):
    """A log of several streams, epochs and writers; with `noise` also of what can be no row."""
    rng = random.Random(seed)
    world = Recorder(path)
    for number in range(count):
        world.now += rng.choice((0, 0, 1, 5))
        stream, client, epoch = rng.choice(STREAMS), rng.randrange(3), rng.choice((0, 0, 1))
        chance = rng.random() if noise else 1
        if chance < 0.05:
            world.emit(stream, client=client, epoch=epoch, body=b"not cbor")
        elif chance < 0.1:
            world.emit(stream, client=client, epoch=epoch, schema=sha256(b"other").digest())
        elif chance < 0.15:
            world.emit(stream, client=client, epoch=epoch, keys=StreamKeys.create(stream))
        else:
            world.emit(
                stream,
                client=client,
                epoch=epoch,
                subject_id=rng.choice(SUBJECTS),
                event_type=rng.choice(TYPES),
                origin=rng.choice(ORIGINS),
                event_time=world.now - rng.randrange(100),
                payload=payload(rng, number),
            )
    return world


def payload(rng, number):
    plain = {"n": number, "tags": ["a", {"k": rng.randrange(3)}], "raw": b"\x00\x01"}
    amount = rng.choice((None, "text", rng.randrange(-5, 100), True))
    if rng.random() < 0.5:
        price = canonical.parse(rng.choice(("0.1", "12.345", "-3", "1e-9", "99999999999999999999.5")))
        return canonical.encode({"amount": amount, "price": price, "where": {"rack": rng.randrange(4)}})
    return plain | {"amount": amount, "where": {"rack": rng.randrange(4)}}


def descriptor(**changed):
    """What a client might send; keys that are None are left out."""
    members = {"scope": list(STREAMS), "filter": {}, "projection": ["*"], "evidence": {"mode": "none"}}
    return {name: value for name, value in (members | changed).items() if value is not None}
