"""What a replica copies beside the log: attachments and the outer log. Promoted, it serves all that its primary did."""

import asyncio
import time

import pytest
from tests.client.hubs import all_of, client_at, hub_at, person, pin_of, run
from tests.examples import spread
from tests.products.federation.replicas import SMALL, START, caught_up, following, replica_at, write
from tests.products.federation.test_cutover import fence
from tests.products.federation.test_replica import Tampering

from veen.client.errors import BadAnswer, HubRefused
from veen.client.send.sealing import Attach
from veen.client.session import HubSession
from veen.client.transport.calls import NO_RETRY, Calls
from veen.client.transport.inprocess import InProcess
from veen.client.verify.outer import OuterReader
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects.tooling import AttachmentsResponse, StoredAttachment
from veen.core.tlog.note import LogCheckpoint, Note
from veen.core.tlog.proof import OuterLeaf
from veen.core.tlog.tree import TlogTree
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.products.federation import outer_copies as attachment_copies
from veen.products.federation.outer_copies import ReplicaInconsistent
from veen.products.federation.promotion import WrongKey, promote, replica_state
from veen.storage import layout
from veen.storage.attachments import AttachmentFiles, EntryRef, copy_records
from veen.storage.outer import OuterLogFiles
from veen.verify.directory import verify_data

ORIGIN = "hub.example/veen"
OUTER = {"outer__origin": ORIGIN, "outer__every": "3600"}


def now():
    return int(time.time())


async def published(hub):
    """The hub lists and signs now, and not when its interval is over."""
    return await hub.outer.publish(hub.api.context.latest_checkpoint, None, 20.0)


async def attach(hub, home, *contents, body=b"with attachments", **options):
    who = person("alice", START if "clock" in options else None)
    async with client_at(InProcess(hub.api), pin_of(hub), who, home, **options) as client:
        return await client.send("orders", body, attachments=[Attach(data=data) for data in contents])


async def attachments_at(hub, home, name="bob"):
    """The plaintexts of all attachments of the stream, as a reader opens them."""
    async with client_at(InProcess(hub.api), pin_of(hub), person(name), home) as client:
        entries = await all_of(client.read("orders"))
        return [
            await client.attachments.get(entry, index) for entry in entries for index in range(len(entry.attachments))
        ]


async def all_beside(follower):
    await caught_up(follower)
    assert await follower.step_beside()


def rows(path):
    """What the records of a directory at rest say, but for the numbers of changes."""
    files = AttachmentFiles(OsFs(path))
    try:
        changed = files.changes_after(None, 0, 1000)
        usage = {record.owner: files.bytes_of(record.owner) for _, record in changed.records}
        return sorted((record for _, record in changed.records), key=lambda record: record.coid), usage
    finally:
        files.close()


# --- attachments --------------------------------------------------------------------------------------------


