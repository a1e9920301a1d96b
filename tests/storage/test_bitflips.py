"""A changed, missing or truncated byte never passes verification (DESIGN §9.3).

Every single bit of a small directory is flipped, one at a time. Of the files that are the truth, and of those that
follow from it, each flip is found. Only index.db has bits that mean nothing to anyone (pages that SQLite keeps for
later, counters that it does not check): a flip there is found, or no row differs; a rebuild heals it either way.

`make test` takes a seeded sample, `make test-slow` all of them.
"""

import random
from functools import cache

import pytest
from tests.examples import spread
from tests.storage.builders import LIMITS, World, copy_of, fill
from tests.storage.oracle import assert_clean
from tests.storage.test_rebuild import QUERIES, rows

from veen.core.limits import Limits
from veen.core.objects.control import LimitsSet, StreamRegister
from veen.core.objects.identity import canonical_json
from veen.storage import layout
from veen.storage.index import Index
from veen.storage.maintenance import retention
from veen.storage.maintenance.rebuild import rebuild_index
from veen.testing.memfs import MemFs
from veen.verify.directory import verify_data

pytestmark = pytest.mark.long

# What `rebuild_index` makes again when it is wrong; everything else in the directory is the truth.
REBUILDABLE = (
    "nodes/",
    "offsets/",
    "log/peaks-",
    "log/checkpoint-index-",
    layout.KEY_MAP,
    layout.CHECKPOINT_BINDING,
)
SHARDS = 8


def is_rebuildable(path: str) -> bool:
    return path.startswith(REBUILDABLE) or path.endswith(".summary")


@cache
def at_rest() -> MemFs:
    """Two labels, sealed, erased and active chunks, identity, limits, binding, control journal, an empty journal."""
    limits = Limits(max_checkpoint_interval=2)
    world = World(limits=limits)
    world.control(LimitsSet(limits=limits.to_json()))
    world.control(StreamRegister(stream_id=bytes(32)))
    fill(world, 3)
    world.store.retire()
    index = Index(world.fs)
    policy = retention.RetentionPolicy(retention.Periods(payload_sec=1))
    retention.apply(
        world.fs, retention.plan(index, policy, world.now + 5), world.control, dropped=world.store.drop_level
    )
    fill(world, 4)
    world.fs.replace(layout.LIMITS, canonical_json(limits.to_json()) + b"\n")
    world.store.close()
    world.bind()
    assert not verify_data(world.fs).findings
    kinds = {path.split("-")[0] for path in world.fs.files()}
    assert {"log/chunk", "log/active", "log/receipts", "log/heads", "log/checkpoint", "log/peaks"} <= kinds
    return world.fs


@cache
def in_use() -> MemFs:
    """The same hub as a crash would find it: the journal holds entries and a control record."""
    world = World(limits=LIMITS)
    fill(world, 5)
    world.store.retire()
    fill(world, 3)
    world.control(StreamRegister(stream_id=bytes(32)))
    assert not verify_data(world.fs).errors
    return world.fs


def flipped(fs: MemFs, path: str, bit: int) -> MemFs:
    data = bytearray(fs.files()[path])
    data[bit >> 3] ^= 1 << (bit & 7)
    return copy_of(fs, **{path: bytes(data)})


def check_flip(path: str, bit: int) -> None:
    report = verify_data(flipped(at_rest(), path, bit))
    assert report.findings, (path, bit)
    if is_rebuildable(path):
        assert {finding.code for finding in report.errors} == {"rebuildable"}, (path, bit)


def all_bits(fs: MemFs) -> list[tuple[str, int]]:
    return [(path, bit) for path, data in sorted(fs.files().items()) for bit in range(8 * len(data))]


@pytest.mark.req("GEN-11", "STOR-04")
@pytest.mark.parametrize("shard", spread(range(SHARDS), 2))
def test_a_sample_of_flipped_bits_is_found(shard):
    rng = random.Random(shard)
    for path, bit in rng.sample(all_bits(at_rest()), 45):
        check_flip(path, bit)
    for path in sorted(at_rest().files())[shard::SHARDS]:  # and every file at least once
        check_flip(path, rng.randrange(8 * len(at_rest().files()[path])))


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_flipped_bit_is_found(shard):
    for path, bit in all_bits(at_rest())[shard::SHARDS]:
        check_flip(path, bit)


def check_rebuild(path: str, bit: int) -> None:
    fs = flipped(at_rest(), path, bit)
    rebuild_index(fs)
    assert fs.files() == at_rest().files(), (path, bit)
    assert rows(fs) == rows(at_rest())


def test_a_sample_of_flipped_bits_in_rebuildable_files_is_healed():
    bits = [(path, bit) for path, bit in all_bits(at_rest()) if is_rebuildable(path)]
    for path, bit in random.Random(1).sample(bits, 100):
        check_rebuild(path, bit)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_flipped_bit_in_rebuildable_files_is_healed(shard):
    bits = [(path, bit) for path, bit in all_bits(at_rest()) if is_rebuildable(path)]
    for path, bit in bits[shard::SHARDS]:
        check_rebuild(path, bit)


