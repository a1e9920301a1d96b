"""verify_data: everything re-derived from frames, the first bad byte named, nothing changed."""

import os
import threading
from dataclasses import replace

import pytest
from tests.damage import flipped
from tests.lake.audit_builders import resigned, signed
from tests.storage import driver
from tests.storage.builders import LABELS, LIMITS, World, copy_of, fill, small
from tests.storage.oracle import DRIVER_IDENTITY, assert_clean
from tests.verify import damages

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.limits import Limits
from veen.core.objects.control import CapAuthorize, LabelOpen, LimitsSet
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr
from veen.io.local import OsFs
from veen.storage import frame, layout
from veen.storage.index import Index
from veen.storage.maintenance import retention
from veen.storage.store import Group
from veen.testing.memfs import MemFs
from veen.verify.directory import verify_data


def codes(report):
    return {finding.code for finding in report.errors}


def paths(report):
    return {finding.path for finding in report.errors}


# --- what is good is found good ----------------------------------------------------------------------------


@pytest.mark.req("GEN-11", "OPS-02")
def test_a_directory_at_rest_is_clean_and_its_roots_are_reported():
    """DESIGN §4: re-derives everything from frames alone."""
    world = small()
    report = assert_clean(world.fs)
    assert not report.findings
    for label in LABELS:
        last = max((framed for framed in world.frames if framed.label == label), key=lambda framed: framed.stream_seq)
        assert report.labels[label].size == last.stream_seq
        assert report.labels[label].root == Receipt.from_bytes(last.receipt).mmr_root
    assert report.counts["entries"] == len(world.frames)


def test_a_directory_in_use_is_clean_at_every_moment():
    """What the journal still holds counts."""
    world = World(segment_bytes=3000)
    for number in range(30):
        world.now += number % 2
        world.send(label=number % 2, client=number % 3, size=number)
        if world.store.journal_is_full:
            world.store.retire()
        report = assert_clean(world.fs)
        assert sum(label.size for label in report.labels.values()) == number + 1


def test_an_empty_directory_has_no_log_and_nobody_to_vouch_for_one():
    report = verify_data(MemFs())
    assert [finding.path for finding in report.findings] == [layout.IDENTITY]
    assert verify_data(MemFs(), identity=DRIVER_IDENTITY).ok


@pytest.mark.req("OPS-02")
def test_a_verifiers_copy_without_keys_is_clean(tmp_path):
    """Read-only, no private keys, and nothing is changed by looking."""
    world = World(OsFs(tmp_path))
    fill(world, 7)
    world.store.close()
    world.bind()
    for path in (tmp_path / "keys").iterdir():
        path.unlink()
    for directory, names, files in os.walk(tmp_path, topdown=False):
        for name in (*files, *names):
            (tmp_path / directory / name).chmod(0o500)
    tmp_path.chmod(0o500)
    before = snapshot(tmp_path)
    try:
        assert verify_data(OsFs(tmp_path)).ok
        assert snapshot(tmp_path) == before
    finally:
        for directory, _, _ in os.walk(tmp_path):
            (tmp_path / directory).chmod(0o700)


def test_a_running_hub_is_verified_without_touching_its_files(tmp_path):
    world = World(OsFs(tmp_path))
    fill(world, 7, retire_every=3)
    before = snapshot(tmp_path)
    assert verify_data(OsFs(tmp_path)).ok
    assert snapshot(tmp_path) == before
    fill(world, 7)
    world.store.abandon()
    assert verify_data(OsFs(tmp_path)).ok


@pytest.mark.slow
def test_a_hub_that_writes_seals_retires_and_erases_meanwhile_is_clean(tmp_path):
    """Verification takes longer than a hub stands still."""
    world = World(OsFs(tmp_path), segment_bytes=4000)
    fill(world, 3)
    stop, failed = threading.Event(), list[BaseException]()
    policy = retention.RetentionPolicy(retention.Periods(payload_sec=3))

    def live():
        try:
            while not stop.is_set():
                fill(world, 5)
                if world.store.journal_is_full:
                    world.store.retire()
                    index = Index(world.fs)
                    retention.apply(
                        world.fs,
                        retention.plan(index, policy, world.now),
                        world.control,
                        dropped=world.store.drop_level,
                    )
                    index.close()
        except BaseException as exc:
            failed.append(exc)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        for _ in range(25):
            report = verify_data(OsFs(tmp_path))
            assert report.ok, "\n".join(map(str, report.errors))
    finally:
        stop.set()
        thread.join()
    assert not failed
    world.store.close()
    assert_clean(OsFs(tmp_path))


def snapshot(root):
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


# --- what is bad is found, and where -----------------------------------------------------------------------


