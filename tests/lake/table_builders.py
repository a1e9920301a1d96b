"""Logs with everything that can be wrong with an entry, for the tests of events and tables."""

import random
import shutil
from hashlib import sha256

from tests.lake.query_builders import STREAMS, Recorder
from tests.storage.builders import HUB_ID

from veen.client.identity.keyring import StreamKeys
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.io.local import OsFs
from veen.storage.index import Index
from veen.storage.maintenance.retention import Periods, RetentionPolicy, apply, plan
from veen.storage.scan import inventory

DAY = 86_400
LABELS = [label_of(routing_key_of(HUB_ID), stream_id_of(name), 0) for name in STREAMS]


def grow(world, count, rng, *, step=(0, 0, 1, 5)):
    """Entries of several streams, epochs and writers, some of which the reader cannot open."""
    for _ in range(count):
        world.now += rng.choice(step)
        stream, client, epoch = rng.choice(STREAMS), rng.randrange(3), rng.choice((0, 0, 1))
        chance = rng.random()
        if chance < 0.05:
            world.emit(stream, client=client, epoch=epoch, body=b"not cbor")
        elif chance < 0.1:
            world.emit(stream, client=client, epoch=epoch, schema=sha256(b"other").digest())
        elif chance < 0.15:
            world.emit(stream, client=client, epoch=epoch, keys=StreamKeys.create(stream))
        elif chance < 0.2:
            world.emit(stream, client=client, epoch=epoch, cap_ref=bytes(32))  # refused by readers: CLNT-13
        else:
            world.emit(stream, client=client, epoch=epoch)
    return world


def made(path, count, seed=0, **settings):
    path.mkdir(parents=True, exist_ok=True)
    return grow(Recorder(path), count, random.Random(seed), **settings)


def spoil(path, rng):
    """Damage one chunk, cut another, lose a third; says which labels are hit."""
    chunks = [path / file.path for files in inventory(OsFs(path)).values() for file in files if file.kind == "chunk"]
    flipped, cut_off, lost = rng.sample(sorted(chunks)[1:], 3)
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(bytes(data))
    cut_off.write_bytes(cut_off.read_bytes()[:-7])
    lost.unlink()
    return {name.name.split("-")[1] for name in (flipped, cut_off, lost)}


def erase(world, *, receipts=False, after=10_000):
    """What `veen hub` does under a retention policy: payloads, and perhaps receipts, of sealed chunks go."""
    world.store.retire()
    index = Index(world.fs)
    periods = Periods(payload_sec=1, receipt_sec=1) if receipts else Periods(payload_sec=1)
    apply(
        world.fs,
        plan(index, RetentionPolicy(periods), world.now + after),
        world.control,
        dropped=world.store.drop_level,
    )
    index.close()
    world.store.retire()


def copy_of(path, to):
    shutil.copytree(path, to, ignore=shutil.ignore_patterns("keys", "index.db*"))
    return to
