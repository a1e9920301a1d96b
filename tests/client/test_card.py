"""Identity cards and the text form they share with stream keys."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import identity
from tests.examples import examples

from veen.client.errors import CardInvalid, KeyTextInvalid
from veen.client.identity import bech32
from veen.client.identity.card import IdentityCard, card_id_of

ALICE, BOB = identity("alice"), identity("bob")
CARD = ALICE.card()
TEXT = CARD.to_text()
CHARS = "".join(chr(code) for code in range(32, 127)) + "éß"


def test_a_card_is_one_word_that_begins_with_veen1_and_reads_back():
    assert TEXT.startswith("veen1")
    assert TEXT.isascii()
    assert TEXT.split() == [TEXT]
    assert IdentityCard.from_text(TEXT) == CARD
    assert IdentityCard.from_text(f"  {TEXT}\n") == CARD
    assert IdentityCard.from_text(TEXT.upper()) == CARD


def test_a_card_says_who_and_under_which_keys():
    assert (CARD.name, CARD.id_sign_pk, CARD.dh_pk, CARD.client_id) == (
        "alice",
        ALICE.id_sign_pk,
        ALICE.dh_pk,
        ALICE.client_id,
    )
    assert CARD.card_id == card_id_of(ALICE.id_sign_pk) == ALICE.card_id


def test_a_card_holds_no_secret():
    data = CARD.to_bytes()
    for secret in (ALICE.id_sign.seed, ALICE.dh_sk, ALICE.client_key.key.seed):
        assert secret not in data


@given(st.integers(0, len(TEXT) - 1), st.sampled_from(CHARS))
@examples(400)
def test_one_flipped_character_is_always_detected(place, char):
    altered = TEXT[:place] + char + TEXT[place + 1 :]
    if altered.strip() == TEXT:
        return
    with pytest.raises(CardInvalid):
        IdentityCard.from_text(altered)


@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_at_every_place_every_other_character_of_the_alphabet_is_detected(step):
    """Of the alphabet, each place has a third in turn; `make test-slow` all of it."""
    for place in range(len(TEXT)):
        for char in f"{bech32._ALPHABET}1"[place % step :: step]:
            if char != TEXT[place]:
                with pytest.raises(KeyTextInvalid):
                    IdentityCard.from_text(TEXT[:place] + char + TEXT[place + 1 :])


@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)))
def test_a_piece_of_a_card_is_no_card(start, end):
    piece = TEXT[:start] + TEXT[end:]
    if piece != TEXT:
        with pytest.raises(CardInvalid):
            IdentityCard.from_text(piece)


@given(st.integers(0, len(TEXT) - 2))
def test_two_swapped_characters_are_detected(place):
    altered = TEXT[:place] + TEXT[place + 1] + TEXT[place] + TEXT[place + 2 :]
    if altered != TEXT:
        with pytest.raises(CardInvalid):
            IdentityCard.from_text(altered)


@pytest.mark.parametrize(
    "forged",
    [
        replace(CARD, name="bob"),
        replace(CARD, dh_pk=BOB.dh_pk),
        replace(CARD, client_id=BOB.client_id),
        replace(CARD, id_sign_pk=BOB.id_sign_pk),
        replace(CARD, sig=BOB.card().sig),
    ],
    ids=["name", "dh_pk", "client_id", "id_sign_pk", "sig"],
)
def test_a_forged_card_with_a_good_checksum_is_refused(forged):
    """The checksum is against accidents, the signature against people."""
    with pytest.raises(CardInvalid, match="not signed by the key it names"):
        IdentityCard.from_text(forged.to_text())


@pytest.mark.parametrize(
    "text", ["", "veen1", "veen", "1", "hello", "veen-stream1qqqqqq", "x" * 5_000, "veen1" + "q" * 2_000]
)
def test_other_text_is_named_as_such(text):
    with pytest.raises(CardInvalid, match="this is not an identity card"):
        IdentityCard.from_text(text)


# --- the text form ------------------------------------------------------------------------------------------


@given(st.binary(max_size=600))
def test_any_bytes_come_back_from_their_text(data):
    text = bech32.to_text("veen", data)
    assert bech32.from_text("veen", text) == data
    assert bech32.from_text("veen", text.upper()) == data


@given(st.binary(max_size=100), st.data())
def test_up_to_three_changed_characters_are_detected(data, draw):
    text = bech32.to_text("veen", data)
    places = draw.draw(st.lists(st.integers(5, len(text) - 1), min_size=1, max_size=3, unique=True))
    altered = list(text)
    for place in places:
        altered[place] = draw.draw(st.sampled_from([char for char in bech32._ALPHABET if char != text[place]]))
    with pytest.raises(KeyTextInvalid):
        bech32.from_text("veen", "".join(altered))


@pytest.mark.parametrize(
    "text",
    [
        "A1LQFN3A",
        "a1lqfn3a",
        "an83characterlonghumanreadablepartthatcontainsthetheexcludedcharactersbioandnumber11sg7hg6",
        "abcdef1l7aum6echk45nj3s0wdvt2fg8x9yrzpqzd3ryx",
        "?1v759aa",
    ],
)
def test_the_published_texts_are_valid(text):
    """BIP 350, test vectors of Bech32m whose data are whole bytes or padding, by their checksum."""
    prefix = text.lower().rpartition("1")[0]
    values = [bech32._VALUES[char] for char in text.lower()[len(prefix) + 1 :]]
    assert bech32._polymod([*bech32._expand_prefix(prefix), *values]) == bech32._BECH32M


@pytest.mark.parametrize(
    "text",
    [
        "A1G7SGD8",
        "a1lqfn3q",
        "an84characterslonghumanreadablepartthatcontainsthenumber1andtheexcludedcharactersbio1569pvx",
        "M1VUXWEZ",
    ],
)
def test_published_texts_with_a_wrong_checksum_are_refused(text):
    """BIP 350; the first one is valid as Bech32, which is another checksum."""
    with pytest.raises(KeyTextInvalid):
        bech32.from_text(text.lower().rpartition("1")[0], text)


def test_bytes_have_one_text_only():
    """Filling bits that are not zero would make a second text for the same bytes."""
    text = bech32.to_text("veen", b"\x01")
    values = [bech32._VALUES[char] for char in text[5:-6]]
    values[-1] |= 1
    rest = bech32._polymod([*bech32._expand_prefix("veen"), *values, 0, 0, 0, 0, 0, 0]) ^ bech32._BECH32M
    values += [rest >> 5 * (5 - place) & 31 for place in range(6)]
    with pytest.raises(KeyTextInvalid, match="whole number of bytes"):
        bech32.from_text("veen", "veen1" + "".join(bech32._ALPHABET[value] for value in values))


def test_what_is_too_long_for_the_checksum_is_not_written():
    with pytest.raises(KeyTextInvalid, match="too long"):
        bech32.to_text("veen", bytes(700))
