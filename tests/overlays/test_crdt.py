"""CRDT0: registers, sets, counters and where their large parts come from (001 spec-1 §25)."""

import pytest

from veen.core.errors import VerifyError
from veen.core.hashing import H
from veen.core.sealing.ciphertext import att_root_of
from veen.overlays import crdt
from veen.testing.events import FakeLog

ID = [bytes([n]) * 32 for n in range(5)]


def lww(log: FakeLog, as_of: int | None = None):
    fold = crdt.LwwFold()
    return fold.view(fold.summarize(log.all()), as_of)


def members(log: FakeLog, as_of: int | None = None):
    fold = crdt.OrSetFold()
    return fold.view(fold.summarize(log.all()), as_of)


@pytest.mark.req("CRDT-01", "OVL-05")
def test_the_register_is_won_by_ts_then_by_order():
    log = FakeLog()
    log.extend(
        [crdt.lww_set(b"k", b"old", ts=5), crdt.lww_set(b"k", b"tie", ts=5), crdt.lww_set(b"k", b"earlier", ts=4)]
    )
    assert lww(log)[b"k"].value == b"tie"
    assert crdt.LwwSet(key=b"k", ts=1, value=b"v").to_tree() == {"key": b"k", "ts": 1, "value": b"v"}


def test_a_register_that_expired_is_not_shown():
    log = FakeLog()
    log.append(crdt.lww_set(b"k", b"v", ts=5, expires_at=1_500))
    assert lww(log, 1_500) != {}
    assert lww(log, 1_501) == {}


@pytest.mark.req("CRDT-02")
def test_an_element_is_present_while_one_of_its_adds_is_in_no_tomb():
    log = FakeLog()
    log.extend([crdt.orset_add(b"x", add_id=ID[0]), crdt.orset_add(b"x", add_id=ID[1])])
    log.extend([crdt.orset_remove([ID[0]])])
    assert members(log)[b"x"].ids == (ID[1],)
    log.extend([crdt.orset_remove(members(log)[b"x"].ids)])
    assert members(log) == {}
    log.extend([crdt.orset_add(b"x", add_id=ID[2])])
    assert list(members(log)) == [b"x"]


@pytest.mark.req("CRDT-02")
def test_an_add_concurrent_with_a_remove_survives():
    log = FakeLog()
    log.append(crdt.orset_add(b"x", add_id=ID[0]))
    ids = members(log)[b"x"].ids
    log.append(crdt.orset_add(b"x", add_id=ID[1]), stream="replica")
    log.append(crdt.orset_remove(ids))
    assert members(log)[b"x"].ids == (ID[1],)


@pytest.mark.req("CRDT-02")
def test_a_tomb_counts_before_its_add_as_well():
    """D-88."""
    log = FakeLog()
    log.extend([crdt.orset_remove([ID[0]]), crdt.orset_add(b"x", add_id=ID[0])])
    assert members(log) == {}


def test_two_adds_that_share_an_id_stand_and_fall_together():
    log = FakeLog()
    log.extend([crdt.orset_add(b"x", add_id=ID[0]), crdt.orset_add(b"y", add_id=ID[0])])
    assert sorted(members(log)) == [b"x", b"y"]
    log.extend([crdt.orset_remove([ID[0]])])
    assert members(log) == {}


@pytest.mark.req("CRDT-03")
def test_the_counter_is_the_sum_by_shard():
    log = FakeLog()
    log.extend([crdt.counter_add(ID[0], 3), crdt.counter_add(ID[1], 5), crdt.counter_add(ID[0], 4)])
    fold = crdt.CounterFold()
    shards = fold.view(fold.summarize(log.all()))
    assert shards == {ID[0]: 7, ID[1]: 5}
    assert crdt.counter_value(shards) == 12


@pytest.mark.req("CRDT-05")
def test_large_elements_are_those_that_the_writing_event_committed_to():
    """CRDT0.4: the coids of the ciphertexts are recomputed and lead to att_root."""
    ciphertexts = [b"part one", b"part two"]
    log = FakeLog()
    log.append(
        crdt.orset_add(b"big", add_id=ID[0]), att_root=att_root_of([H(ciphertext) for ciphertext in ciphertexts])
    )
    (root,) = members(log)[b"big"].att_roots
    crdt.check_provenance(root, ciphertexts)
    for wrong in (ciphertexts[::-1], ciphertexts[:1], [], [b"part one", b"part 2"]):
        with pytest.raises(VerifyError, match="att_root differs"):
            crdt.check_provenance(root, wrong)
    log.append(crdt.lww_set(b"k", b"", ts=1))
    with pytest.raises(VerifyError, match="no attachments"):
        crdt.check_provenance(lww(log)[b"k"].att_root, ciphertexts)
