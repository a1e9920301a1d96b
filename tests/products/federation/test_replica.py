"""Replicas: byte for byte the same log, nothing unverified, nothing lost or doubled; a primary that lies stops them."""

import asyncio
import contextlib
import filecmp
import shutil
import sqlite3
from dataclasses import replace

import pytest
from tests.client.builders import seeded
from tests.client.hubs import (
    GATED,
    IMPATIENT,
    bodies,
    client_at,
    copy_of,
    hub_at,
    person,
    pin_of,
    run,
    token_for,
)
from tests.products.federation.replicas import SMALL, START, caught_up, following, replica_at, sizes, write

from veen.client.errors import BadAnswer, ForeignKey, HubRefused, NotPinned, Unreachable
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.sealing import Draft
from veen.client.transport.calls import Answer
from veen.client.transport.inprocess import InProcess
from veen.core.objects.envelopes import CheckpointResponse, StreamResponse
from veen.core.objects.tooling import FeedResponse, RotateKeyRequest, StreamRegisterRequest
from veen.hub.api.access import Principal
from veen.hub.process.watches import ReplicaDirectoryError
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.products.federation.replica import ReplicaGap, ReplicaInconsistent
from veen.storage import layout
from veen.storage.copies.copying import clone
from veen.verify.directory import verify_data

STREAMS = [f"stream-{number}" for number in range(5)]
MANY = Keyring()
for name in STREAMS:
    MANY = MANY.with_keys(StreamKeys.create(name, random=seeded(name)))


def is_whole(path):
    """The verdict of `veen hub verify-data`, every signature included."""
    return verify_data(OsFs(path)).ok


def equal_logs(one, other):
    """Whether two hubs at rest have the same log, byte for byte, and the same state in the index."""
    for directory in ("log", "nodes", "offsets"):
        compared = filecmp.dircmp(one / directory, other / directory)
        assert (compared.left_only, compared.right_only) == ([], []), directory
        _, differing, broken = filecmp.cmpfiles(one / directory, other / directory, compared.common_files, False)
        assert (differing, broken) == ([], [])
    return state_of(one) == state_of(other)


def state_of(path):
    """Rows of the index, but for the numbers of clients: those who came in the same second may be counted otherwise."""
    queries = (
        "SELECT * FROM labels ORDER BY row",
        "SELECT * FROM chunks",
        "SELECT * FROM caps ORDER BY auth_ref",
        "SELECT label_row, client_id, client_seq, prev_ack FROM clients ORDER BY label_row, client_id",
        "SELECT * FROM records ORDER BY seq",
    )
    with contextlib.closing(sqlite3.connect(path / layout.INDEX)) as index:
        return [index.execute(query).fetchall() for query in queries]


class Tampering:
    """A wire to a hub on which a test changes answers."""

    def __init__(self, inner):
        self._inner = inner
        self.change = {}  # operation -> (body of the answer) -> body
        self.gone = False

    async def call(self, operation, body=b"", *, timeout=None, headers=None, again=True):  # noqa: ASYNC109 - the interface
        if self.gone:
            raise Unreachable("the hub is gone")
        answer = await self._inner.call(operation, body, timeout=timeout, headers=headers or {})
        if answer.ok and operation in self.change:
            return Answer(answer.status, self.change[operation](answer.body), answer.headers)
        return answer

    async def aclose(self):
        pass


# --- the same log ------------------------------------------------------------------------------------------


