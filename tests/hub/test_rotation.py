"""The key of a running hub is rotated: nothing is signed that the identity does not account for, whatever happens."""

import asyncio
import errno
import itertools
import json
import random
import threading
import time
from contextlib import asynccontextmanager

import pytest
from tests.hub import builders as w
from tests.hub.test_runtime import assert_whole, fs_of, running, submit
from tests.storage.oracle import assert_clean
from tests.waiting import DEADLINE_SEC

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import SignatureError
from veen.core.hashing import H
from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import KeyRotate
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.identity import IdentityError
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import IdentityResponse, RecordResponse, RotateKeyRequest
from veen.hub.api.access import Principal
from veen.hub.api.rotation import LEAD_SECONDS, Rotation, check_rotations, rotate_at_rest
from veen.hub.process.startup import Sealing, finish_rotations
from veen.hub.sequencer.clock import HubClock
from veen.hub.sequencer.sequencer import NotDurable, NotPrimary, Overloaded, Sequencer, Stopped
from veen.io.errors import StorageError
from veen.storage import layout
from veen.storage.control_state import control_records
from veen.storage.keys import identity as identities
from veen.storage.keys import rotation as keyrotation
from veen.storage.keys.identity import write_birth, write_private_key
from veen.storage.keys.rotation import RotationUnderWayError
from veen.storage.maintenance.rebuild import rebuild_index
from veen.storage.store import Store
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data

LIMITS = Limits(max_checkpoint_interval=2)
OVERLAP = 20


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, DEADLINE_SEC))


class Machine:
    """A hub without its network, on a disk in memory. Receipts that left are kept over restarts."""

    def __init__(self, fs=None):
        self.fs = fs if fs is not None else MemFs()
        self.now = w.NOW
        self.receipts = []
        self.failures = []

    @asynccontextmanager
    async def running(self):
        fs = self.fs
        keys = identities.load(fs, now=self.now) if identities.exists(fs) else identities.create(fs, w.HUB.seed, w.NOW)
        sealing, clock = Sealing(keys), HubClock(lambda: self.now)

        def open_store():
            return Store.open(fs, LIMITS, sealing.seal)

        store = open_store()
        sealing.replace(finish_rotations(fs, keys, store))
        policy = w.policy(capability_gating=False, stream_scope="open")
        self.sequencer = Sequencer(
            store,
            sealing,
            policy,
            w.resolver(),
            workers=w.WORKERS,
            clock=clock,
            reopen=open_store,
            failed=self.failures.append,
        )
        self.sealing = sealing
        self.rotation = Rotation(fs, self.sequencer, sealing, clock, failed=self.failures.append)
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _what: task.cancel())  # the power went
        try:
            yield self
        finally:
            await (self.sequencer.abort() if self.fs.fault else self.sequencer.close())

    async def send(self, count=1):
        files = self.sequencer.store.files(w.LABEL)
        first = (files.size if files else 0) + 1
        for seq in range(first, first + count):
            try:
                answer = await self.sequencer.submit(w.msg(seq=seq, token=None).to_bytes())
            except NotDurable:
                raise Crash from None
            assert isinstance(answer, bytes)
            self.receipts.append(Receipt.from_bytes(answer))

    def signers(self):
        identity = self.sealing.held.identity
        return [identity.verify_receipt(receipt).hub_pk for receipt in self.receipts]


async def life(machine):
    """Entries before, while and after both keys are valid; the rotation happens once, however often this is begun."""
    async with machine.running():
        await machine.send(3)
        if len(machine.sealing.keys) == 1:
            rotating = asyncio.ensure_future(machine.rotation.rotate(OVERLAP))
            try:
                await machine.send(3)
            except Crash:
                rotating.cancel()
                raise
            await rotating
        for _ in range(2):
            machine.now += LEAD_SECONDS + 1
            await machine.send(3)
        machine.now += OVERLAP
        await machine.send(3)
        store = machine.sequencer.store
        for receipt in machine.receipts:  # whatever left is there, also what left before a crash
            assert store.reader.receipt(store.files(w.LABEL), receipt.stream_seq) == receipt.to_bytes()


