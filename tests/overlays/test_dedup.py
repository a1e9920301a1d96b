"""Mirrored copies are the event they copy (D-85)."""

import pytest

from veen.core.hashing import H
from veen.overlays import crdt, kv
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.testing.events import FakeLog

BRIDGE = H(b"bridge")
MIRRORS = Mirrors.by([BRIDGE])


@pytest.mark.req("OVL-06")
def test_a_copy_by_a_registered_bridge_is_its_original_and_anyone_elses_is_not():
    log = FakeLog()
    original = log.append(kv.put("a", 1))
    copy = log.mirror(original, stream="other")
    forged = log.mirror(original, stream="other", bridge="mallory")
    assert MIRRORS.identity(copy) == MIRRORS.identity(original) == original.msg_id
    assert MIRRORS.original_of(forged) is None
    assert MIRRORS.identity(forged) == forged.msg_id
    assert NO_MIRRORS.identity(copy) == copy.msg_id


def test_some_schemas_are_copies_whenever_they_have_a_parent():
    """D-85: WAL."""
    log = FakeLog()
    original = log.append(kv.put("a", 1))
    copy = log.mirror(original, stream="other", bridge="anyone")
    assert Mirrors.by((), [kv.KV.id]).identity(copy) == original.msg_id
    assert bool(Mirrors.by((), [kv.KV.id]))
    assert not NO_MIRRORS


@pytest.mark.req("OVL-06")
def test_copies_do_not_count_twice_in_a_sum_even_where_the_original_is_elsewhere():
    log = FakeLog()
    original = log.append(crdt.counter_add(bytes(32), 3))
    copies = [log.mirror(original, stream=stream) for stream in ("east", "west")]
    fold = crdt.CounterFold(mirrors=MIRRORS)
    for copies_read in ([original, *copies], copies, copies[:1], copies[::-1]):
        merged = fold.combine(map(fold.lift, copies_read))
        assert fold.view(merged) == {bytes(32): 3}
    assert crdt.CounterFold().view(crdt.CounterFold().summarize(log.all())) == {bytes(32): 9}


def test_of_copies_without_their_original_the_first_in_logical_order_counts():
    log = FakeLog()
    original = log.append(kv.put("a", 1))
    log.now = 2_000
    late = log.mirror(original, stream="west")
    log.now = 1_500
    early = log.mirror(original, stream="east")
    fold = kv.KvFold(mirrors=MIRRORS)
    for order in ([early, late], [late, early]):
        for summary in (fold.summarize(order), fold.combine(map(fold.lift, order))):
            assert fold.view(summary)["a"].msg_id == early.msg_id
