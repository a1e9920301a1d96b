"""X25519: RFC 7748 and the refusal of low-order points."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases import every

from veen.core.crypto import x25519
from veen.core.errors import InvalidKeyError

WYCHEPROOF = json.loads((Path(__file__).parents[1] / "vectors" / "wycheproof-x25519.json").read_text("utf-8"))
WYCHEPROOF_TESTS = [test for group in WYCHEPROOF["testGroups"] for test in group["tests"]]

secrets = st.binary(min_size=32, max_size=32)


@pytest.mark.req("CRY-03")
@given(secrets, secrets)
def test_both_sides_compute_the_same_secret(a, b):
    """RFC 7748 §6.1"""
    assert x25519.exchange(a, x25519.public_key(b)) == x25519.exchange(b, x25519.public_key(a))


@pytest.mark.req("CRY-03")
def test_the_diffie_hellman_of_rfc_7748_holds():
    """RFC 7748 §6.1"""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    alice_public = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    bob_public = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert x25519.public_key(alice) == alice_public
    assert x25519.public_key(bob) == bob_public
    assert x25519.exchange(alice, bob_public) == x25519.exchange(bob, alice_public) == shared


@pytest.mark.req("CRY-03")
@every(WYCHEPROOF_TESTS, lambda test: test["tcId"])
def test_wycheproof_exchanges_hold_and_low_order_points_are_refused(test):
    """RFC 7748 §5 and §6.1, RFC 9180 §7.1.4: twist and non-canonical points count, an all-zero secret does not."""
    secret, public = bytes.fromhex(test["private"]), bytes.fromhex(test["public"])
    if "LowOrderPublic" in test["flags"]:
        with pytest.raises(InvalidKeyError, match="low order"):
            x25519.exchange(secret, public)
    else:
        assert x25519.exchange(secret, public).hex() == test["shared"]


def test_all_of_wycheproof_is_there():
    """A vector file cut short would make the test above say less than it seems to."""
    assert len(WYCHEPROOF_TESTS) == WYCHEPROOF["numberOfTests"] == 518
    low_order = [test for test in WYCHEPROOF_TESTS if "LowOrderPublic" in test["flags"]]
    assert len(low_order) == 31
    assert {test["shared"] for test in low_order} == {bytes(32).hex()}
    assert sum(test["shared"] == bytes(32).hex() for test in WYCHEPROOF_TESTS) == 31


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_keys_of_another_length_are_invalid(length):
    """RFC 7748 §5: and never reach libsodium, which would read past their end."""
    good, wrong = bytes(range(32)), bytes(range(length))
    with pytest.raises(InvalidKeyError, match=f"secret key: expected 32 bytes, found {length}"):
        x25519.public_key(wrong)
    with pytest.raises(InvalidKeyError, match=f"secret key: expected 32 bytes, found {length}"):
        x25519.exchange(wrong, good)
    with pytest.raises(InvalidKeyError, match=f"public key: expected 32 bytes, found {length}"):
        x25519.exchange(good, wrong)