@pytest.mark.req("HID-03", "HID-05", "HID-06", "HID-07", "KEX0-02", "KEX0-03")
def test_a_running_hub_goes_on_with_another_key():
    machine = Machine()
    run(life(machine))
    old, new = (key.hub_pk for key in machine.sealing.keys)
    assert machine.signers() == [old] * 6 + [new] * 9
    assert_clean(machine.fs)
    paths = [path for path in machine.fs.files() if path.startswith(f"log/checkpoint-{w.LABEL.hex()}-")]
    checkpoints = sorted((Checkpoint.from_bytes(machine.fs.files()[path]) for path in paths), key=lambda c: c.upto_seq)
    # Entries 7 to 12 have a time at which both keys are valid (D-37); after the window the old one is silent.
    assert [len(point.witness_sigs or ()) for point in checkpoints] == [0, 0, 0, 2, 2, 2, 0]
    for point in checkpoints[3:6]:
        point.verify(new)
        assert point.witness_sigs == (
            machine.sealing.held.private[old].sign(point.signing_digest()),
            machine.sealing.held.private[new].sign(point.signing_digest()),
        )


@pytest.mark.req("HID-07")
@pytest.mark.parametrize(  # what is done before a cut: as when the next operation is lost
    ("kinds", "step"),
    [
        (("lost", "torn"), 5),
        pytest.param(("lost",), 1, marks=pytest.mark.slow),
        pytest.param(("torn",), 1, marks=pytest.mark.slow),
    ],
    ids=["in turn", "lost", "torn"],
)
def test_a_cut_at_any_operation_leaves_the_old_identity_or_the_new_one(kinds, step):
    """Whatever was cut off: every receipt that left verifies, the directory is in order, and the rotation happens."""
    for at in itertools.count(1, step):
        machine = Machine(MemFs(fault=Fault(at, kinds[at // step % len(kinds)])))
        try:
            run(life(machine))
        except (Crash, StorageError, NotDurable, asyncio.CancelledError):
            pass
        else:
            break
        machine.fs = machine.fs.after_crash(random.Random(at))
        if identities.exists(machine.fs):
            assert_clean(machine.fs)
        machine.now += 1
        run(life(machine))
        old, new = (key.hub_pk for key in machine.sealing.keys)
        signers = machine.signers()
        assert signers == sorted(signers, key=(old, new).index)
        assert signers[-9:] == [new] * 9
        assert_clean(machine.fs)
    assert at > 50  # there were that many operations, so cuts were made among all of them


class SlowFs(MemFs):
    """Takes its time over the identity files."""

    def __init__(self):
        super().__init__()
        self.reached, self.gate = threading.Event(), threading.Event()

    def replace(self, path, data, *, private=False):
        if path == layout.IDENTITY and self.exists(path):
            self.reached.set()
            self.gate.wait(20)
        super().replace(path, data, private=private)


def test_the_new_key_waits_for_the_disk_and_time_for_both():
    """Should the identity files take longer than the lead, hub_ts stays where the old key signs alone."""

    async def scenario():
        slow = SlowFs()
        machine = Machine(slow)
        async with machine.running():
            rotating = asyncio.ensure_future(machine.rotation.rotate(0))
            await asyncio.to_thread(slow.reached.wait, 20)
            machine.now += 1000
            await machine.send(2)
            slow.gate.set()
            record = await rotating
            await machine.send(2)
        assert isinstance(record.body, KeyRotate)
        times = [receipt.hub_ts for receipt in machine.receipts]
        assert times == [record.body.valid_from - 1] * 2 + [w.NOW + 1000] * 2
        return machine

    machine = run(scenario())
    old, new = (key.hub_pk for key in machine.sealing.keys)
    assert machine.signers() == [old] * 2 + [new] * 2
    assert_clean(machine.fs)


def test_a_full_disk_changes_nothing_and_the_rotation_can_be_tried_again():
    async def scenario():
        machine = Machine()
        async with machine.running():
            await machine.send(2)
            machine.fs.fault = Fault(machine.fs.operations + 2, "error", errno.ENOSPC)  # the key, then the record
            with pytest.raises(StorageError, match="nothing has changed"):
                await machine.rotation.rotate(OVERLAP)
            machine.fs.fault = None
            assert len(identities.read_identity(machine.fs).keys) == 1
            machine.now += 100
            await machine.send()
            await machine.rotation.rotate(OVERLAP)
            machine.now += LEAD_SECONDS
            await machine.send()
        return machine

    machine = run(scenario())
    old, new = (key.hub_pk for key in machine.sealing.keys)
    assert machine.signers() == [old] * 3 + [new]
    assert not machine.failures
    assert_clean(machine.fs)


def test_an_identity_that_cannot_be_written_stops_the_hub_and_the_next_start_completes_it():
    async def cut(machine):
        async with machine.running():
            await machine.send(2)
            machine.fs.fault = Fault(machine.fs.operations + 4, "error", errno.EIO)
            with pytest.raises(OSError, match="injected"):
                await machine.rotation.rotate(OVERLAP)
            machine.now += 1000
            await machine.send()  # until it has stopped, the old key signs, at a time that is its own

    machine = Machine()
    run(cut(machine))
    assert len(machine.failures) == 1
    machine.fs = machine.fs.after_crash(random.Random(0))
    run(life(machine))
    assert len(set(machine.signers())) == 2
    assert_clean(machine.fs)


def test_rotations_follow_each_other_one_at_a_time():
    """D-37: a checkpoint is witnessed by one old and one new key."""

    async def scenario():
        machine = Machine()
        async with machine.running():
            await machine.rotation.rotate(OVERLAP)
            with pytest.raises(IdentityError, match="signs only from"):
                await machine.rotation.rotate(OVERLAP)
            machine.now += 1000
            with pytest.raises(IdentityError, match="never ends"):
                await machine.rotation.rotate(2**63)
            await machine.rotation.rotate(0)
            machine.now += LEAD_SECONDS
            await machine.send()
            assert machine.signers() == [machine.sealing.current_pk]
            return len(machine.sealing.keys)

    assert run(scenario()) == 3


def test_a_rotation_within_the_lead_time_is_refused_and_leaves_no_key():
    """D-174: only a valid key can sign the record that retires it, so without overlap too the next one waits."""

    async def scenario():
        machine = Machine()
        async with machine.running():
            first = await machine.rotation.rotate(0)
            keys, operations = machine.fs.list(layout.KEYS), machine.fs.operations
            for _ in range(LEAD_SECONDS):
                with pytest.raises(RotationUnderWayError) as caught:
                    await machine.rotation.rotate(0)
                assert caught.value.until == machine.sealing.held.identity.current.valid_from
                machine.now += 1
            with pytest.raises(IdentityError, match="never ends"):
                await machine.rotation.rotate(2**63)
            assert (machine.fs.list(layout.KEYS), machine.fs.operations) == (keys, operations)  # no key was written
            second = await machine.rotation.rotate(0)
            return machine, [first, second]

    machine, records = run(scenario())
    identity = machine.sealing.held.identity
    assert [identity.verify_rotation(record).hub_pk for record in records] == [key.hub_pk for key in identity.keys[:2]]
    assert_clean(machine.fs)


def test_a_rotation_that_is_refused_at_its_turn_takes_its_key_back(monkeypatch):
    """The sequencer stops between the check and the record."""

    async def scenario():
        machine = Machine()
        async with machine.running():
            keys = machine.fs.list(layout.KEYS)

            async def stopped(_make, **_):
                raise Stopped

            monkeypatch.setattr(machine.sequencer, "control", stopped)
            with pytest.raises(Stopped):
                await machine.rotation.rotate(0)
            assert machine.fs.list(layout.KEYS) == keys

    run(scenario())


def test_a_log_with_a_rotation_that_another_key_signed_is_named():
    """As releases before D-174 wrote it: two rotations within the lead time."""
    machine = Machine()

    async def scenario():
        async with machine.running():
            await machine.rotation.rotate(0)
            keys = machine.sealing.held
            third = SigningKey(b"\x33" * 32)
            identities.write_key(machine.fs, third)
            at = keys.identity.current.valid_from + 5
            lapped = keys.identity.with_rotation(third.public, valid_from=at, overlap_until=at)
            await machine.sequencer.control(lambda _: lapped.rotations()[-1])
            keyrotation.publish(machine.fs, lapped, third)
            machine.sealing.replace(identities.HubKeys(lapped, {**keys.private, third.public: third}))
            machine.now += 1000
            await machine.send()

    run(scenario())
    with pytest.raises(SignatureError, match="signed a rotation that retires another key"):
        check_rotations(machine.fs)
    errors = [str(finding) for finding in verify_data(machine.fs, level="full").errors]
    assert len(errors) == 1
    assert "must pin the present one" in errors[0]

    async def again():
        async with machine.running():  # the hub itself goes on
            await machine.send()

    run(again())


# --- over the API ----------------------------------------------------------------------------------------


async def rotate(hub, overlap=OVERLAP, token=b"an-administrator"):
    request = RotateKeyRequest(overlap_sec=overlap).to_bytes()
    principal = Principal(bearer=token) if token else Principal()
    return await hub.api.call("rotate_key", request, principal=principal)


@pytest.mark.req("HID-04", "HID-05", "HID-07", "KEX0-02")
def test_an_administrator_rotates_the_key_of_a_running_hub(tmp_path):
    """Closed without credentials; the answer is the signed record, and the identity is what it says."""
    token = tmp_path / "token"
    token.write_text("an-administrator\n")
    token.chmod(0o600)
    now = [w.NOW]

    async def scenario():
        async with running(tmp_path, clock=lambda: now[0], auth__admin_token_files=str(token)) as hub:
            before = [Receipt.from_bytes(data) for data in await submit(hub, 2)]
            assert [(await rotate(hub, token=wrong)).status for wrong in (None, b"somebody")] == [401, 401]
            reply = await rotate(hub)
            record = RecordResponse.from_bytes(reply.body).record
            refused = await rotate(hub, 0)
            assert refused.status == 409
            envelope = ErrorEnvelope.from_bytes(refused.body)
            assert (envelope.code, envelope.detail) == (
                "E.CONFLICT",
                {"reason": "rotation_under_way", "until": hub.identity.keys[-1].valid_from},
            )
            now[0] += LEAD_SECONDS
            after = [Receipt.from_bytes(data) for data in await submit(hub, 2, 3)]
            listed = json.loads((await hub.api.call("identity", answer="json")).body)["hub_keys"]
            identity = IdentityResponse.from_bytes((await hub.api.call("identity")).body)
            assert identity.to_identity() == identities.read_identity(fs_of(tmp_path))
            assert identity.sig == (tmp_path / "hub" / layout.IDENTITY_SIG).read_bytes()
            return before, record, after, listed

    before, record, after, listed = run(scenario())
    identity = identities.read_identity(fs_of(tmp_path))
    old, new = (key.hub_pk for key in identity.keys)
    assert isinstance(record.body, KeyRotate)
    assert (record.body.retired_pk, record.body.hub_pk) == (old, new)
    assert identity.verify_control(record).hub_pk == old
    assert [(key["key_id"], key["hub_pk"]) for key in listed] == [(H(pk).hex()[:16], pk.hex()) for pk in (old, new)]
    assert [identity.verify_receipt(receipt).hub_pk for receipt in before + after] == [old, old, new, new]
    assert len(check_rotations(fs_of(tmp_path))) == 3
    assert_whole(tmp_path)


def test_without_administrators_nobody_rotates(tmp_path):
    async def scenario():
        async with running(tmp_path) as hub:
            return (await rotate(hub)).status, len(hub.identity.keys)

    assert run(scenario()) == (403, 1)


def test_where_keys_are_given_a_rotation_takes_the_one_that_was_added(tmp_path):
    """D-42: such a hub writes no keys and invents none."""
    token, keys = tmp_path / "token", tmp_path / "secret"
    token.write_text("an-administrator\n")
    token.chmod(0o600)
    first, second = SigningKey(b"\x05" * 32), SigningKey(b"\x06" * 32)
    write_private_key(keys, first)
    write_birth(keys, first, int(time.time()) + 60)

    async def scenario():
        async with running(tmp_path, keys_dir=str(keys), auth__admin_token_files=str(token)) as hub:
            refused = (await rotate(hub)).status
            write_private_key(keys, second)
            accepted = (await rotate(hub)).status
            return refused, accepted, hub.identity.current_pk

    assert run(scenario()) == (503, 200, second.public)
    assert not fs_of(tmp_path).list(layout.KEYS)


def test_a_rotation_that_lost_only_its_last_step_is_completed_before_the_next():
    """hub-identity.sig then holds two signatures, and a rotation that began from the old one could be cut off badly."""
    machine = Machine()
    run(life(machine))
    good = machine.fs.files()[layout.IDENTITY_SIG]
    machine.fs.replace(layout.IDENTITY_SIG, bytes(64) + good)

    async def start():
        async with machine.running():
            return machine.fs.files()[layout.IDENTITY_SIG]

    assert run(start()) == good


def test_two_rotations_at_once_of_which_one_caller_went_away_follow_each_other():
    """The lock belonged to the caller, so a second rotation began from the same key."""

    async def scenario():
        slow = SlowFs()
        machine = Machine(slow)
        async with machine.running():
            gone = asyncio.ensure_future(machine.rotation.rotate(OVERLAP))
            await asyncio.to_thread(slow.reached.wait, DEADLINE_SEC)
            gone.cancel()
            again = asyncio.ensure_future(machine.rotation.rotate(OVERLAP))
            await asyncio.sleep(0)
            slow.gate.set()
            with pytest.raises(RotationUnderWayError):
                await again
        return machine

    machine = run(scenario())
    assert len(machine.sealing.keys) == 2
    assert len(machine.fs.list(layout.KEYS)) == 2
    check_rotations(machine.fs)
    assert_clean(machine.fs)


@pytest.mark.parametrize("error", [Overloaded("the hub's disk is full"), NotPrimary("fenced"), StorageError("damaged")])
def test_a_rotation_that_is_refused_for_any_reason_leaves_no_key(monkeypatch, error):
    async def scenario():
        machine = Machine()
        async with machine.running():
            keys = machine.fs.list(layout.KEYS)

            async def refuse(make, **_):
                make(machine.sequencer.now())
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(machine.sequencer, "control", refuse)
                with pytest.raises(type(error)):
                    await machine.rotation.rotate(0)
            assert machine.fs.list(layout.KEYS) == keys
            machine.now += 1000
            assert machine.sequencer.now() == machine.now  # time goes on
            await machine.rotation.rotate(0)

    run(scenario())


def test_a_rotation_that_met_a_full_disk_leaves_no_key():
    """The record is certainly not in the log, so nobody needs the key."""

    async def scenario():
        machine = Machine()
        async with machine.running():
            keys = machine.fs.list(layout.KEYS)
            machine.fs.fault = Fault(machine.fs.operations + 2, "error", errno.ENOSPC)  # the key, then the record
            with pytest.raises(StorageError, match="nothing has changed"):
                await machine.rotation.rotate(OVERLAP)
            machine.fs.fault = None
            assert machine.fs.list(layout.KEYS) == keys

    run(scenario())


# --- request ids ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
def test_a_rotation_that_is_asked_for_again_under_its_id_adds_no_second_key(restart):
    """The id is journaled with the record, so a retry is harmless, also after a restart."""
    machine, request_id = Machine(), b"r" * 32

    async def rotate_twice(ids):
        async with machine.running():
            records = [await machine.rotation.rotate(0, request_id) for request_id in ids]
            machine.now += 1000
            await machine.send()
            return records

    if restart:
        records = run(rotate_twice([request_id])) + run(rotate_twice([request_id]))
    else:
        records = run(rotate_twice([request_id] * 2))
    assert records[0] == records[1]
    assert len(identities.read_identity(machine.fs).keys) == 2
    (other,) = run(rotate_twice([b"s" * 32]))
    assert other != records[0]
    assert len(identities.read_identity(machine.fs).keys) == 3
    kinds = [record.kind for _, record in control_records(machine.fs)]
    assert kinds.count("key.rotate") == kinds.count("request.done") == 2
    check_rotations(machine.fs)
    assert_clean(machine.fs)


def test_a_retry_that_comes_while_the_first_request_is_under_way_gets_its_record():
    """The first caller went away, and its rotation went on."""

    async def scenario():
        slow = SlowFs()
        machine = Machine(slow)
        async with machine.running():
            gone = asyncio.ensure_future(machine.rotation.rotate(0, b"r" * 32))
            await asyncio.to_thread(slow.reached.wait, DEADLINE_SEC)
            gone.cancel()
            again = asyncio.ensure_future(machine.rotation.rotate(0, b"r" * 32))
            await asyncio.sleep(0)
            slow.gate.set()
            record = await again
            assert isinstance(record.body, KeyRotate)
            assert record.body.hub_pk == machine.sealing.current_pk
        return machine

    assert len(run(scenario()).sealing.keys) == 2


def test_a_request_id_survives_a_rebuild_of_the_index_and_counts_at_rest():
    machine = Machine()

    async def rotate_once():
        async with machine.running():
            await machine.rotation.rotate(0, b"r" * 32)

    run(rotate_once())
    rebuild_index(machine.fs, LIMITS)
    machine.now += 1000
    for _ in range(2):
        rotate_at_rest(machine.fs, machine.now, 0, request_id=b"r" * 32)
    assert len(identities.read_identity(machine.fs).keys) == 2
    for _ in range(2):
        rotate_at_rest(machine.fs, machine.now, 0, request_id=b"s" * 32)
    assert len(identities.read_identity(machine.fs).keys) == 3
    assert_clean(machine.fs)
