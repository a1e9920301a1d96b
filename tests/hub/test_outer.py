"""The outer log of a hub: what it lists and signs, what survives, whom it asks, and what makes it stop."""

import asyncio
import contextlib
import shutil
from dataclasses import replace

import pytest
from tests.hub import builders as w
from tests.hub.test_runtime import get, run, running, submit
from tests.products.witness.test_witness import Served, saying
from tests.waiting import eventually

from veen.client.errors import BadAnswer, HubRefused
from veen.client.session import HubSession
from veen.client.transport.calls import NO_RETRY, Calls
from veen.client.transport.http import HttpTransport
from veen.client.verify.outer import OuterReader
from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.control import ControlRecord, OuterKey
from veen.core.tlog.note import COSIGNATURE, ED25519, LogCheckpoint, Note, VerifierKey
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tlog.proof import CHECKPOINT_LEAF, CONTROL_LEAF, IDENTITY_LEAF, CoseReceipt, OuterLeaf
from veen.core.tlog.tree import TlogTree, leaf_hash
from veen.hub.process.config import ConfigError
from veen.hub.process.outer import WitnessAheadError
from veen.io.errors import CorruptError, StorageError
from veen.io.local import OsFs
from veen.products.witness.monitor import Monitor, MonitorState
from veen.products.witness.service import WitnessService, WitnessStore
from veen.storage import layout
from veen.storage.copies.copying import clone
from veen.storage.outer import MissingOuterKeyError, OuterLogFiles
from veen.verify.directory import verify_data

ORIGIN = "hub.example/veen"
WITNESS = SigningKey(b"\x21" * 32)
VKEY = VerifierKey("w.example", COSIGNATURE, WITNESS.public)
OTHER_CIPHERTEXT = w.CIPHERTEXT[:-1] + b"c"
OUTER = {"outer__origin": ORIGIN, "outer__every": "3600"}


async def published(hub):
    """The hub lists and signs now, and not when its interval is over."""
    return await hub.outer.publish(hub.api.context.latest_checkpoint, hub._witness_policy, 20.0)


@contextlib.asynccontextmanager
async def reading(hub, pin=None):
    transport = HttpTransport(hub.url)
    session = HubSession(Calls(transport, NO_RETRY), pin or HubPin.of_key(hub.identity.current_pk))
    await session.open()
    try:
        yield session
    finally:
        await transport.aclose()


async def leaves_of(session):
    reader = OuterReader(session)
    _, head = await reader.note()
    return [leaf async for leaf in reader.leaves(0, head.size)]


async def listing(reader, seq, *, covers):
    """The proof and the leaf of an entry, whose checkpoint goes so far."""
    proof, leaf = await reader.proof(w.LABEL, seq)
    assert leaf.checkpoint().upto_seq == covers
    return proof, leaf


def policy_file(tmp_path, url):
    path = tmp_path / "witnesses.policy"
    path.write_text(f"witness w {VKEY} {url}\nquorum w\n")
    return str(path)


def test_checkpoints_and_control_records_are_listed_and_signed(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 3)
            note = await published(hub)
            async with reading(hub) as session:
                reader = OuterReader(session)
                vkey = await reader.vkey()
                leaves = [OuterLeaf.from_bytes(data) for data in await leaves_of(session)]
            head = LogCheckpoint.parse(note.text)
            assert (vkey.name, vkey.key_type, head.origin) == (ORIGIN, ED25519, ORIGIN)
            assert TlogTree(leaf.to_bytes() for leaf in leaves).root() == head.root
            assert leaves[0] == OuterLeaf(IDENTITY_LEAF, hub.identity.held.identity.to_bytes())
            listed = [leaf.checkpoint() for leaf in leaves if leaf.kind == CHECKPOINT_LEAF]
            assert [(point.label_curr, point.upto_seq) for point in listed if point is not None] == [(w.LABEL, 3)]
            assert max(len(leaf.data) for leaf in leaves if leaf.kind == CHECKPOINT_LEAF) <= 190
            controls = [ControlRecord.from_bytes(leaf.data) for leaf in leaves if leaf.kind == CONTROL_LEAF]
            assert controls[-1] == hub.sequencer.store.last_control
            assert (await published(hub)).text == note.text  # nothing changed: no new leaf
            assert (await get(hub, "/metrics"))[1].count(b"veen_outer_leaves") == 3

    run(scenario())


