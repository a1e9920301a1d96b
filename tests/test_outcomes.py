"""The four outcomes of spec §0 over real hubs: clone, fork, replay, interpret. Equal heads, roots and overlay states.

The overlay is written here as a third party would write it: hubs and SDK have never heard of it, and the log it reads
is older than it is.
"""

import shutil
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from tests.client.hubs import ORDERS, all_of, client_at, copy_of, hub_at, person, pin_of, run
from veen.client.transport.inprocess import InProcess
from veen.core import cbor
from veen.core.event import Event
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import open_msg
from veen.hub.process.forking import fork, verify_all
from veen.io.local import OsFs
from veen.overlays.framework.fold import Compact
from veen.overlays.framework.registry import BUILTIN, Overlay, Registry
from veen.overlays.framework.runner import MemorySource, Runner
from veen.overlays.framework.schema import Body, InvalidBody, Schema, SchemaSet
from veen.overlays.framework.snapshot import Cut, Snapshot
from veen.overlays.framework.state import state_hash
from veen.storage.copies.copying import origin_of
from veen.storage.frame import frames
from veen.storage.maintenance.rebuild import rebuild_index

READINGS = [("hall", 21), ("roof", 3), ("hall", 19), ("cellar", -4), ("roof", 7), ("hall", 23), ("roof", 7)]
SCHEMA = "example.reading.v1"
IMPOSSIBLE = cbor.encode({"place": "roof", "degrees": -300})  # the overlay will not have it; hubs cannot know


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Body):
    KIND: ClassVar[str] = SCHEMA

    place: str
    degrees: int

    @classmethod
    def _read(cls, f):
        reading = cls(place=f.text("place"), degrees=f.integer("degrees"))
        if reading.degrees < -273:
            raise InvalidBody("READING.IMPOSSIBLE", "nothing is that cold")
        return reading

    def _write(self) -> dict[str, Any]:
        return {"place": self.place, "degrees": self.degrees}


class Extremes(Compact[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]):
    """The lowest and the highest reading of each place."""

    name = "example.extremes"
    schemas = SchemaSet([Schema(SCHEMA, Reading)])
    SUMMARY = dict[str, tuple[int, int]]

    def start(self):
        return {}

    def add(self, into, event):
        self.absorb(into, {event.body.place: (event.body.degrees, event.body.degrees)})

    def absorb(self, into, other):
        for place, (low, high) in other.items():
            span = into.get(place, (low, high))
            into[place] = (min(low, span[0]), max(high, span[1]))

    def show(self, state, as_of):
        return dict(sorted(state.items()))


EXTREMES = Overlay(
    name="extremes",
    about="lowest and highest readings",
    schemas=tuple(Extremes.schemas.values()),
    folds={"example.extremes": Extremes},
)
EXPECTED = {"cellar": (-4, -4), "hall": (19, 23), "roof": (3, 7)}


def state_of(events, fold=None):
    fold = fold or Extremes()
    return state_hash(fold.name, fold.view(fold.summarize(events)))


def at(hub, path, name="alice"):
    return client_at(InProcess(hub.api), pin_of(hub), person(name), path / f"home-{name}")


async def write(client, readings=READINGS):
    for place, degrees in readings:
        await client.send("orders", cbor.encode({"place": place, "degrees": degrees}), schema=SCHEMA)


async def everything(client):
    """All entries, each with a proof that was verified; the state; the checkpoint of the whole log."""
    entries = await all_of(client.read("orders"))
    checkpoint = await client.checkpoint("orders")
    assert (checkpoint.upto_seq, checkpoint.mmr_root) == (entries[-1].seq, entries[-1].receipt.mmr_root)
    return entries, state_of(entry.event for entry in entries)


def log_of(entries):
    return [(entry.msg.to_bytes(), entry.receipt.to_bytes()) for entry in entries]