def test_a_replica_is_byte_for_byte_the_log_of_its_primary(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a", **SMALL) as a:
            for number, stream in enumerate(STREAMS):
                await write(a, tmp_path / "alice", 3 + number, stream=stream, ring=MANY)
            async with following(tmp_path / "r", a) as (replica, follower):
                await caught_up(follower)
                assert sizes(replica) == sizes(a)
                for number, stream in enumerate(STREAMS):  # while it follows
                    await write(a, tmp_path / "alice", 7 - number, stream=stream, ring=MANY)
                    await follower.step()
                await caught_up(follower)
                assert sizes(replica) == sizes(a)
                assert follower.lag()[0] == 0

    run(scenario())
    assert equal_logs(tmp_path / "a", tmp_path / "r")
    assert is_whole(tmp_path / "r")


def test_capabilities_and_limits_come_along(tmp_path):
    """The state of tokens follows from control records and entries: the index is the same."""

    async def scenario():
        async with hub_at(tmp_path / "a", settings=GATED) as a:
            alice = person("alice")
            async with client_at(InProcess(a.api), pin_of(a), alice, tmp_path / "alice") as client:
                token = token_for(client.client_id)
                await client.send_many("orders", [Draft(body=b"%d" % n) for n in range(5)], capability=token)
        changed = hub_at(tmp_path / "a", settings=GATED, limits__max_checkpoint_interval="3")
        async with changed as a, following(tmp_path / "r", a) as (_, follower):
            await caught_up(follower)
            async with client_at(InProcess(a.api), pin_of(a), alice, tmp_path / "alice") as client:
                await client.send_many("orders", [Draft(body=b"%d" % n) for n in range(9)], capability=token)
            await caught_up(follower)

    run(scenario())
    assert equal_logs(tmp_path / "a", tmp_path / "r")
    assert (tmp_path / "a" / layout.LIMITS).read_bytes() == (tmp_path / "r" / layout.LIMITS).read_bytes()
    assert is_whole(tmp_path / "r")


def test_a_rotated_key_is_followed(tmp_path):
    async def scenario():
        now = [START]
        async with hub_at(tmp_path / "a", clock=lambda: float(now[0])) as a:
            await write(a, tmp_path / "alice", 2, clock=lambda: float(now[0]))
            async with following(tmp_path / "r", a) as (replica, follower):
                await caught_up(follower)
                await a.rotate_key(5)
                now[0] += 60
                await write(a, tmp_path / "alice", 2, first=3, clock=lambda: float(now[0]))
                await caught_up(follower)
                assert [key.hub_pk for key in replica.identity.keys] == [key.hub_pk for key in a.identity.keys]
                assert len(replica.identity.keys) == 2

    run(scenario())
    assert is_whole(tmp_path / "r")


def test_what_retention_erases_at_the_primary_is_erased_at_the_replica(tmp_path):
    async def scenario():
        now = [START]
        tick = {"clock": lambda: float(now[0])}
        async with hub_at(tmp_path / "a", **tick, **SMALL) as a:
            await write(a, tmp_path / "alice", 10, **tick)
            async with following(tmp_path / "r", a) as (replica, follower):
                await caught_up(follower)
                now[0] += 100
                assert a.sequencer.retire_idle()
                await a.sequencer.drain()
                await a.sequencer._retired.wait()
                erased = await a.house.erase(replace(a.config.retention, payloads=50))
                assert erased == 2
                await caught_up(follower)
                label = next(iter(sizes(a)))
                files = replica.sequencer.store.files(label)
                assert replica.sequencer.store.chunk_at(files, 1).dropped == 1
                assert replica.sequencer.store.reader.receipt(files, 1)

    run(scenario())
    assert is_whole(tmp_path / "r")


# --- serving ------------------------------------------------------------------------------------------------


def test_readers_are_served_and_verify_everything_and_writers_are_refused(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 6)
            async with following(tmp_path / "r", a) as (replica, follower):
                await caught_up(follower)
                wire = InProcess(replica.api)
                async with client_at(wire, pin_of(a), person("bob"), tmp_path / "bob") as bob:
                    assert await bodies(bob) == [b"order %d" % number for number in range(1, 7)]
                    assert (await bob.proof("orders", 3)).receipt.stream_seq == 3
                    assert (await bob.checkpoint("orders")).upto_seq == 6
                    with pytest.raises(HubRefused) as refused:
                        await bob.send("orders", b"to a replica")
                    assert (refused.value.code, refused.value.detail_enum) == ("E.AUTH", "NOT_PRIMARY")
                register = StreamRegisterRequest(stream_id=bytes(32)).to_bytes()
                local = Principal(local=True)  # who may do everything, but not this
                reply = await replica.api.call("streams", register, principal=local)
                assert (reply.status, reply.code) == (403, "E.AUTH")
                reply = await replica.api.call(
                    "rotate_key", RotateKeyRequest(overlap_sec=1).to_bytes(), principal=local
                )
                assert (reply.status, reply.code) == (403, "E.AUTH")
                assert sizes(replica) == sizes(a)

    run(scenario())


def test_a_checkpoint_that_is_not_here_needs_the_primary(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 6)
            wire = Tampering(InProcess(a.api))
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (replica, follower):
                await caught_up(follower)
                reader = client_at(InProcess(replica.api), pin_of(a), person("bob"), tmp_path / "bob", retry=IMPATIENT)
                async with reader as bob:
                    assert (await bob.checkpoint("orders", 4)).upto_seq == 4
                    wire.gone = True
                    assert (await bob.checkpoint("orders", 4)).upto_seq == 4  # kept
                    with pytest.raises(HubRefused, match="only the primary"):
                        await bob.checkpoint("orders", 3)

    run(scenario())


def test_lag_is_told_in_entries_and_seconds(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 3)
            wire = Tampering(InProcess(a.api))
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (replica, follower):
                assert follower.lag()[1] >= 0
                await caught_up(follower)
                await write(a, tmp_path / "alice", 4, first=4)
                wire.change["v1/stream"] = lambda body: b"\x00"
                with pytest.raises(BadAnswer):
                    await follower.step()
                entries, seconds = follower.lag()
                assert entries == 4
                assert seconds > 0
                assert b"veen_replica_lag_entries 4" in replica.metrics_text()
                assert b"veen_primary 0" in replica.metrics_text()
                follower.save()
                wire.change.clear()
                await caught_up(follower)
                assert b"veen_replica_lag_entries 0" in replica.metrics_text()

    run(scenario())


# --- killed and started again ------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


def test_a_replica_that_is_killed_at_any_call_goes_on_without_loss_or_doubles(tmp_path):
    """Each attempt dies one call later than the one before, with whatever it has written by then."""

    async def scenario():
        async with hub_at(tmp_path / "a", **SMALL) as a:
            for number, stream in enumerate(STREAMS[:3]):
                await write(a, tmp_path / "alice", 5 + 4 * number, stream=stream, ring=MANY)
            before = -1
            for calls in range(1, 60):
                wire = Dying(InProcess(a.api), calls)
                with contextlib.suppress(Killed):
                    pin = pin_of(a).to_text()
                    async with killable(tmp_path / "r", wire, pin) as (replica, follower):
                        assert sum(sizes(replica).values()) >= before  # nothing that was written is gone
                        try:
                            await caught_up(follower)
                        finally:
                            before = sum(sizes(replica).values())
                        break
            assert calls > 5
            async with following(tmp_path / "r", a) as (replica, follower):
                await caught_up(follower)
                assert sizes(replica) == sizes(a)

    run(scenario())
    assert equal_logs(tmp_path / "a", tmp_path / "r")
    assert is_whole(tmp_path / "r")


class Dying(Tampering):
    """A wire whose user is killed in the middle of a call."""

    def __init__(self, inner, calls):
        super().__init__(inner)
        self._left = calls

    async def call(self, operation, body=b"", *, timeout=None, headers=None, again=True):  # noqa: ASYNC109 - the interface
        self._left -= 1
        if self._left < 0:
            raise Killed
        return await super().call(operation, body, timeout=timeout, headers=headers)


@contextlib.asynccontextmanager
async def killable(path, wire, pin):
    """A replica whose directory is left as it is, as by kill -9, when Killed comes."""
    left = path.with_name("left")
    shutil.rmtree(left, ignore_errors=True)
    try:
        async with replica_at(path, wire, pin) as (replica, follower):
            try:
                yield replica, follower
            except Killed:
                await replica.sequencer.drain()
                shutil.copytree(path, left, ignore=shutil.ignore_patterns("local"))
                raise
    finally:  # as it was then, without what stopping in order would do
        if left.exists():
            shutil.rmtree(path)
            left.rename(path)


def test_a_copy_of_a_running_replica_recovers_and_goes_on(tmp_path):
    """What kill -9 leaves behind: the files as they are, the journal not emptied, seals not durable."""

    async def scenario():
        async with hub_at(tmp_path / "a", **SMALL) as a:
            await write(a, tmp_path / "alice", 21)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
                shutil.copytree(tmp_path / "r", tmp_path / "killed", ignore=shutil.ignore_patterns("local"))
            await write(a, tmp_path / "alice", 9, first=22)
            async with following(tmp_path / "killed", a) as (replica, follower):
                assert sum(sizes(replica).values()) == 21  # recovered without the primary
                await caught_up(follower)
                assert sizes(replica) == sizes(a)

    run(scenario())
    assert equal_logs(tmp_path / "a", tmp_path / "killed")
    assert is_whole(tmp_path / "killed")


def test_a_primary_that_is_away_is_waited_for(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 3)
            wire = Tampering(InProcess(a.api))
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (replica, follower):
                wire.gone = True
                task = asyncio.create_task(follower.run(once=True))
                await asyncio.sleep(0.05)
                assert not task.done()
                wire.gone = False
                await asyncio.wait_for(task, 60)
                assert sizes(replica) == sizes(a)
            wire.gone = True  # and a replica starts without it
            async with replica_at(tmp_path / "r", wire, None) as (replica, _):
                assert sizes(replica) == sizes(a)

    run(scenario())


# --- where it begins ----------------------------------------------------------------------------------------


def test_a_replica_may_begin_with_a_clone_of_a_pruned_hub_and_says_which_entries_are_missing_otherwise(tmp_path):
    async def scenario():
        now = [START]
        tick = {"clock": lambda: float(now[0])}
        async with hub_at(tmp_path / "a", **tick, **SMALL) as a:
            await write(a, tmp_path / "alice", 10, **tick)
            now[0] += 100
            assert a.sequencer.retire_idle()
            await a.sequencer.drain()
            await a.sequencer._retired.wait()
            assert await a.house.erase(replace(a.config.retention, payloads=50)) == 2
            async with following(tmp_path / "r", a) as (_, follower):
                with pytest.raises(ReplicaGap, match="entries 1 to 8 of label") as gap:
                    await caught_up(follower)
                assert (gap.value.first_seq, gap.value.last_seq) == (1, 8)
            (tmp_path / "c").mkdir()
            clone(OsFs(tmp_path / "a"), OsFs(tmp_path / "c"), with_keys=False)
            await write(a, tmp_path / "alice", 5, first=11, **tick)
            async with following(tmp_path / "c", a) as (replica, follower):
                await caught_up(follower)
                assert sizes(replica) == sizes(a)

    run(scenario())
    assert is_whole(tmp_path / "c")


def test_a_directory_with_keys_or_of_another_hub_is_no_replica(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "b"):
            pass
        async with hub_at(tmp_path / "a") as a:
            wire, pin = InProcess(a.api), pin_of(a).to_text()
            (tmp_path / "c").mkdir()
            clone(OsFs(tmp_path / "a"), OsFs(tmp_path / "c"), with_keys=True)
            for path, words in (("c", "private keys"), ("b", "another hub")):
                with pytest.raises(StorageError, match=words):
                    async with replica_at(tmp_path / path, wire, pin):
                        pass
            (tmp_path / "d").mkdir()
            (tmp_path / "d" / "notes").write_text("mine")
            with pytest.raises(StorageError, match="not empty"):
                async with replica_at(tmp_path / "d", wire, pin):
                    pass
            with pytest.raises(NotPinned):
                async with replica_at(tmp_path / "e", wire, None):
                    pass
            with pytest.raises(ForeignKey):
                async with replica_at(tmp_path / "e", wire, "ed25519:" + "11" * 32):
                    pass

    run(scenario())


def test_a_hub_does_not_start_on_a_replica(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 1)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
        with pytest.raises(ReplicaDirectoryError):
            async with hub_at(tmp_path / "r"):
                pass

    run(scenario())


# --- a primary that lies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_length", [True, False])
def test_a_primary_that_was_set_back_and_went_on_otherwise_is_convicted_and_nothing_is_written(tmp_path, same_length):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 3)
        copy_of(tmp_path / "a", tmp_path / "fork")
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 2, first=4)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
        async with hub_at(tmp_path / "fork") as fork:
            await write(fork, tmp_path / "mallory", 2 if same_length else 4, name="mallory")
            async with following(tmp_path / "r", fork) as (replica, follower):
                with pytest.raises(ReplicaInconsistent, match="two histories") as caught:
                    await caught_up(follower)
                assert sum(sizes(replica).values()) == 5
                evidence = caught.value.evidence
                assert evidence is not None
                evidence.verify()
                assert len(evidence.to_bytes()) <= 512
                replica.keep_evidence(evidence)
                assert len(list((tmp_path / "r" / layout.EVIDENCE).iterdir())) == 1

    run(scenario())
    assert is_whole(tmp_path / "r")


