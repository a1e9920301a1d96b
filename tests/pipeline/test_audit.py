"""The audit by the single-process engine: good logs pass, and every kind of damage is found and named."""

import json
import random
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.pipeline import auditworld
from tests.pipeline.auditworld import (
    Liar,
    ShuffledEngine,
    SlowEngine,
    chunks,
    codes,
    dump,
    grow,
    log,
    reframed,
    resigned,
    run,
    signed,
    tables,
)
from tests.pipeline.randomlogs import damaged
from tests.storage.driver import CLIENTS, HUB, ISSUER, START, STREAMS, TOKENS
from tests.storage.world import LABELS, LIMITS

from veen.core.captoken import CapToken
from veen.core.checkpoint import Checkpoint
from veen.core.control import ControlRecord, LimitsSet
from veen.core.ed25519 import SigningKey
from veen.core.labels import label_of, routing_key_of
from veen.core.mmr import root_of
from veen.core.profile import PRESETS, Profile
from veen.core.receipt import Receipt
from veen.pipeline.audit import Previous, PythonEngine
from veen.pipeline.audit.engine import cut
from veen.pipeline.audit.report import document, lines, write
from veen.pipeline.errors import OptionError
from veen.pipeline.inventory import pin
from veen.storage import keyrotation
from veen.storage.fs import OsFs
from veen.storage.index import Index
from veen.storage.retention import Periods, Policy, apply, plan

STRANGER = SigningKey(b"\x77" * 32)


@pytest.fixture
def good(tmp_path):
    """Two labels with sealed and active chunks, at rest."""
    return dump(log(30), tmp_path)


def test_a_good_log_has_no_findings_and_a_commitment_for_every_chunk(good):
    result = run(good)
    assert result.findings == ()
    assert result.ok
    assert result.findings_table.num_rows == 0
    pinned = pin(str(good))
    assert [(row.label, row.start, row.end) for row in result.commitments] == [
        (ref.label, ref.start_seq, ref.end_seq) for ref in pinned.chunks()
    ]
    assert all(root_of(row.peaks) == row.root for row in result.commitments)
    assert result.counts["entries"] == result.counts["entries_read"] == 30


@pytest.mark.req("OPS-02", "INV-03")
def test_roots_are_those_of_the_last_receipts(tmp_path):
    world = log(30)
    result = run(dump(world, tmp_path))
    last = {frame.label: Receipt.from_bytes(frame.receipt) for frame in world.frames}
    assert {one.label: (one.size, one.root) for one in result.labels} == {
        label: (receipt.stream_seq, receipt.mmr_root) for label, receipt in last.items()
    }


def test_levels_verify_fewer_signatures_and_nothing_else(good):
    full, sampled = run(good), run(good, level="sampled")
    none, structure = run(good, level="sampled", sample_per_million=0), run(good, level="structure")
    everything = run(good, level="sampled", sample_per_million=1_000_000)
    numbers = [one.counts["signatures"] for one in (structure, none, sampled, everything)]
    assert numbers[0] == 0
    assert 0 < numbers[1] <= numbers[2] < numbers[3] == full.counts["signatures"]
    drawn = {run(good, level="sampled", sample_per_million=300_000, seed=str(n)).counts["signatures"] for n in range(9)}
    assert len(drawn) > 1  # another seed, another sample
    for one in (sampled, structure, none):
        assert tables(one) == tables(full)
    with pytest.raises(OptionError):
        run(good, level="guess")


# --- damage by hand ------------------------------------------------------------------------------------------


def flip(path, place, bit=0):
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def test_a_flipped_bit_in_a_ciphertext_is_named_with_its_invariant_and_place(good):
    chunk = chunks(good)[1]
    data = chunk.read_bytes()
    flip(chunk, 82 + 104 + 2 + 34 + 34 + 3 + 10)
    result = run(good)
    assert {found.code for found in result.findings} == {"ct_hash", "entry_hash"}
    for found in result.findings:
        assert (found.label, found.stream_seq, found.offset) == (LABELS[0], 4, 0)
        assert found.path == f"log/{chunk.name}"
        assert found.severity == "error"
    assert not result.ok
    # The tree goes on behind the damage, as the entry still says what its leaf was.
    assert next(one for one in result.labels if one.label == LABELS[0]).root is not None
    chunk.write_bytes(data)
    assert run(good).ok