def test_the_key_is_bound_by_a_record_that_the_hub_signed(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await published(hub)
            record = ControlRecord.from_bytes((await get(hub, "/outer/key"))[1])
            record.verify(hub.identity.current_pk)
            assert record.body == OuterKey(origin=ORIGIN, vkey=str(hub.outer.vkey))
        report = verify_data(OsFs(tmp_path / "hub"))
        assert report.ok, [str(finding) for finding in report.findings]
        with pytest.raises(StorageError):  # witnesses pin origin and key for years
            async with running(tmp_path, **{**OUTER, "outer__origin": "else.example"}):
                pass

    run(scenario())


def test_a_proof_and_a_receipt_lead_from_an_entry_to_the_note(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 3)
            await published(hub)
            await submit(hub, 2, first=4)
            async with reading(hub) as session:
                reader = OuterReader(session)
                proof, leaf = await listing(reader, 2, covers=3)
                assert await reader.proof(w.LABEL, 4) is None
                await published(hub)
                await listing(reader, 4, covers=5)
                receipt = await reader.receipt(w.LABEL, 2, proof, leaf)  # of the size of the older note
                assert receipt.tree_size == LogCheckpoint.parse(proof.note.text).size
                with pytest.raises(HubRefused):
                    await session.calls.send(f"outer/receipt/{w.LABEL.hex()}/2?size=99", b"", again=False)
            for path in ("nothing", "tile/0/001", "tile/0/000.p/99", "tile/9/000", "tile/0/000.p/256", "proof/x/1"):
                assert (await get(hub, f"/outer/{path}"))[0] == 404
            assert CoseReceipt.from_bytes(receipt.to_bytes()) == receipt

    run(scenario())


def test_tiles_have_the_hashes_of_the_tree(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            note = await published(hub)
            leaves = [OuterLeaf(0, b"x%d" % number).to_bytes() for number in range(600)]
            hub.outer.files.append(leaves)  # as if so much had been listed
            hub.outer.files.publish(hub.outer.files.sign(hub.outer._key))
            size = LogCheckpoint.parse(note.text).size + 600
            assert len((await get(hub, "/outer/tile/0/001"))[1]) == 256 * 32
            assert (await get(hub, "/outer/tile/1/000.p/2"))[1][:32] == hub.outer.files.node_at(8, 0)
            async with reading(hub) as session:
                data = await leaves_of(session)
            assert len(data) == size
            assert data[-600:] == leaves
            partial = await get(hub, f"/outer/tile/0/002.p/{size - 512}")
            assert partial[1][-32:] == leaf_hash(leaves[-1])

    run(scenario())


def test_a_hub_without_an_outer_log_says_so_and_those_who_may_not_read_get_no_leaves(tmp_path):
    async def scenario():
        async with running(tmp_path) as hub:
            assert (await get(hub, "/outer/checkpoint"))[0] == 404
        token = tmp_path / "token"
        token.write_text("r" * 32)
        token.chmod(0o600)
        async with running(tmp_path, **OUTER, auth__read_token_files=str(token)) as hub:
            await published(hub)
            assert (await get(hub, "/outer/checkpoint"))[0] == 200
            assert (await get(hub, "/outer/tile/entries/000.p/1"))[0] == 401
            assert (await get(hub, f"/outer/proof/{w.LABEL.hex()}/1"))[0] == 401

    run(scenario())


def test_a_restart_goes_on_and_never_signs_a_second_root(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 3)
            first = await published(hub)
            hub.outer.files.append([OuterLeaf(2, b"never signed").to_bytes()])  # a crash before the note
        async with running(tmp_path, **OUTER) as hub:
            assert hub.outer.files.signed == Note(first.text, first.signatures[:1])
            await submit(hub, 1, first=4)
            second = await published(hub)
            async with reading(hub) as session:
                leaves = await leaves_of(session)
            before, after = LogCheckpoint.parse(first.text), LogCheckpoint.parse(second.text)
            tree = TlogTree(leaves)
            assert tree.root(before.size) == before.root
            assert tree.root() == after.root
            assert OuterLeaf(2, b"never signed").to_bytes() not in leaves
            assert hub.outer.files.last_upto(w.LABEL) == 4

    run(scenario())


@pytest.mark.parametrize("name", [layout.OUTER_NODES, layout.OUTER_OFFSETS, layout.OUTER_LEAVES, layout.OUTER_SIGNED])
def test_damage_below_a_signed_note_stops_the_start(tmp_path, name):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 3)
            await published(hub)
        path = tmp_path / "hub" / name
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CorruptError):
            async with running(tmp_path, **OUTER):
                pass

    run(scenario())


