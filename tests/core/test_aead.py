"""XChaCha20-Poly1305, and the ChaCha20-Poly1305 that HPKE uses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import every

from veen.core.crypto import aead
from veen.core.errors import InvalidKeyError, OpenError

VECTORS = Path(__file__).parents[1] / "vectors"
DRAFT = json.loads((VECTORS / "xchacha20poly1305-ietf.json").read_text("utf-8"))["vectors"]


class Cipher(NamedTuple):
    name: str
    seal: Callable[[bytes, bytes, bytes, bytes], bytes]
    open_: Callable[[bytes, bytes, bytes, bytes], bytes]
    nonce_bytes: int


XCHACHA = Cipher("xchacha20_poly1305", aead.seal, aead.open_, aead.NONCE_BYTES)
CHACHA = Cipher("chacha20_poly1305", aead.chacha_seal, aead.chacha_open, aead.CHACHA_NONCE_BYTES)
both = pytest.mark.parametrize("cipher", [XCHACHA, CHACHA], ids=lambda cipher: cipher.name)

KEY, AAD, PLAINTEXT = bytes(range(32)), b"associated", b"a body of some bytes"
keys = st.binary(min_size=32, max_size=32)


def wycheproof(cipher: Cipher) -> list[dict[str, Any]]:
    groups = json.loads((VECTORS / f"wycheproof-{cipher.name}.json").read_text("utf-8"))["testGroups"]
    return [test for group in groups for test in group["tests"]]


def flips(data: bytes) -> list[bytes]:
    """Every way to turn one bit."""
    number = int.from_bytes(data, "big")
    return [(number ^ 1 << bit).to_bytes(len(data), "big") for bit in range(8 * len(data))]


# Laws


@pytest.mark.req("CRY-04")
@given(keys, st.binary(min_size=24, max_size=24), st.binary(), st.binary())
def test_what_xchacha_seals_it_opens(key, nonce, aad, plaintext):
    """spec §3.2: a 24-byte nonce, a 16-byte tag"""
    ciphertext = aead.seal(key, nonce, aad, plaintext)
    assert len(ciphertext) == len(plaintext) + aead.TAG_BYTES
    assert aead.open_(key, nonce, aad, ciphertext) == plaintext


@given(keys, st.binary(min_size=12, max_size=12), st.binary(), st.binary())
def test_what_chacha_seals_it_opens(key, nonce, aad, plaintext):
    """RFC 8439 §2.8"""
    ciphertext = aead.chacha_seal(key, nonce, aad, plaintext)
    assert len(ciphertext) == len(plaintext) + aead.TAG_BYTES
    assert aead.chacha_open(key, nonce, aad, ciphertext) == plaintext


@both
def test_no_single_bit_of_key_nonce_aad_or_ciphertext_can_change(cipher):
    """spec §3.2"""
    nonce = bytes(range(cipher.nonce_bytes))
    ciphertext = cipher.seal(KEY, nonce, AAD, PLAINTEXT)
    altered = [
        *((key, nonce, AAD, ciphertext) for key in flips(KEY)),
        *((KEY, other, AAD, ciphertext) for other in flips(nonce)),
        *((KEY, nonce, aad, ciphertext) for aad in flips(AAD)),
        *((KEY, nonce, AAD, other) for other in flips(ciphertext)),
    ]
    for arguments in altered:
        with pytest.raises(OpenError):
            cipher.open_(*arguments)


@both
def test_a_ciphertext_cut_anywhere_or_with_a_byte_more_does_not_open(cipher):
    """spec §3.2: shorter than a tag included, which PyNaCl answers with a bare ValueError"""
    nonce = bytes(cipher.nonce_bytes)
    ciphertext = cipher.seal(KEY, nonce, AAD, PLAINTEXT)
    for data in [*(ciphertext[:length] for length in range(len(ciphertext))), ciphertext + b"\x00"]:
        with pytest.raises(OpenError):
            cipher.open_(KEY, nonce, AAD, data)


# Vectors


@pytest.mark.req("CRY-04")
@pytest.mark.parametrize("case", DRAFT, ids=lambda case: case["name"])
def test_the_vectors_of_the_xchacha_draft_hold(case):
    """draft-irtf-cfrg-xchacha-03 A.3.1, D-20"""
    key, nonce, aad, plaintext = (bytes.fromhex(case[name]) for name in ("key", "nonce", "aad", "pt"))
    ciphertext = bytes.fromhex(case["ct"] + case["tag"])
    assert aead.seal(key, nonce, aad, plaintext) == ciphertext
    assert aead.open_(key, nonce, aad, ciphertext) == plaintext


def judge(cipher: Cipher, test: dict[str, Any]) -> None:
    """One Wycheproof case, both ways."""
    key, nonce, aad, plaintext = (bytes.fromhex(test[name]) for name in ("key", "iv", "aad", "msg"))
    ciphertext = bytes.fromhex(test["ct"] + test["tag"])
    if test["result"] == "valid":
        assert cipher.seal(key, nonce, aad, plaintext) == ciphertext
        assert cipher.open_(key, nonce, aad, ciphertext) == plaintext
    elif "InvalidNonceSize" in test["flags"]:
        with pytest.raises(InvalidKeyError):
            cipher.seal(key, nonce, aad, plaintext)
        assert ciphertext == b""  # so opening fails for the missing tag; a nonce at fault has its own test below
        with pytest.raises(OpenError):
            cipher.open_(key, nonce, aad, ciphertext)
    else:
        with pytest.raises(OpenError):
            cipher.open_(key, nonce, aad, ciphertext)


@pytest.mark.req("CRY-04")
@every(wycheproof(XCHACHA), lambda test: test["tcId"])
def test_wycheproof_xchacha_is_judged_as_wycheproof_judges_it(test):
    """spec §3.2, D-20"""
    judge(XCHACHA, test)


@every(wycheproof(CHACHA), lambda test: test["tcId"])
def test_wycheproof_chacha_is_judged_as_wycheproof_judges_it(test):
    """RFC 8439 §2.8, as HPKE uses it"""
    judge(CHACHA, test)


def test_all_of_wycheproof_is_there():
    """A vector file cut short would make the tests above say less than they seem to."""
    assert len(wycheproof(XCHACHA)) == 315
    assert len(wycheproof(CHACHA)) == 325


# Awkward input


@both
@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_an_invalid_key(cipher, length):
    """spec §3.2"""
    nonce = bytes(cipher.nonce_bytes)
    with pytest.raises(InvalidKeyError, match="Key must be a 32 bytes"):
        cipher.seal(bytes(length), nonce, AAD, PLAINTEXT)
    with pytest.raises(InvalidKeyError, match="Key must be a 32 bytes"):
        cipher.open_(bytes(length), nonce, AAD, bytes(32))


@both
@pytest.mark.parametrize("excess", [-1, 1])
def test_a_nonce_of_another_length_is_an_invalid_key(cipher, excess):
    """spec §3.2: nonces are derived, so this is never the fault of the ciphertext."""
    nonce = bytes(cipher.nonce_bytes + excess)
    with pytest.raises(InvalidKeyError, match="Nonce must be"):
        cipher.seal(KEY, nonce, AAD, PLAINTEXT)
    with pytest.raises(InvalidKeyError, match="Nonce must be"):
        cipher.open_(KEY, nonce, AAD, bytes(32))


@both
def test_the_two_failures_of_opening_say_the_same(cipher):
    """OpenError does not tell a wrong key from altered bytes."""
    nonce = bytes(cipher.nonce_bytes)
    ciphertext = cipher.seal(KEY, nonce, AAD, PLAINTEXT)
    messages = set()
    for key, data in ((bytes(32), ciphertext), (KEY, bytes(len(ciphertext))), (KEY, b"")):
        with pytest.raises(OpenError) as caught:
            cipher.open_(key, nonce, AAD, data)
        messages.add(str(caught.value))
    assert len(messages) == 1
