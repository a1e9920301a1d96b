"""A fold that goes on from an earlier state gives what a fold from the first entry on gives."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.lake.fold_builders import WRITERS
from tests.lake.query_builders import STREAMS, Recorder
from tests.lake.table_builders import erase

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.verdict import Outcome
from veen.lake import folds, tables
from veen.lake.log.keys import write_keys
from veen.testing.events import FakeLog

GENERATIONS = [StreamKeys.create(STREAMS[0], random=random.Random(f"key {n}").randbytes) for n in range(3)]
OTHER = StreamKeys.create(STREAMS[1], random=random.Random("other").randbytes)


def sent(world, count, seed):
    """Messages of two streams; those of the first are sealed to one of three keys."""
    rng, log = random.Random(seed), FakeLog()
    for _ in range(count):
        world.now += rng.choice((0, 1, 5))
        draft = WRITERS[rng.choice(("kv", "crud"))](rng, log)
        stream, keys = rng.choice([(STREAMS[0], rng.choice(GENERATIONS)), (STREAMS[1], OTHER)])
        world.emit(stream, schema=draft.schema, body=draft.body, keys=keys)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A log, and how far it was when half of it was there."""
    world = Recorder(tmp_path_factory.mktemp("resume"))
    sent(world, 30, 1)
    first = folds.run(str(world.path), "kv", keys=ring((0, 1, 2)), engine="python")
    sent(world, 30, 2)
    return world.done(), {cut.label: cut.upto_seq for cut in first.cuts}


def ring(numbers):
    return Keyring.of([*(GENERATIONS[number] for number in numbers), OTHER])


def key_file(directory, numbers):
    directory.mkdir()
    return write_keys(directory, ring(numbers).entries)


def outcome(result):
    return result.snapshot, result.issues, result.unopened, result.cuts, result.state_hash, result.ts


keys_of_a_reader = st.sets(st.sampled_from((0, 1, 2)), min_size=1).map(sorted)


@examples(15)
@given(fold=st.sampled_from(("kv", "crud")), before=keys_of_a_reader, after=keys_of_a_reader, written=st.booleans())
def test_a_resumed_fold_equals_one_from_the_start_whatever_keys_came_or_went(
    grown, tmp_path_factory, fold, before, after, written
):
    """Resumed equals from the start, with keys gained and lost in between."""
    path, half = grown
    earlier = folds.run(path, fold, keys=ring(before), engine="python", upto=half)
    since: folds.FoldResult | str = earlier
    if written:
        since = str(tmp_path_factory.mktemp("state"))
        earlier.write(since)
    resumed = folds.run(path, fold, keys=ring(after), engine="python", since=since)
    assert outcome(resumed) == outcome(folds.run(path, fold, keys=ring(after), engine="python"))
    assert resumed.resumed == (before == after)


def test_a_state_that_does_not_say_who_read_it_is_not_gone_on_from(grown, tmp_path):
    """States of earlier releases, and snapshots without what decided them."""
    path, half = grown
    older(path, half, (0,), tmp_path / "state")
    result = folds.run(path, "kv", keys=ring((0, 1, 2)), engine="python", since=str(tmp_path / "state"))
    assert not result.resumed
    assert "which keys" in (result.refused or "")
    assert outcome(result) == outcome(folds.run(path, "kv", keys=ring((0, 1, 2)), engine="python"))


def older(path, half, numbers, place):
    """Write a state as earlier releases did."""
    written = folds.run(path, "kv", keys=ring(numbers), engine="python", upto=half)
    written.write(str(place))
    manifest = json.loads((place / "manifest.json").read_text())
    del manifest["readers"]
    (place / "manifest.json").write_text(json.dumps(manifest))
    return written


def test_a_repair_finds_a_state_that_was_read_with_other_keys_and_folds_it_anew(grown, tmp_path):
    """Data that the fault has damaged is found and repaired."""
    (path, half), place = grown, str(tmp_path / "state")
    written = older(path, half, (0,), tmp_path / "state")
    everything = ring((0, 1, 2))
    looked = folds.repair(place, path, keys=everything, dry_run=True)
    assert (looked.is_changed, looked.is_written) == (True, False)
    assert folds.load(place).state_hash == written.state_hash
    done = folds.repair(place, path, keys=everything)
    expected = folds.run(path, "kv", keys=everything, engine="python", upto=half)
    assert (done.before, done.after) == (written.state_hash, expected.state_hash)
    assert folds.load(place).readers == expected.readers
    assert folds.verify(path, folds.load(place), keys=everything, engine="python").verdict.value is Outcome.GOOD
    assert folds.repair(place, path, keys=everything).why is None