def test_a_lost_key_is_not_made_anew(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await published(hub)
        (tmp_path / "hub" / layout.OUTER_KEY).unlink()
        with pytest.raises(MissingOuterKeyError):
            async with running(tmp_path, **OUTER):
                pass

    run(scenario())


def test_a_lost_index_of_leaves_is_made_again(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 3)
            await published(hub)
        for path in (tmp_path / "hub" / "outer").glob("index.db*"):
            path.unlink()
        async with running(tmp_path, **OUTER) as hub:
            assert hub.outer.files.last_upto(w.LABEL) == 3

    run(scenario())


def test_the_origin_and_the_policy_of_a_configuration_are_checked(tmp_path):
    async def scenario():
        with pytest.raises(ConfigError):
            async with running(tmp_path, outer__origin="has space"):
                pass
        bad = tmp_path / "bad.policy"
        bad.write_text("quorum nobody\n")
        with pytest.raises(ConfigError):
            async with running(tmp_path, **OUTER, outer__policy=str(bad)):
                pass

    run(scenario())


# --- with a witness ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def witness_of(directory, *vkeys):
    directory.mkdir(exist_ok=True)
    store = WitnessStore(OsFs(directory))
    service = WitnessService(store, WITNESS, VKEY, {key.name: key for key in vkeys}, lambda: 1_700_000_000)
    try:
        with Served(service.handle) as witness:
            yield witness, service
    finally:
        store.close()


def outer_key(tmp_path):
    """The key of the hub's outer log, which its first start made."""
    seed = bytes.fromhex((tmp_path / "hub" / layout.OUTER_KEY).read_text().strip())
    return VerifierKey(ORIGIN, ED25519, SigningKey(seed).public)


def begun(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 1)
            await published(hub)

    run(scenario())
    return outer_key(tmp_path)


def test_a_note_is_cosigned_and_satisfies_the_policy(tmp_path):
    key = begun(tmp_path)

    async def scenario():
        with witness_of(tmp_path / "w", key) as (witness, _):
            async with running(tmp_path, **OUTER, outer__policy=policy_file(tmp_path, witness.url)) as hub:
                await submit(hub, 3, first=2)
                rules = WitnessPolicy.parse(f"log {key}\nwitness w {VKEY}\nquorum w\n")
                assert rules.check(await published(hub)).cosigned == {"w": 1_700_000_000}
                await submit(hub, 1, first=5)
                accepted = rules.check(await published(hub))
                assert accepted.checkpoint.size == hub.outer.files.signed_size
                assert hub.gauges()["veen_outer_cosignatures"] == 1

    run(scenario())


@pytest.mark.parametrize("status", [404, 403, 503, 200])
def test_a_note_goes_out_without_witnesses_that_fail_and_they_are_counted(tmp_path, status):
    async def scenario():
        with Served(saying(status, b"rubbish")) as witness:
            async with running(tmp_path, **OUTER, outer__policy=policy_file(tmp_path, witness.url)) as hub:
                receipts = await submit(hub, 3)
                note = await published(hub)
                assert len(receipts) == 3
                assert len(note.signatures) == 1
                assert hub.gauges()["veen_outer_witness_failures"] >= 1
                assert hub.outer.halted is None
                assert (await get(hub, "/readyz"))[0] == 200

    run(scenario())


def test_an_old_copy_does_not_start_when_a_witness_has_seen_more(tmp_path):
    """The rollback alarm: a stale restore, as a blank directory, would sign a second history."""
    key = begun(tmp_path)
    shutil.copytree(tmp_path / "hub", tmp_path / "old")

    async def scenario():
        with witness_of(tmp_path / "w", key) as (witness, _):
            flags = {**OUTER, "outer__policy": policy_file(tmp_path, witness.url)}
            async with running(tmp_path, **flags) as hub:
                await submit(hub, 3, first=2)
                await published(hub)
            with pytest.raises(WitnessAheadError) as caught:
                async with running(tmp_path, **flags, data_dir=str(tmp_path / "old")):
                    pass
            assert caught.value.code == "E.WITNESS.AHEAD"

    run(scenario())


def test_two_copies_that_write_are_told_apart_by_the_witness_and_the_later_one_stops_signing(tmp_path):
    key = begun(tmp_path)
    shutil.copytree(tmp_path / "hub", tmp_path / "copy")

    async def scenario():
        with witness_of(tmp_path / "w", key) as (witness, service):
            flags = {**OUTER, "outer__policy": policy_file(tmp_path, witness.url)}
            async with (
                running(tmp_path, **flags, data_dir=str(tmp_path / "copy"), log__file=str(tmp_path / "l2")) as copy,
                running(tmp_path, **flags) as hub,
            ):
                await submit(hub, 3, first=2)
                await published(hub)
                await submit(copy, 3, first=2, ciphertext=OTHER_CIPHERTEXT)
                assert await published(copy) is None
                assert copy.outer.halted is not None
                assert (await get(copy, "/readyz"))[0] == 503
                assert await published(hub) is not None
            assert service.refused + sum(row[1] == "fork" for row in service._store.evidence()) >= 1

    run(scenario())


# --- a monitor -----------------------------------------------------------------------------------------------


def test_a_monitor_convicts_two_copies_of_a_hub_that_went_apart(tmp_path):
    begun(tmp_path)
    shutil.copytree(tmp_path / "hub", tmp_path / "copy")

    async def scenario():
        apart = {**OUTER, "data_dir": str(tmp_path / "copy"), "log__file": str(tmp_path / "l2")}
        async with running(tmp_path, **apart) as copy, running(tmp_path, **OUTER) as hub:
            monitor = Monitor(MonitorState())
            for running_hub in (hub, copy):
                await published(running_hub)
                async with reading(running_hub) as session:
                    assert await monitor.poll(running_hub.url, session) == []
            await submit(hub, 2, first=2)
            await submit(copy, 4, first=2, ciphertext=OTHER_CIPHERTEXT)
            findings = []
            for running_hub in (hub, copy):
                await published(running_hub)
                async with reading(running_hub) as session:
                    findings += await monitor.poll(running_hub.url, session)
            for running_hub in (hub, copy):
                async with reading(running_hub) as session:
                    findings += await monitor.compare(running_hub.url, session)
        splits = [finding for finding in findings if finding.code == "E.MONITOR.SPLIT"]
        assert splits
        assert all(len(finding.evidence or bytes(513)) <= 512 for finding in splits)

    run(scenario())


def test_a_monitor_names_a_source_that_refuses_its_checkpoint(tmp_path):
    """A source that does not answer hides what it signed, so the question stays open and is named."""

    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 4)
            await published(hub)
            state = MonitorState()
            monitor = Monitor(state)
            async with reading(hub) as session:
                assert await monitor.poll("hub", session) == []
                (label,) = state.db.execute("SELECT label FROM listed").fetchone()
                state.db.execute("INSERT INTO listed VALUES ('copy', ?, 2)", (label,))
                state.db.execute("UPDATE listed SET upto_seq = 99 WHERE source = 'hub'")
                asked = session.checkpoint

                async def refuse(*words):
                    raise BadAnswer("no checkpoint today")

                session.checkpoint = refuse
                assert await monitor.compare("hub", session) == []
                assert monitor.unanswered == {("hub", label, 2): "no checkpoint today"}
                session.checkpoint = asked
                await monitor.compare("hub", session)
            assert ("hub", label, 2) not in monitor.unanswered
            assert monitor.heads["hub"][0] == monitor.heads["hub"][1] > 0

    run(scenario())