def test_a_primary_that_lost_entries_stops_the_replica(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 3)
        copy_of(tmp_path / "a", tmp_path / "old")
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 2, first=4)
            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
        async with hub_at(tmp_path / "old") as old, following(tmp_path / "r", old) as (replica, follower):
            with pytest.raises(ReplicaInconsistent, match="ends with entry 3; it had signed 5"):
                await caught_up(follower)
            assert sum(sizes(replica).values()) == 5

    run(scenario())


def _forged_author(body):
    page = StreamResponse.from_bytes(body)
    item = page.items[0]
    return replace(page, items=(replace(item, msg=replace(item.msg, sig=bytes(64))), *page.items[1:])).to_bytes()


def _forged_hub(body):
    page = StreamResponse.from_bytes(body)
    item = page.items[-1]
    assert item.receipt is not None
    forged = replace(item, receipt=replace(item.receipt, hub_sig=bytes(64)))
    return replace(page, items=(*page.items[:-1], forged)).to_bytes()


def _other_root(body):
    page = StreamResponse.from_bytes(body)
    item = page.items[0]
    assert item.receipt is not None
    return replace(
        page, items=(replace(item, receipt=replace(item.receipt, mmr_root=bytes(32))), *page.items[1:])
    ).to_bytes()


def _swapped(body):
    page = StreamResponse.from_bytes(body)
    first, second = page.items[:2]
    return replace(page, items=(replace(first, msg=second.msg), *page.items[1:])).to_bytes()