def sealed_path(label=0, start=1):
    return layout.chunk(LABELS[label], start, start + LIMITS.max_checkpoint_interval - 1)


def test_the_first_bad_byte_of_a_file_is_named():
    """The offset of the frame that holds it."""
    world = small()
    path = sealed_path()
    data = world.fs.files()[path]
    places = [offset for offset, _ in frame.frames(data)]
    for number, place in enumerate(places):
        damaged = bytearray(data)
        damaged[place + 100] ^= 1
        report = verify_data(copy_of(world.fs, **{path: bytes(damaged)}))
        (finding,) = [finding for finding in report.errors if finding.path == path]
        assert finding.offset == place
        assert f"entry {number + 1}" in finding.message


def test_damage_in_one_chunk_does_not_hide_that_in_another():
    """Verification goes on behind a damaged chunk, from the peaks that a checkpoint vouches for."""
    world = small(30)
    files = world.fs.files()
    first, third = sealed_path(0, 1), sealed_path(0, 7)
    broken = {path: flipped(files[path], 200) for path in (first, third)}
    report = verify_data(copy_of(world.fs, **broken))
    assert {first, third} <= paths(report)
    assert sealed_path(0, 4) not in paths(report)
    assert report.labels[LABELS[0]].size == world.store.state.labels[LABELS[0]].size


def test_a_missing_chunk_is_named():
    world = small()
    report = verify_data(copy_of(world.fs, **{sealed_path(): None}))
    (finding,) = report.errors
    assert (finding.path, finding.code) == (sealed_path(), "missing")


def test_a_missing_active_chunk_is_named():
    world = small()
    path = next(path for path in world.fs.files() if "/active-" in path)
    report = verify_data(copy_of(world.fs, **{path: None}))
    assert [(finding.path, finding.code) for finding in report.errors] == [(path, "missing")]


def test_a_log_that_was_cut_at_a_frame_is_found_by_the_cursor_of_the_index():
    world = small()
    path = next(path for path in world.fs.files() if "/active-" in path)
    report = verify_data(copy_of(world.fs, **{path: b""}))
    assert [(finding.path, finding.code) for finding in report.errors] == [(path, "cut")]


def test_a_journal_that_was_cut_is_found_by_what_was_applied():
    """Entries reach the files only after the journal: a file that is ahead proves that the journal was longer."""
    world = World()
    fill(world, 4)
    world.store.retire()
    segment = layout.journal_segment(world.store.journal.segment)
    begin = len(world.fs.files()[segment])
    fill(world, 6)
    for files in world.store.labels():
        files.flush()
    cut = copy_of(world.fs, **{segment: world.fs.files()[segment][:begin]})
    assert_clean(world.fs)
    assert "cut" in codes(verify_data(cut)) or "entry" in codes(verify_data(cut))
    middle = copy_of(world.fs, **{segment: world.fs.files()[segment][:-1]})
    assert codes(verify_data(middle)) == {"cut"}


def test_entries_that_nothing_accounts_for_are_found():
    """Bytes behind the last entry of a directory at rest."""
    world = small()
    path = next(path for path in world.fs.files() if "/active-" in path)
    data = world.fs.files()[path]
    report = verify_data(copy_of(world.fs, **{path: data + data}))
    assert paths(report) == {path}


def test_strangers_and_leftovers_are_warnings():
    world = small()
    strays = {
        "notes.txt": "unknown",
        "log/readme": "unknown",
        "log/x.tmp": "leftover",
        "journal/0.wal": "unknown",
        "nodes/zz": "unknown",
        "keys/name.pem": "unknown",
        layout.peaks(LABELS[0], 2): "unknown",
        layout.summary(LABELS[0], 2, 4): "unknown",
        layout.receipts_archive(LABELS[0], 1, 3): "leftover",
        layout.chunk(LABELS[0], 2, 4): "unknown",
    }
    report = verify_data(copy_of(world.fs, **dict.fromkeys(strays, b"x")))
    assert report.ok
    assert {finding.path: finding.code for finding in report.findings} == strays


def test_a_directory_of_another_hub_is_refused():
    """HID-01: the identity is anchored outside."""
    other = HubIdentity.first(SigningKey(b"\x77" * 32).public, valid_from=0)
    report = verify_data(small().fs, identity=other)
    assert "identity" in codes(report)
    assert verify_data(small().fs, identity=small().keys.identity).ok


def test_structure_leaves_out_signatures_and_nothing_else():
    world = small()
    report = verify_data(world.fs, level="structure")
    assert report.ok
    assert not report.counts.get("signatures")
    path = sealed_path()
    data = bytearray(world.fs.files()[path])
    data[120] ^= 1
    assert not verify_data(copy_of(world.fs, **{path: bytes(data)}), level="structure").ok


