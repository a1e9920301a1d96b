"""Which passphrases may seal a keystore."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.client.identity.passphrases import MIN_BITS, MIN_CHARACTERS, WeakPassphrase, check_passphrase, guess_bits


@pytest.mark.parametrize(
    "text",
    [
        "correct horse",
        "four words nobody guesses",
        "k7#Qm2!vTz",
        "жёлтая лодка плывёт",
        "veen-random-0a1b2c3d4e5f60718293",
    ],
)
def test_what_is_hard_to_guess_is_taken(text):
    check_passphrase(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "hello", "short one",
        "aaaaaaaaaaaaaaaaaaaa", "1234567890123456", "abcdefghijklmnop", "qwertyuiopasdf", "9876543210987",
        "password1234", "Passw0rd2026", "p4ssword!!!!", "letmein letmein", "abcabcabcabcabc", "iloveyou1234",
    ],
)  # fmt: skip
def test_what_is_guessed_first_is_refused_with_the_reason(text):
    with pytest.raises(WeakPassphrase) as caught:
        check_passphrase(text)
    assert caught.value.code == "E.LOCAL.WEAK"
    assert "characters" in caught.value.what or "guessed first" in caught.value.what
    assert not text or text not in str(caught.value)  # a secret does not get into an error


def test_the_name_of_the_identity_is_a_guess_as_well():
    text = "bartholomew42"
    check_passphrase(text)
    with pytest.raises(WeakPassphrase):
        check_passphrase(text, "bartholomew")


@given(st.text())
def test_any_text_is_judged(text):
    assert guess_bits(text) >= 0
    if len(text) < MIN_CHARACTERS or guess_bits(text) < MIN_BITS:
        with pytest.raises(WeakPassphrase):
            check_passphrase(text)
    else:
        check_passphrase(text)


@given(st.text(min_size=1, max_size=20), st.integers(2, 5))
def test_repeating_it_adds_little(text, times):
    assert guess_bits(text * times) <= guess_bits(text) + len(text) * times + 2 * 8 * times