@pytest.mark.parametrize(
    ("place", "expected"),
    [(0, {"frame"}), (5, {"place"}), (41, {"place"}), (50, {"entry_hash"}), (82, {"entry_hash", "format"})],
)
def test_damage_to_a_frame_is_named(good, place, expected):
    flip(chunks(good)[0], place)
    assert codes(good) == expected


def test_a_length_that_cannot_be_loses_the_rest_of_the_chunk_and_says_which(good):
    chunk = chunks(good)[0]
    flip(chunk, 42, 7)
    (found, *others) = run(good).findings
    assert (found.code, found.stream_seq) == ("frame", 1)
    assert "entries 2 to 3" in found.message
    assert not others  # the next chunk goes on from peaks that a checkpoint vouches for


def test_a_chunk_that_was_cut_is_named_at_the_entry_it_ends_in(good):
    chunk = chunks(good)[1]
    chunk.write_bytes(chunk.read_bytes()[:-10])
    (found,) = run(good).findings
    assert (found.code, found.stream_seq) == ("frame", 6)


def test_bytes_behind_a_chunk_are_named(good):
    chunk = chunks(good)[0]
    size = chunk.stat().st_size
    chunk.write_bytes(chunk.read_bytes() + b"\0")
    (found,) = run(good).findings
    assert (found.code, found.offset) == ("frame", size)


def test_chunks_that_changed_places_are_named(good):
    first, second = chunks(good)[:2]
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    found = [one for one in run(good).findings if one.code == "place"]
    assert [(one.stream_seq, one.path) for one in found] == [(1, f"log/{first.name}"), (4, f"log/{second.name}")]
    assert "entry 4 is where entry 1 belongs; so it is up to entry 3" in found[0].message


def test_entries_that_changed_places_are_named(good):
    chunk = chunks(good)[0]
    from veen.storage import frame

    made = [found.to_bytes() for _, found in frame.frames(chunk.read_bytes())]
    chunk.write_bytes(made[1] + made[0] + made[2])
    assert "place" in codes(good)


def test_a_missing_chunk_is_a_gap_and_the_rest_is_still_judged(good):
    victim = chunks(good)[1]
    victim.unlink()
    result = run(good)
    assert {found.code for found in result.findings} >= {"gap"}
    (gap,) = [found for found in result.findings if found.code == "gap"]
    assert gap.stream_seq == 4
    assert "entries 4 to 6" in gap.message
    assert "mmr_root" not in {found.code for found in result.findings}
    assert next(one for one in result.labels if one.label == LABELS[0]).root is not None


def test_a_chunk_of_another_hub_is_named(good):
    """Under its own name it belongs to no label of this hub; under one of ours its receipts are a stranger's."""
    chunk = chunks(good)[0]
    stranger = chunk.with_name(chunk.name.replace(LABELS[0].hex(), "55" * 32))
    stranger.write_bytes(chunk.read_bytes())
    assert codes(good) == {"control", "place"}
    stranger.unlink()
    for number in range(3):
        reframed(chunk, number, lambda msg, receipt: (msg, signed(receipt, STRANGER)))
    (found, *_) = run(good).findings
    assert (found.code, found.stream_seq) == ("hub_sig", 1)
    assert found.message.endswith("so it is up to entry 3")


@pytest.mark.parametrize("cut_at", [0.3, 0.6, 0.95])
def test_an_active_chunk_that_was_cut_is_found_by_what_else_speaks_of_it(tmp_path, cut_at):
    world = log(29)
    path = dump(world, tmp_path)
    active = max((path / "log").glob("active-*.log"), key=lambda one: one.stat().st_size)
    data = active.read_bytes()
    assert data
    active.write_bytes(data[: int(len(data) * cut_at)])
    assert "cut" in codes(path)


def test_a_label_that_is_gone_is_missed(good):
    for file in (good / "log").glob(f"*{LABELS[1].hex()}*"):
        file.unlink()
    (good / "offsets" / f"{LABELS[1].hex()}.loc").unlink()
    found = [one for one in run(good).findings if one.label == LABELS[1]]
    assert "cut" in {one.code for one in found}


def test_a_forged_receipt_is_not_by_the_hub(good):
    reframed(chunks(good)[0], 1, lambda msg, receipt: (msg, signed(receipt, STRANGER)))
    (found, *rest) = run(good).findings
    assert (found.code, found.stream_seq) == ("hub_sig", 2)
    assert {one.code for one in rest} <= {"rebuildable"}  # its summary holds the hash of the true entry