def test_a_monitor_resumes_and_finds_nothing_wrong_with_an_honest_hub(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            for turn in range(3):
                await submit(hub, 2, first=2 * turn + 1)
                await published(hub)
                state = MonitorState(tmp_path / "monitor.db")
                async with reading(hub) as session:
                    monitor = Monitor(state)
                    assert await monitor.poll("hub", session) == []
                    assert await monitor.compare("hub", session) == []
                state.close()
                assert 1 <= monitor.leaves <= 5

    run(scenario())


@pytest.mark.parametrize("labels", [300, pytest.param(100_000, marks=pytest.mark.slow)])
def test_a_monitor_over_many_labels_finds_the_one_conflicting_checkpoint(tmp_path, labels):
    """The operator lists another root for one position of one label: both statements are in one list."""

    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await published(hub)
            sealing, now = hub.identity, hub.sequencer.now()

            def point(number, upto_seq, root):
                label = number.to_bytes(32, "big")
                return sealing.checkpoint(label, 0, None, upto_seq, root, now)

            points = [point(number, 7, b"r" * 32) for number in range(labels)]
            points.append(point(labels // 3, 7, b"f" * 32))
            hub.outer.files.append(OuterLeaf.of_checkpoint(checkpoint).to_bytes() for checkpoint in points)
            hub.outer.files.publish(hub.outer.files.sign(hub.outer._key))
            async with reading(hub) as session:
                findings = await Monitor(MonitorState()).poll("hub", session)
        (finding,) = findings
        assert finding.code == "E.MONITOR.SPLIT"
        assert finding.label == (labels // 3).to_bytes(32, "big")
        assert len(finding.evidence or bytes(513)) <= 512

    asyncio.run(scenario())


def test_a_monitor_names_leaves_that_are_no_statements_of_the_hub_and_wrong_roots(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 1)
            await published(hub)
            genuine = hub.api.context.latest_checkpoint(hub.sequencer.store.files(w.LABEL).head())
            forged = replace(genuine, upto_seq=9, witness_sigs=None)
            hub.outer.files.append([b"rubbish", OuterLeaf.of_checkpoint(forged).to_bytes()])
            hub.outer.files.publish(hub.outer.files.sign(hub.outer._key))
            async with reading(hub) as session:
                findings = await Monitor(MonitorState()).poll("hub", session)
                assert [finding.code for finding in findings] == ["E.MONITOR.LEAF"] * 2
            head = hub.outer.files.head
            hub.outer.files.publish(LogCheckpoint(ORIGIN, head.size, b"f" * 32).sign(hub.outer._key))
            async with reading(hub) as session:
                findings = await Monitor(MonitorState()).poll("hub", session)
                assert findings[-1].code == "E.MONITOR.FORKED"

    run(scenario())


def test_a_monitor_finds_two_notes_for_one_size_and_a_log_that_shrank(tmp_path):
    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            await submit(hub, 1)
            await published(hub)
            state = MonitorState()
            head = hub.outer.files.head
            async with reading(hub) as session:
                assert await Monitor(state).poll("hub", session) == []
                for other in (LogCheckpoint(ORIGIN, head.size, b"f" * 32), LogCheckpoint(ORIGIN, 1, b"f" * 32)):
                    hub.outer.files.publish(other.sign(hub.outer._key))
                    finding = (await Monitor(state).poll("hub", session))[0]
                    assert finding.code == "E.MONITOR.FORKED"
                    assert len(finding.evidence or bytes(513)) <= 512

    run(scenario())


def test_a_clone_has_the_outer_log_and_goes_on_with_it(tmp_path):
    begun(tmp_path)
    source, target = OsFs(tmp_path / "hub"), OsFs(tmp_path / "clone")
    clone(source, target, with_keys=True)

    async def scenario():
        async with running(tmp_path, **OUTER, data_dir=str(tmp_path / "clone")) as hub:
            assert hub.outer.files.signed.to_bytes() == (tmp_path / "hub" / layout.OUTER_SIGNED).read_bytes()
            await submit(hub, 1, first=2)
            assert await published(hub) is not None

    run(scenario())


def test_files_of_the_outer_log_are_no_unknown_files(tmp_path):
    begun(tmp_path)
    assert OuterLogFiles.exists(OsFs(tmp_path / "hub"))
    report = verify_data(OsFs(tmp_path / "hub"))
    assert [str(finding) for finding in report.findings] == []


def test_the_interval_publishes_by_itself(tmp_path):
    async def scenario():
        async with running(tmp_path, **{**OUTER, "outer__every": "1"}) as hub:
            await submit(hub, 2)
            await eventually(lambda: hub.outer.files.last_upto(w.LABEL) == 2)
            await eventually(lambda: hub.outer.files.published is not None)

    run(scenario())
