"""Laws of the records about keys: a repeated record changes nothing, and the cost of a card does not grow."""

import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import NOW, identity, seeded
from tests.client.test_generations import event

from veen.client.generations import fold as fold_module
from veen.client.generations import records
from veen.client.generations.fold import KeyFold, KeyState, learn, record_of
from veen.client.generations.records import (
    AuthorCard,
    Enrolment,
    HandOver,
    KeyGeneration,
    KeyShred,
    OwnerChange,
    seal_back,
)
from veen.client.identity.card import IdentityCard
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.card import CARD_SCHEMA
from veen.core.objects.speaking import SPEAKS_SCHEMA, AuthorKey, SpeaksBinding

OWNER, BOB, CAROL, MALLORY = (identity(name) for name in ("owner", "bob", "carol", "mallory"))
PEOPLE = (BOB, CAROL)
FIRST = StreamKeys.create("plans", owner_pk=OWNER.id_sign_pk, random=seeded("plans"))
INVITES = tuple(SigningKey(bytes([number]) * 32) for number in (7, 8))


def keys_of(gen):
    if gen == 0:
        return FIRST
    sk = bytes([gen]) * 32
    return replace(FIRST, gen=gen, reader_sk=sk, reader_pk=x25519.public_key(sk))


_some = st.lists(st.sampled_from(PEOPLE), unique=True)
_gens = st.integers(0, 3)
_numbers = st.none() | st.integers(1, 9)  # also such as go back

_generations = st.builds(
    lambda gen, number, people, back: (
        KeyGeneration.issue(
            OWNER.id_sign,
            keys_of(gen),
            [OWNER.card(), *(who.card() for who in people)],
            number=number,
            history=back,
            back=seal_back(keys_of(gen), keys_of(gen - 1), random=seeded("back")) if back else None,
            random=seeded(f"{gen}{number}"),
        ),
        records.GENERATION_SCHEMA,
        OWNER,
    ),
    st.integers(1, 3),
    _numbers,
    _some,
    st.booleans(),
)
_hand_overs = st.builds(
    lambda gen, number, people, invite, earlier: (
        HandOver.issue(
            OWNER.id_sign,
            keys_of(gen),
            [who.card() for who in people],
            number=number,
            earlier=[keys_of(old) for old in range(gen)] if earlier else (),
            invite_pk=None if invite is None else invite.public,
            expires_at=NOW + 100,
            random=seeded(f"{gen}{number}"),
        ),
        records.WRAP_SCHEMA,
        OWNER,
    ),
    _gens,
    _numbers,
    _some,
    st.none() | st.sampled_from(INVITES),
    st.booleans(),
)
_enrolments = st.builds(
    lambda invite, who: (Enrolment.issue(invite, FIRST.stream_id, who.card()), records.JOIN_SCHEMA, who),
    st.sampled_from(INVITES),
    st.sampled_from((*PEOPLE, MALLORY)),
)
_shreds = st.builds(
    lambda gen, number: (
        KeyShred.issue(OWNER.id_sign, FIRST.stream_id, gen, number=number),
        records.SHRED_SCHEMA,
        OWNER,
    ),
    _gens,
    _numbers,
)
_cards = st.builds(lambda who: (AuthorCard(card=who.card()), CARD_SCHEMA, who), st.sampled_from((*PEOPLE, MALLORY)))
_changes = st.builds(
    lambda old, new, number: (
        OwnerChange.issue(old.id_sign, new.id_sign, FIRST.stream_id, number=number),
        records.OWNER_SCHEMA,
        old,
    ),
    st.sampled_from((OWNER, BOB)),
    st.sampled_from((OWNER, BOB)),
    st.integers(1, 9),
)
_bindings = st.builds(
    lambda who, sender: (
        SpeaksBinding.issue(
            who.id_sign, CAROL.client_key.key, stream_id=FIRST.stream_id, not_before=NOW, not_after=NOW + 60
        ),
        SPEAKS_SCHEMA,
        sender,
    ),
    st.sampled_from(PEOPLE),
    st.sampled_from((*PEOPLE, MALLORY)),
)
_streams = st.lists(
    st.one_of(_generations, _hand_overs, _enrolments, _shreds, _changes, _cards, _bindings), min_size=1, max_size=8
)


