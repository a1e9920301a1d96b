"""States of a log on disk: written, read, extended, verified end to end; in one process."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.damage import flipped
from tests.lake.fold_builders import KEYRING, WRITERS, real_log, send
from tests.lake.query_builders import STREAMS
from tests.lake.table_builders import erase

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.crypto import ed25519
from veen.core.event import Event
from veen.core.hashing import Ht
from veen.core.labels import stream_id_of
from veen.core.objects.identity import HubIdentity
from veen.io.local import OsFs
from veen.lake import folds
from veen.lake.folds.errors import FoldStateDamaged, NotBound
from veen.lake.log.errors import OptionError
from veen.lake.log.events import Mark, make_prefix, read_events
from veen.lake.log.keys import write_keys
from veen.lake.log.prefix import Shortened
from veen.overlays.crud import CrudFold
from veen.overlays.kv import KvFold, put
from veen.overlays.operations.state_checkpoint import CHECKPOINT, StateCheckpoint
from veen.storage.scan import inventory
from veen.testing.events import FakeLog


@pytest.fixture
def world(tmp_path):
    rng, log = random.Random(7), FakeLog()
    world = real_log(tmp_path / "hub", [WRITERS[rng.choice(("kv", "crud"))](rng, log) for _ in range(70)], foreign=0.07)
    yield world
    world.store.close()


def more(world, count=20, seed=9):
    rng, log = random.Random(seed), FakeLog()
    world.now += 10
    send(world, [WRITERS[rng.choice(("kv", "crud"))](rng, log) for _ in range(count)], rng)


def folded(world, fold="kv", **how):
    return folds.run(str(world.path), fold, keys=KEYRING, engine="python", **how)


def events_of(world):
    return [event for event in read_events(str(world.path), KEYRING) if isinstance(event, Event)]


@pytest.mark.req("OVL-11", "SNAP-02")
def test_a_state_is_bound_to_the_roots_of_exactly_what_was_folded(world, tmp_path):
    result = folded(world)
    assert not result.unproven
    assert {cut.label: cut.upto_seq for cut in result.cuts} == make_prefix(str(world.path)).heads
    assert result.entries == sum(cut.upto_seq for cut in result.cuts)
    assert {unread.reason for unread in result.unopened} == {"sealed"}
    events = list(read_events(str(world.path), KEYRING))
    assert folds.run(events, "kv", cuts=result.cuts).snapshot == result.snapshot
    by_file = folds.run(world.path, KvFold(), keys=write_keys(tmp_path, KEYRING.entries).path, engine="python")
    assert by_file.snapshot == result.snapshot


def test_only_the_streams_that_were_asked_for_are_folded(world):
    first = folded(world, streams=[STREAMS[0]])
    assert first.streams == (stream_id_of(STREAMS[0]),)
    assert 0 < len(first.cuts) < len(folded(world).cuts)
    key = next(keys for keys in KEYRING.entries if keys.name == STREAMS[0])
    assert folds.run(str(world.path), "kv", keys=Keyring((key,)), engine="python").snapshot == first.snapshot


def test_a_state_of_an_earlier_position_or_time_is_that_of_a_shorter_log(world):
    before = folded(world)
    heads = {cut.label: cut.upto_seq for cut in before.cuts}
    more(world)
    assert folded(world).snapshot != before.snapshot
    assert folded(world, upto=heads).snapshot == before.snapshot
    timed = folded(world, upto=before.ts)
    assert (timed.state_hash, timed.cuts, timed.as_of) == (before.state_hash, before.cuts, before.ts)
    assert folded(world, upto=0).entries == 0
    assert folded(world, as_of=before.ts + 10**6).as_of == before.ts + 10**6


@pytest.mark.req("OVL-11", "SNAP-03")
def test_a_written_state_says_what_it_is_bound_to_and_is_read_again(world, tmp_path):
    result = folded(world, CrudFold())
    manifest = json.loads(Path(result.write(str(tmp_path / "state"))).read_text())
    assert manifest["state_hash"] == result.state_hash.hex()
    written = folds.load(str(tmp_path / "state"))
    assert (written.snapshot.to_bytes(), written.state) == (result.snapshot, result.state_bytes)
    assert Ht("veen/state-crud", written.state) == result.state_hash
    (cuts,) = (tmp_path / "state").glob("*-cuts.parquet")
    rows = pq.read_table(cuts).to_pylist()
    assert {(row["fold"], row["schema"], row["label"], row["upto_seq"], row["mmr_root"]) for row in rows} == {
        ("crud", schema, cut.label, cut.upto_seq, cut.mmr_root) for schema in CrudFold.schemas for cut in result.cuts
    }
    (issues,) = (tmp_path / "state").glob("*-issues.parquet")
    assert [tuple(row.values()) for row in pq.read_table(issues).to_pylist()] == [
        tuple(issue) for issue in result.issues
    ]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "state").iterdir())  # it holds what was sealed


def test_a_later_state_takes_the_place_of_an_earlier_one_and_touches_nothing_else(world, tmp_path):
    place = tmp_path / "state"
    folded(world).write(str(place))
    (place / "notes.txt").write_text("mine")
    more(world)
    result = folded(world)
    result.write(str(place))
    assert folds.load(str(place)).state_hash == result.state_hash
    assert len(list(place.iterdir())) == 6
    assert (place / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["state.cbor", "snapshot.cbor", "cuts.parquet", "manifest.json"])
def test_a_written_state_that_was_changed_is_refused(world, tmp_path, name):
    folded(world).write(str(tmp_path / "state"))
    (path,) = (tmp_path / "state").glob(f"*{name}")
    data = path.read_bytes()
    changed = data.replace(b'"format": 1', b'"format": 2') if name == "manifest.json" else flipped(data)
    path.write_bytes(changed)
    with pytest.raises(FoldStateDamaged):
        folds.load(str(tmp_path / "state"))
    with pytest.raises(FoldStateDamaged):
        folds.load(str(tmp_path / "nowhere"))


def test_a_manifest_does_not_lead_out_of_its_directory(world, tmp_path):
    manifest = Path(folded(world).write(str(tmp_path / "state")))
    (tmp_path / "secret").write_bytes(b"x")
    text = json.loads(manifest.read_text())
    text["files"]["state.cbor"]["path"] = "../secret"
    manifest.write_text(json.dumps(text))
    with pytest.raises(FoldStateDamaged, match="elsewhere"):
        folds.load(str(tmp_path / "state"))


def test_a_written_state_has_no_links_and_a_size(world, tmp_path):
    manifest = Path(folded(world).write(str(tmp_path / "state")))
    place = manifest.parent / json.loads(manifest.read_text())["files"]["state.cbor"]["path"]
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FoldStateDamaged, match="is a link"):
        folds.load(str(tmp_path / "state"))
    with manifest.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(FoldStateDamaged, match="is not valid"):
        folds.load(str(tmp_path / "state"))


# --- going on ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fold", ["kv", "crud"])
def test_a_fold_goes_on_from_a_written_state_and_reads_only_what_came_after(world, tmp_path, fold):
    folded(world, fold).write(str(tmp_path / "state"))
    more(world)
    whole, further = folded(world, fold), folded(world, fold, since=str(tmp_path / "state"))
    assert further.resumed
    assert (further.snapshot, further.issues) == (whole.snapshot, whole.issues)
    assert further.entries == 20
    assert not further.unproven  # the peaks were kept, so the new root is recomputed too
    again = folded(world, fold, since=further)
    assert (again.snapshot, again.entries) == (whole.snapshot, 0)


def test_a_state_of_another_log_or_of_a_later_one_is_not_used(world, tmp_path):
    other = real_log(tmp_path / "other", [put("a", 1), put("b", 2)])
    theirs = folded(other)
    result = folded(world, since=theirs)
    assert not result.resumed
    assert "root" in (result.refused or "")
    assert result.snapshot == folded(world).snapshot
    narrower = folded(world, streams=[STREAMS[0]], since=folded(world))
    assert not narrower.resumed  # it would bring values of other streams along
    assert narrower.snapshot == folded(world, streams=[STREAMS[0]]).snapshot
    before = folded(world)
    heads = {cut.label: cut.upto_seq for cut in before.cuts}
    more(world)
    early = folded(world, upto=heads, since=folded(world))
    assert (early.snapshot, early.resumed) == (before.snapshot, False)
    other.store.close()


def test_an_ordered_state_that_a_late_label_reaches_into_is_folded_anew(world):
    """A label that joins late with earlier times (D-82): the snapshot is given up, not the truth."""
    first = {cut.label: cut.upto_seq for cut in folded(world, "crud").cuts[:1]}
    part = folded(world, "crud", upto=first)
    result = folded(world, "crud", since=part)
    assert not result.resumed
    assert "before the end of a finished prefix" in (result.refused or "")
    assert result.snapshot == folded(world, "crud").snapshot


# --- state.checkpoint.v1 -------------------------------------------------------------------------------------------


def verified(world, claim, **how):
    return folds.verify(str(world.path), claim, keys=KEYRING, engine="python", **how)


@pytest.mark.req("SNAP-01", "SNAP-02", "SNAP-04")
def test_a_checkpoint_in_the_log_is_verified_by_folding_the_same_prefix_again(world):
    result = folded(world)
    draft = result.checkpoint()
    send(world, [draft], random.Random(1))
    more(world)
    (claim,) = folds.claims_in(str(world.path), keys=KEYRING)
    assert (claim.state_class, claim.cuts, claim.state_hash) == ("kv", result.cuts, result.state_hash)
    verdict = verified(world, claim)
    assert verdict.ok
    assert verdict.result is not None
    assert verdict.result.snapshot == result.snapshot
    (event,) = (event for event in events_of(world) if event.hdr.schema == CHECKPOINT.id)
    assert verified(world, event).ok


@pytest.mark.req("SNAP-04")
def test_every_way_in_which_a_checkpoint_is_false_is_named(world):
    result = folded(world)
    body = StateCheckpoint.from_bytes(result.checkpoint().body)
    claim = folds.StateClaim.of(body)
    assert verified(world, claim).ok

    def names(changed):
        return [difference.code for difference in verified(world, changed).differences]

    assert names(replace(claim, state_hash=bytes(32))) == ["SNAP.HASH"]
    first, *rest = claim.cuts
    assert names(replace(claim, cuts=(replace(first, mmr_root=bytes(32)), *rest))) == ["SNAP.ROOT"]
    assert names(replace(claim, cuts=(replace(first, upto_seq=first.upto_seq + 1), *rest))) == ["SNAP.LENGTH"]
    shorter = replace(first, upto_seq=first.upto_seq - 1)
    assert names(replace(claim, cuts=(shorter, *rest)))[0] == "SNAP.ROOT"
    assert names(replace(claim, state_class="crud", cuts=claim.cuts)) == ["SNAP.HASH"]
    assert [difference.code for difference in verified(world, claim, fold="crud").differences] == ["SNAP.CLASS"]
    stranger = HubIdentity.first(ed25519.SigningKey(bytes(32)).public, valid_from=0)
    assert {difference.code for difference in verified(world, claim, identity=stranger).differences} == {"SNAP.RECEIPT"}
    assert "claimed" in str(verified(world, replace(claim, state_hash=bytes(32))).differences[0])


@pytest.mark.req("SNAP-04")
def test_a_log_that_was_changed_under_a_checkpoint_does_not_pass(world):
    result = folded(world)
    claim = folds.StateClaim.of(StateCheckpoint.from_bytes(result.checkpoint().body))
    files = [file for files in inventory(OsFs(world.path)).values() for file in files if file.kind == "chunk"]
    path = world.path / files[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    verdict = verified(world, claim)
    assert not verdict.ok
    assert {"SNAP.LEAVES", "SNAP.HASH"} & {difference.code for difference in verdict.differences}


def test_a_written_state_is_verified_like_a_checkpoint_also_at_another_time(world, tmp_path):
    for number, as_of in enumerate((None, 10**9)):
        place = str(tmp_path / f"state{number}")
        folded(world, as_of=as_of).write(place)
        assert verified(world, folds.load(place)).ok
    with pytest.raises(NotBound):
        folded(world, as_of=10**9).checkpoint()
    with pytest.raises(NotBound):
        folded(world, upto=0).checkpoint()


def test_what_is_no_checkpoint_is_no_claim(world):
    event = events_of(world)[0]
    with pytest.raises(OptionError):
        folds.StateClaim.of(event)
    alone = StateCheckpoint(
        state_id=bytes(32), upto_stream_seq=1, mmr_root=bytes(32), state_hash=bytes(32), state_class="kv"
    )
    with pytest.raises(OptionError):
        folds.StateClaim.of(alone)
    assert folds.StateClaim.of(alone, label=event.label).cuts[0].label == event.label


def test_erased_entries_keep_their_leaves_so_a_state_without_them_is_still_bound(world):
    erase(world)
    result = folded(world)
    assert {unread.reason for unread in result.unopened} >= {"erased"}
    assert not result.unproven


def test_options_that_do_not_fit_are_refused(world):
    with pytest.raises(OptionError):
        folds.run(str(world.path), "kv", engine="python")
    with pytest.raises(OptionError):
        folds.run(str(world.path), "kv", keys=KEYRING, engine="dask")  # type: ignore[arg-type]  # what a user may give
    with pytest.raises(OptionError):
        folds.run([], "kv", upto=5)
    with pytest.raises(Shortened):
        folded(world, upto={bytes(32): 1})
    with pytest.raises(Shortened):
        folded(world, upto={folded(world).cuts[0].label: 10**6})
    with pytest.raises(OptionError):
        folds.run(make_prefix(str(world.path)), "kv", keys=KEYRING, engine="python", streams=["a"])
    part = make_prefix(str(world.path), since={folded(world).cuts[0].label: Mark(1, 0)})
    with pytest.raises(OptionError):
        folds.run(part, "kv", keys=KEYRING, engine="python")
    assert folds.run([], "kv").view == {}
    nobody = Keyring((StreamKeys.create("another/stream"),))
    assert folds.run(str(world.path), "kv", keys=nobody, engine="python").cuts == ()
