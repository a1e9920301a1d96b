"""Folds on Spark: the same summary, state and issues as one process, by every plan and for any partitioning (D-120)."""

import random
from itertools import islice

import pytest
from tests.cli.homes import Cli
from tests.examples import spread
from tests.lake.fold_builders import (
    BY_BRIDGE,
    FOLDS,
    KEYRING,
    WRITERS,
    cuts_of,
    folds,
    frame_of,
    history,
    outcome,
    real_log,
    reference,
    send,
)
from tests.overlays.wallet_reference import OWNERS

from veen.core.hashing import H
from veen.lake import folds as api
from veen.lake.folds import on_spark
from veen.lake.folds.errors import FoldFailed, PlanUnfit
from veen.lake.folds.on_spark import fold_native
from veen.lake.folds.planning import has_native
from veen.lake.log.keys import write_keys
from veen.overlays.framework.fold import NO_MIRRORS, Joined
from veen.overlays.framework.ordered import Ordered
from veen.overlays.wallet import LedgerFold, WalletPolicy
from veen.overlays.wallet.policy import owners_by
from veen.testing.events import FakeLog

pytestmark = pytest.mark.xdist_group("spark")

NATIVE = [name for name, make in FOLDS.items() if has_native(make())]


@pytest.mark.req("SNAP-02")
@pytest.mark.parametrize("name", spread(NATIVE, 1))
@pytest.mark.parametrize("mirrors", [NO_MIRRORS, BY_BRIDGE], ids=["plain", "mirrored"])
def test_sql_gives_the_very_summary_that_the_fold_makes(spark, name, mirrors):
    """Ties, late times, u64 beyond BIGINT, copies true and false, bodies that do not decode, entries not read."""
    fold = FOLDS[name](mirrors=mirrors)
    sums = name == "crdt.gcnt"  # these need every place once: see below
    entries = history(f"native {name}", 250, kinds=(name,), copies=bool(mirrors) and not sums, unread=not sums)
    cuts = cuts_of(entries)
    summary, coverage = fold_native(frame_of(spark, entries, 3), fold)
    assert outcome(fold, summary, cuts) == outcome(fold, reference(fold, entries), cuts)
    assert coverage.rows == len(entries)


@pytest.mark.slow
def test_where_sql_cannot_sum_the_generic_plan_does(spark):
    """A row that stands twice, a hole, a copy: sums by position need each place once."""
    fold = FOLDS["crdt.gcnt"](mirrors=BY_BRIDGE)
    entries = history(4, 150, kinds=("crdt.gcnt",))
    doubled = [*entries, entries[5]]
    frame = frame_of(spark, doubled, 2)
    with pytest.raises(PlanUnfit):
        fold_native(frame, fold)
    result = api.run(frame, fold)
    assert result.plan == "summaries"
    cuts = cuts_of(entries)
    assert outcome(fold, result.summary, cuts) == outcome(fold, reference(fold, entries), cuts)


@pytest.mark.req("SNAP-02")
@pytest.mark.parametrize("parts", spread([1, 2, 7, 16, pytest.param(64, marks=pytest.mark.slow)], 2))
def test_summaries_of_any_number_of_partitions_merge_to_one_state(spark, parts):
    fold = Joined(fold for fold in folds(mirrors=BY_BRIDGE) if not isinstance(fold, Ordered))
    entries = history("generic", 300)
    cuts = cuts_of(entries)
    summary, coverage = on_spark.fold_frame(frame_of(spark, entries, parts, seed=parts), fold)
    assert outcome(fold, summary, cuts) == outcome(fold, reference(fold, entries), cuts)
    assert coverage.rows == len(entries)


@pytest.mark.req("SNAP-02")
@pytest.mark.parametrize("name", spread(["crud", "queue"], 1))
def test_ordered_folds_agree_in_order_and_by_key(spark, name):
    entries = history(f"ordered {name}", 250, kinds=(name,))
    cuts = cuts_of(entries)
    frame, fold = frame_of(spark, entries, 3), FOLDS[name]()
    expected = outcome(fold, reference(fold, entries), cuts)
    assert outcome(fold, on_spark.fold_by_key(frame, fold, 5)[0], cuts) == expected
    mirrored = FOLDS[name](mirrors=BY_BRIDGE)
    summary, _ = on_spark.fold_in_order(frame, mirrored)
    assert outcome(mirrored, summary, cuts) == outcome(mirrored, reference(mirrored, entries), cuts)


@pytest.mark.slow
@pytest.mark.req("WAL-15", "SNAP-02")
@pytest.mark.parametrize("parts", spread([1, 5], 1))
def test_the_ledger_settles_in_windows_to_the_sequential_fold(spark, parts):
    fold = FOLDS["wallet.ledger"](mirrors=BY_BRIDGE)
    entries = history("ledger", 250, kinds=("wallet.ledger",))
    cuts = cuts_of(entries)
    summary, coverage, replayed = on_spark.fold_ledger(frame_of(spark, [*entries, entries[3]], 3), fold, parts)
    assert outcome(fold, summary, cuts) == outcome(fold, reference(fold, entries), cuts)
    assert coverage.rows == len(entries) + 1
    assert replayed > 0  # such a history has everything that can be refused


