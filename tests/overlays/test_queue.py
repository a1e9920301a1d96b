"""Queue: at least once for every group, in stream order (D-84)."""

import pytest

from veen.overlays import queue
from veen.testing.events import FakeLog


def fold_of(log: FakeLog, as_of: int | None = None, **kwargs):
    fold = queue.QueueFold(**kwargs)
    summary = fold.summarize(log.all())
    return fold.view(summary, as_of), [(issue.stream_seq, issue.code) for issue in fold.issues(summary)]


def pending(view: queue.QueueView, group: str = "", **kwargs):
    return [(p.value.value, p.attempt) for p in view.pending(group, **kwargs)]


@pytest.fixture
def log():
    log = FakeLog()
    log.items = log.extend(queue.enqueue(name) for name in ("first", "second", "third"))  # type: ignore[attr-defined]
    return log


@pytest.mark.req("CKQ-03")
def test_items_are_pending_in_stream_order_for_each_group_until_it_acknowledges(log):
    log.append(queue.ack(log.items[0].msg_id, group="mail"))
    view, issues = fold_of(log)
    assert pending(view, "mail") == [("second", 1), ("third", 1)]
    assert pending(view, "print") == pending(view) == [("first", 1), ("second", 1), ("third", 1)]
    assert issues == []


@pytest.mark.req("CKQ-03")
def test_redelivery_is_visible_and_keeps_the_order(log):
    first = log.items[0].msg_id
    log.extend([queue.nack(first), queue.nack(first, group="other"), queue.nack(first)], client="worker")
    view, _ = fold_of(log)
    assert pending(view) == [("first", 3), ("second", 1), ("third", 1)]
    delivery = view.deliveries["", first]
    assert (delivery.nacks, delivery.acked, delivery.last_ts) == (2, False, log.now)
    assert pending(view, max_attempts=2) == [("second", 1), ("third", 1)]
    assert [p.msg_id for p in view.dead(max_attempts=2)] == [first]


@pytest.mark.req("CKQ-03")
def test_a_second_ack_says_nothing_new_but_a_nack_after_it_is_reported(log):
    first = log.items[0].msg_id
    log.extend([queue.ack(first), queue.ack(first), queue.nack(first)])
    view, issues = fold_of(log)
    assert pending(view) == [("second", 1), ("third", 1)]
    assert issues == [(6, "QUEUE.DONE")]


def test_what_refers_to_no_item_before_it_is_reported(log):
    ack = log.append(queue.ack(bytes(32)))
    log.append(queue.nack(ack.msg_id))
    assert fold_of(log)[1] == [(4, "QUEUE.UNKNOWN"), (5, "QUEUE.UNKNOWN")]


def test_an_item_is_not_delivered_after_it_expired(log):
    log.append(queue.enqueue("brief", expires_at=2_000))
    assert pending(fold_of(log, as_of=2_000)[0])[-1] == ("brief", 1)
    assert pending(fold_of(log, as_of=2_001)[0])[-1] == ("third", 1)


def test_with_known_groups_finished_items_are_forgotten(log):
    first = log.items[0].msg_id
    log.extend([queue.ack(first, group="a"), queue.ack(first, group="c"), queue.ack(first, group="b")])
    view, issues = fold_of(log, groups=["a", "b"])
    assert first not in view.items
    assert view.deliveries == {}
    assert issues == [(5, "QUEUE.GROUP")]


def test_consumers_share_the_work_and_only_the_share_of_a_lost_one_moves():
    log = FakeLog()
    log.extend(queue.enqueue(n) for n in range(60))
    view, _ = fold_of(log)
    names = ["ann", "bob", "eve"]
    shares = {name: {p.msg_id for p in view.share("g", name, names)} for name in names}
    assert all(shares.values())
    assert sum(map(len, shares.values())) == len(set().union(*shares.values())) == 60
    after = {name: {p.msg_id for p in view.share("g", name, ["ann", "bob"])} for name in ("ann", "bob")}
    assert shares["ann"] <= after["ann"]
    assert shares["bob"] <= after["bob"]
    assert after["ann"] | after["bob"] == set().union(*shares.values())
