"""goals_dr_cutover: the primary dies under load or is fenced, a replica takes its place, and nothing is lost unsaid."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from tests.client.hubs import IMPATIENT, bodies, client_at, hub_at, person, pin_of, run
from tests.products.federation.replicas import SMALL, caught_up, following, sizes, write
from tests.waiting import eventually, until

from veen.client.errors import HubRefused, NetworkError
from veen.client.transport.http import HttpTransport
from veen.client.transport.hubapi import HubApi, metric_samples
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.core.objects.control import ControlRecord, HubFence, HubPromote, StreamRegister
from veen.core.objects.tooling import RecordResponse, VersionRequest
from veen.hub.admission.control_index import ControlIndex
from veen.hub.api.access import Principal
from veen.hub.process import watches as replicas
from veen.hub.process.watches import ReplacedError
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.products.federation import promotion
from veen.products.federation.promotion import (
    LossNotAccepted,
    NotAReplica,
    PrimaryAlive,
    WrongKey,
    promote,
    replica_state,
)
from veen.storage import layout
from veen.storage.control_state import control_records
from veen.storage.keys import identity as identities
from veen.verify.audit import audit
from veen.verify.directory import verify_data

VEEN = (sys.executable, "-c", "from veen.cli.app import main; main()")
LOCAL = Principal(local=True)


def now():
    return int(time.time())


async def fence(hub):
    reply = await hub.api.call("fence", VersionRequest().to_bytes(), principal=LOCAL)
    assert reply.status == 200, reply.body
    return RecordResponse.from_bytes(reply.body).record


# --- planned: fence, catch up, promote ------------------------------------------------------------------------


def test_a_fenced_hub_admits_nothing_and_says_how_much_there_is(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 3)
            record = await fence(a)
            assert isinstance(record.body, HubFence)
            assert record.body.upto == 3
            assert await fence(a) == record  # once
        async with hub_at(tmp_path / "a") as a:  # for good
            wire = InProcess(a.api)
            async with client_at(wire, pin_of(a), person("alice"), tmp_path / "alice", retry=IMPATIENT) as client:
                with pytest.raises(HubRefused) as refused:
                    await client.send("orders", b"late")
                assert refused.value.detail_enum == "NOT_PRIMARY"
                assert len(await bodies(client)) == 3  # readers are served
            assert a.not_ready() is not None
            assert sizes(a) == dict.fromkeys(sizes(a), 3)

    run(scenario())
    assert verify_data(OsFs(tmp_path / "a")).ok


def test_messages_under_way_are_in_the_log_or_refused_when_a_hub_is_fenced(tmp_path):
    """Whoever got a receipt is counted by the record, and nobody else."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            receipts = 0

            async def writer(name):
                nonlocal receipts
                wire = InProcess(a.api)
                async with client_at(wire, pin_of(a), person(name), tmp_path / name, retry=IMPATIENT) as client:
                    with contextlib.suppress(HubRefused):
                        while True:
                            await client.send("orders", b"more")
                            receipts += 1

            writers = [asyncio.create_task(writer(f"w{number}")) for number in range(3)]
            await eventually(lambda: receipts >= 20)
            record = await fence(a)
            await asyncio.gather(*writers)
            assert record.body.upto == receipts == a.sequencer.store.entry_count

    run(scenario())


def test_a_planned_cutover_loses_nothing_and_proves_it(tmp_path):
    async def before():
        async with hub_at(tmp_path / "a", **SMALL) as a:
            await write(a, tmp_path / "alice", 9)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
                await write(a, tmp_path / "alice", 2, first=10)
                await fence(a)
                await caught_up(follower)
                follower.save()

    run(before())
    state = replica_state(OsFs(tmp_path / "r"))
    assert (state.entries, state.complete) == (11, True)
    done = promote(OsFs(tmp_path / "r"), tmp_path / "a", now())
    assert (done.entries, done.complete, done.accepted) == (11, True, ())

    async def after():
        async with hub_at(tmp_path / "r") as hub:
            record = ControlIndex(hub.sequencer.store).newest(HubPromote.KIND)
            assert record is not None
            body = record.body
            assert isinstance(body, HubPromote)
            assert (body.source, body.upto, body.complete) == ("http://127.0.0.1:9", 11, True)
            await write(hub, tmp_path / "alice", 3, first=12)  # the writer goes on where it was, with its state
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as bob:
                assert await bodies(bob) == [b"order %d" % number for number in range(1, 15)]

    run(after())
    assert verify_data(OsFs(tmp_path / "r")).ok


