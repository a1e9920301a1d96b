"""Every overlay keeps the laws of folds: one suite, one strategy of random histories for each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples

from veen.core.hashing import H
from veen.core.objects.policies import Authority
from veen.overlays import crdt, crud, kv, queue
from veen.overlays.federation import realm
from veen.overlays.framework.fold import Joined
from veen.overlays.rpc import messages as rpc
from veen.testing.laws import check_laws

KEYS = st.sampled_from(["a", "b", "ключ"])
VALUES = st.one_of(st.integers(-5, 5), st.text(max_size=3), st.just({"b": 1, "a": [True, None]}))
TIMES = st.none() | st.integers(990, 1_010)


def write_kv(draw, log):
    if draw(st.integers(0, 3)) == 0:
        return kv.delete(draw(KEYS), ts=draw(TIMES))
    expires_at = draw(st.none() | st.integers(1_000, 1_050))
    return kv.put(draw(KEYS), draw(VALUES), ts=draw(TIMES), expires_at=expires_at)


def write_crud(draw, log):
    entity, id_ = draw(st.sampled_from(["user", "team"])), draw(st.sampled_from(["1", "2"]))
    if_rev = draw(st.none() | st.integers(0, 3))
    fields = draw(st.dictionaries(st.sampled_from(["name", "age"]), st.none() | VALUES, max_size=2))
    match draw(st.sampled_from(["create", "update", "delete"])):
        case "create":
            return crud.create(entity, id_, fields, if_rev=if_rev)
        case "update":
            return crud.update(entity, id_, fields, if_rev=if_rev)
        case _:
            return crud.delete(entity, id_, if_rev=if_rev)


def write_queue(draw, log):
    refs = [event.msg_id for event in log.all()]
    if not refs or draw(st.booleans()):
        return queue.enqueue(draw(VALUES), expires_at=draw(st.none() | st.integers(1_000, 1_050)))
    say = draw(st.sampled_from([queue.ack, queue.nack]))
    return say(draw(st.sampled_from(refs)), group=draw(st.sampled_from(["", "a", "b"])))


IDS = st.sampled_from([bytes([n]) * 32 for n in range(4)])
SMALL = st.binary(max_size=1)


def write_lww(draw, log):
    expires_at = draw(st.none() | st.integers(1_000, 1_050))
    return crdt.lww_set(draw(SMALL), draw(SMALL), ts=draw(st.integers(0, 3)), expires_at=expires_at)


def write_orset(draw, log):
    if draw(st.integers(0, 2)) == 0:
        return crdt.orset_remove(draw(st.lists(IDS, max_size=2)))
    return crdt.orset_add(draw(SMALL), add_id=draw(IDS), expires_at=draw(st.none() | st.integers(1_000, 1_050)))


def write_counter(draw, log):
    return crdt.counter_add(draw(IDS), draw(st.sampled_from([0, 1, 5, 2**64 - 1])))


def write_rpc(draw, log):
    refs = [event.msg_id for event in log.all()]
    if not refs or draw(st.booleans()):
        timeout_ms, idem = draw(st.none() | st.integers(0, 30_000)), draw(st.none() | st.integers(0, 1))
        return rpc.call(draw(st.sampled_from(["a", "b"])), draw(st.none() | VALUES), timeout_ms=timeout_ms, idem=idem)
    if draw(st.booleans()):
        return rpc.answer(draw(st.sampled_from(refs)), draw(st.none() | VALUES))
    return rpc.refuse(draw(st.sampled_from(refs)), draw(st.sampled_from(["NO", rpc.EXPIRED])))


def kv_and_queue(**kwargs):
    return Joined([queue.QueueFold(**kwargs), kv.KvFold(**kwargs)])


def write_either(draw, log):
    return draw(st.sampled_from([write_kv, write_queue]))(draw, log)


def queue_of_two_groups(**kwargs):
    return queue.QueueFold(groups=["a", "b"], **kwargs)


def write_realm(draw, log):
    ts, ttl = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    if draw(st.booleans()):
        return realm.revoke(draw(st.sampled_from(["client-id", "auth-ref"])), draw(IDS), ts=ts, ttl=ttl or None)
    fields = {"realm_id": realm.DEFAULT_REALM, "stream_id": draw(IDS), "primary_hub": draw(IDS), "replica_hubs": ()}
    return realm.assign(Authority(**fields, policy="single-primary", ts=ts, ttl=ttl))


def realm_of_two_streams(**kwargs):
    """The streams of the histories in place of the realm's own, so that some records stand on the right one."""
    north, south = H(b"north"), H(b"south")
    streams = realm.AdminStreams(fed_admin=north, revocation=south, label_class=north, schema_meta=south)
    return realm.RealmFold(streams=streams, emitters=[H(b"alice"), H(b"bridge")], **kwargs)


OVERLAYS = {
    "kv": (kv.KvFold, write_kv),
    "crud": (crud.CrudFold, write_crud),
    "queue": (queue.QueueFold, write_queue),
    "queue with groups": (queue_of_two_groups, write_queue),
    "crdt.lww": (crdt.LwwFold, write_lww),
    "crdt.orset": (crdt.OrSetFold, write_orset),
    "crdt.gcnt": (crdt.CounterFold, write_counter),
    "rpc": (rpc.RpcFold, write_rpc),
    "realm": (realm_of_two_streams, write_realm),
    "kv and queue": (kv_and_queue, write_either),
}


@pytest.mark.req(
    "OVL-01", "OVL-02", "OVL-04", "OVL-05", "OVL-06", "OVL-07", "OVL-09", "OVL-10", "OVL-13", "OVL-14", "OVL-15"
)
@pytest.mark.parametrize("name", OVERLAYS)
@examples(60)
@given(data=st.data())
def test_any_cut_any_association_replays_copies_and_interleaving_give_the_same_state(name, data):
    """spec §11.1, §11.3: the laws that let anyone cut the log anywhere."""
    make, write = OVERLAYS[name]
    check_laws(data, make, write)