def stored(directory, label):
    """The events of a label straight from its files, without any hub: what an auditor with the read key does."""
    names = sorted((directory / "log").glob(f"*-{label.hex()}-*.log"), key=lambda path: path.name.split("-")[2])
    events, ts = [], 0
    for path in names:
        for _, frame in frames(path.read_bytes(), path=path.name):
            msg, receipt = Msg.from_bytes(frame.msg), Receipt.from_bytes(frame.receipt)
            opened, ts = open_msg(ORDERS.secret(), msg), max(ts, receipt.hub_ts)
            events.append(
                Event(
                    stream_id=ORDERS.stream_id,
                    label=label,
                    epoch=0,
                    stream_seq=receipt.stream_seq,
                    leaf_hash=receipt.leaf_hash,
                    client_id=msg.client_id,
                    auth_ref=msg.auth_ref,
                    hub_ts=receipt.hub_ts,
                    ts=ts,
                    hdr=opened.hdr,
                    body=opened.body,
                )
            )
    return events


@pytest.fixture
def origin(tmp_path):
    """A data directory at rest, its pin, its log as a client read it, and the state of that."""

    async def fill():
        async with hub_at(tmp_path / "origin", limits__max_checkpoint_interval=3) as hub, at(hub, tmp_path) as client:
            await write(client)
            entries, state = await everything(client)
            return tmp_path / "origin", pin_of(hub), entries, state

    return run(fill())


@pytest.mark.req("OUT-01", "OUT-05", "GEN-01", "GEN-05", "HID-14")
def test_a_clone_is_the_same_hub_and_its_users_notice_nothing(tmp_path, origin):
    """The first machine burns; a copy of directory and keys goes on elsewhere, with another number of workers."""
    path, pin, before, state = origin
    clone = copy_of(path, tmp_path / "elsewhere")
    shutil.rmtree(path)

    async def check():
        async with hub_at(clone, engine__workers=1) as hub:
            assert pin_of(hub) == pin
            async with client_at(InProcess(hub.api), pin, person("bob"), tmp_path / "home-bob") as bob:
                entries, cloned = await everything(bob)
                assert log_of(entries) == log_of(before)
                assert cloned == state
            async with client_at(InProcess(hub.api), pin, person("alice"), tmp_path / "home-alice") as alice:
                sent = await alice.send("orders", b"and on", schema=SCHEMA)  # with the state she had at the first one
                assert (sent.seq, sent.msg.client_seq) == (len(before) + 1, len(before) + 1)

    run(check())


@pytest.mark.req("OUT-02", "OUT-05")
def test_a_fork_keeps_a_prefix_goes_its_own_way_and_both_sides_verify(tmp_path, origin):
    path, _, before, state = origin
    label, count, target = before[0].receipt.label, 4, tmp_path / "fork"
    target.mkdir()
    fork(OsFs(path), OsFs(target), int(time.time()), cuts={label: count})

    async def diverge():
        async with hub_at(target) as hub, at(hub, tmp_path, "cleo") as cleo:
            await write(cleo, [("attic", 40)])
            return (await everything(cleo))[0]

    own = run(diverge())
    assert own[0].receipt.label != label  # another identity has other labels
    assert all(report.ok for report in (*verify_all(OsFs(target)), *verify_all(OsFs(path))))
    prefix = stored(origin_of(OsFs(target)).root, label)
    assert [event.leaf_hash for event in prefix] == [entry.msg_id for entry in before[:count]]
    fold = Extremes()
    joined = fold.merge(fold.summarize(prefix), fold.summarize(entry.event for entry in own))
    assert fold.view(joined) == {"attic": (40, 40), "cellar": (-4, -4), "hall": (19, 21), "roof": (3, 3)}
    assert state_of(stored(path, label)) == state  # and the origin has not moved


