"""Trust starts from a pinned key and goes forward, never back (spec §8.4)."""

import pytest

from veen.core.crypto.ed25519 import SigningKey
from veen.core.labels import hub_id_of
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.identity import HubIdentity, HubKey
from veen.core.objects.trusted_root import TrustedKeys

A, B, C, EVIL = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3, 66))
FIRST = HubIdentity.first(A.public, valid_from=100)
SECOND = FIRST.with_rotation(B.public, valid_from=200, overlap_until=300)
THIRD = SECOND.with_rotation(C.public, valid_from=400, overlap_until=500)


def journal(identity, *signers):
    """The records that introduce the keys of an identity, each signed by the key that is told."""
    records: list[ControlRecord] = []
    for signer, body in zip(signers, identity.rotations(), strict=True):
        records.append(ControlRecord.issue(signer, records[-1] if records else None, body, hub_ts=150))
    return records


def fault(pin, identity, records=()):
    return TrustedKeys.parse(pin).fault(identity, records)


def pin(key, hub_id=None):
    return f"ed25519:{key.public.hex()}" + (f":{hub_id.hex()}" if hub_id else "")


def test_the_first_key_vouches_for_all_that_follow():
    assert fault(pin(A), FIRST) is None
    assert fault(pin(A), THIRD, journal(THIRD, A, B)) is None
    assert fault(pin(A, FIRST.hub_id), THIRD, journal(THIRD, A, B)) is None


def test_another_hub_is_told_by_its_key_and_by_its_hub_id():
    other = HubIdentity.first(EVIL.public, valid_from=100)
    assert pin(A) in (fault(pin(A), other) or "")
    assert "not of the pinned" in (fault(pin(A, FIRST.hub_id), other) or "")
    assert "not of the pinned" in (fault(pin(A, hub_id_of(EVIL.public)), FIRST) or "")
    assert fault(pin(A), None) is not None


def test_a_root_vouches_for_all_keys_of_what_it_signed():
    root = TrustedKeys.parse(f"root:ed25519:{C.public.hex()}")
    assert root.fault(THIRD, (), (SECOND.sign(C), THIRD.sign(C))) is None
    for signatures in ((), (SECOND.sign(C),), (THIRD.sign(EVIL),), (b"",)):
        assert "did not sign" in (root.fault(THIRD, journal(THIRD, A, B), signatures) or "")
    bound = TrustedKeys.parse(f"root:ed25519:{C.public.hex()}:{FIRST.hub_id.hex()}")
    assert bound.fault(THIRD, (), (THIRD.sign(C),)) is None
    other = HubIdentity.first(EVIL.public, valid_from=100)
    assert "not of the pinned" in (bound.fault(other, (), (other.sign(C),)) or "")
    for keys in (root, bound):
        assert TrustedKeys.parse(keys.to_text()) == keys


def test_a_key_that_introduces_itself_is_not_trusted():
    """The pinned key is public: a forger lists it first, and his own behind it."""
    forged = FIRST.with_rotation(EVIL.public, valid_from=200, overlap_until=300)
    assert "no pinned key introduced" in (fault(pin(A), forged, journal(forged, EVIL)) or "")
    assert fault(pin(A), forged, ()) is not None
    assert fault(pin(A, FIRST.hub_id), forged, journal(forged, EVIL)) is not None


def test_only_the_key_that_is_retired_may_introduce_the_next():
    assert fault(pin(A), THIRD, journal(THIRD, A, A)) is not None


def test_an_older_key_is_not_trusted_because_it_introduces_the_pinned_one():
    """Anybody can sign a record that names the pinned key as the next."""
    forged = HubIdentity.first(EVIL.public, valid_from=100).with_rotation(A.public, valid_from=200, overlap_until=300)
    records = journal(forged, EVIL)
    assert "pin the first key" in (fault(pin(A), forged, records) or "")
    assert fault(pin(B), SECOND, journal(SECOND, A)) is not None  # also if it is honest: nothing shows that
    assert fault(pin(B, FIRST.hub_id), SECOND, journal(SECOND, A)) is None  # hub_id is the hash of the first key


def test_a_pinned_key_must_be_reached_from_the_pinned_hub_id():
    forged = FIRST.with_rotation(EVIL.public, valid_from=200, overlap_until=300)
    assert "no chain of rotations" in (fault(pin(EVIL, FIRST.hub_id), forged, journal(forged, EVIL)) or "")


def test_a_record_without_a_retired_key_introduces_nothing():
    body = KeyRotate(hub_pk=EVIL.public, valid_from=200)
    identity = HubIdentity((HubKey(hub_pk=A.public, valid_from=100), HubKey(hub_pk=EVIL.public, valid_from=200)))
    assert fault(pin(A), identity, [ControlRecord.issue(A, None, body, hub_ts=150)]) is not None


@pytest.mark.parametrize(
    "text", [pin(A), pin(A, FIRST.hub_id), A.public.hex(), f"{A.public.hex()}:{FIRST.hub_id.hex()}"]
)
def test_a_pin_is_text(text):
    assert TrustedKeys.parse(text).to_text().removeprefix("ed25519:") == text.removeprefix("ed25519:")


@pytest.mark.parametrize(
    "text", ["", "ed25519:", "ed25519:abc", f"{'a' * 64}:", f"{'a' * 64}:b", f"{'a' * 66}", "x" * 64]
)
def test_what_is_no_pin_is_refused(text):
    with pytest.raises(ValueError, match="HUB_PK"):
        TrustedKeys.parse(text)
