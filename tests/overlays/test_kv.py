"""KV: the last writer wins, by (ts, logical order) (D-84)."""

import pytest

from veen.overlays import kv
from veen.overlays.framework.schema import Draft
from veen.overlays.framework.state import Free
from veen.testing.events import FakeLog


def values(log: FakeLog, as_of: int | None = None) -> dict[str, object]:
    fold = kv.KvFold()
    return {key: entry.value.value for key, entry in fold.view(fold.summarize(log.all()), as_of).items()}


@pytest.mark.req("CKQ-02", "OVL-02")
def test_without_timestamps_the_order_of_the_log_decides():
    log = FakeLog()
    log.extend([kv.put("a", 1), kv.put("b", 2), kv.put("a", 3), kv.delete("b")])
    assert values(log) == {"a": 3}


@pytest.mark.req("CKQ-02", "OVL-02", "OVL-05")
def test_the_timestamp_decides_before_the_order():
    log = FakeLog()
    log.extend([kv.put("a", "new", ts=500), kv.put("a", "old", ts=400), kv.put("a", "tie", ts=500)])
    assert values(log) == {"a": "tie"}
    log.extend([kv.delete("a", ts=499)])
    assert values(log) == {"a": "tie"}


def test_a_write_without_a_timestamp_has_the_time_of_the_hub():
    log = FakeLog()
    log.append(kv.put("a", "stamped", ts=1_500), ts=1_000)
    log.append(kv.put("a", "earlier"), ts=1_499)
    assert values(log) == {"a": "stamped"}
    log.append(kv.put("a", "later"), ts=1_500)
    assert values(log) == {"a": "later"}


@pytest.mark.req("PHDR-04")
def test_a_value_that_expired_is_gone_and_the_one_before_does_not_come_back():
    """D-80: against as_of, never against a clock."""
    log = FakeLog()
    log.extend([kv.put("a", 1), kv.put("a", 2, expires_at=1_010)])
    assert values(log) == {"a": 2}
    assert values(log, as_of=1_010) == {"a": 2}
    assert values(log, as_of=1_011) == {}


def test_an_entry_names_the_message_that_set_it():
    log = FakeLog()
    event = log.append(kv.put("a", {"x": [1]}), client="bob")
    fold = kv.KvFold()
    (entry,) = fold.view(fold.lift(event)).values()
    assert entry == kv.KvEntry(value=Free({"x": [1]}), ts=event.ts, msg_id=event.msg_id, client_id=event.client_id)


@pytest.mark.req("OVL-08")
def test_a_body_that_cannot_be_read_changes_nothing_but_is_reported():
    log = FakeLog()
    good = kv.put("a", 1)
    log.append(good)
    bad = log.append(Draft(schema=good.schema, body=b"\xa1\x61x\x01"))
    fold = kv.KvFold()
    summary = fold.summarize(log.all())
    assert values(log) == {"a": 1}
    assert [(i.label, i.stream_seq, i.code) for i in fold.issues(summary)] == [(bad.label, 2, "OVL.BODY")]
