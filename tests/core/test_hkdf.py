"""HKDF-SHA256: RFC 5869."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import every

from veen.core.crypto.hkdf import MAX_BYTES, expand, extract, hkdf

WYCHEPROOF = json.loads((Path(__file__).parents[1] / "vectors" / "wycheproof-hkdf_sha256.json").read_text("utf-8"))
WYCHEPROOF_TESTS = [test for group in WYCHEPROOF["testGroups"] for test in group["tests"]]


@given(st.binary(), st.binary(), st.binary(), st.integers(0, 200), st.integers(0, 200))
def test_a_shorter_output_is_the_beginning_of_a_longer_one(ikm, salt, info, a, b):
    """RFC 5869 §2.3: OKM is the first L octets of T(1) | T(2) | ..."""
    short, long = sorted((a, b))
    okm = hkdf(ikm, salt, info, long)
    assert len(okm) == long
    assert hkdf(ikm, salt, info, short) == okm[:short]


@given(st.binary())
def test_the_empty_salt_is_the_default_of_zero_bytes(ikm):
    """RFC 5869 §2.2"""
    assert extract(b"", ikm) == extract(bytes(32), ikm)


@pytest.mark.req("CRY-03")
def test_the_first_vector_of_rfc_5869_holds_in_both_steps():
    """RFC 5869 A.1"""
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    prk = bytes.fromhex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5")
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert extract(salt, b"\x0b" * 22) == prk
    assert expand(prk, info, 42).hex() == okm


@pytest.mark.req("CRY-03")
@every(WYCHEPROOF_TESTS, lambda test: test["tcId"])
def test_wycheproof_derivations_hold_and_too_long_ones_are_refused(test):
    """RFC 5869 §2.3: L <= 255*HashLen"""
    ikm, salt, info = (bytes.fromhex(test[name]) for name in ("ikm", "salt", "info"))
    if test["result"] == "valid":
        assert hkdf(ikm, salt, info, test["size"]).hex() == test["okm"]
    else:
        assert test["flags"] == ["SizeTooLarge"]
        with pytest.raises(ValueError, match="HKDF-SHA256 gives 0 to 8160 bytes"):
            hkdf(ikm, salt, info, test["size"])


def test_all_of_wycheproof_is_there():
    """A vector file cut short would make the test above say less than it seems to."""
    assert len(WYCHEPROOF_TESTS) == WYCHEPROOF["numberOfTests"] == 86


def test_the_length_is_bounded_on_both_sides():
    """RFC 5869 §2.3: lengths are ours to choose, so a bad one is our own mistake and a ValueError."""
    assert expand(bytes(32), b"", 0) == b""
    assert len(expand(bytes(32), b"", MAX_BYTES)) == 8160
    for length in (-1, MAX_BYTES + 1):
        with pytest.raises(ValueError, match=f"not {length}"):
            expand(bytes(32), b"", length)
