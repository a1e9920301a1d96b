"""Folds over a log give one state, however the log is cut: what tasks do, without Spark."""

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples, spread
from tests.lake.fold_builders import BY_BRIDGE, FOLDS, cuts_of, folds, history, outcome, reference
from tests.overlays.speaking_builders import KEYS, KeyLog, bind, card
from tests.overlays.wallet_reference import ANY_TIME, OWNERS, WALLETS, World, opened, worlds
from tests.overlays.wallet_reference import BRIDGE as WALLET_BRIDGE

from veen.core import cbor
from veen.core.event import Event
from veen.core.hashing import H
from veen.lake import folds as api
from veen.lake.folds import planning as partials
from veen.lake.folds import windows
from veen.lake.folds.coverage import FoldCoverage, coverage_row, merge_coverages, pack, unpack
from veen.lake.folds.errors import NoSuchFold, NotBound, PlanUnfit, RootDiffers, RowsMissing
from veen.lake.folds.planning import plan_of
from veen.lake.log.events import Unread, entry_of, event_of, rows_of
from veen.overlays.crud import CrudFold
from veen.overlays.framework.fold import NO_MIRRORS, Joined, Mirrors
from veen.overlays.framework.ordered import LateEvent, Ordered
from veen.overlays.framework.stream import fold_events
from veen.overlays.kv import KvFold
from veen.overlays.queue import QueueFold
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.overlays.wallet.bodies import wallet_stream
from veen.overlays.wallet.policy import owners_by

PARTS = (1, 2, 7, 64)


def dealt(found, parts, seed):
    """The entries in disorder, dealt to `parts` tasks."""
    shuffled = list(found)
    random.Random(seed).shuffle(shuffled)
    return [shuffled[number::parts] for number in range(parts)]


def shipped(number, tree):
    """As a task hands it on and the driver reads it."""
    rows = [row for batch in pack(number, tree) for row in batch.to_pylist()]
    ((_, item),) = unpack((row["part"], row["slice"], row["data"]) for row in rows)
    return item


