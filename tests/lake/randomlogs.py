"""Logs of any kind, from a seed: streams, epochs, writers, sizes, chunks; erased, cut off, damaged, or simply good.

What must not depend on how the work is dealt out is compared over many of these.
"""

import random
from dataclasses import dataclass
from hashlib import sha256

from tests.lake.audit_builders import dump
from tests.lake.query_builders import KEYS as RECORDER_KEYS
from tests.lake.query_builders import ORIGINS, SUBJECTS, TYPES, Recorder, payload
from tests.storage.driver import START

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.limits import Limits
from veen.core.objects.control import LimitsSet
from veen.overlays import crdt, kv
from veen.storage.index import Index
from veen.storage.maintenance.retention import Periods, RetentionPolicy, apply, plan

STATE = "state/kv"
COUNTER = "state/counter"
_MORE = {name: StreamKeys.create(name, random=random.Random(name).randbytes) for name in (STATE, COUNTER)}
KEYS = RECORDER_KEYS | _MORE
KEYRING = Keyring.of(KEYS.values())
VARIANTS = ("good", "good", "erased", "cut off", "damaged", "damaged")

_DAMAGED = ("log/", "hub-identity", "hub-key-map", "checkpoint-binding")


@dataclass(frozen=True)
class RandomLog:
    """The files of a directory, and what was done to them."""

    seed: int
    variant: str
    files: dict[str, bytes]

    def put(self, path, *, shuffled=False):
        """Onto the disk; in another order, if directories are to be listed in another one."""
        names = list(self.files)
        if shuffled:
            random.Random(self.seed).shuffle(names)
        path.mkdir()
        return dump({name: self.files[name] for name in names}, path)


def random_log(seed, most=60):
    """The log of this seed: up to `most` entries."""
    rng = random.Random(f"log {seed}")
    variant = rng.choice(VARIANTS)
    world = _grown(rng, rng.randrange(1, most))
    if variant == "erased":
        _erase(world, rng)
    world.store.close()
    world.bind()
    files = world.fs.files()
    if variant == "cut off":
        files = _cut_off(files, rng)
    elif variant == "damaged":
        files = damaged(files, rng)
    return RandomLog(seed, variant, files)


def _grown(rng, count):
    limits = Limits(max_checkpoint_interval=rng.randrange(1, 12))
    world = Recorder(None, limits=limits)
    world.now = START + rng.randrange(3600)
    world.control(LimitsSet(limits=limits.to_json()))
    streams = rng.sample(sorted(KEYS), rng.randint(1, len(KEYS)))
    rotating = rng.random() < 0.4  # one profile for one hub (D-25)
    for number in range(count):
        world.now += rng.choice((0, 0, 1, 5, 1300 if rotating else 40))
        where = {
            "client": rng.randrange(3),
            "epoch": world.now // 3600 if rotating else 0,
            "profile": "rotating" if rotating else "bulk",
        }
        _emit(world, rng, rng.choice(streams), number, where)
        if rng.random() < 0.05:
            world.store.retire()
    return world


def _emit(world, rng, stream, number, where):
    chance = rng.random()
    if chance < 0.04:
        world.emit(stream, keys=KEYS[stream], body=rng.randbytes(rng.randrange(40)), **where)
    elif chance < 0.08:
        world.emit(stream, keys=KEYS[stream], schema=sha256(b"other").digest(), **where)
    elif chance < 0.12:
        stranger = StreamKeys.create(stream, random=rng.randbytes)
        world.emit(stream, keys=stranger, **where)
    elif stream == STATE:
        key, ts = f"key/{rng.randrange(6)}", rng.choice((None, None, world.now - rng.randrange(9)))
        expires = {} if rng.random() < 0.8 else {"expires_at": world.now + rng.randrange(30)}
        draft = kv.delete(key, ts=ts) if rng.random() < 0.2 else kv.put(key, {"n": number}, ts=ts, **expires)
        world.emit(stream, keys=KEYS[stream], schema=draft.schema, body=draft.body, **where)
    elif stream == COUNTER:
        draft = crdt.counter_add(bytes([rng.randrange(4)]) * 32, rng.randrange(1, 1 << rng.randrange(1, 40)))
        world.emit(stream, keys=KEYS[stream], schema=draft.schema, body=draft.body, **where)
    else:
        world.emit(
            stream,
            subject_id=rng.choice(SUBJECTS),
            event_type=rng.choice(TYPES),
            origin=rng.choice(ORIGINS),
            event_time=world.now - rng.randrange(100),
            payload=payload(rng, number),
            **where,
        )


def _erase(world, rng):
    """Under a retention policy: payloads, and of some logs receipts as well."""
    world.store.retire()
    periods = rng.choice((Periods(payload_sec=1), Periods(payload_sec=1, receipt_sec=1)))
    index = Index(world.fs)
    apply(
        world.fs,
        plan(index, RetentionPolicy(periods), world.now + rng.choice((0, 30, 10_000))),
        world.control,
        dropped=world.store.drop_level,
    )
    index.close()


def _cut_off(files, rng):
    """As after a loss of power that the journal does not make good, or a copy that was not finished."""
    files = dict(files)
    name = rng.choice(sorted(name for name in files if name.endswith(".log") and files[name]))
    files[name] = files[name][: rng.randrange(len(files[name]))]
    return files


def damaged(files, rng):
    """Some files of a log, after an accident or an attack."""
    files = dict(files)
    names = sorted(name for name in files if name.startswith(_DAMAGED) and files[name])
    logs = [name for name in names if name.endswith(".log")]
    for _ in range(rng.randrange(1, 4)):
        name = rng.choice(names if rng.randrange(3) else logs)
        if name not in files or not files[name]:
            continue
        data = bytearray(files[name])
        kind = rng.randrange(6)
        if kind <= 2:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == 3:
            del data[rng.randrange(len(data)) :]
        elif kind == 4:
            del files[name]
            continue
        else:
            other = rng.choice(logs)
            files[name], files[other] = files.get(other, b""), files[name]
            continue
        files[name] = bytes(data)
    return files
