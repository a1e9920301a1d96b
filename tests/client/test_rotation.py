"""When a client key must go, and how (KEX1+ 4.1, D-102a)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import NOW, identity

from veen.client.errors import RotationDue
from veen.client.identity.rotation import (
    MAX_LIFETIME_SEC,
    MAX_MSGS_PER_LABEL,
    RotationBounds,
    RotationReason,
    check_bounds,
    needs_rotation,
)
from veen.core.errors import LimitError, MalformedError

ALICE = identity()
LABEL, OTHER = b"\x01" * 32, b"\x02" * 32


@pytest.mark.req("KEX1-01")
def test_the_bounds_are_configured_and_cannot_be_raised():
    bounds = RotationBounds()
    assert bounds.max_client_id_lifetime_sec == 86_400
    assert bounds.max_msgs_per_client_id_per_label == 65_536
    RotationBounds(max_client_id_lifetime_sec=1, max_msgs_per_client_id_per_label=1)
    for raised in ({"max_client_id_lifetime_sec": 86_401}, {"max_msgs_per_client_id_per_label": 65_537}):
        with pytest.raises(LimitError):
            RotationBounds(**raised)
    for nonsense in (0, -1, 1.5, True, "60"):
        with pytest.raises(MalformedError):
            RotationBounds(max_client_id_lifetime_sec=nonsense)  # type: ignore[arg-type]  # that is the point


def test_a_key_goes_at_either_bound_and_not_a_second_or_a_message_before():
    assert needs_rotation(ALICE, {}, NOW + MAX_LIFETIME_SEC - 1) is None
    assert needs_rotation(ALICE, {}, NOW + MAX_LIFETIME_SEC) is RotationReason.LIFETIME
    assert needs_rotation(ALICE, {LABEL: MAX_MSGS_PER_LABEL - 1, OTHER: MAX_MSGS_PER_LABEL - 1}, NOW) is None
    assert needs_rotation(ALICE, {LABEL: 1, OTHER: MAX_MSGS_PER_LABEL}, NOW) is RotationReason.MESSAGES
    check_bounds(ALICE, {LABEL: 1}, NOW)
    with pytest.raises(RotationDue, match="max_client_id_lifetime_sec"):
        check_bounds(ALICE, {}, NOW + MAX_LIFETIME_SEC)


@given(
    st.integers(0, 200_000),
    st.integers(0, 100_000),
    st.integers(1, MAX_LIFETIME_SEC),
    st.integers(1, MAX_MSGS_PER_LABEL),
)
def test_the_rule_is_the_one_of_the_spec(age, count, lifetime, messages):
    """now - created_at >= lifetime, or sent_msgs_per_label[label] >= messages for any label"""
    bounds = RotationBounds(max_client_id_lifetime_sec=lifetime, max_msgs_per_client_id_per_label=messages)
    due = needs_rotation(ALICE, {OTHER: 0, LABEL: count}, NOW + age, bounds) is not None
    assert due == (age >= lifetime or count >= messages)


@pytest.mark.req("CLNT-08")
def test_the_tighter_habit_of_kex0_can_be_chosen():
    """spec-1 §3: once per epoch, else after 256 messages"""
    assert RotationBounds.kex0(60).max_client_id_lifetime_sec == 60
    assert RotationBounds.kex0(10**6).max_client_id_lifetime_sec == MAX_LIFETIME_SEC
    assert RotationBounds.kex0(0).max_msgs_per_client_id_per_label == 256


def test_a_clock_that_went_back_does_not_rotate():
    assert needs_rotation(ALICE, {}, NOW - 10**6) is None