def test_entries_that_were_erased_since_are_not_kept_by_going_on(tmp_path):
    world = Recorder(tmp_path / "hub")
    sent(world, 40, 3)
    world.store.retire()
    earlier = folds.run(str(world.path), "kv", keys=ring((0, 1, 2)), engine="python")
    erase(world)
    resumed = folds.run(str(world.path), "kv", keys=ring((0, 1, 2)), engine="python", since=earlier)
    assert outcome(resumed) == outcome(folds.run(str(world.path), "kv", keys=ring((0, 1, 2)), engine="python"))
    world.store.close()


def test_a_state_in_gold_is_made_anew_when_other_keys_read_the_log(grown, tmp_path):
    """Tables.refresh went on from the snapshot of the first reader."""
    path, _ = grown
    few, every = key_file(tmp_path / "few", (0,)), key_file(tmp_path / "every", (0, 1, 2))
    to = str(tmp_path / "tables")
    tables.load(path, to, keys=few, engine="python")
    first = tables.refresh(to, "kv", path=path, keys=few)
    again = tables.refresh(to, "kv", path=path, keys=few)
    assert (again.changed, again.state_hash) == (False, first.state_hash)
    further = tables.refresh(to, "kv", path=path, keys=every)
    assert (further.changed, further.resumed) == (True, False)
    assert further.state_hash == folds.run(path, "kv", keys=ring((0, 1, 2)), engine="python").state_hash.hex()


# --- verdicts of `fold verify`: an empty, a half, a foreign and a grown log, and one whose hub runs ------------------


@pytest.fixture
def state(grown):
    path, _ = grown
    return folds.run(path, "kv", keys=ring((0, 1, 2)), engine="python")


def checked(path, result, numbers=(0, 1, 2), **changes):
    claim = folds.StateClaim(
        state_class=result.fold.name, cuts=result.cuts, state_hash=result.state_hash, readers=result.readers, **changes
    )
    return folds.verify(str(path), claim, keys=ring(numbers), engine="python").verdict


def test_a_state_is_verified_up_to_its_cuts(grown, state, tmp_path):
    path, half = grown
    assert checked(path, state).value is Outcome.GOOD
    assert checked(path, folds.run(path, "kv", keys=ring((0, 1, 2)), engine="python", upto=half)).is_good  # grown since
    empty = Recorder(tmp_path / "empty").done()
    short = Recorder(tmp_path / "half")
    sent(short, 30, 1)
    for other in (empty, short.done()):
        verdict = checked(other, state)
        assert verdict.value is Outcome.INCOMPLETE
        assert any(row.behind for row in verdict.compared)
    foreign = Recorder(tmp_path / "foreign")
    sent(foreign, 80, 7)
    assert checked(foreign.done(), state).value is Outcome.BAD


def test_a_state_of_nothing_is_not_verified_by_nothing(tmp_path):
    path = Recorder(tmp_path / "hub").done()
    assert checked(path, folds.run(path, "kv", keys=ring((0,)), engine="python")).value is Outcome.INCOMPLETE


def test_a_reader_with_other_keys_does_not_call_a_state_false(grown):
    state = folds.run(grown[0], "crud", keys=ring((0, 1, 2)), engine="python")
    assert checked(grown[0], state, (0,)).value is Outcome.INCOMPLETE


def test_a_fold_beside_a_running_hub_reads_what_only_the_journal_has(tmp_path):
    """One directory, one answer. Nothing of this log is in chunks yet."""
    world = Recorder(tmp_path / "hub")
    sent(world, 25, 5)
    path = str(world.path)
    result = folds.run(path, "kv", keys=ring((0, 1, 2)), engine="python")
    assert result.entries == 25
    assert checked(path, result).value is Outcome.GOOD
    sent(world, 10, 6)
    further = folds.run(path, "kv", keys=ring((0, 1, 2)), engine="python", since=result)
    assert (further.resumed, further.entries) == (True, 10)
    keys = key_file(tmp_path / "keys", (0, 1, 2))
    loaded = tables.load(path, str(tmp_path / "tables"), keys=keys, engine="python")
    assert loaded.entries == 35
    assert len(list(tables.rows(str(tmp_path / "tables")))) == 35
    world.store.retire()  # the same entries, in chunks now
    world.store.close()
    assert tables.load(path, str(tmp_path / "tables"), keys=keys, engine="python").entries == 0
    assert checked(path, further).value is Outcome.GOOD
