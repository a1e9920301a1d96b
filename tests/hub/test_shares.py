"""Shares of what a hub has: for all clients together, and for each address."""

import pytest

from veen.io.addresses import network_of
from veen.io.shares import ConnectionSlots, Shares


def test_one_address_gets_its_share_and_leaves_the_rest_to_others():
    shares = Shares(100, 25)
    assert [shares.take("a", 5) for _ in range(6)] == [True] * 5 + [False]
    assert shares.take("b", 25)
    assert not shares.has_room("a", 1)
    assert shares.has_room("c", 25)
    shares.give_back("a", 25)
    assert shares.take("a", 25)


def test_all_addresses_together_get_no_more_than_there_is():
    shares = Shares(100, 60)
    assert shares.take("a", 60)
    assert not shares.take("b", 41)
    assert shares.take("b", 40)
    assert (shares.in_use, shares.has_room("c", 1)) == (100, False)


def test_a_share_is_never_less_than_one_request_may_need():
    shares = Shares(100, 1, least=30)
    assert shares.take("a", 30)
    assert not shares.take("a", 1)


def test_what_must_be_counted_is_counted_beyond_the_total():
    shares = Shares(10)
    assert shares.take("a", 50, always=True)
    assert not shares.take("b", 1)
    shares.give_back("a", 50)
    assert shares.take("b", 1)


def test_nothing_is_kept_of_an_address_that_holds_nothing():
    shares = Shares(10)
    for number in range(1000):
        assert shares.take(str(number), 1)
        shares.give_back(str(number), 1)
    assert not shares._by_address


def test_hosts_of_one_ipv6_network_share():
    """A single host has all addresses of a /64."""
    shares = Shares(4, 25)
    assert shares.take(network_of(("2001:db8:1:2::1", 1, 0, 0)), 1)
    assert not shares.take(network_of(("2001:db8:1:2:ffff::9", 1, 0, 0)), 1)
    assert shares.take(network_of(("2001:db8:1:3::1", 1, 0, 0)), 1)


def test_a_place_is_given_back_once():
    slots = ConnectionSlots(Shares(1))
    slot, turned_away = slots.enter("a"), slots.enter("b")
    assert slot is not None
    assert turned_away is not None
    assert (slot.refusal, turned_away.refusal) == (None, "too many connections")
    slot.release()
    slot.release()
    assert slots.shares.in_use == 0


@pytest.mark.parametrize("total", [4, 4096])
def test_those_who_are_turned_away_are_bounded_too(total):
    """Each holds a descriptor until it has read why."""
    slots = ConnectionSlots(Shares(total, 25))
    turned_away = []
    while (slot := slots.enter("a")) is not None:
        if slot.refusal:
            assert slot.refusal == "too many connections from this address"
            turned_away.append(slot)
    assert 1 <= len(turned_away) <= 64
    turned_away.pop().release()
    assert slots.enter("a") is not None