# --- refusals -------------------------------------------------------------------------------------------------


def test_without_a_fence_the_ranges_are_named_and_somebody_must_accept_the_loss(tmp_path):
    async def before():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 5)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
                await write(a, tmp_path / "alice", 2, first=6)
                follower.announced = sizes(a)  # heard of, and then the primary was gone
                follower.save()
                return next(iter(sizes(a)))

    label = run(before())
    with pytest.raises(LossNotAccepted, match=f"{label.hex()} 6 to 7") as refused:
        promote(OsFs(tmp_path / "r"), tmp_path / "a", now())
    assert [(part.label, part.first_seq, part.last_seq) for part in refused.value.ranges] == [(label, 6, 7)]
    assert (tmp_path / "r" / layout.REPLICA).exists()
    assert not list((tmp_path / "r" / layout.KEYS).iterdir())
    done = promote(OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
    assert not done.complete
    assert [(part.first_seq, part.last_seq) for part in done.accepted] == [(6, 7)]
    with pytest.raises(NotAReplica):
        promote(OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
    assert verify_data(OsFs(tmp_path / "r")).ok


def test_a_replica_that_knows_of_nothing_missing_names_open_ranges(tmp_path):
    async def before():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 5)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)

    run(before())
    with pytest.raises(LossNotAccepted, match=r"6 to \?"):
        promote(OsFs(tmp_path / "r"), tmp_path / "a", now())