def check_index_flip(bit: int) -> None:
    good = at_rest()
    data = bytearray(good.database_bytes())
    data[bit >> 3] ^= 1 << (bit & 7)
    fs = MemFs(good.files(), bytes(data))
    report = verify_data(fs)
    if report.findings:
        assert {(finding.path, finding.code) for finding in report.findings} == {(layout.INDEX, "rebuildable")}, bit
    else:
        assert rows(fs) == rows(good), bit
    if bit % 41:  # a rebuild looks at nothing of the old index, so some will do
        return
    healed = MemFs(good.files(), bytes(data))
    rebuild_index(healed)
    assert rows(healed) == rows(good)
    assert healed.files() == good.files()


def used_bits() -> list[int]:
    """The bits of index.db in bytes that are not zero: most of a small database is empty pages."""
    return [8 * place + bit for place, byte in enumerate(at_rest().database_bytes()) if byte for bit in range(8)]


def test_a_sample_of_flipped_bits_in_the_index_is_found_or_means_nothing():
    assert set(QUERIES) == {"meta", "labels", "clients", "entries", "chunks", "caps", "writers", "policies", "records"}
    rng = random.Random(2)
    for bit in (*rng.sample(used_bits(), 150), *rng.sample(range(8 * len(at_rest().database_bytes())), 30)):
        check_index_flip(bit)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_flipped_bit_in_the_index_is_found_or_means_nothing(shard):
    for bit in used_bits()[shard::SHARDS]:
        check_index_flip(bit)


# --- cut off and gone ----------------------------------------------------------------------------------------


def lengths(path: str) -> range:
    return range(len(at_rest().files()[path]))


def check_truncation(path: str, length: int) -> None:
    data = at_rest().files()[path]
    report = verify_data(copy_of(at_rest(), **{path: data[:length]}))
    if (path, length) != (layout.LIMITS, len(data) - 1):  # configuration, where a line end says nothing
        assert report.findings, (path, length)


@pytest.mark.parametrize("shard", spread(range(SHARDS), 2))
def test_a_sample_of_truncations_is_found(shard):
    rng = random.Random(shard)
    cases = [(path, length) for path in sorted(at_rest().files()) for length in lengths(path)]
    for path, length in rng.sample(cases, 60):
        check_truncation(path, length)
    for path in sorted(at_rest().files())[shard::SHARDS]:
        for length in {0, 1, len(lengths(path)) - 1}:
            check_truncation(path, length)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_truncation_is_found(shard):
    cases = [(path, length) for path in sorted(at_rest().files()) for length in lengths(path)]
    for path, length in cases[shard::SHARDS]:
        check_truncation(path, length)


def test_bytes_that_were_added_are_found():
    for path, data in at_rest().files().items():
        for more in (b"\x00", b"\x01", data) if path == layout.LIMITS else (b"\x00", b"\x01", b"\n", data):
            assert verify_data(copy_of(at_rest(), **{path: data + more})).findings, (path, more)


def test_every_file_that_is_gone_is_missed():
    """But for limits.json, which is configuration, and keys/, which a verifier's copy does not have."""
    for path in at_rest().files():
        report = verify_data(copy_of(at_rest(), **{path: None}))
        if path == layout.LIMITS or path.startswith("keys/"):
            assert not report.findings
        else:
            assert path in {finding.path for finding in report.findings}, path


def test_a_directory_without_its_index_is_missed_and_healed():
    lost = MemFs(at_rest().files())
    assert [(finding.path, finding.code) for finding in verify_data(lost).errors] == [(layout.INDEX, "rebuildable")]
    rebuild_index(lost)
    assert rows(lost) == rows(at_rest())


# --- the journal ---------------------------------------------------------------------------------------------


def journal_path() -> str:
    return max(path for path in in_use().files() if path.startswith("journal/"))


def check_journal_flip(bit: int) -> None:
    assert verify_data(flipped(in_use(), journal_path(), bit)).errors, bit


def test_a_sample_of_flipped_bits_in_the_journal_is_found():
    bits = range(8 * len(in_use().files()[journal_path()]))
    for bit in random.Random(3).sample(bits, 100):
        check_journal_flip(bit)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_flipped_bit_in_the_journal_is_found(shard):
    for bit in range(8 * len(in_use().files()[journal_path()]))[shard::SHARDS]:
        check_journal_flip(bit)


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=pytest.mark.slow)])
def test_a_journal_that_was_cut_is_a_shorter_log_and_never_another_one(step):
    """A cut looks like a write that a crash interrupted, so it cannot be told from one: what is left must be whole.

    Who holds a receipt for what is gone can prove the loss; the directory alone cannot. Once entries were applied to
    the files, it can (test_fsck).
    """
    whole = assert_clean(in_use())
    data = in_use().files()[journal_path()]
    for length in range(60, len(data), step):
        report = verify_data(copy_of(in_use(), **{journal_path(): data[:length]}))
        for label, summary in report.labels.items():
            assert summary.size <= whole.labels[label].size
        if not report.ok:
            # Then the files are ahead of what is left: a chunk that was sealed is written at once.
            assert {finding.code for finding in report.errors} <= {"cut", "entry", "rebuildable"}
