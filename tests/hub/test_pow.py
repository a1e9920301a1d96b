"""The proof-of-work prefilter (001 SH1+ §5.2, D-58, D-59)."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.errors import FormatError, VerifyError
from veen.core.hashing import H, Ht, u64be
from veen.core.pow import PowCookie, solve
from veen.hub.pow import batch_difficulty, check_pow


def leading_zero_bits(value: bytes) -> int:
    return len(value) * 8 - int.from_bytes(value, "big").bit_length()


@pytest.mark.req("SH1-04")
@given(st.binary(max_size=50), st.integers(0, 8))
def test_a_solution_holds_for_its_request_and_begins_with_zero_bits(request_, difficulty):
    cookie = solve(request_, difficulty)
    cookie.verify(request_, difficulty)
    value = Ht("veen/pow", cookie.challenge + u64be(cookie.nonce))
    assert leading_zero_bits(value) >= difficulty
    assert value == sha256(b"veen/pow\x00" + H(request_) + u64be(cookie.nonce)).digest()
    assert PowCookie.from_bytes(cookie.to_bytes()) == cookie


@pytest.mark.req("SH1-04", "ADM-02")
def test_it_pays_for_one_request_only_and_not_less_than_asked():
    cookie = solve(b"request", 8)
    cookie.verify(b"request", 3)
    for request_, difficulty in ((b"another", 8), (b"request", 9)):
        with pytest.raises(VerifyError):
            cookie.verify(request_, difficulty)
    worthless = next(
        made
        for nonce in range(1000)
        if not _holds(made := PowCookie(challenge=H(b"request"), nonce=nonce, difficulty=8))
    )
    with pytest.raises(VerifyError):
        worthless.verify(b"request", 8)


def _holds(cookie):
    return leading_zero_bits(Ht("veen/pow", cookie.challenge + u64be(cookie.nonce))) >= cookie.difficulty


def test_a_cookie_is_a_text_key_map_with_an_eight_bit_difficulty():
    assert solve(b"", 0).to_bytes()[:11] == b"\xa3\x69challenge"
    with pytest.raises(FormatError):
        PowCookie(challenge=b"", nonce=0, difficulty=256).to_bytes()


@pytest.mark.req("SH0-01")
@pytest.mark.parametrize("header", [None, "", "zz", "a0", "ff" * 300, solve(b"other", 4).to_bytes().hex()])
def test_whatever_is_in_the_header_the_answer_is_no(header):
    assert check_pow(header, b"request", 4)


def test_no_difficulty_asks_for_nothing():
    assert check_pow(None, b"request", 0) is None
    assert check_pow(solve(b"request", 4).to_bytes().hex(), b"request", 4) is None


@given(st.integers(1, 30), st.integers(1, 1000))
def test_a_batch_costs_about_as_much_as_its_messages_one_by_one(difficulty, count):
    asked = 2 ** batch_difficulty(difficulty, count)
    assert count * 2**difficulty <= asked < 2 * count * 2**difficulty
    assert batch_difficulty(0, count) == 0