def test_a_primary_that_answers_is_not_replaced(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 2)
            async with following(tmp_path / "r", a, source=a.url) as (_, follower):
                await caught_up(follower)
            with pytest.raises(PrimaryAlive, match="has 2 entries, 2 are here"):
                await asyncio.to_thread(promote, OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
            await fence(a)
            with pytest.raises(PrimaryAlive):  # the replica does not have the record yet
                await asyncio.to_thread(promote, OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
            async with following(tmp_path / "r", a, source=a.url) as (_, follower):
                await caught_up(follower)
            done = await asyncio.to_thread(promote, OsFs(tmp_path / "r"), tmp_path / "a", now())
            assert done.complete

    run(scenario())


def test_promotion_needs_the_key_of_the_identity(tmp_path):
    async def before():
        async with hub_at(tmp_path / "b"):
            pass
        async with hub_at(tmp_path / "a") as a, following(tmp_path / "r", a) as (_, follower):
            await write(a, tmp_path / "alice", 1)
            await caught_up(follower)

    run(before())
    (tmp_path / "nothing").mkdir()
    for path in ("nothing", "b"):
        with pytest.raises(WrongKey):
            promote(OsFs(tmp_path / "r"), tmp_path / path, now(), accept_loss=True)
    promote(OsFs(tmp_path / "r"), tmp_path / "a" / layout.KEYS, now(), accept_loss=True, move_keys=True)
    assert not list((tmp_path / "a" / layout.KEYS).iterdir())  # whoever has no other copy cannot sign
    with pytest.raises(StorageError):
        run(started(tmp_path / "a"))


async def started(path, **settings):
    async with hub_at(path, **settings):
        pass


def test_a_damaged_replica_is_not_promoted(tmp_path):
    async def before():
        async with hub_at(tmp_path / "a", **SMALL) as a, following(tmp_path / "r", a) as (_, follower):
            await write(a, tmp_path / "alice", 6)
            await caught_up(follower)

    run(before())
    nodes = next((tmp_path / "r" / layout.NODES).iterdir())
    data = bytearray(nodes.read_bytes())
    data[-1] ^= 1
    nodes.write_bytes(bytes(data))
    with pytest.raises(Exception, match="nodes"):
        promote(OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)


@pytest.mark.parametrize("step", ["write_key", "end_replica"])
def test_a_promotion_that_is_cut_off_is_finished_by_the_next_one(tmp_path, monkeypatch, step):
    async def before():
        async with hub_at(tmp_path / "a") as a, following(tmp_path / "r", a) as (_, follower):
            await write(a, tmp_path / "alice", 2)
            await caught_up(follower)

    class Cut(Exception):
        pass

    def cut(*_):
        raise Cut

    run(before())
    with monkeypatch.context() as patched:
        owner = identities if step == "write_key" else promotion
        patched.setattr(owner, step, cut)
        with pytest.raises(Cut):
            promote(OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
    assert (tmp_path / "r" / layout.REPLICA).exists()
    promote(OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
    records = [record for record in control(tmp_path / "r") if isinstance(record.body, HubPromote)]
    assert len(records) == 1
    run(started(tmp_path / "r"))


def control(path):
    return [record for _, record in control_records(OsFs(path))]


# --- the old primary comes back -------------------------------------------------------------------------------


def test_an_old_primary_that_comes_back_finds_the_record_and_does_not_start(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 2)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
        await asyncio.to_thread(promote, OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
        async with hub_at(tmp_path / "r") as new:
            with pytest.raises(ReplacedError):
                await started(tmp_path / "a", replicas=new.url)
            await started(tmp_path / "r2", replicas=new.url)  # another hub is not concerned
        with pytest.raises(ReplacedError):
            await started(tmp_path / "a")  # also when the new primary cannot be asked
        record = ControlRecord.from_bytes((tmp_path / "a" / layout.REPLACED).read_bytes())
        assert isinstance(record.body, HubPromote)
        await started(tmp_path / "r", replicas="http://127.0.0.1:9")  # the new one goes on

    run(scenario())


def test_a_primary_that_was_cut_off_from_its_replica_stops_admitting_when_it_hears_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr(replicas, "_EVERY_SECONDS", 0.05)

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 2)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
            await asyncio.to_thread(promote, OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
            async with hub_at(tmp_path / "r") as new:
                a.reload(reconfigured(a, replicas=(new.url,)))
                await eventually(lambda: a.sequencer.replaced)
            client = client_at(InProcess(a.api), pin_of(a), person("alice"), tmp_path / "alice", retry=IMPATIENT)
            async with client as alice:
                with pytest.raises(HubRefused) as refused:
                    await alice.send("orders", b"late")
                assert refused.value.detail_enum == "NOT_PRIMARY"
        with pytest.raises(ReplacedError):
            await started(tmp_path / "a")

    run(scenario())


def reconfigured(hub, **changes):
    return replace(hub.config, **changes)


# --- the disaster, with processes -----------------------------------------------------------------------------


class Process:
    """A `veen` command that runs until it is ended; its notices and its result are JSON lines."""

    def __init__(self, tmp_path, *args):
        environment = {**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
        self.process = subprocess.Popen(
            [*VEEN, *map(str, args), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def line(self):
        """The first line with a URL."""
        lines = []

        def read(stream):
            for text in stream:
                lines.append(text)

        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=read, args=(stream,), daemon=True).start()

        def listening():
            for text in list(lines):
                with contextlib.suppress(ValueError):
                    value = json.loads(text)
                    if isinstance(value, dict) and value.get("url"):
                        self.about = value
                        return True
            assert self.process.poll() is None, lines
            return False

        until(listening)
        return self.about

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()


@contextlib.contextmanager
def running(tmp_path, *args):
    process = Process(tmp_path, *args)
    try:
        yield process
    finally:
        process.kill()
        for stream in (process.process.stdout, process.process.stderr):
            assert stream is not None
            stream.close()


class Load(threading.Thread):
    """A writer that goes on until the hub is gone; it keeps what was acknowledged."""

    def __init__(self, url, pin, home):
        super().__init__(daemon=True)
        self._url, self._pin, self._home = url, pin, home
        self.acknowledged = []  # (stream_seq, leaf_hash, body)

    def run(self):
        asyncio.run(self._write())

    async def _write(self):
        wire = HttpTransport(self._url)
        try:
            who = person("alice")
            async with client_at(wire, self._pin, who, self._home, retry=IMPATIENT) as client:
                for number in range(10**6):
                    body = b"order %d" % number
                    sent = await client.send("orders", body)
                    self.acknowledged.append((sent.receipt.stream_seq, sent.receipt.leaf_hash, body))
        except (NetworkError, HubRefused):
            pass
        finally:
            await wire.aclose()


@pytest.mark.req("AGB-18")
def test_goals_dr_cutover(tmp_path):
    """The primary is killed under load. The replica is promoted: what it has is what was acknowledged, from the first
    entry on; the range behind is named, and every entry that is missing lies in it. The old primary stays out."""
    options = ("--dev", "--port", "0", "--data-dir", tmp_path / "a")
    with running(tmp_path, "hub", "start", *options) as primary:
        about = primary.line()
        url, pin = about["url"], about["hub_pk"]
        with running(tmp_path, "replica", "run", url, tmp_path / "r", "--hub-pk", pin) as replica:
            replica_url = replica.line()["url"]
            load = Load(url, HubPin.parse(pin), tmp_path / "alice")
            load.start()
            until(lambda: len(load.acknowledged) >= 40)
            until(lambda: entries_at(replica_url) >= 20)
            primary.kill()  # kill -9
            load.join(60)
            assert not load.is_alive()
            replica.end()
    state = replica_state(OsFs(tmp_path / "r"))
    assert not state.complete
    with pytest.raises(LossNotAccepted) as refused:
        promote(OsFs(tmp_path / "r"), tmp_path / "a", now())
    [part] = refused.value.ranges
    present = {seq: (leaf, body) for seq, leaf, body in load.acknowledged if seq < part.first_seq}
    lost = [seq for seq, _, _ in load.acknowledged if seq >= part.first_seq]
    assert sorted(present) == list(range(1, len(present) + 1))  # no acknowledged entry before the range is missing
    assert len(present) + len(lost) == len(load.acknowledged)
    promote(OsFs(tmp_path / "r"), tmp_path / "a", now(), accept_loss=True)
    assert verify_data(OsFs(tmp_path / "r")).ok

    async def after():
        async with hub_at(tmp_path / "r") as hub:
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as bob:
                entries = [entry async for entry in bob.read("orders")]
                for entry in entries:
                    if entry.seq in present:
                        assert (entry.receipt.leaf_hash, entry.body) == present[entry.seq]
                assert len(entries) >= len(present)
            with pytest.raises(ReplacedError):
                await started(tmp_path / "a", replicas=hub.url)

    run(after())


def entries_at(url):
    with HubApi(url) as hub:
        return metric_samples(hub.metrics())["veen_entries"]


# --- what an auditor sees -------------------------------------------------------------------------------------


def test_entries_and_records_behind_a_fence_are_found_by_verification_and_audit(tmp_path):
    """A hub that was changed so that it goes on all the same."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 2)
            await fence(a)
        assert verify_data(OsFs(tmp_path / "a")).ok
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("local"))
        async with hub_at(tmp_path / "a") as a:
            a.sequencer.store.state.fenced = False
            await write(a, tmp_path / "alice", 1, first=3)
        async with hub_at(tmp_path / "b") as b:
            b.sequencer.store.state.fenced = False
            await b.sequencer.control(lambda _: StreamRegister(stream_id=bytes(32)))

    run(scenario())
    for name, words in (("a", "fenced with 2 entries, and 3 are here"), ("b", "no promotion came before it")):
        report = verify_data(OsFs(tmp_path / name))
        assert not report.ok
        assert any(words in finding.message for finding in report.findings)
        result = audit(str(tmp_path / name))
        assert not result.ok
        assert any(words in finding.message for finding in result.findings)