PERSONS = {who.name: who for who in (*PEOPLE, MALLORY)}


def taken_over(state, rings, item):
    """The state and the keyrings of all people after one more event."""
    record = record_of(state, item)
    if record is None:
        return state, rings
    fold = KeyFold.of(state)
    if not fold.apply(item, record):
        return fold.state(), rings
    return fold.state(), {who: learn(ring, fold, record, PERSONS[who]) for who, ring in rings.items()}


@given(_streams)
def test_a_record_that_is_sent_again_at_any_later_position_by_anybody_changes_nothing(stream):
    """Place, number or expiry is inside the signature."""
    state = KeyState(stream_id=FIRST.stream_id, owner_pk=OWNER.id_sign_pk)
    rings = {who: Keyring().with_keys(FIRST.for_writers()) for who in PERSONS}
    for position, (record, schema, author) in enumerate(stream, start=1):
        state, rings = taken_over(state, rings, event(record, schema, seq=position, author=author))
        for earlier, earlier_schema, earlier_author in stream[:position]:
            for sender in (OWNER, BOB, MALLORY):
                if sender is earlier_author is not OWNER:
                    continue  # whoever joins once more under her own key repeats nothing of anybody
                again = event(earlier, earlier_schema, seq=position + 1, author=sender, ts=NOW + 50)
                assert taken_over(state, rings, again) == (state, rings), (position, earlier_schema)


@given(_streams)
def test_a_state_comes_back_from_its_bytes_and_goes_on_alike(stream):
    """Class 5: resumed equals from the start, at every position."""
    state = KeyState(stream_id=FIRST.stream_id, owner_pk=OWNER.id_sign_pk)
    whole = KeyFold.of(state)
    for position, (record, schema, author) in enumerate(stream, start=1):
        item = event(record, schema, seq=position, author=author)
        valid = record_of(whole, item)
        if valid is not None:
            resumed = KeyFold.of(KeyState.from_bytes(whole.state().to_bytes()))
            resumed.apply(item, valid)
            whole.apply(item, valid)
            assert resumed.state() == whole.state()


def card_event(number):
    """An author card of a client key of its own; the fold has checked nothing of it that costs time here."""
    client_id = number.to_bytes(32, "big")
    card = IdentityCard(id_sign_pk=client_id, dh_pk=client_id, client_id=client_id, name="n", sig=bytes(64))
    return replace(event(AuthorCard(card=card), CARD_SCHEMA), client_id=client_id), AuthorCard(card=card)


@pytest.mark.slow
def test_author_cards_beyond_the_bound_are_left_out_and_the_state_can_be_kept():
    """65,537 cards made `to_bytes` raise in every client."""
    fold = KeyFold(FIRST.stream_id, OWNER.id_sign_pk)
    for number in range(fold_module.MAX_AUTHORS + 1):
        client_id = number.to_bytes(32, "big")
        fold._add_author(AuthorKey(client_id=client_id, id_sign_pk=client_id))
    assert len(fold.authors) == fold_module.MAX_AUTHORS
    assert len(KeyState.from_bytes(fold.state().to_bytes()).authors) == fold_module.MAX_AUTHORS


def test_twice_as_many_author_cards_cost_about_twice_as_much():
    """Counted, not timed; each card cost a scan of all."""

    def lines_for(cards):
        fold = KeyFold(FIRST.stream_id, OWNER.id_sign_pk)
        events = [card_event(number) for number in range(1, cards + 1)]
        executed = 0

        def trace(frame, kind, _):
            nonlocal executed
            executed += kind == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for item, record in events:
                fold.apply(item, record)
        finally:
            sys.settrace(before)
        assert len(fold.authors) == cards
        return executed

    assert lines_for(128) < 2.5 * lines_for(64)