def test_a_root_that_the_hub_signed_but_that_is_not_true_is_named(good):
    reframed(chunks(good)[0], 1, lambda msg, receipt: (msg, signed(replace(receipt, mmr_root=b"r" * 32))))
    assert [(one.code, one.stream_seq) for one in run(good).findings if one.code != "rebuildable"] == [("mmr_root", 2)]


def test_a_message_that_its_client_did_not_sign_is_named(good):
    reframed(chunks(good)[0], 2, lambda msg, receipt: (replace(msg, sig=bytes(64)), receipt))
    assert ("msg_sig", 3) in {(one.code, one.stream_seq) for one in run(good).findings}
    assert "msg_sig" not in codes(good, level="structure")


def test_a_prev_ack_of_the_future_is_named(good):
    reframed(chunks(good)[0], 0, lambda msg, receipt: (resigned(replace(msg, prev_ack=9)), receipt))
    assert ("prev_ack", 1) in {(one.code, one.stream_seq) for one in run(good).findings}


@pytest.mark.parametrize("what", ["summary", "peaks", "checkpoint-index", "checkpoint", "missing"])
def test_what_a_seal_left_is_compared(good, what):
    files = {
        "summary": next((good / "log").glob("chunk-*.summary")),
        "peaks": next((good / "log").glob("peaks-*.cbor")),
        "checkpoint-index": next((good / "log").glob("checkpoint-index-*.cbor")),
        "checkpoint": min(one for one in (good / "log").glob("checkpoint-*.cbor") if "index" not in one.name),
    }
    if what == "missing":
        files["checkpoint"].unlink()
        assert codes(good) == {"missing"}
        return
    flip(files[what], -1)
    result = run(good)
    assert {found.code for found in result.findings} == {"seal" if what == "checkpoint" else "rebuildable"}
    assert result.ok == (what != "checkpoint")


def test_a_checkpoint_by_another_key_is_named(good):
    file = min(one for one in (good / "log").glob("checkpoint-*.cbor") if "index" not in one.name)
    found = Checkpoint.from_bytes(file.read_bytes())
    file.write_bytes(replace(found, hub_sig=STRANGER.sign(found.signing_digest())).to_bytes())
    assert codes(good) == {"seal"}


def test_a_missing_identity_leaves_nobody_to_vouch_and_one_from_elsewhere_helps(good):
    identity = pin(str(good)).identity
    assert identity is not None
    (good / "hub-identity.json").unlink()
    (good / "hub-identity.sig").unlink()
    assert "identity" in codes(good)
    assert codes(good, identity=identity) == set()
    stranger = replace(identity, keys=(replace(identity.keys[0], hub_pk=STRANGER.public),))
    assert "hub_sig" in codes(good, identity=stranger)


@pytest.mark.parametrize("name", ["hub-identity.json", "hub-identity.sig", "hub-key-map.json"])
def test_a_damaged_identity_is_named(good, name):
    flip(good / name, 5)
    assert codes(good) & {"identity", "rebuildable"}


# --- the control journal -------------------------------------------------------------------------------------


def control_records(path):
    from veen.core import cbor

    data, pos, found = (path / "log" / "control.cborseq").read_bytes(), 0, []
    while pos < len(data):
        end = cbor.item_end(data, pos)
        found.append(data[pos:end])
        pos = end
    return found


def test_a_missing_control_record_is_named_and_what_it_authorised_too(good):
    records = control_records(good)
    kinds = [ControlRecord.from_bytes(one).body.KIND for one in records]
    place = kinds.index("cap.authorize")
    (good / "log" / "control.cborseq").write_bytes(b"".join(one for n, one in enumerate(records) if n != place))
    result = run(good)
    control = [found for found in result.findings if found.code == "control"]
    assert [found.message for found in control] == [f"control record {place + 2}: a record is missing before it"]
    assert any(found.code == "capability" for found in result.findings)
    assert {found.code for found in result.findings} == {"control", "capability"}


def test_a_control_journal_that_is_gone_is_missed(good):
    (good / "log" / "control.cborseq").unlink()
    assert {"missing", "capability"} <= codes(good)
    assert codes(good, chunks_only=True) == set()


def test_a_write_ahead_journal_that_is_gone_is_missed(good):
    for segment in (good / "journal").iterdir():
        segment.unlink()
    assert codes(good) == {"missing"}