@pytest.mark.slow
@pytest.mark.req("WAL-17", "SNAP-02")
def test_the_ledger_asks_for_owners_on_spark_as_in_the_sequential_fold(spark):
    owners = owners_by({OWNERS["ann"]: [H(b"alice")], OWNERS["bob"]: [H(b"bob")], OWNERS["dan"]: [H(b"alice")]})
    policy = WalletPolicy(max_skew_sec=None).on_shared_streams(owners)
    entries = history("owners", 250, kinds=("wallet.ledger",))
    cuts = cuts_of(entries)
    for mirrors in (BY_BRIDGE, NO_MIRRORS):
        fold = LedgerFold(mirrors=mirrors, policy=policy)
        summary, _, _ = on_spark.fold_ledger(frame_of(spark, entries, 3), fold, 5)
        assert outcome(fold, summary, cuts) == outcome(fold, reference(fold, entries), cuts)
        assert "WAL.UNAUTHORIZED_OPERATION" in {issue.code for issue in fold.issues(summary)}


@pytest.mark.req("SNAP-02", "OVL-11")
def test_a_log_on_disk_gives_one_state_for_both_engines_and_goes_on_from_it(spark, tmp_path):
    rng, log = random.Random(5), FakeLog()
    drafts = (WRITERS[rng.choice(("kv", "crud"))](rng, log) for _ in range(160))
    world = real_log(tmp_path / "hub", islice(drafts, 120), foreign=0.05)
    keys = write_keys(tmp_path, KEYRING.entries)
    fold = Joined([FOLDS["kv"](), FOLDS["crud"]()])
    first = api.run(str(world.path), fold, keys=keys, engine="python")
    on_spark = api.run(str(world.path), fold, keys=keys, spark=spark, parts=3, plan="native")
    assert on_spark.plan == "by key + native"
    assert on_spark.snapshot == first.snapshot
    by_ring = api.run(str(world.path), fold, keys=KEYRING, spark=spark, parts=2)
    assert by_ring.snapshot == first.snapshot, "workers read the keys of a keyring, which are in no directory"
    assert (on_spark.state_hash, on_spark.issues, on_spark.cuts) == (first.state_hash, first.issues, first.cuts)
    assert on_spark.unopened == first.unopened != ()
    on_spark.write(str(tmp_path / "state"))
    send(world, drafts, rng)
    whole = api.run(str(world.path), fold, keys=keys, engine="python")
    further = api.run(str(world.path), fold, keys=keys, spark=spark, parts=2, since=str(tmp_path / "state"))
    assert (further.snapshot, further.issues) == (whole.snapshot, whole.issues)
    assert further.entries < whole.entries
    assert further.resumed or further.refused
    assert not further.unproven
    world.done()


@pytest.mark.slow
def test_typed_silver_can_be_kept_and_folded_without_decoding_again(spark, tmp_path):
    fold = FOLDS["kv"]()
    entries = history("typed", 120, kinds=("kv",), copies=False)
    frame = frame_of(spark, entries, 2)
    api.typed_rows(frame, fold).write.parquet(str(tmp_path / "typed"))
    again = api.run(spark.read.parquet(str(tmp_path / "typed")), fold)
    assert (again.state_hash, again.issues, again.plan) == (*_plain(fold, entries), "native")
    rows = api.typed_frame(frame, fold)
    assert {"key", "value", "at", "at_key"} <= set(rows.columns)
    assert rows.where(f"CAST(at_key AS DECIMAL(20,0)) + {1 << 63} <> at").isEmpty()
    earlier = spark.read.parquet(str(tmp_path / "typed")).drop("at_key", "expires_at_key")
    assert api.run(earlier, fold).state_hash == again.state_hash  # a table from before there were such columns
    assert rows.where("key = 'a'").count() > 0


def _plain(fold, found):
    result = api.run(found, fold)
    return result.state_hash, result.issues


def test_a_task_that_fails_says_so_in_a_line(spark):
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    entries = history(1, 100, unread=False)
    broken = frame_of(spark, entries, 2).withColumn("hdr", F.lit(b"nothing"))
    with pytest.raises(FoldFailed) as caught:
        api.run(broken, FOLDS["rpc"]())
    assert "the row is not a valid event" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.usefixtures("spark")
def test_the_command_lets_spark_work_and_verifies_what_it_made(tmp_path):
    rng = random.Random(6)
    world = real_log(tmp_path / "hub", [WRITERS["kv"](rng, FakeLog()) for _ in range(30)])
    places = ("--data-dir", world.path, "--key-file", write_keys(tmp_path, KEYRING.entries).path)
    cli = Cli(tmp_path / "home")
    state = tmp_path / "state"
    on_spark = cli.json(
        "fold",
        "run",
        *places,
        "--overlay",
        "kv",
        "--partitions",
        2,
        "--plan",
        "native",
        "--out",
        state,
        "--engine",
        "spark",
    )
    alone = cli.json("fold", "run", *places, "--overlay", "kv", "--engine", "python")
    assert (on_spark["plan"], on_spark["state_hash"]) == ("native", alone["state_hash"])
    assert cli.json("fold", "verify", state, *places, "--engine", "spark")["ok"] is True
    world.done()


@pytest.mark.slow
@pytest.mark.req("SNAP-02", "WAL-15")
@pytest.mark.parametrize("seed", range(6))
def test_every_fold_by_every_plan_over_many_histories(spark, seed):
    """With copies and without, on 1, 2, 7 and 64 partitions."""
    mirrors, parts = (NO_MIRRORS, BY_BRIDGE)[seed % 2], (1, 2, 7, 64)[seed % 4]
    entries = history(f"many {seed}", 200, copies=bool(mirrors), unread=seed % 3 > 0)
    cuts = cuts_of(entries)
    frame = frame_of(spark, entries, parts, seed).persist()
    for fold in folds(mirrors=mirrors):
        expected = outcome(fold, reference(fold, entries), cuts)
        for plan in ("auto", "generic"):
            result = api.run(frame, fold, plan=plan, cuts=cuts, parts=min(parts, 7))
            assert (result.snapshot, result.issues) == expected, (fold.name, result.plan)
    frame.unpersist()
