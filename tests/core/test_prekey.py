"""Prekeys (spec-1 §3, KEX0.2, D-102)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies
from tests.examples import examples

from veen.core import cbor
from veen.core.checks import Given, check
from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, FormatError, MalformedError, SignatureError, VersionError
from veen.core.hashing import Ht
from veen.core.objects.card import Prekey
from veen.core.objects.recognise import recognise

KEY = SigningKey(b"\x07" * 32)
OTHER = SigningKey(b"\x08" * 32)
PREKEY_PK = x25519.public_key(b"\x09" * 32)
PREKEY = Prekey.issue(KEY, PREKEY_PK, expires_at=1_000)


@pytest.mark.req("KEX0-05", "CRY-18")
def test_the_wire_form_is_the_one_that_was_decided():
    """D-102: {1:ver, 2:id_sign_pk, 3:prekey_pk, 4:expires_at, 5:sig}, signed over Ht("veen/prekey", all but sig)."""
    unsigned = {1: 1, 2: KEY.public, 3: PREKEY_PK, 4: 1_000}
    digest = Ht("veen/prekey", cbor.encode(unsigned))
    assert PREKEY.signing_digest() == digest
    assert PREKEY.to_bytes() == cbor.encode({**unsigned, 5: KEY.sign(digest)})
    assert Prekey.from_bytes(PREKEY.to_bytes()) == PREKEY
    assert len(PREKEY.sig) == 64


@pytest.mark.req("KEX0-05", "CRY-18")
@pytest.mark.parametrize(
    "forged",
    [
        replace(PREKEY, prekey_pk=bytes(32)),
        replace(PREKEY, expires_at=1_001),
        replace(PREKEY, id_sign_pk=OTHER.public),
        replace(PREKEY, sig=OTHER.sign(PREKEY.signing_digest())),
        replace(PREKEY, sig=bytes(64)),
    ],
    ids=["prekey_pk", "expires_at", "id_sign_pk", "sig of another", "no sig"],
)
def test_only_what_the_identity_signed_verifies(forged):
    PREKEY.verify()
    with pytest.raises(SignatureError):
        forged.verify()


@pytest.mark.req("KEX0-05")
def test_a_prekey_is_live_up_to_the_second_in_which_it_expires():
    assert PREKEY.is_live(0)
    assert PREKEY.is_live(1_000)
    assert not PREKEY.is_live(1_001)


@given(st.integers(0, 8 * len(PREKEY.to_bytes()) - 1))
@examples(200)
def test_no_single_bit_can_change(bit):
    data = bytearray(PREKEY.to_bytes())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises((FormatError, SignatureError)):
        Prekey.from_bytes(bytes(data)).verify()


@given(strategies.PREKEY)
def test_a_random_prekey_reads_back_and_does_not_verify(prekey):
    assert Prekey.from_bytes(prekey.to_bytes()) == prekey
    with pytest.raises(SignatureError):
        prekey.verify()


def test_malformed_ones_are_named():
    tree = {1: 1, 2: KEY.public, 3: PREKEY_PK, 4: 1_000, 5: PREKEY.sig}
    with pytest.raises(FieldSizeError, match=r"prekey\.prekey_pk"):
        Prekey.from_bytes(cbor.encode({**tree, 3: b"short"}))
    with pytest.raises(VersionError):
        Prekey.from_bytes(cbor.encode({**tree, 1: 2}))
    with pytest.raises(MalformedError, match="unknown"):
        Prekey.from_bytes(cbor.encode({**tree, 6: 0}))


def test_it_is_recognised_and_checked_like_every_object():
    recognised = recognise(PREKEY.to_bytes())
    assert recognised.obj == PREKEY
    assert check(PREKEY, Given()) == [f"offered until 1000 by identity {KEY.public.hex()}"]
    with pytest.raises(SignatureError):
        check(replace(PREKEY, expires_at=0), Given())