# --- a hub that lies: the log is well formed, but not honest ------------------------------------------------


def forged(change_msg=None, change_receipt=None, *, key=driver.HUB):
    """A directory whose third entry was altered before it was framed, with roots that fit, or not."""
    world = World()
    fill(world, 2)
    group = Group()
    state = world.store.state
    label = state.labels[LABELS[0]]
    writer = driver.CLIENTS[0]
    cursor = state.client(label, writer.public)
    msg = Msg.compose(
        writer,
        profile_id=bytes(32),
        label=label.label,
        client_seq=cursor.client_seq + 1 if cursor else 1,
        prev_ack=0,
        auth_ref=None,
        ciphertext=bytes(30),
    )
    if change_msg:
        msg = change_msg(msg)
    before = Mmr(label.mmr.size, label.mmr.peaks())
    before.append(msg.leaf_hash())
    receipt = Receipt.issue(
        key,
        label=label.label,
        stream_seq=label.size + 1,
        leaf_hash=msg.leaf_hash(),
        mmr_root=before.root(),
        hub_ts=world.now,
    )
    if change_receipt:
        receipt = change_receipt(receipt)
    admitted = state.admit(
        label,
        client_id=msg.client_id,
        client_seq=msg.client_seq,
        prev_ack=msg.prev_ack,
        auth_ref=None,
        leaf_hash=msg.leaf_hash(),
        hub_ts=world.now,
    )
    group.add_entry(admitted, msg.to_bytes(), receipt.to_bytes())
    world.commit(group)
    return world


def test_an_honest_directory_made_by_hand_is_clean():
    assert_clean(forged().fs)


@pytest.mark.req("STOR-04")
@pytest.mark.parametrize(
    ("change_msg", "change_receipt", "why"),
    [
        (lambda msg: resigned(replace(msg, ct_hash=bytes(32))), None, "I1"),
        (None, lambda receipt: signed(replace(receipt, leaf_hash=bytes(32))), "I2"),
        (None, lambda receipt: signed(replace(receipt, mmr_root=bytes(32))), "I3"),
        (lambda msg: resigned(replace(msg, prev_ack=99)), None, "I6"),
        (lambda msg: resigned(replace(msg, client_seq=msg.client_seq + 1)), None, "I9"),
        (lambda msg: resigned(replace(msg, client_seq=1 if msg.client_seq > 1 else 7)), None, "I8"),
        (lambda msg: resigned(replace(msg, label=bytes(32))), None, "another label"),
        (None, lambda receipt: signed(replace(receipt, label=bytes(32))), "another label"),
        (None, lambda receipt: signed(replace(receipt, stream_seq=9)), "another position"),
        (lambda msg: resigned(replace(msg, auth_ref=bytes(32))), None, "no record authorises"),
    ],
)
def test_each_invariant_is_checked_wherever_the_entry_lies(change_msg, change_receipt, why):
    """spec §7: I1, I2, I3, I6, I7, I8, I9; in the journal and, later, in a chunk."""
    world = forged(change_msg, change_receipt)
    journal = layout.journal_segment(world.store.journal.segment)
    (finding,) = [finding for finding in verify_data(world.fs).errors if finding.path == journal]
    assert why in finding.message
    world.store.retire()
    report = verify_data(world.fs)
    assert any(why in finding.message and "/active-" in finding.path for finding in report.errors)


def test_a_signature_by_nobody_is_found():
    bad = forged(lambda msg: Msg.from_bytes(flipped(msg.to_bytes())))
    assert codes(verify_data(bad.fs)) == {"signature"}


@pytest.mark.req("HID-03")
def test_a_receipt_by_a_key_outside_the_identity_is_found():
    """spec §8.4: reject receipts signed by keys outside the active set."""
    bad = forged(key=SigningKey(b"\x55" * 32))
    assert codes(verify_data(bad.fs)) == {"signature"}
    assert verify_data(bad.fs, level="structure").ok


def test_a_token_that_was_not_valid_is_found():
    """I7: subject and TTL"""
    world = World()
    world.control(CapAuthorize.of(driver.TOKENS[0]))
    world.send(label=0, client=0)
    world.now += 2_000_000  # its TTL is a million seconds
    world.send(label=0, client=0)
    assert codes(verify_data(world.fs)) == {"capability"}


def test_time_that_runs_backwards_is_a_warning():
    """D-28"""
    world = World()
    world.now += 9
    world.send(token=False)
    world.now -= 5
    world.send(token=False)
    journal = layout.journal_segment(world.store.journal.segment)
    for path in (journal, layout.active(LABELS[0], 1)):
        report = assert_clean(world.fs)
        assert [(finding.path, finding.code) for finding in report.findings] == [(path, "time")]
        world.store.retire()