def _without_receipts(body):
    page = StreamResponse.from_bytes(body)
    return replace(page, items=tuple(replace(item, receipt=None) for item in page.items)).to_bytes()


def _forged_checkpoint(body):
    answer = CheckpointResponse.from_bytes(body)
    return replace(answer, checkpoint=replace(answer.checkpoint, mmr_root=bytes(32))).to_bytes()


def _forged_record(body):
    answer = FeedResponse.from_bytes(body)
    if not answer.control:
        return body
    return replace(answer, control=answer.control[:-1] + bytes((answer.control[-1] ^ 1,))).to_bytes()


def _shorter_control(body):
    answer = FeedResponse.from_bytes(body)
    return replace(answer, control=b"", control_bytes=0).to_bytes()


@pytest.mark.parametrize(
    ("operation", "lie", "error"),
    [
        ("v1/stream", _forged_author, ReplicaInconsistent),
        ("v1/stream", _forged_hub, ReplicaInconsistent),
        ("v1/stream", _other_root, ReplicaInconsistent),
        ("v1/stream", _swapped, ReplicaInconsistent),
        ("v1/stream", _without_receipts, BadAnswer),
        ("v1/stream", lambda body: b"rubbish", BadAnswer),
        ("v1/checkpoint", _forged_checkpoint, ReplicaInconsistent),
        ("tooling/feed", _forged_record, ReplicaInconsistent),
        ("tooling/feed", _shorter_control, ReplicaInconsistent),
        ("tooling/feed", lambda body: b"\x00", BadAnswer),
    ],
)
def test_what_does_not_verify_is_not_written(tmp_path, operation, lie, error):
    async def scenario():
        async with hub_at(tmp_path / "a", **SMALL) as a:
            await write(a, tmp_path / "alice", 6)
            wire = Tampering(InProcess(a.api))
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (replica, follower):
                wire.change[operation] = lie
                with pytest.raises(error):
                    await caught_up(follower)
                assert sum(sizes(replica).values()) in (0, 4) if operation == "v1/checkpoint" else not sizes(replica)
                wire.change.clear()
                if error is BadAnswer:  # an answer that is none proves nothing: it is asked for again
                    await caught_up(follower)
                    assert sizes(replica) == sizes(a)

    run(scenario())
