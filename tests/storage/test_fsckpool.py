"""Verification on several cores: the same report, whatever is wrong and whoever verifies."""

import os
import signal

import pytest
from tests.damage import flipped
from tests.examples import spread
from tests.storage.builders import LABELS, World, copy_of
from tests.storage.driver import CLIENTS, TOKENS

from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.storage import layout
from veen.storage.scan import ScannedEntry, item_of
from veen.storage.store import Group
from veen.verify import signatures as fsckpool
from veen.verify.directory import verify_data
from veen.verify.signatures import SignaturePool


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(fsckpool, "_BATCH", 4)


def send_bad(world, *, forged=False, foreign=False):
    """An entry that no honest hub accepts: with a forged signature, or under the token of another client."""
    state, label = world.store.state, world.store.state.labels[LABELS[0]]
    cursor = state.client(label, CLIENTS[0].public)
    token = TOKENS[1 if foreign else 0]
    msg = Msg.compose(
        CLIENTS[0],
        profile_id=bytes(32),
        label=label.label,
        client_seq=cursor.client_seq + 1,
        prev_ack=0,
        auth_ref=token.auth_ref(),
        ciphertext=b"c" * 40,
    )
    raw = msg.to_bytes()
    if forged:
        raw = flipped(raw)
    admitted = state.admit(
        label,
        client_id=msg.client_id,
        client_seq=msg.client_seq,
        prev_ack=0,
        auth_ref=msg.auth_ref,
        leaf_hash=msg.leaf_hash(),
        hub_ts=world.now,
    )
    receipt = Receipt.issue(
        world.keys.signing_key_at(world.now),
        label=label.label,
        stream_seq=admitted.stream_seq,
        leaf_hash=admitted.leaf_hash,
        mmr_root=admitted.mmr_root,
        hub_ts=world.now,
    )
    group = Group()
    group.add_entry(admitted, raw, receipt.to_bytes())
    world.commit(group)


def filled(steps):
    """A world of 30 entries in three labels; `steps` are done on the way."""
    world = World()
    world.now += 10
    for number in range(30):
        world.send(label=number % len(LABELS), client=number % len(CLIENTS), size=number)
        if number in steps:
            steps[number](world)
    return world


def forge(world):
    send_bad(world, forged=True)


def misuse(world):
    send_bad(world, foreign=True)


def earlier(world):
    world.now -= 1


@pytest.mark.long
@pytest.mark.req("OPS-02")
@pytest.mark.parametrize("closed", [True, False], ids=["at rest", "in the journal"])
@pytest.mark.parametrize(
    "steps",
    spread(
        [
            {},
            {11: forge},
            {29: forge},
            {12: forge, 15: misuse, 18: forge},
            {12: misuse, 13: forge},
            {9: earlier, 12: forge, 20: earlier},
        ],
        3,
    ),
    ids=["good", "forged", "forged last", "forged and misused", "misused and forged", "warnings between"],
)
def test_the_report_is_the_same_for_any_number_of_processes(steps, closed):
    world = filled(steps)
    if closed:
        world.store.close()
        world.bind()
    alone, many = verify_data(world.fs), verify_data(world.fs, jobs=3)
    assert many == alone
    assert alone.ok == (not any(step in (forge, misuse) for step in steps.values()))
    assert alone.counts["signatures"] > 40


def test_the_first_bad_byte_is_the_same_too():
    world = filled({})
    world.store.close()
    world.bind()
    path, data = next((path, data) for path, data in world.fs.files().items() if layout.chunk_of(path.split("/")[-1]))
    for at in (0, 100, len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 4
        fs = copy_of(world.fs, **{path: bytes(damaged)})
        report = verify_data(fs, jobs=2)
        assert report == verify_data(fs), at
        assert report.errors, at


def test_workers_that_are_killed_cost_time_and_nothing_else():
    """An out-of-memory killer takes the largest process, not the one that can do without."""
    items, work = [], []
    for entry in filled({}).frames:
        msg = Msg.from_bytes(entry.msg)
        items.append(item_of(entry, entry.label, "a path", 0))
        work.append(msg.sig + msg.signing_digest() + msg.client_id)
    work[5] = bytes(64) + work[5][64:]
    judged: list[ScannedEntry] = []
    pool = SignaturePool(2, judged.append)
    try:
        for number, (item, jobs) in enumerate(zip(items, work, strict=True)):
            pool.add(item, jobs)
            if number == 8:
                assert pool._workers is not None
                for worker in list(pool._workers._processes):
                    os.kill(worker, signal.SIGKILL)
        pool.settle()
    finally:
        pool.close()
    assert items[5] in judged
    assert judged == sorted(judged, key=items.index)