def test_a_damaged_control_record_is_named(good):
    place = good / "log" / "control.cborseq"
    flip(place, place.stat().st_size - 3)
    assert {"hub_sig"} <= codes(good)
    place.write_bytes(place.read_bytes()[:-3])
    assert {"control"} <= codes(good)


def test_a_bucket_with_nothing_but_chunks_is_judged_as_far_as_it_goes(tmp_path):
    world = log(30)
    files = {name: data for name, data in world.fs.files().items() if "/chunk-" in name and name.endswith(".log")}
    path = dump(files, tmp_path)
    identity = world.keys.identity
    assert "identity" in codes(path)
    result = run(path, chunks_only=True, identity=identity)
    assert result.findings == ()
    reframed(chunks(path)[0], 1, lambda msg, receipt: (msg, signed(receipt, STRANGER)))
    assert codes(path, chunks_only=True, identity=identity) == {"hub_sig"}


# --- logs of a hub that broke its own rules ------------------------------------------------------------------


def liar():
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    for _ in range(2):
        world.tell()
    return world


def told(world, tmp_path, **options):
    world.store.close()
    world.bind()
    return [(one.code, one.stream_seq, one.severity) for one in run(dump(world, tmp_path), **options).findings]


@pytest.mark.req("INV-08", "INV-09")
@pytest.mark.parametrize("entries", [0, 1])  # within one chunk, and across two
@pytest.mark.parametrize("client_seq", [1, 2, 9])
def test_holes_and_doubles_of_a_writer_are_named(tmp_path, client_seq, entries):
    world = liar()
    for _ in range(entries):
        world.tell(client=1)
    world.tell(client_seq=client_seq)
    assert told(world, tmp_path) == [("client_seq", 3 + entries, "error")]


@pytest.mark.req("INV-06")
def test_a_prev_ack_that_goes_back_is_named(tmp_path):
    world = liar()
    world.tell(client=1)
    world.tell(prev_ack=0)
    assert told(world, tmp_path) == [("prev_ack", 4, "error")]


@pytest.mark.req("INV-04")
def test_an_unknown_profile_is_a_warning_and_an_error_if_profiles_were_given(tmp_path):
    world = liar()
    world.tell(profile=Profile(epoch_sec=0, pad_block=77))
    assert told(world, tmp_path) == [("profile", 3, "warning")]
    assert [one.severity for one in run(tmp_path, profiles=(PRESETS["bulk"],)).findings] == ["error"]
    assert codes(tmp_path, profiles=(PRESETS["bulk"], Profile(epoch_sec=0, pad_block=77))) == set()


@pytest.mark.req("INV-11")
@pytest.mark.parametrize("ciphertext", [b"short", bytes(32) + b"\xff" * 8, bytes(40) + b"\x01"])
def test_a_message_that_breaks_the_limits_is_named(tmp_path, ciphertext):
    world = liar()
    world.tell(ciphertext=ciphertext)
    assert told(world, tmp_path) == [("size", 3, "error")]


@pytest.mark.req("INV-12")
def test_an_entry_outside_the_epoch_of_its_label_is_named(tmp_path, monkeypatch):
    world = Liar()
    epoch = START // 3600
    label = label_of(routing_key_of(world.keys.identity.hub_id), STREAMS[0], epoch)
    monkeypatch.setattr(auditworld, "LABELS", [label, LABELS[1]])
    rotating = PRESETS["rotating"]
    world.tell(opened=(epoch, STREAMS[0]), profile=rotating)
    world.now += 7200
    world.tell(profile=rotating)
    assert told(world, tmp_path) == [("epoch", 2, "error")]


def test_profiles_of_different_epochs_do_not_mix(tmp_path):
    world = liar()
    world.tell(profile=PRESETS["ref"])
    found = told(world, tmp_path)
    assert ("epoch", None, "error") in found
    assert ("epoch", 3, "error") in found


def test_entries_without_authority_are_named(tmp_path):
    world = liar()
    other = CapToken.issue(ISSUER, CLIENTS[0].public, [STREAMS[1]], ttl=1_000_000)
    short = CapToken.issue(ISSUER, CLIENTS[0].public, STREAMS, ttl=0)
    never = CapToken.issue(ISSUER, CLIENTS[0].public, STREAMS, ttl=7)
    world.tell(token=other)
    world.tell(token=short)
    world.now += 1
    world.tell(token=short)
    world.tell(token=never, authorised=False)
    world.tell(client=1, token=TOKENS[0])
    world.store.close()
    world.bind()
    found = run(dump(world, tmp_path)).findings
    assert [(one.code, one.stream_seq) for one in found] == [("capability", n) for n in (3, 5, 6, 7)]
    said = " ".join(one.message for one in found)
    assert "not for this stream" in said
    assert f"its token ended at {START}" in said
    assert "no record authorises its token" in said
    assert "for another client" in said


