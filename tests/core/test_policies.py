"""Policy records and the view they add up to: 001 spec-2 §2, §3, §4, D-51, D-101."""

from dataclasses import replace
from hashlib import sha256

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.errors import FieldSizeError, MalformedError
from veen.core.objects.control import PolicyAuthority, PolicyRevocation
from veen.core.objects.policies import FOREVER, MAX_POLICY_ITEMS, REVOCATION_KINDS, Authority, Revocation, realm_id_of
from veen.core.policy_state import PolicyView

REALM, STREAM = realm_id_of("default"), b"\x0b" * 32
HUBS = [bytes([n]) * 32 for n in (1, 2, 3)]
REVOKED = Revocation(kind="client-id", target=b"\x0c" * 32, ts=100)
GIVEN = Authority(
    realm_id=REALM, stream_id=STREAM, primary_hub=HUBS[0], replica_hubs=(), policy="single-primary", ts=100, ttl=50
)


def view_of(*records):
    """(hub_ts, item) each, journaled in this order."""
    view = PolicyView()
    for hub_ts, item in records:
        view.add(body_of(item), hub_ts)
    return view


def body_of(item):
    return (
        PolicyRevocation(revocations=(item,)) if isinstance(item, Revocation) else PolicyAuthority(authorities=(item,))
    )


# --- on the wire -----------------------------------------------------------------------------------------


@pytest.mark.req("KEX1-06", "FED-01")
def test_records_are_maps_in_the_order_of_the_spec():
    """§4.3 without its reason, which is plaintext of a payload; §2.2."""
    assert replace(REVOKED, ttl=9).to_bytes() == cbor2.dumps({1: "client-id", 2: b"\x0c" * 32, 3: 100, 4: 9})
    assert REVOKED.to_bytes() == cbor2.dumps({1: "client-id", 2: b"\x0c" * 32, 3: 100})
    assert GIVEN.to_bytes() == cbor2.dumps({1: REALM, 2: STREAM, 3: HUBS[0], 4: [], 5: "single-primary", 6: 100, 7: 50})
    assert realm_id_of("default") == sha256(b"id/realm\x00default").digest()


@pytest.mark.req("KEX1-06", "FED-02")
def test_only_the_words_of_the_spec_are_understood():
    with pytest.raises(MalformedError, match="revocation"):
        Revocation.from_bytes(cbor2.dumps({1: "client", 2: b"\x0c" * 32, 3: 100}))
    with pytest.raises(MalformedError, match="authority"):
        replace(GIVEN, policy="unspecified").to_bytes()


def test_a_record_holds_something_and_not_too_much():
    for count in (0, MAX_POLICY_ITEMS + 1):
        with pytest.raises(FieldSizeError):
            PolicyRevocation(revocations=(REVOKED,) * count).to_bytes()
        with pytest.raises(FieldSizeError):
            PolicyAuthority(authorities=(GIVEN,) * count).to_bytes()


# --- revocation ------------------------------------------------------------------------------------------


@pytest.mark.req("KEX1-07")
def test_a_revocation_covers_its_own_seconds_and_no_others():
    """§4.3: [ts, ts + ttl), or [ts, ∞)."""
    for kind in REVOCATION_KINDS:
        view = view_of((10, replace(REVOKED, kind=kind, ttl=5)))
        times = [ts for ts in range(90, 120) if view.revocation_end(kind, REVOKED.target, ts) is not None]
        assert times == [100, 101, 102, 103, 104]
        assert not any(view.revocation_end(other, REVOKED.target, 102) for other in REVOCATION_KINDS if other != kind)
        assert view.revocation_end(kind, b"\xff" * 32, 102) is None
    view = view_of((10, REVOKED))
    assert view.revocation_end("client-id", REVOKED.target, 99) is None
    assert view.revocation_end("client-id", REVOKED.target, 2**64 - 1) == FOREVER
    assert view_of((10, replace(REVOKED, ttl=0))).revocation_end("client-id", REVOKED.target, 100) is None


@pytest.mark.req("KEX1-07")
def test_a_revocation_that_arrives_late_counts_from_the_second_after_its_record():
    """D-60: what was accepted before, or in the same second, stays right."""
    view = view_of((200, REVOKED))
    assert view.revocation_end("client-id", REVOKED.target, 200) is None
    assert view.revocation_end("client-id", REVOKED.target, 201) == FOREVER
    over = replace(REVOKED, ttl=50)
    assert not view_of((200, over)).is_news(over, 200)


def test_while_any_record_covers_a_time_the_target_is_revoked():
    """D-51: records add up; a shorter one never ends a longer one."""
    view = view_of((10, replace(REVOKED, ttl=50)), (20, replace(REVOKED, ttl=5)), (30, replace(REVOKED, ts=160, ttl=9)))
    revoked = {ts for ts in range(90, 190) if view.revocation_end("client-id", REVOKED.target, ts)}
    assert revoked == {*range(100, 150), *range(160, 169)}
    assert view.revocation_end("client-id", REVOKED.target, 120) == 150


# --- authority -------------------------------------------------------------------------------------------