# --- artifacts ---------------------------------------------------------------------------------------------


@pytest.mark.req("CKPT-07", "CKPT-04")
@pytest.mark.parametrize("name", damages.WRONG_CHECKPOINTS)
def test_a_checkpoint_that_is_signed_but_wrong_is_found(name):
    """spec §4.4.1: the verifier recomputes the root and the labels."""
    report = verify_data(damages.wrong_checkpoint(name))
    (finding,) = report.errors
    assert (finding.path, finding.code) == (layout.checkpoint(LABELS[0], 3), "seal")
    assert damages.WRONG_CHECKPOINTS[name][1] in finding.message


def test_witnesses_nobody_knows_are_mentioned():
    report = verify_data(damages.changed_checkpoint(witness_sigs=(bytes(64),)))
    assert report.ok
    assert [finding.path for finding in report.findings] == [layout.checkpoint(LABELS[0], 3)]


@pytest.mark.req("CKPT-05", "STOR-15", "STOR-12", "GEN-22")
def test_peaks_and_cursors_follow_from_the_artifacts():
    """spec §4.4.1: the latest peak snapshot, then the receipts after it."""
    world = small(13)
    for label in LABELS:
        size = world.store.state.labels[label].size
        sealed = size - size % 3
        peaks = cbor.decode(world.fs.files()[layout.peaks(label, sealed)]) if sealed else []
        mmr = Mmr(sealed, peaks)
        for framed in world.frames:
            if framed.label == label and framed.stream_seq > sealed:
                mmr.append(Receipt.from_bytes(framed.receipt).leaf_hash)
        assert mmr.peaks() == world.store.state.labels[label].mmr.peaks()


@pytest.mark.req("STOR-07", "STOR-08")
def test_a_chunk_that_ends_where_its_limits_do_not_say_is_found():
    """D-70: boundaries depend on log and limits only."""
    world = World(limits=Limits(max_checkpoint_interval=3))
    world.control(LimitsSet(limits=Limits(max_checkpoint_interval=3).to_json()))
    fill(world, 9)
    assert_clean(world.fs)
    liar = World(limits=Limits(max_checkpoint_interval=3))
    liar.control(LimitsSet(limits=Limits(max_checkpoint_interval=4).to_json()))
    liar.store._limits = Limits(max_checkpoint_interval=3)
    fill(liar, 9)
    liar.store.retire()
    assert "limits" in codes(verify_data(liar.fs))


def test_limits_change_with_the_next_chunk_of_each_label():
    """D-75: a journal record, effective from each label's next chunk."""
    world = World(limits=Limits(max_checkpoint_interval=3))
    world.control(LimitsSet(limits=Limits(max_checkpoint_interval=3).to_json()))
    fill(world, 5)
    world.now += 1
    world.control(LimitsSet(limits=Limits(max_checkpoint_interval=2, max_chunk_bytes=1_050_000).to_json()))
    fill(world, 9)
    world.store.close()
    report = assert_clean(world.fs)
    assert not [finding for finding in report.findings if finding.code == "limits"]
    names = [path for path in world.fs.files() if path.startswith(f"log/chunk-{LABELS[0].hex()}") and ".log" in path]
    ranges = [layout.chunk_of(path.removeprefix("log/")) for path in names]
    assert {name.end_seq - name.start_seq + 1 for name in ranges if name and name.end_seq} == {2, 3}


def test_a_changed_limits_file_is_mentioned():
    world = small()
    world.fs.replace(layout.LIMITS, b'{"max_checkpoint_interval":9}')
    report = verify_data(world.fs)
    assert [(finding.path, finding.severity) for finding in report.findings] == [(layout.LIMITS, "warning")]
    world.fs.replace(layout.LIMITS, b'{"max_checkpoint_interval":')
    assert codes(verify_data(world.fs)) == {"limits"}
    world.fs.replace(layout.LIMITS, b'{"max_msg_bytes":99999999}')
    assert codes(verify_data(world.fs)) == {"limits"}


def test_control_records_that_contradict_each_other_are_found():
    world = World()
    world.send()
    world.control(LabelOpen(label=LABELS[0], epoch=0))
    assert codes(verify_data(world.fs)) == {"control"}


def test_progress_is_told():
    paths_read: list[str] = []
    verify_data(small().fs, progress=paths_read.append)
    assert len(paths_read) == 3


@pytest.mark.parametrize("table", damages.INDEX_STATEMENTS)
def test_a_wrong_row_of_the_index_is_rebuildable(table):
    report = verify_data(damages.wrong_index(table, lambda: small().fs))
    assert [(finding.path, finding.code) for finding in report.errors] == [(layout.INDEX, "rebuildable")]
