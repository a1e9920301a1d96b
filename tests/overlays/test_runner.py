"""The runner: any moment of a log from cached summaries (spec §11.3)."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.event import Event
from veen.core.hashing import H, u64be
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays import crdt, crud, kv
from veen.overlays.framework.runner import MemorySource, MergeTree, Runner, cut_at
from veen.overlays.framework.schema import Draft
from veen.overlays.framework.state import state_bytes
from veen.testing.events import FakeLog, label_of

LABEL, STREAM, CLIENT = label_of("main"), H(b"main"), H(b"alice")


class Endless:
    """A log of one label that is made as it is read; each event is a function of its position."""

    def __init__(self, head: int, drafts: list[Draft]) -> None:
        self._head, self._made = head, [(PayloadHdr(schema=draft.schema), draft.body) for draft in drafts]
        self.read = 0

    def heads(self) -> dict[bytes, int]:
        return {LABEL: self._head}

    def events(self, label: bytes, from_seq: int, to_seq: int) -> Iterator[Event]:
        for seq in range(from_seq, to_seq + 1):
            self.read += 1
            hdr, body = self._made[seq * 7919 % len(self._made)]
            yield Event(
                stream_id=STREAM,
                label=label,
                epoch=0,
                stream_seq=seq,
                leaf_hash=u64be(seq) * 4,
                client_id=CLIENT,
                auth_ref=None,
                hub_ts=seq // 100,
                ts=seq // 100,
                hdr=hdr,
                body=body,
            )


def check_as_of(count: int, positions: int) -> None:
    """`positions` random moments of `count` events: few summaries, few events, and the right state."""
    source = Endless(count, [kv.put(f"key {n}", n) for n in range(997)])
    fold, random = kv.KvFold(), Random(count)
    runner = Runner(fold, source)
    runner.refresh()
    for upto in [*(random.randrange(1, count + 1) for _ in range(positions)), count]:
        source.read = 0
        view = runner.view({LABEL: upto})
        assert runner.cost.summaries <= 64
        assert runner.cost.events == source.read <= 1024
        # After 997 events every key has been written, and the last write to each lies among the last 997.
        recent = fold.view(fold.summarize(source.events(LABEL, max(1, upto - 996), upto)), upto)
        assert state_bytes(view) == state_bytes(recent)


@pytest.mark.long
@pytest.mark.req("OVL-10")
def test_a_moment_of_a_long_log_costs_few_summaries_and_at_most_one_interval_of_events():
    check_as_of(100_000, positions=10)


@pytest.mark.slow
@pytest.mark.req("OVL-10")
def test_a_moment_of_a_million_events_touches_at_most_64_summaries_and_one_interval():
    check_as_of(1_000_000, positions=40)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.req("OVL-10")
def test_a_moment_of_an_ordered_fold_costs_no_replay_either():
    drafts = [crud.create("doc", str(n % 50), {"n": n}) for n in range(101)]
    drafts += [crud.update("doc", str(n % 50), {"n": n}) for n in range(101)]
    source = Endless(24_000, drafts)
    fold, random = crud.CrudFold(), Random(7)
    runner = Runner(fold, source, interval=256)
    runner.refresh()
    # Without blocks of blocks a moment after the first 64 intervals would cost more than 64 summaries.
    for upto in (random.randrange(1, 16_384), random.randrange(20_000, 24_000), 24_000):
        source.read = 0
        view, cost = runner.view({LABEL: upto}), runner.cost
        assert cost.summaries <= 64
        assert cost.events == source.read <= 256
        whole = fold.summarize(source.events(LABEL, 1, upto))
        assert state_bytes(view) == state_bytes(fold.view(whole))
        assert runner.issues({LABEL: upto}) == fold.issues(whole)


@pytest.mark.req("OVL-04", "OVL-10")
@given(st.integers(1, 50), st.integers(0, 50))
def test_a_range_is_folded_from_its_blocks_and_ends(start, length):
    log = FakeLog()
    log.extend(crdt.counter_add(bytes(32), n) for n in range(100))
    runner = Runner(crdt.CounterFold(), log, interval=4, fanout=2)
    summary = runner.range(LABEL, start, start + length)
    assert runner.fold.view(summary).get(bytes(32), 0) == sum(range(start - 1, start + length))
    assert runner.cost.events <= 6


def test_a_range_of_an_ordered_fold_is_its_events():
    log = FakeLog()
    log.extend([crud.create("doc", "1", {}), crud.update("doc", "1", {"a": 1}), crud.delete("doc", "1")])
    runner = Runner(crud.CrudFold(), log, interval=2)
    first, rest = runner.range(LABEL, 1, 1), runner.range(LABEL, 2, 3)
    assert runner.fold.view(runner.fold.merge(rest, first)) == {}
    assert runner.fold.issues(rest) != ()  # alone, an update meets no record


@pytest.mark.req("OVL-15")
def test_an_event_that_belongs_earlier_is_put_where_it_belongs():
    """D-27: two labels, of which one was read late."""
    log = FakeLog()
    for n in range(20):
        log.append(crud.update("doc", "1", {"n": n}), stream="main", ts=100 + 10 * n)
    fold = crud.CrudFold()
    runner = Runner(fold, log, interval=3, fanout=2)
    assert runner.view() == {}
    log.append(crud.create("doc", "1", {}), stream="late", ts=145)
    assert runner.view()["doc"]["1"].rev == 16
    assert runner.issues() == fold.issues(fold.summarize(log.all()))
    log.append(crud.delete("doc", "1"), stream="late", ts=185)
    assert state_bytes(runner.view()) == state_bytes(fold.view(fold.summarize(log.all())))


def test_a_time_in_the_past_shows_what_was_known_then():
    log = FakeLog()
    log.append(kv.put("a", 1, expires_at=1_500), stream="one", ts=1_000)
    log.append(kv.put("b", 2), stream="two", ts=1_100)
    log.append(kv.put("b", 3), stream="two", ts=1_200)
    runner = Runner(kv.KvFold(), log)

    def values(ts: int) -> dict[str, object]:
        return {key: entry.value.value for key, entry in runner.view_at(ts).items()}

    assert values(999) == {}
    assert values(1_000) == {"a": 1}
    assert values(1_199) == {"a": 1, "b": 2}
    assert values(2_000) == {"b": 3}
    assert cut_at(log, 1_100) == {label_of("one"): 1, label_of("two"): 1}


def test_a_source_in_memory_has_no_gaps_and_takes_replays():
    log = FakeLog()
    events = log.extend(kv.put("a", n) for n in range(3))
    source = MemorySource([events[1], events[0]])
    source.append(events[1])
    assert source.heads() == {LABEL: 2}
    assert list(source.events(LABEL, 2, 9)) == [events[1]]
    assert list(source.events(bytes(32), 1, 1)) == []
    with pytest.raises(ValueError, match="gap before 3"):
        MemorySource([events[2]])


def test_what_lies_beyond_the_log_cannot_be_asked_for():
    runner = Runner(kv.KvFold(), FakeLog())
    with pytest.raises(ValueError, match="ends before 1"):
        runner.view({LABEL: 1})
    with pytest.raises(ValueError, match="at least one event"):
        Runner(kv.KvFold(), FakeLog(), interval=0)
    with pytest.raises(ValueError, match="fanout"):
        Runner(crud.CrudFold(), FakeLog(), fanout=1)


@pytest.mark.req("GEN-16")
@given(st.integers(2, 5), st.integers(0, 70), st.data())
def test_the_tree_covers_every_range_in_order_with_few_nodes(fanout, count, data):
    tree: MergeTree[list[int]] = MergeTree(lambda nodes: [n for node in nodes for n in node], fanout=fanout)
    for n in range(count):
        tree.append([n])
    keep = data.draw(st.integers(0, count))
    tree.truncate(keep)
    for n in range(keep, count):
        tree.append([n])
    start = data.draw(st.integers(0, count))
    end = data.draw(st.integers(start, count))
    nodes = tree.cover(start, end)
    assert [n for node in nodes for n in node] == list(range(start, end))
    assert len(nodes) <= 2 * (fanout - 1) * 7
    prefix = tree.prefix(lambda node: node[-1] < end)
    assert [n for node in prefix for n in node] == list(range(end))
    with pytest.raises(ValueError, match="no leaves"):
        tree.cover(0, count + 1)