@pytest.mark.req("FED-02", "FED-06")
def test_an_authority_is_active_in_its_own_seconds():
    view = view_of((10, GIVEN))
    assert [ts for ts in range(90, 160) if view.authority(REALM, STREAM, ts)] == list(range(100, 150))
    assert view.authority(REALM, b"\xff" * 32, 120) is None
    assert view.authority(realm_id_of("other"), STREAM, 120) is None


@pytest.mark.req("FED-03")
def test_of_several_active_ones_the_earliest_by_time_and_hub_wins():
    """§2.2, D-101, whatever the order in which they arrive."""
    late, high = replace(GIVEN, ts=110, primary_hub=HUBS[0]), replace(GIVEN, primary_hub=HUBS[2])
    low = replace(GIVEN, primary_hub=HUBS[1])
    for order in ((late, high, low), (low, high, late), (high, low, late)):
        view = view_of(*((10, record) for record in order))
        assert view.authority(REALM, STREAM, 120) == low
        assert view.authority(REALM, STREAM, 155) == late


def test_between_equals_the_journal_decides():
    first, second = replace(GIVEN, ttl=60), GIVEN
    view = view_of((10, first), (11, second))
    assert view.authority(REALM, STREAM, 120) == first


@pytest.mark.req("AUTH-04")
def test_streams_with_several_primaries_are_counted():
    view = view_of((10, replace(GIVEN, policy="multi-primary")), (10, replace(GIVEN, stream_id=HUBS[1])), (10, REVOKED))
    assert [view.counts(ts) for ts in (99, 120, 150)] == [(0, 0), (1, 1), (1, 0)]


# --- laws ------------------------------------------------------------------------------------------------

_SMALL = st.integers(0, 40)
_ITEMS = st.one_of(
    st.builds(
        Revocation,
        kind=st.sampled_from(REVOCATION_KINDS),
        target=st.sampled_from(HUBS),
        ts=_SMALL,
        ttl=st.none() | _SMALL,
    ),
    st.builds(
        Authority,
        realm_id=st.just(REALM),
        stream_id=st.sampled_from(HUBS),
        primary_hub=st.sampled_from(HUBS),
        replica_hubs=st.just(()),
        policy=st.sampled_from(["single-primary", "multi-primary"]),
        ts=_SMALL,
        ttl=_SMALL,
    ),
)
_JOURNALS = st.lists(st.tuples(_SMALL, _ITEMS), max_size=12).map(lambda items: sorted(items, key=lambda item: item[0]))


def said(view, ts):
    """Everything admission may ask at one second."""
    revoked = {(kind, hub): view.revocation_end(kind, hub, ts) is not None for kind in REVOCATION_KINDS for hub in HUBS}
    return revoked, {hub: view.authority(REALM, hub, ts) for hub in HUBS}


def expected(journal, ts):
    """The same, said slowly: D-51 and D-101 word by word."""
    records = [(hub_ts, item) for hub_ts, item in journal if max(item.ts, hub_ts + 1) <= ts < item.until]
    revoked = {(kind, hub): False for kind in REVOCATION_KINDS for hub in HUBS}
    active: dict[bytes, Authority | None] = dict.fromkeys(HUBS)
    for _, item in records:
        if isinstance(item, Revocation):
            revoked[item.kind, item.target] = True
        elif (best := active[item.stream_id]) is None or (item.ts, item.primary_hub) < (best.ts, best.primary_hub):
            active[item.stream_id] = item
    return revoked, active


@given(_JOURNALS, st.integers(0, 90))
def test_the_view_says_what_its_records_say(journal, ts):
    assert said(view_of(*(record for record in journal if record[0] <= ts)), ts) == expected(journal, ts)


@pytest.mark.req("KEX1-07", "KEX1-08")
@given(_JOURNALS, st.integers(0, 90))
def test_the_order_of_entries_and_records_of_one_second_does_not_matter(journal, ts):
    """D-60: who replays the log knows hub_ts and the control journal, and nothing else."""
    before = view_of(*(record for record in journal if record[0] < ts))
    until = view_of(*(record for record in journal if record[0] <= ts))
    assert said(before, ts) == said(until, ts)


@given(_JOURNALS, st.integers(0, 40), _ITEMS)
def test_news_is_exactly_what_changes_something(journal, ts, item):
    records = [record for record in journal if record[0] <= ts]
    before, after = view_of(*records), view_of(*records, (ts, item))
    if not before.is_news(item, ts):
        assert list(after.in_force(ts)) == list(before.in_force(ts))
    elif isinstance(item, Revocation):
        assert list(after.in_force(ts)) != list(before.in_force(ts))
    assert not after.is_news(item, ts)


@given(_JOURNALS, st.integers(0, 90))
def test_views_that_give_the_same_decide_the_same(journal, ts):
    """`in_force` is what a restart is judged by."""
    records = [record for record in journal if record[0] <= ts]
    alive = [record for record in records if record[1].until > ts]
    assert list(view_of(*records).in_force(ts)) == list(view_of(*alive).in_force(ts))


def test_what_ended_does_not_stay_in_memory():
    view = PolicyView()
    for number in range(20_000):
        view.add(body_of(replace(REVOKED, target=number.to_bytes(32), ts=number, ttl=10)), number)
    assert view._size < 2_100
    assert len(list(view.in_force(20_000))) == 8