def test_time_that_runs_backwards_is_a_warning(tmp_path):
    world = liar()
    world.now += 10
    world.tell(client=1)
    world.now -= 5
    world.tell()
    world.tell()
    world.now += 5
    world.tell()
    found = [one for one in told(world, tmp_path) if one[0] == "time"]
    assert found == [("time", 4, "warning")]


@pytest.mark.req("HID-06")
def test_a_receipt_by_a_retired_key_is_named(tmp_path):
    world = liar()
    old = world.keys.signing_key_at(world.now)
    world.keys, _ = keyrotation.rotate(
        world.fs, world.keys, b"\x42" * 32, valid_from=world.now + 10, overlap_seconds=10, journal=world.control
    )
    world.now += 15  # both keys are good
    world.tell()
    world.tell(key=old)
    world.now += 15  # only the new one
    world.tell()
    world.tell(key=old)
    assert told(world, tmp_path) == [("hub_key", 6, "error")]


def test_a_chunk_that_ends_too_early_is_named(tmp_path):
    world = liar()
    for _ in range(5):
        world.now += 1
        world.tell()
    world.store.close()
    path = dump(world, tmp_path)
    records = [ControlRecord.from_bytes(one) for one in control_records(path)]
    other = LimitsSet(limits=replace(LIMITS, max_checkpoint_interval=5).to_json())
    previous, data = None, b""
    for record in records:
        body = other if record.body.KIND == "limits.set" else record.body
        previous = ControlRecord.issue(HUB, previous, body, hub_ts=record.hub_ts)
        data += previous.to_bytes()
    (path / "log" / "control.cborseq").write_bytes(data)
    found = run(path).findings
    assert [(one.code, one.stream_seq) for one in found if one.severity == "error"] == [("limits", 3), ("limits", 6)]


# --- erased, compressed, under way ---------------------------------------------------------------------------


def erased(policy, tmp_path):
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 20)
    world.store.retire()
    index = Index(world.fs)
    apply(world.fs, plan(index, policy, world.now + 10_000), world.control)
    index.close()
    world.store.close()
    world.bind()
    return dump(world, tmp_path)


@pytest.mark.parametrize("periods", [Periods(payload_sec=1), Periods(payload_sec=1, receipt_sec=1)])
def test_an_erased_chunk_still_proves_what_it_proved(tmp_path, periods):
    path = erased(Policy(periods), tmp_path)
    assert not chunks(path)
    assert run(path).findings == ()
    archives = sorted((path / "log").glob("heads-*"))
    flip(archives[0], 40)
    assert not run(path).ok


def test_payloads_that_are_gone_without_a_record_are_named(tmp_path):
    path = erased(Policy(Periods(payload_sec=1)), tmp_path)
    records = control_records(path)
    kept = [one for one in records if ControlRecord.from_bytes(one).body.KIND != "retention.drop"]
    (path / "log" / "control.cborseq").write_bytes(b"".join(kept))
    assert "retention" in codes(path)


def test_a_hub_that_writes_meanwhile_does_not_disturb(tmp_path):
    """Verification on a pinned prefix: what comes later belongs to the next audit."""
    world = Liar(OsFs(tmp_path))
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 12)
    world.store.retire()
    world.bind()

    class Busy(PythonEngine):
        def map(self, step, context, tasks, *, weight, what):
            grow(world, 9, random.Random(what))
            world.store.retire()
            yield from super().map(step, context, tasks, weight=weight, what=what)

    result = run(tmp_path, engine=Busy())
    assert result.findings == ()
    assert result.counts["entries"] == 12
    world.store.close()


def test_entries_that_only_the_journal_has_are_not_missed(tmp_path):
    world = Liar(OsFs(tmp_path))
    grow(world, 7)
    result = run(tmp_path)
    assert result.ok, result.findings
    world.store.close()


# --- any cut of the work, any damage -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def honest():
    return [log(random.Random(seed).randrange(1, 26), seed).fs.files() for seed in range(20)]