def test_attachments_come_along_with_their_owners_and_entries(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await attach(a, tmp_path / "alice", b"one", b"two")
            async with following(tmp_path / "r", a) as (replica, follower):
                await all_beside(follower)
                assert await attachments_at(replica, tmp_path / "bob") == [b"one", b"two"]
                await attach(a, tmp_path / "alice", b"three")  # while it follows
                await all_beside(follower)
                assert await attachments_at(replica, tmp_path / "bob") == [b"one", b"two", b"three"]
                assert follower.attachments.missing == 0
                with pytest.raises(HubRefused) as refused:  # a replica takes none itself
                    await attach(replica, tmp_path / "carol", b"four")
                assert refused.value.detail_enum == "NOT_PRIMARY"

    run(scenario())
    assert rows(tmp_path / "a") == rows(tmp_path / "r")
    assert verify_data(OsFs(tmp_path / "r")).ok


def test_only_what_is_new_is_asked_for_also_after_a_restart(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await attach(a, tmp_path / "alice", b"one", b"two")
            async with following(tmp_path / "r", a) as (_, follower):
                await all_beside(follower)
                assert follower.attachments.copied_bytes > 0
            async with following(tmp_path / "r", a) as (_, follower):
                wire = counting(follower)
                await all_beside(follower)
                assert follower.attachments.copied_bytes == 0
                assert wire.count("tooling/attachments") == 1
                assert not any(operation.startswith("tooling/attachment/") for operation in wire)

    run(scenario())


def counting(follower):
    """The operations that the follower asks for from now on."""
    operations, call = [], follower._calls.transport.call

    async def recorded(operation, *args, **options):
        operations.append(operation)
        return await call(operation, *args, **options)

    follower._calls.transport.call = recorded
    return operations


@pytest.mark.parametrize("step", spread(["_write", "keep_copy", "note_copied"], 2))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replica_that_is_killed_while_it_copies_attachments_goes_on(tmp_path, monkeypatch, step, when):
    """Cut off at the second attachment, before or after each of the three steps; the next run has each one once."""

    class Killed(BaseException):
        pass

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await attach(a, tmp_path / "alice", b"one", b"two", b"three")
            real = getattr(AttachmentFiles, step)
            calls = [0]

            def cut(self, *args):
                calls[0] += 1
                last = calls[0] == (1 if step == "note_copied" else 2)
                if last and when == "before":
                    raise Killed
                outcome = real(self, *args)
                if last:
                    raise Killed
                return outcome

            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
                with monkeypatch.context() as patched:
                    patched.setattr(AttachmentFiles, step, cut)
                    with pytest.raises(Killed):
                        await follower.step_beside()
            async with following(tmp_path / "r", a) as (replica, follower):
                await all_beside(follower)
                assert sorted(await attachments_at(replica, tmp_path / "bob")) == [b"one", b"three", b"two"]

    run(scenario())
    assert rows(tmp_path / "a") == rows(tmp_path / "r")


def test_an_attachment_with_other_bytes_is_not_written_and_is_asked_for_again(tmp_path, monkeypatch):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await attach(a, tmp_path / "alice", b"one", b"two")
            wire = Tampering(InProcess(a.api))
            [coid, _] = [record.coid for _, record in a.attachments.changes_after(None, 0, 9).records]
            wire.change = {f"tooling/attachment/{coid.hex()}": lambda body: body[:-1] + bytes([body[-1] ^ 1])}
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (replica, follower):
                await all_beside(follower)
                assert not replica.attachments.has(coid)
                assert follower.attachments.missing == 1
                assert b"veen_replica_attachments_missing 1" in replica.metrics_text()
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (replica, follower):
                await all_beside(follower)  # a restart has not forgotten it
                assert follower.attachments.missing == 1
                wire.change = {}
                await all_beside(follower)  # not yet
                assert follower.attachments.missing == 1
                monkeypatch.setattr(attachment_copies, "_AGAIN_SECONDS", 0.0)
                await all_beside(follower)
                assert follower.attachments.missing == 0
                assert len(await attachments_at(replica, tmp_path / "bob")) == 2

    run(scenario())
    assert rows(tmp_path / "a") == rows(tmp_path / "r")


def test_an_attachment_that_the_primary_has_lost_stops_nothing(tmp_path, monkeypatch):
    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await attach(a, tmp_path / "alice", b"one", b"two")
            [lost, other] = [record.coid for _, record in a.attachments.changes_after(None, 0, 9).records]
            (tmp_path / "a" / layout.attachment(lost)).unlink()
            async with following(tmp_path / "r", a) as (replica, follower):
                await asyncio.wait_for(follower.run(once=True), 120)
                assert (replica.attachments.has(lost), replica.attachments.has(other)) == (False, True)
                assert follower.attachments.missing == 1

    run(scenario())


def test_records_that_were_begun_anew_are_read_from_their_beginning(tmp_path):
    """The operator moved a damaged attachments.db away: its numbers begin again."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await attach(a, tmp_path / "alice", b"one", b"two", b"three")
            async with following(tmp_path / "r", a) as (_, follower):
                await all_beside(follower)
        (tmp_path / "a" / layout.ATTACHMENT_RECORDS).unlink()
        async with hub_at(tmp_path / "a") as a:
            await attach(a, tmp_path / "alice", b"four")
            async with following(tmp_path / "r", a) as (replica, follower):
                await all_beside(follower)
                assert await attachments_at(replica, tmp_path / "bob") == [b"one", b"two", b"three", b"four"]

    run(scenario())


def test_records_of_an_earlier_version_are_listed(tmp_path):
    """Their rows have no number of a change yet."""
    files = AttachmentFiles(OsFs(tmp_path))
    for number in range(3):
        files.put(H(b"%d" % number), b"%d" % number, entry=EntryRef(bytes(32), bytes(32), number + 1))
    with files._lock, files._transaction() as db:
        db.execute("DROP TABLE changes")
        db.execute("DROP TABLE about")
    files.close()
    files = AttachmentFiles(OsFs(tmp_path))
    changed = files.changes_after(None, 0, 10)
    assert len(changed.records) == 3
    assert [number for number, _ in changed.records] == [1, 2, 3]
    files.close()


def test_a_change_that_was_erased_does_not_begin_the_list_anew(tmp_path):
    files = AttachmentFiles(OsFs(tmp_path))
    for number in range(3):
        files.put(H(b"%d" % number), b"%d" % number, entry=EntryRef(bytes(32), bytes(32), number + 1))
    instance = files.changes_after(None, 0, 10).instance
    assert files.sweep(lambda ref: True) == 3
    files.put(H(b"new"), b"new")
    assert [number for number, _ in files.changes_after(instance, 3, 10).records] == [4]
    assert files.changes_after(instance, 4, 10).records == ()
    assert files.changes_after(instance, 4, 10).last == 4
    assert [number for number, _ in files.changes_after(bytes(32), 4, 10).records] == [4]  # another instance
    files.close()


def test_a_copy_of_the_records_counts_its_changes_by_itself(tmp_path):
    """A hub that goes on from a backup must not give numbers that a replica takes for those of before."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    files = AttachmentFiles(OsFs(tmp_path / "one"))
    files.put(H(b"1"), b"1")
    copy_records(OsFs(tmp_path / "one"), OsFs(tmp_path / "other"))
    copy = AttachmentFiles(OsFs(tmp_path / "other"))
    original, copied = files.changes_after(None, 0, 9), copy.changes_after(None, 0, 9)
    assert original.records == copied.records
    assert original.instance != copied.instance
    files.close()
    copy.close()


@pytest.mark.parametrize("numbers", [(2, 1), (1, 1), (5,)])
def test_changes_in_another_order_or_beyond_the_last_are_no_answer(tmp_path, numbers):
    stored = [
        StoredAttachment(number=number, coid=bytes(32), size=1, owner=b"", pinned=True, entries=())
        for number in numbers
    ]
    answer = AttachmentsResponse(instance=b"\x01" * 32, last=4, attachments=tuple(stored))

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            wire = Tampering(InProcess(a.api))
            wire.change = {"tooling/attachments": lambda body: answer.to_bytes()}
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (_, follower):
                await caught_up(follower)
                with pytest.raises(BadAnswer):
                    await follower.step_beside()

    run(scenario())


def test_attachments_of_erased_entries_go_at_the_replica_as_well(tmp_path):
    async def scenario():
        clock = [START]
        tick = {"clock": lambda: float(clock[0])}
        async with hub_at(tmp_path / "a", **tick, **SMALL) as a:
            await attach(a, tmp_path / "alice", b"old", **tick)
            await write(a, tmp_path / "alice", 8, **tick)
            async with following(tmp_path / "r", a) as (replica, follower):
                await all_beside(follower)
                clock[0] += 100
                await attach(a, tmp_path / "alice", b"young", **tick)
                await all_beside(follower)
                for hub in (a, replica):
                    assert hub.sequencer.retire_idle()
                    await hub.sequencer.drain()
                    await hub.sequencer._retired.wait()
                retention = a.config.retention.__class__(payloads=50)
                assert await a.house.erase(retention) == 2
                await all_beside(follower)
                for hub in (a, replica):
                    assert hub.sequencer.retire_idle()
                    await hub.sequencer.drain()
                    await hub.sequencer._retired.wait()
                    assert await hub.house.erase_attachments() == 1

    run(scenario())
    assert rows(tmp_path / "a") == rows(tmp_path / "r")
    assert len(rows(tmp_path / "r")[0]) == 1


# --- the outer log ------------------------------------------------------------------------------------------


def outer_files(path):
    names = (layout.OUTER_LEAVES, layout.OUTER_OFFSETS, layout.OUTER_NODES, layout.OUTER_SIGNED, layout.OUTER_PUBLISHED)
    return {name: (path / name).read_bytes() for name in names}


async def reader_of(hub):
    session = HubSession(Calls(InProcess(hub.api), NO_RETRY), pin_of(hub))
    await session.open()
    return OuterReader(session)


def test_the_outer_log_comes_along_byte_for_byte_and_is_served(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a", **OUTER) as a:
            sent = await write(a, tmp_path / "alice", 3)
            await published(a)
            async with following(tmp_path / "r", a) as (replica, follower):
                await all_beside(follower)
                await write(a, tmp_path / "alice", 2, first=4)
                await published(a)
                await all_beside(follower)
                ours, theirs = await reader_of(replica), await reader_of(a)
                assert await ours.note() == await theirs.note()
                label = sent[0].receipt.label
                proof, leaf = await ours.proof(label, 2)
                assert (proof, leaf) == await theirs.proof(label, 2)
                with pytest.raises(HubRefused) as refused:
                    await ours.receipt(label, 2, proof, leaf)
                assert refused.value.code == "E.UNAVAILABLE"
            async with following(tmp_path / "r", a) as (replica, _):  # before it has asked for anything
                assert await (await reader_of(replica)).note() == await theirs.note()

    run(scenario())
    assert outer_files(tmp_path / "a") == outer_files(tmp_path / "r")
    assert not (tmp_path / "r" / layout.OUTER_KEY).exists()
    assert verify_data(OsFs(tmp_path / "r")).ok


def test_a_note_that_lists_entries_which_are_not_here_waits_for_them(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a", **OUTER) as a, following(tmp_path / "r", a) as (replica, follower):
            await write(a, tmp_path / "alice", 3)
            await caught_up(follower)
            await write(a, tmp_path / "alice", 2, first=4)
            await published(a)
            assert not await follower.step_beside()
            assert replica.followed_outer.files.signed_size == 0
            await all_beside(follower)
            assert replica.followed_outer.files.signed_size == a.outer.files.signed_size

    run(scenario())


@pytest.mark.parametrize("step", spread(["append", "take_over", "publish"], 2))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replica_that_is_killed_while_it_copies_the_outer_log_goes_on(tmp_path, monkeypatch, step, when):
    class Killed(BaseException):
        pass

    async def scenario():
        async with hub_at(tmp_path / "a", **OUTER) as a:
            await write(a, tmp_path / "alice", 3)
            await published(a)
            real = getattr(OuterLogFiles, step)

            def cut(self, *args):
                if when == "before":
                    raise Killed
                real(self, *args)
                raise Killed

            async with following(tmp_path / "r", a) as (_, follower):
                await caught_up(follower)
                with monkeypatch.context() as patched:
                    patched.setattr(OuterLogFiles, step, cut)
                    with pytest.raises(Killed):
                        await follower.step_beside()
            await write(a, tmp_path / "alice", 2, first=4)
            await published(a)
            async with following(tmp_path / "r", a) as (_, follower):
                await all_beside(follower)

    run(scenario())
    assert outer_files(tmp_path / "a") == outer_files(tmp_path / "r")


def _other_root(body):
    note = Note.from_bytes(body)
    return Note(note.text.replace("=\n", "A\n", 1), note.signatures).to_bytes()


def _other_leaf(body):
    """The same bundle, with a bit of its last leaf changed."""
    return body[:-1] + bytes([body[-1] ^ 1])


@pytest.mark.parametrize(
    ("operation", "change", "error"),
    [
        ("outer/checkpoint", _other_root, BadAnswer),
        ("outer/checkpoint", lambda body: b"no note", BadAnswer),
        ("outer/tile/entries/000.p/{size}", _other_leaf, ReplicaInconsistent),
        ("outer/tile/entries/000.p/{size}", lambda body: body[:-1], BadAnswer),
    ],
)
def test_what_the_primary_did_not_sign_is_not_written(tmp_path, operation, change, error):
    async def scenario():
        async with hub_at(tmp_path / "a", **OUTER) as a:
            await write(a, tmp_path / "alice", 3)
            await published(a)
            wire = Tampering(InProcess(a.api))
            wire.change = {operation.format(size=a.outer.files.signed_size): change}
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (_, follower):
                await caught_up(follower)
                with pytest.raises(error):
                    await follower.step_beside()

    run(scenario())
    assert not OuterLogFiles.exists(OsFs(tmp_path / "r"))


def signed_list(a, leaves):
    """A note over other leaves, signed by the key of the outer log."""
    tree = TlogTree(leaves)
    return LogCheckpoint(a.outer.vkey.name, len(leaves), tree.root()).sign(a.outer.sign_receipt_key())


def bundle(leaves):
    return b"".join(len(leaf).to_bytes(2, "big") + leaf for leaf in leaves)


def test_an_outer_log_that_goes_back_stops_the_replica_and_both_notes_are_kept(tmp_path):
    async def scenario():
        async with hub_at(tmp_path / "a", **OUTER) as a:
            await write(a, tmp_path / "alice", 3)
            await published(a)
            wire = Tampering(InProcess(a.api))
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (_, follower):
                await all_beside(follower)
                leaves = [a.outer.files.leaf(pos) for pos in range(a.outer.files.size)]
                shorter = signed_list(a, leaves[:-1]).to_bytes()
                wire.change = {"outer/checkpoint": lambda body: shorter}
                with pytest.raises(ReplicaInconsistent, match="does not continue"):
                    await follower.step_beside()
            [path] = (tmp_path / "r" / layout.OUTER).glob("refused-*")
            assert path.read_bytes() == a.outer.files.signed.to_bytes() + b"\n" + shorter

    run(scenario())


def test_a_list_with_another_root_than_the_log_convicts_the_primary(tmp_path):
    """The leaf and the note are signed; the entry that the replica has was signed with another root."""

    async def scenario():
        async with hub_at(tmp_path / "a", **OUTER) as a:
            sent = await write(a, tmp_path / "alice", 3)
            await published(a)
            leaves = [a.outer.files.leaf(pos) for pos in range(a.outer.files.size)]
            [place] = [pos for pos, leaf in enumerate(leaves) if OuterLeaf.from_bytes(leaf).checkpoint() is not None]
            files = a.sequencer.store.files(sent[0].receipt.label)
            other = a.identity.seal(files.head(), 3, H(b"another history"), sent[-1].receipt.hub_ts)
            leaves[place] = OuterLeaf.of_checkpoint(other).to_bytes()
            wire = Tampering(InProcess(a.api))
            wire.change = {
                "outer/checkpoint": lambda body: signed_list(a, leaves).to_bytes(),
                f"outer/tile/entries/000.p/{len(leaves)}": lambda body: bundle(leaves),
            }
            async with replica_at(tmp_path / "r", wire, pin_of(a).to_text()) as (_, follower):
                await caught_up(follower)
                with pytest.raises(ReplicaInconsistent, match="another root after entry 3") as caught:
                    await follower.step_beside()
                assert caught.value.evidence is not None
                assert len(caught.value.evidence.to_bytes()) <= 512

    run(scenario())


# --- promotion ----------------------------------------------------------------------------------------------


async def fenced_primary(tmp_path, *, listed=True):
    """A primary with everything, fenced; a replica that has all of it."""
    async with hub_at(tmp_path / "a", **OUTER) as a:
        await attach(a, tmp_path / "alice", b"one", b"two")
        await write(a, tmp_path / "alice", 4)
        await published(a)
        async with following(tmp_path / "r", a) as (_, follower):
            await all_beside(follower)
            await fence(a)
            if listed:
                await asyncio.wait_for(follower.run(once=True), 120)  # waits until the fence is listed
            else:
                await caught_up(follower)
            follower.save()


def test_a_promoted_replica_serves_everything_and_goes_on_with_the_outer_log(tmp_path):
    run(fenced_primary(tmp_path))
    assert outer_files(tmp_path / "a") == outer_files(tmp_path / "r")
    state = replica_state(OsFs(tmp_path / "r"))
    assert (state.complete, state.outer_complete) == (True, True)
    done = promote(OsFs(tmp_path / "r"), tmp_path / "a", now(), move_keys=True)
    assert (done.complete, done.outer) == (True, "continues")
    assert not (tmp_path / "a" / layout.OUTER_KEY).exists()

    async def after():
        async with hub_at(tmp_path / "r", **OUTER) as hub:
            before = hub.outer.files.signed_size
            assert await attachments_at(hub, tmp_path / "bob") == [b"one", b"two"]
            await attach(hub, tmp_path / "alice", b"three")
            await published(hub)
            assert hub.outer.files.signed_size > before
            reader = await reader_of(hub)
            _, head = await reader.note()
            leaves = [leaf async for leaf in reader.leaves(0, head.size)]
            assert TlogTree(leaves).root() == head.root
            assert await attachments_at(hub, tmp_path / "bob") == [b"one", b"two", b"three"]

    run(after())
    assert verify_data(OsFs(tmp_path / "r")).ok


def test_the_key_of_the_outer_log_stays_away_where_a_note_may_be_missing(tmp_path):
    """The primary may have signed the list with its fence; a second list of that size would be a fork."""
    run(fenced_primary(tmp_path, listed=False))
    state = replica_state(OsFs(tmp_path / "r"))
    assert (state.complete, state.outer_complete) == (True, False)
    done = promote(OsFs(tmp_path / "r"), tmp_path / "a", now())
    assert done.outer == "behind"
    assert not (tmp_path / "r" / layout.OUTER_KEY).exists()

    async def start():
        async with hub_at(tmp_path / "r", **OUTER):
            pass

    with pytest.raises(StorageError, match="the private key of the outer log is missing"):
        run(start())


def test_a_wrong_key_of_the_outer_log_is_refused_and_a_missing_one_is_said(tmp_path):
    run(fenced_primary(tmp_path))
    seed = tmp_path / "a" / layout.OUTER_KEY
    right = seed.read_bytes()
    seed.write_bytes(f"{SigningKey(bytes(31) + bytes([7])).seed.hex()}\n".encode())
    with pytest.raises(WrongKey, match="outer"):
        promote(OsFs(tmp_path / "r"), tmp_path / "a", now())
    seed.unlink()
    done = promote(OsFs(tmp_path / "r"), tmp_path / "a", now())
    assert done.outer == "no key"
    (tmp_path / "r" / layout.OUTER_KEY).write_bytes(right)  # the operator brings it later
    (tmp_path / "r" / layout.OUTER_KEY).chmod(0o600)

    async def start():
        async with hub_at(tmp_path / "r", **OUTER) as hub:
            assert (await published(hub)) is not None

    run(start())
