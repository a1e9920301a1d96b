"""H, Ht, the integer encodings and Trunc_24."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.hashing import H, Ht, tag_prefix, trunc_24, u32be, u64be


@pytest.mark.req("CRY-01")
@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
    ],
)
def test_h_gives_the_published_digests_of_sha_256(data, digest):
    """spec §3.3, FIPS 180-4"""
    assert H(data).hex() == digest


@pytest.mark.req("CRY-01")
@pytest.mark.parametrize(
    ("tag", "data", "digest"),
    [
        ("veen/profile", b"abc", "f381bff2aa37a8f832a100e0372e9cf905bd59b62af2eefeef4516db1f1239db"),
        ("é", b"", "6133f2d2dc6cad8dbbfc80f0fb587d3e61469954c82d906cce85239e4c6c8bbd"),
    ],
)
def test_ht_gives_digests_that_another_tool_computed(tag, data, digest):
    """spec §3.3; made with sha256sum from the bytes of the tag in UTF-8, one zero byte and the data"""
    assert Ht(tag, data).hex() == digest


@pytest.mark.req("CRY-01")
@given(st.text(), st.binary())
def test_ht_is_h_over_the_tag_a_zero_byte_and_the_data(tag, data):
    """spec §3.3"""
    assert Ht(tag, data) == H(tag.encode("utf-8") + b"\x00" + data) == H(tag_prefix(tag) + data)
    assert H(data) == hashlib.sha256(data).digest()


@pytest.mark.req("CRY-01")
def test_the_zero_byte_keeps_tag_and_data_apart():
    """spec §3.3: moving a byte from the tag to the data is another hash."""
    assert Ht("veen/a", b"bc") != Ht("veen/ab", b"c")
    assert Ht("", b"") == H(b"\x00")


@pytest.mark.req("CRY-02")
def test_integers_are_unsigned_and_big_endian():
    """spec §3.3"""
    assert u32be(0x01020304) == bytes.fromhex("01020304")
    assert u64be(0x0102030405060708) == bytes.fromhex("0102030405060708")
    assert u32be(0) == bytes(4)
    assert u64be(0) == bytes(8)
    assert u32be(2**32 - 1) == b"\xff" * 4
    assert u64be(2**64 - 1) == b"\xff" * 8


@pytest.mark.req("CRY-02")
@pytest.mark.parametrize(("encode", "bits"), [(u32be, 32), (u64be, 64)])
def test_an_integer_that_does_not_fit_is_never_cut(encode, bits):
    """spec §3.3: our own mistake, so an OverflowError and not one of our errors."""
    for value in (-1, 2**bits):
        with pytest.raises(OverflowError):
            encode(value)


@pytest.mark.req("CRY-02")
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_encoded_integers_sort_like_integers(a, b):
    """spec §3.3: lexicographic byte order agrees with numeric order."""
    assert (u64be(a) < u64be(b)) == (a < b)


@pytest.mark.req("CRY-02")
def test_trunc_24_keeps_the_first_24_bytes():
    """spec §3.3"""
    assert trunc_24(bytes(range(32))) == bytes(range(24))