@pytest.mark.req("OUT-03", "OUT-05", "GEN-03")
def test_state_is_replayed_from_any_prefix_of_the_log_and_from_checkpoints_and_from_nothing_else(tmp_path, origin):
    """By a stranger with the read key, from files, over a hub that lost its index, and from a kept summary."""
    path, pin, before, state = origin
    label, fold = before[0].receipt.label, Extremes()
    events = stored(path, label)
    assert state_of(events) == state
    copy = copy_of(path, tmp_path / "copy")
    for derived in ("index", "nodes", "offsets"):  # nothing of it is needed to know the state
        for derived_file in copy.glob(f"{derived}*"):
            shutil.rmtree(derived_file) if derived_file.is_dir() else derived_file.unlink()
    assert state_of(stored(copy, label)) == state
    rebuild_index(OsFs(copy))

    async def again():
        async with (
            hub_at(copy) as hub,
            client_at(InProcess(hub.api), pin, person("dora"), tmp_path / "home-dora") as dora,
        ):
            return await everything(dora)

    entries, replayed = run(again())
    assert (log_of(entries), replayed) == (log_of(before), state)
    runner = Runner(fold, MemorySource(entry.event for entry in entries), interval=2)
    for size in range(1, len(entries) + 1):
        wanted = state_of(events[:size])
        assert state_of(entry.event for entry in entries[:size]) == wanted
        assert state_hash(fold.name, fold.view(runner.summary({label: size}))) == wanted
        receipt = before[size - 1].receipt
        state_cut = Snapshot.take(
            fold,
            fold.summarize(events[:size]),
            [Cut(label=label, upto_seq=size, mmr_root=receipt.mmr_root)],
        )
        restored = Snapshot.from_bytes(state_cut.to_bytes()).restore(
            fold, lambda _, seq: entries[seq - 1].receipt.mmr_root
        )
        joined = fold.merge(restored, fold.summarize(events[size:]))
        assert state_hash(fold.name, fold.view(joined)) == state


@pytest.mark.req("OUT-04", "GEN-07", "PHDR-08", "PHDR-04")
def test_a_new_overlay_interprets_an_old_log_and_hubs_neither_know_nor_judge_it(tmp_path, origin):
    """Types are the overlay's: what it will not have was admitted like everything else, and so was what expired."""
    path, pin, before, state = origin

    async def write_nonsense():
        async with (
            hub_at(path) as hub,
            client_at(InProcess(hub.api), pin, person("alice"), tmp_path / "home-alice") as alice,
        ):
            first = await alice.send("orders", IMPOSSIBLE, schema=SCHEMA)
            await alice.send("orders", b"no CBOR", schema=SCHEMA, expires_at=1)
            await alice.send("orders", cbor.encode({"place": "hall", "degrees": 99}), schema="example.reading.v2")
            return first.seq, (await everything(alice))[0]

    seq, entries = run(write_nonsense())
    registry = Registry([*BUILTIN.values(), EXTREMES])
    fold = registry.folds["example.extremes"]()
    summary = fold.summarize(entry.event for entry in entries)
    assert fold.view(summary) == EXPECTED
    assert state_hash(fold.name, fold.view(summary)) == state
    issues = [(issue.stream_seq, issue.code) for issue in fold.issues(summary)]
    assert issues == [(seq, "READING.IMPOSSIBLE"), (seq + 1, "OVL.CBOR")]
    assert [entry.seq for entry in entries] == list(range(1, len(before) + 4))


def test_a_mirror_reads_with_proofs_on_one_hub_and_submits_on_another_under_its_label(tmp_path, origin):
    path, pin, before, state = origin

    async def check():
        async with (
            hub_at(path) as a,
            hub_at(tmp_path / "b") as b,
            client_at(InProcess(a.api), pin, person("mirror"), tmp_path / "at-a") as source,
            client_at(InProcess(b.api), pin_of(b), person("mirror"), tmp_path / "at-b") as target,
        ):
            async for entry in source.read("orders", with_proofs=True):
                assert entry.proof is not None
                entry.proof.verify(
                    leaf_hash=entry.msg_id,
                    stream_seq=entry.seq,
                    tree_size=entry.seq,
                    expected_root=entry.receipt.mmr_root,
                )
                hdr = entry.event.hdr
                await target.send("orders", entry.body, schema=hdr.schema, parent=entry.msg_id)
            copies, mirrored = await everything(target)
            assert mirrored == state
            assert [copy.event.hdr.parent_id for copy in copies] == [entry.msg_id for entry in before]
            assert {copy.receipt.label for copy in copies}.isdisjoint({entry.receipt.label for entry in before})

    run(check())
