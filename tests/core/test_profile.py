"""The cryptographic profile: spec §3.2, D-25."""

from hashlib import sha256
from typing import Any

import cbor2
import pytest
from hypothesis import given
from tests.core import strategies

from veen.core.errors import MalformedError
from veen.core.objects.profile import PRESETS, Profile

SUITE: dict[int, Any] = {
    1: "xchacha20poly1305",
    2: "hkdf-sha256",
    3: "ed25519",
    4: "x25519",
    5: "X25519-HKDF-SHA256-CHACHA20POLY1305",
    6: 60,
    7: 256,
    8: "sha256",
}

# decisions §18: (epoch_sec, pad_block) and the id; the first equals that of another implementation.
GOLDEN = [
    (60, 256, "1db91032b4bf4cd8b9f56a782b299458e6f782d3a1276f04c50c7b02651038ca"),
    (0, 256, "97cc14b67f5d900b91289748f05ecabc3e4b898dcee3698aa3d1f1a9697b72b9"),
    (60, 0, "d0b01ec0b591c1678c64f2bd6cd9e7d8b3e56f6cd839cb66c0d099299a961281"),
    (0, 0, "7b6d324dfa79bdc2928558b784ca937eae43f94534dbe8ad2693ae2033240be1"),
]


@pytest.mark.req("CRY-06", "CBOR-08")
def test_the_profile_is_a_map_of_eight_integer_keys():
    """spec §3.2"""
    assert Profile(epoch_sec=60, pad_block=256).to_bytes() == cbor2.dumps(SUITE)
    assert Profile.from_bytes(cbor2.dumps(SUITE)) == Profile(epoch_sec=60, pad_block=256)
    for key in SUITE:
        with pytest.raises(MalformedError):
            Profile.from_bytes(cbor2.dumps({k: v for k, v in SUITE.items() if k != key}))
        with pytest.raises(MalformedError):
            Profile.from_bytes(cbor2.dumps({**SUITE, key: None}))
    with pytest.raises(MalformedError):
        Profile.from_bytes(cbor2.dumps({**SUITE, 9: 0}))


@pytest.mark.req("CRY-07")
@pytest.mark.parametrize("key", [1, 2, 3, 4, 5, 8])
def test_no_other_algorithm_is_allowed(key):
    """spec §3.2: allowed values for v0.0.1, to the letter."""
    for wrong in (SUITE[key].swapcase(), SUITE[key] + " ", "", "none", "aes256gcm"):
        with pytest.raises(MalformedError, match=r"v0\.0\.1 allows only"):
            Profile.from_bytes(cbor2.dumps({**SUITE, key: wrong}))
    with pytest.raises(MalformedError):
        Profile.from_bytes(cbor2.dumps({**SUITE, key: SUITE[key].encode()}))


@pytest.mark.req("CRY-08")
@pytest.mark.parametrize(("epoch_sec", "pad_block", "expected"), GOLDEN)
def test_profile_ids_are_the_golden_ones(epoch_sec, pad_block, expected):
    """decisions §18; and Ht("veen/profile", CBOR(profile)) as computed here."""
    profile = Profile(epoch_sec=epoch_sec, pad_block=pad_block)
    assert profile.profile_id().hex() == expected
    encoded = cbor2.dumps({**SUITE, 6: epoch_sec, 7: pad_block})
    assert sha256(b"veen/profile\x00" + encoded).hexdigest() == expected


@pytest.mark.req("CRY-09")
@given(strategies.PROFILE, strategies.PROFILE)
def test_different_profiles_have_different_ids(one, other):
    """spec §3.2"""
    assert (one.profile_id() == other.profile_id()) == (one == other)


@pytest.mark.req("CRY-09")
def test_neither_rotation_nor_padding_has_a_default():
    """spec §3.2: there is no implicit default."""
    for fields in ({}, {"epoch_sec": 0}, {"pad_block": 0}):
        with pytest.raises(TypeError, match="missing"):
            Profile(**fields)


@pytest.mark.req("OP0-09")
def test_the_presets_are_those_of_the_decision():
    """D-25"""
    assert {name: (preset.epoch_sec, preset.pad_block) for name, preset in PRESETS.items()} == {
        "messaging": (0, 256),
        "bulk": (0, 0),
        "rotating": (3600, 256),
        "ref": (60, 0),
    }