@pytest.mark.parametrize("lot", range(20))
def test_findings_are_the_same_bytes_however_the_work_is_cut(honest, tmp_path, lot):
    """DESIGN §9.3, §9.5: of each of twenty logs, itself and nine kinds of damage: found, and told the same way.

    The seeds are fixed. At level `structure` a change to nothing but a signature is not seen, and none is among these.
    """
    for number in range(10):
        rng = random.Random(lot * 100 + number)
        files = damaged(honest[lot], rng) if number else honest[lot]
        path = tmp_path / str(number)
        path.mkdir()
        dump(files, path)
        level = rng.choice(["full", "sampled", "structure"])
        expected = run(path, level=level)
        changed = files != honest[lot]
        assert bool(expected.findings) == changed, (lot, number)
        for engine in (SlowEngine(), *(ShuffledEngine(parts, number) for parts in (1, 2, 7, 64))):
            result = run(path, engine=engine, level=level)
            assert tables(result) == tables(expected)
            assert document(result) == document(expected)


def test_work_is_cut_into_neighbours_and_nothing_is_lost():
    for count in (0, 1, 5, 100):
        for parts in (1, 2, 7, 64):
            made = cut(list(range(count)), parts, lambda _: 1)
            assert [task for part in made for task in part] == list(range(count))
            assert len(made) <= parts
            assert all(made)


# --- going on from an earlier audit --------------------------------------------------------------------------


def stages(tmp_path):
    """A log that grows, as directories of three moments."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    for number, count in enumerate((11, 4, 17)):
        grow(world, count, random.Random(number))
        world.store.retire()
        path = tmp_path / f"hub-{number}"
        path.mkdir()
        yield dump(world, path)
    world.store.close()


def test_an_audit_that_goes_on_gives_what_a_whole_one_gives(tmp_path):
    earlier = None
    for number, path in enumerate(stages(tmp_path)):
        whole, extended = run(path), run(path, since=earlier)
        assert tables(extended) == tables(whole)
        if earlier is not None:
            assert extended.counts["entries_read"] < whole.counts["entries_read"]
        write(extended, tmp_path / f"audit-{number}")
        earlier = Previous.read(tmp_path / f"audit-{number}")


def test_findings_of_the_part_that_is_not_read_again_are_kept(tmp_path):
    first, second, _ = stages(tmp_path)
    for path in (first, second):
        flip(chunks(path)[0], 300)
    write(run(first), tmp_path / "audit")
    again = run(second, since=Previous.read(tmp_path / "audit"))
    assert tables(again) == tables(run(second))
    assert not again.ok


def test_a_log_that_does_not_go_through_what_was_seen_is_named(tmp_path):
    first, second, third = stages(tmp_path)
    write(run(third), tmp_path / "audit")
    seen = Previous.read(tmp_path / "audit")
    assert "history" in codes_since(second, seen)  # rolled back
    other = Liar()  # the same identity, another history
    other.control(LimitsSet(limits=LIMITS.to_json()))
    grow(other, 60, random.Random(99))
    other.store.close()
    (tmp_path / "other").mkdir()
    path = dump(other, tmp_path / "other")
    assert run(path).ok
    assert "history" in codes_since(path, seen)
    write(run(first), tmp_path / "audit-first")
    early = codes_since(path, Previous.read(tmp_path / "audit-first"))
    assert early & {"history", "mmr_root"}


def codes_since(path, seen):
    return {found.code for found in run(path, since=seen).findings}


# --- what is left for people ---------------------------------------------------------------------------------


def test_a_report_is_written_and_read_again(good, tmp_path):
    flip(chunks(good)[0], 300)
    result = run(good)
    out = tmp_path / "out"
    verdict = write(result, out)
    assert json.loads((out / "audit.json").read_bytes()) == verdict
    again = Previous.read(out)
    assert again.findings == result.findings
    assert [row for rows in again.commitments.values() for row in rows] == list(result.commitments)
    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    text = "\n".join(lines(verdict))
    assert "the evidence is BAD" in text
    assert "entry 1" in text
    assert pa.table(result.findings_table).num_rows == len(result.findings)


def test_a_name_that_would_be_html_is_not(tmp_path):
    path = dump(log(5), tmp_path)
    (path / "<script>alert(1)").write_bytes(b"")
    out = tmp_path / "out"
    write(run(path), out)
    assert "<script" not in (out / "report.html").read_text()