@pytest.mark.req("OVL-09", "OVL-15", "SNAP-02")
@pytest.mark.parametrize("mirrors", [NO_MIRRORS, BY_BRIDGE], ids=["plain", "mirrored"])
@pytest.mark.parametrize("seed", spread(range(12), 3))
def test_partial_summaries_merge_to_the_state_of_one_process_for_any_number_of_parts(seed, mirrors):
    """D-82, D-120: 1, 2, 7 and 64 parts, rows in disorder, every compact overlay."""
    entries = history(seed)
    cuts = cuts_of(entries)
    for fold in folds(mirrors=mirrors):
        if isinstance(fold, Ordered):
            continue
        expected = outcome(fold, reference(fold, entries), cuts)
        for parts in PARTS:
            trees = [
                shipped(n, partials.summarize_part(fold, part))
                for n, part in enumerate(dealt(entries, parts, seed + parts))
            ]
            first, coverage = partials.merge_parts(fold, trees[: parts // 2])
            again = shipped(0, [fold.dump(first), coverage.to_tree()])
            summary, coverage = partials.merge_parts(fold, [*trees[parts // 2 :], again])  # as a tree of merges does
            assert outcome(fold, summary, cuts) == expected
            assert coverage.rows == len(entries)


@pytest.mark.req("OVL-15", "SNAP-02")
@pytest.mark.parametrize("mirrors", spread([NO_MIRRORS, BY_BRIDGE], 6), ids=["plain", "mirrored"])
@pytest.mark.parametrize("seed", range(12))
def test_ordered_folds_step_through_sorted_rows_from_any_tasks(seed, mirrors):
    entries = history(seed)
    cuts = cuts_of(entries)
    for fold in folds(mirrors=mirrors):
        if not isinstance(fold, Ordered):
            continue
        expected = outcome(fold, reference(fold, entries), cuts)
        for parts in PARTS:
            rows = [row for part in dealt(entries, parts, seed) for row in partials.rows_in_order(fold, part)]
            coverage = merge_coverages(row for row in rows if "data" in row)
            events = [event_of(row) for row in rows if "data" not in row]
            events += events[: len(events) // 3]  # rows that stand twice
            summary = fold_events(fold, sorted(events, key=lambda event: event.order))
            settled = type(summary)(summary.prefix, {}, max(summary.ts, coverage.ts), summary.issues)
            assert outcome(fold, settled, cuts) == expected


@pytest.mark.req("SNAP-02")
@pytest.mark.parametrize("seed", spread(range(20), 5))
def test_records_that_are_independent_can_be_stepped_through_apart(seed):
    """CRUD and queues: the same tables, violations and positions as from one pass."""
    entries = history(seed, 90, kinds=("crud", "queue"))
    cuts = cuts_of(entries)
    for fold in (CrudFold(), QueueFold(), QueueFold(groups=["", "a"])):
        key_of = partials.KEYS[type(fold)]
        rows = [row for row in partials.rows_in_order(fold, entries, key_of) if "data" not in row]
        for parts in PARTS:
            shards: list[list[Event]] = [[] for _ in range(parts)]
            for row in rows:
                shards[H(row["key"])[0] % parts].append(event_of(row))
            summary = partials.unite_parts(
                fold.load(shipped(0, fold.dump(fold_events(fold, sorted(shard, key=lambda e: e.order)))))
                for shard in shards
            )
            coverage = FoldCoverage()
            coverage.record(entries)
            whole = type(summary)(summary.prefix, {}, max(summary.ts, coverage.ts), summary.issues)
            assert outcome(fold, whole, cuts) == outcome(fold, reference(fold, entries), cuts)


def test_a_bridge_may_tie_two_records_so_mirrored_folds_are_not_cut_by_key():
    assert partials.is_keyed(CrudFold())
    assert not partials.is_keyed(CrudFold(mirrors=BY_BRIDGE))


# --- the ledger ----------------------------------------------------------------------------------------------------


def overdrawn():
    """Return a history in which the last two of four events are withdrawals, covered one by one and not together."""
    world, name = World(), min(WALLETS)
    wallet_id = WALLETS[name]
    world.send_all(
        opened(name),
        drafts.deposit(wallet_id, 7, ts=0),
        drafts.withdraw(wallet_id, 5, ts=0),
        drafts.withdraw(wallet_id, 5, ts=0),
    )
    return world


def in_windows(fold, events, bounds):
    """What Spark does, without Spark: judge, free of copies, cut by order, settle."""
    entries = sorted(windows.wallet_events(fold, events), key=lambda entry: entry.order)
    opened: set[bytes] = set()
    judged, bad = [], []
    for entry in entries:
        if entry.identity is None:
            assert entry.issue is not None
            bad.append(entry.issue)
            continue
        judged.append(entry._replace(first=entry.identity not in opened))
        opened.add(entry.identity)
    books, start = windows.Books(fold), 0
    for end in [*sorted(min(bound, len(judged)) for bound in bounds), len(judged)]:
        part = judged[start:end]
        summary = windows.RangeSummary.from_tree(shipped(0, windows.summarize_range(part).to_tree()))
        again = [entry for entry in part if entry.counts and entry.first]
        books.add(summary, again.copy)
        start = end
    return books, books.progress(max((event.ts for event in events), default=0), bad)


@pytest.mark.req("WAL-15", "SNAP-02")
@examples(200)
@given(worlds(max_events=40), st.lists(st.integers(0, 60), max_size=6))
@example(overdrawn(), [2])
def test_windows_of_the_ledger_settle_to_the_sequential_fold(world, bounds):
    """Violations, freezes, limits, copies by bridges and strangers, forgeries: table, identities, issues, all of it."""
    fold = LedgerFold(mirrors=Mirrors.by([WALLET_BRIDGE]), policy=ANY_TIME)
    _, progress = in_windows(fold, world.all(), bounds)
    cuts = cuts_of(world.all())
    assert outcome(fold, progress, cuts) == outcome(fold, fold.summarize(world.all()), cuts)


@pytest.mark.req("WAL-17", "SNAP-02")
@examples(80)
@given(worlds(max_events=30), st.lists(st.integers(0, 40), max_size=4), st.data())
def test_a_policy_refuses_the_same_events_in_windows(world, bounds, data):
    clients = sorted({event.client_id for event in world.all()})
    services = data.draw(st.lists(st.sampled_from(clients), max_size=3))
    policy = WalletPolicy.institutional(services=services, currencies=["USD"], max_skew_sec=90_000)
    fold = LedgerFold(mirrors=Mirrors.by([WALLET_BRIDGE]), policy=policy)
    _, progress = in_windows(fold, world.all(), bounds)
    cuts = cuts_of(world.all())
    assert outcome(fold, progress, cuts) == outcome(fold, fold.summarize(world.all()), cuts)


@examples(150)
@given(worlds(max_events=30), st.lists(st.integers(0, 40), max_size=4), st.booleans(), st.data())
def test_owners_are_asked_for_in_windows_as_in_the_sequential_fold(world, bounds, bridged, data):
    """The key of an owner is checked against the record of the wallet, so it is state: windows have to see the same."""
    own = {OWNERS[name]: H(b"device of " + wallet_stream(WALLETS[name])) for name in OWNERS}
    opened = data.draw(st.sets(st.sampled_from(sorted(own))))
    owners = owners_by({ctx_id: [own[ctx_id], H(b"mallory")] for ctx_id in opened})
    services = data.draw(st.lists(st.sampled_from(sorted(own.values())), max_size=1))
    policy = WalletPolicy.institutional(services=services, max_skew_sec=None) if services else ANY_TIME
    mirrors = Mirrors.by([WALLET_BRIDGE] if bridged else [])
    fold = LedgerFold(mirrors=mirrors, policy=policy.on_shared_streams(owners))
    _, progress = in_windows(fold, world.all(), bounds)
    cuts = cuts_of(world.all())
    assert outcome(fold, progress, cuts) == outcome(fold, fold.summarize(world.all()), cuts)


@pytest.mark.parametrize("seed", spread(range(25), 5))
def test_seeded_histories_of_many_payments_settle_alike_in_1_2_7_and_64_windows(seed):
    fold = FOLDS["wallet.ledger"](mirrors=BY_BRIDGE)
    events = list(history(seed, 200, kinds=("wallet.ledger",), unread=False))
    cuts = cuts_of(events)
    expected = outcome(fold, fold.summarize(events), cuts)
    for parts in PARTS:
        bounds = [len(events) * n // parts for n in range(1, parts)]
        assert outcome(fold, in_windows(fold, events, bounds)[1], cuts) == expected


def test_where_nothing_is_refused_nothing_is_replayed_although_the_wallets_open_in_the_same_windows():
    from tests.overlays.wallet_reference import ANN, BOB, World, opened, xfer

    from veen.overlays.wallet import drafts

    world = World()
    world.send_all(opened("ann"), opened("bob"), drafts.deposit(ANN, 100, ts=1))
    for number in range(20):
        world.send_all(drafts.transfer(ANN, BOB, 5, ts=1, transfer_id=xfer(number)))
    fold = LedgerFold(policy=ANY_TIME)
    books, progress = in_windows(fold, world.all(), [7, 14])
    assert books.replayed == 0
    assert fold.view(progress).balance(BOB) == 100
    world.send_all(drafts.transfer(ANN, BOB, 5, ts=1, transfer_id=xfer(30)))  # one too many
    books, progress = in_windows(fold, world.all(), [7, 14])
    assert 0 < books.replayed <= 10  # only the window in which it stands
    assert [issue.code for issue in fold.issues(progress)] == ["WAL.INSUFFICIENT_FUNDS"]


# --- what was seen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whoever_has_seen_all_leaves_knows_the_root_of_what_was_folded(seed):
    entries = history(seed, 80)
    cuts = cuts_of(entries)
    unknown = {entry.label for entry in entries if entry.leaf_hash is None}
    for parts in PARTS:
        coverage = FoldCoverage()
        for part in dealt(entries, parts, seed):
            some = FoldCoverage()
            some.record(part)
            coverage.absorb(merge_coverages([coverage_row(some)]))
        for cut in cuts:
            tree = coverage.peaks(cut.label, cut.upto_seq)
            assert (tree is None) == (cut.label in unknown)
            assert tree is None or tree.root() == cut.mmr_root
        assert sum(entry.count for entry in coverage.count_unopened()) == sum(
            isinstance(entry, Unread) for entry in entries
        )


def test_a_row_that_is_missing_or_stands_twice_leaves_no_single_run():
    events = history(3, 200, unread=False)
    first_label = [event for event in events if event.label == events[0].label]
    whole, holed, doubled = FoldCoverage(), FoldCoverage(), FoldCoverage()
    whole.record(first_label)
    holed.record(first_label[:2] + first_label[3:])
    doubled.record([*first_label, first_label[1]])
    label = first_label[0].label
    assert whole.first_of(label) == 1
    assert holed.first_of(label) is None
    assert doubled.first_of(label) is None
    assert holed.peaks(label, len(first_label)) is None
    assert doubled.peaks(label, len(first_label)) == whole.peaks(label, len(first_label))


# --- streams of events ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_fold_goes_on_from_a_sealed_state_and_tolerates_what_it_has_seen(seed):
    events = history(seed, unread=False)
    cuts = cuts_of(events)
    for fold in folds(mirrors=BY_BRIDGE):
        cut, overlap = len(events) // 2, len(events) // 3
        base = fold.seal(fold_events(fold, events[:cut]))
        assert outcome(fold, fold_events(fold, events[overlap:], base), cuts) == outcome(
            fold, reference(fold, events), cuts
        )


def test_an_event_that_belongs_before_a_finished_state_is_named():
    events = history(2, 200, kinds=("crud",), copies=False, unread=False)
    fold = CrudFold()
    of_label = [event for event in events if event.label == events[-1].label]
    others = [event for event in events if event.label != events[-1].label]
    base = fold_events(fold, others)
    early = next(event for event in of_label if event.order < others[-1].order and event.hdr.schema in fold.schemas)
    with pytest.raises(LateEvent) as caught:
        fold_events(fold, of_label, base)
    assert caught.value.label == early.label


# --- rows in, results out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOLDS)
def test_rows_are_folded_in_any_order_and_bound_to_the_cuts_that_come_with_them(name):
    entries = history(11, 120, copies=False)
    fold = FOLDS[name]()
    cuts = cuts_of(entries)
    result = api.run(list(reversed(entries)), fold, cuts=cuts)
    assert outcome(fold, result.summary, cuts) == outcome(fold, reference(fold, entries), cuts)
    assert (result.snapshot, result.issues) == outcome(fold, reference(fold, entries), cuts)
    assert result.entries == len(entries)
    assert result.plan == "python"
    assert set(result.unproven) == {entry.label for entry in entries if entry.leaf_hash is None}
    assert sum(entry.count for entry in result.unopened) == sum(isinstance(entry, Unread) for entry in entries)
    assert result.ts == max(entry.ts for entry in entries)
    assert "state_hash" in repr(result)
    assert result.state_hash.hex()[:4] in result._repr_html_()


def test_rows_that_are_not_those_of_their_cuts_are_refused():
    entries = history(12, 120, unread=False)
    cuts = cuts_of(entries)
    fold = KvFold()
    with pytest.raises(RowsMissing):
        api.run(entries[:-1], fold, cuts=cuts)
    wrong = [
        cut if n else type(cut)(label=cut.label, upto_seq=cut.upto_seq, mmr_root=bytes(32))
        for n, cut in enumerate(cuts)
    ]
    with pytest.raises(RootDiffers) as caught:
        api.run(entries, fold, cuts=wrong)
    assert cuts[0].label.hex() in str(caught.value)
    with pytest.raises(NotBound):
        _ = api.run(entries, fold).snapshot


def test_a_state_looks_the_same_in_pieces_of_any_size():
    tree = [[b"x" * 100, n] for n in range(90_000)]
    rows = [row for batch in pack(3, tree) for row in batch.to_pylist()]
    assert len(rows) > 1
    random.Random(0).shuffle(rows)
    ((part, item),) = unpack((row["part"], row["slice"], row["data"]) for row in rows)
    assert (part, cbor.encode(item)) == (3, cbor.encode(tree))


def test_every_fold_has_a_plan_and_a_wrong_one_is_refused():
    plans = {name: plan_of(make(), "auto") for name, make in FOLDS.items()}
    assert plans == {
        "kv": "native",
        "crdt.lww": "native",
        "crdt.orset": "native",
        "crdt.gcnt": "native",
        "crud": "by key",
        "queue": "by key",
        "rpc": "summaries",
        "wallet.ledger": "windows",
    }
    assert {plan_of(make(), "generic") for make in FOLDS.values()} == {"summaries", "in order"}
    bound = LedgerFold(policy=WalletPolicy().on_shared_streams())  # it matters for whom a key speaks (D-179)
    off = LedgerFold(policy=WalletPolicy(speaks="off").on_shared_streams({}))
    assert [plan_of(fold, "auto") for fold in (bound, off)] == ["in order", "windows"]
    assert plan_of(CrudFold(), "auto", resumed=True) == "in order"
    assert {plan_of(make(), "auto", entries=100) for make in FOLDS.values()} == {"summaries", "in order"}
    assert plan_of(KvFold(), "native", entries=100) == "native"
    with pytest.raises(PlanUnfit):
        plan_of(api.fold_named("rpc"), "native")
    with pytest.raises(PlanUnfit):
        plan_of(api.fold_named("rpc"), "fastest")  # type: ignore[arg-type]  # what a user may give


def test_folds_are_found_by_their_names():
    assert isinstance(api.fold_named("crdt"), Joined)
    assert api.fold_named("crdt.lww").name == "crdt.lww"
    with pytest.raises(NoSuchFold):
        api.fold_named("nothing")


def test_rows_and_unread_entries_survive_the_way_through_columns():
    entries = history(5, 120)
    assert [entry_of(row) for row in rows_of(entries)] == entries


def test_windows_refuse_a_log_in_which_keys_are_bound():
    """D-179: in a window of the order nobody knows who is bound; the planner folds such ledgers in order."""
    fold = LedgerFold(policy=WalletPolicy().on_shared_streams())
    log = KeyLog()
    log.send(card(0, 0), KEYS[0])
    assert list(windows.wallet_events(fold, log.all())) == []
    log.send(bind(0, 0), KEYS[0])
    with pytest.raises(PlanUnfit, match="in order"):
        list(windows.wallet_events(fold, log.all()))
