"""Hub keys over time: spec §8.4, D-21, D-37, D-41, D-42."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.strategies import single_bit_flips

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, MalformedError, SignatureError, VeenError, VersionError
from veen.core.hashing import H, Ht
from veen.core.labels import hub_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, StreamRegister
from veen.core.objects.identity import (
    HubIdentity,
    HubKey,
    IdentityError,
    canonical_json,
    key_id_of,
    read_canonical_json,
)
from veen.core.objects.receipt import Receipt

KEYS = [SigningKey(bytes((n,)) * 32) for n in range(1, 6)]
OLD, NEW, LATER = KEYS[:3]
FIRST = HubIdentity.first(OLD.public, valid_from=100)
ROTATED = FIRST.with_rotation(NEW.public, valid_from=200, overlap_until=250)
TWICE = ROTATED.with_rotation(LATER.public, valid_from=400, overlap_until=400)


def receipt(key, hub_ts):
    return Receipt.issue(key, label=bytes(32), stream_seq=1, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=hub_ts)


def checkpoint(key, epoch=0, witnesses=()):
    return Checkpoint.issue(
        key,
        label_prev=bytes(32),
        label_curr=bytes(32),
        upto_seq=1,
        mmr_root=bytes(32),
        epoch=epoch,
        witnesses=witnesses,
    )


@st.composite
def identities(draw):
    """Any history of rotations."""
    identity = HubIdentity.first(OLD.public, valid_from=draw(st.integers(0, 1000)))
    for key in KEYS[1 : draw(st.integers(1, 5))]:
        begin = identity.current.valid_from + draw(st.integers(1, 50))
        identity = identity.with_rotation(key.public, valid_from=begin, overlap_until=begin + draw(st.integers(0, 60)))
    return identity


@given(identities())
def test_an_identity_has_one_encoding(identity):
    """D-42: canonical JSON."""
    data = identity.to_bytes()
    assert HubIdentity.from_bytes(data) == identity
    assert canonical_json(read_canonical_json(data, "identity")) == data


@pytest.mark.req("HID-08")
def test_the_file_holds_hub_id_keys_and_anchoring():
    """spec §8.4, D-42"""
    assert ROTATED.to_bytes() == (
        b'{"anchoring":"data-directory","hub_id":"%(id)s","hub_keys":['
        b'{"hub_pk":"%(old)s","key_id":"%(old_id)s","valid_from":100,"valid_until":250},'
        b'{"hub_pk":"%(new)s","key_id":"%(new_id)s","valid_from":200}],"ver":1}'
        % {
            b"id": Ht("veen/hub-id", OLD.public).hex().encode(),
            b"old": OLD.public.hex().encode(),
            b"old_id": H(OLD.public).hex()[:16].encode(),
            b"new": NEW.public.hex().encode(),
            b"new_id": H(NEW.public).hex()[:16].encode(),
        }
    )


@pytest.mark.req("HID-13")
@given(identities())
def test_rotation_never_changes_hub_id(identity):
    """D-21: fixed by the first key."""
    assert identity.hub_id == hub_id_of(OLD.public)
    assert HubIdentity.first(NEW.public, valid_from=0).hub_id != identity.hub_id


@pytest.mark.req("HID-03")
@given(identities(), st.integers(0, 2000))
def test_one_key_signs_at_any_time(identity, hub_ts):
    """D-41: the greatest valid_from, then the smallest hub_pk; never a key outside its validity."""
    valid = [key for key in identity.keys if key.valid_from <= hub_ts and hub_ts < (key.valid_until or 10**9)]
    assert list(identity.keys_valid_at(hub_ts)) == valid
    if not valid:
        with pytest.raises(IdentityError):
            identity.signing_key_at(hub_ts)
        return
    best = max(key.valid_from for key in valid)
    assert identity.signing_key_at(hub_ts).hub_pk == min(key.hub_pk for key in valid if key.valid_from == best)


def test_of_keys_that_begin_together_the_smallest_signs():
    """D-41: then smallest hub_pk"""
    pair = sorted((OLD.public, NEW.public))
    identity = HubIdentity(tuple(HubKey(hub_pk=key, valid_from=5) for key in pair))
    assert identity.signing_key_at(5).hub_pk == pair[0]
    assert identity.current.hub_pk == pair[0]


@pytest.mark.req("HID-06", "HID-07")
def test_a_receipt_is_valid_under_the_keys_of_its_time_only():
    """spec §8.4: any key active at the corresponding hub_ts; old receipts stay verifiable."""
    for identity in (ROTATED, TWICE):
        assert identity.verify_receipt(receipt(OLD, 100)).hub_pk == OLD.public
        assert identity.verify_receipt(receipt(OLD, 249)).hub_pk == OLD.public
        assert identity.verify_receipt(receipt(NEW, 200)).hub_pk == NEW.public
        for key, hub_ts in ((OLD, 99), (OLD, 250), (NEW, 199), (LATER, 300)):
            with pytest.raises(SignatureError, match="no key of this hub"):
                identity.verify_receipt(receipt(key, hub_ts))


@pytest.mark.req("HID-06")
def test_a_checkpoint_is_valid_under_the_keys_of_its_epoch():
    """D-41: validity meets [epoch·es, (epoch+1)·es); any key where epochs are off."""
    assert ROTATED.verify_checkpoint(checkpoint(OLD, 2), 100).hub_pk == OLD.public  # 200 … 299 meets … 249
    assert ROTATED.verify_checkpoint(checkpoint(NEW, 2), 100).hub_pk == NEW.public
    assert ROTATED.verify_checkpoint(checkpoint(OLD, 1), 100).hub_pk == OLD.public
    assert ROTATED.verify_checkpoint(checkpoint(OLD), 0).hub_pk == OLD.public
    for key, epoch in ((OLD, 3), (NEW, 1), (OLD, 0), (LATER, 2)):
        with pytest.raises(SignatureError):
            ROTATED.verify_checkpoint(checkpoint(key, epoch), 100)


@pytest.mark.parametrize("hub_ts", [199, 200, 249, 250])
def test_old_and_new_key_witness_while_they_overlap(hub_ts):
    """D-37: [old key, new key] when the last entry lies in the overlap."""
    wanted = [OLD, NEW] if 200 <= hub_ts < 250 else []
    assert [key.hub_pk for key in ROTATED.witnesses_at(hub_ts)] == [key.public for key in wanted]
    signer = NEW if hub_ts >= 200 else OLD
    good = checkpoint(signer, witnesses=wanted)
    assert ROTATED.verify_seal(good, hub_ts).hub_pk == signer.public
    ROTATED.verify_seal(checkpoint(signer, witnesses=[*wanted, LATER]), hub_ts)  # external witnesses may follow
    bad = [checkpoint(OLD if signer is NEW else NEW, witnesses=wanted)]
    if wanted:
        bad += [checkpoint(signer), checkpoint(signer, witnesses=[NEW, OLD]), checkpoint(signer, witnesses=[OLD])]
    for other in bad:
        with pytest.raises(SignatureError):
            ROTATED.verify_seal(other, hub_ts)


def test_control_records_are_valid_under_the_keys_of_their_time():
    record = ControlRecord.issue(OLD, None, StreamRegister(stream_id=bytes(32)), hub_ts=220)
    assert ROTATED.verify_control(record).hub_pk == OLD.public
    with pytest.raises(SignatureError):
        ROTATED.verify_control(ControlRecord.issue(LATER, None, record.body, hub_ts=220))


@pytest.mark.req("HID-05")
def test_rotation_adds_a_key_and_archives_the_old_one():
    """spec §8.4: retained in an archive set."""
    assert [key.hub_pk for key in TWICE.keys] == [OLD.public, NEW.public, LATER.public]
    assert [(key.valid_from, key.valid_until) for key in TWICE.keys] == [(100, 250), (200, 400), (400, None)]
    assert [(body.hub_pk, body.retired_pk, body.retired_until) for body in TWICE.rotations()] == [
        (NEW.public, OLD.public, 250),
        (LATER.public, NEW.public, 400),
    ]


@pytest.mark.parametrize(
    ("hub_pk", "valid_from", "overlap_until", "why"),
    [
        (NEW.public, 100, 300, "must become valid after"),
        (NEW.public, 200, 199, "no key could sign in between"),
        (OLD.public, 200, 250, "listed twice"),
    ],
)
def test_a_rotation_that_would_leave_a_hole_is_refused(hub_pk, valid_from, overlap_until, why):
    with pytest.raises(IdentityError, match=why):
        FIRST.with_rotation(hub_pk, valid_from=valid_from, overlap_until=overlap_until)


def test_a_key_that_is_being_retired_cannot_be_retired_again():
    retiring = HubIdentity((HubKey(hub_pk=OLD.public, valid_from=1, valid_until=9),))
    with pytest.raises(IdentityError, match="already being retired"):
        retiring.with_rotation(NEW.public, valid_from=5, overlap_until=9)


@pytest.mark.req("HID-09")
def test_the_signature_is_by_the_current_key_or_by_the_root_key():
    """D-42: Ht("veen/hub-identity", file bytes)"""
    signature = ROTATED.sign(NEW)
    assert signature == NEW.sign(Ht("veen/hub-identity", ROTATED.to_bytes()))
    ROTATED.verify(signature)
    ROTATED.verify(ROTATED.sign(LATER), root_pk=LATER.public)
    for other, root in ((ROTATED.sign(OLD), None), (signature, LATER.public), (FIRST.sign(NEW), None)):
        with pytest.raises(SignatureError):
            ROTATED.verify(other, root)


def test_a_flipped_bit_is_not_the_same_identity():
    """The file is refused, or says something else and the signature tells."""
    signature = ROTATED.sign(NEW)
    for flipped in single_bit_flips(ROTATED.to_bytes()):
        with pytest.raises(VeenError):
            HubIdentity.from_bytes(flipped).verify(signature)


def change(**members):
    tree = read_canonical_json(FIRST.to_bytes(), "identity")
    return canonical_json({**tree, **members})


ONE = read_canonical_json(FIRST.to_bytes(), "identity")["hub_keys"][0]


@pytest.mark.parametrize(
    ("data", "error"),
    {
        "spaces": (FIRST.to_bytes().replace(b",", b", "), MalformedError),
        "not_json": (b"{", MalformedError),
        "not_utf8": (b"\xff", MalformedError),
        "deep": (b"[" * 100_000, MalformedError),
        "too_long": (b" " * (1024 * 1024 + 1), FieldSizeError),
        "a_list": (b"[]", MalformedError),
        "repeated_name": (FIRST.to_bytes().replace(b'{"anch', b'{"anchoring":"x","anch'), MalformedError),
        "unknown_member": (change(more=1), MalformedError),
        "missing_member": (b'{"ver":1}', MalformedError),
        "version_2": (change(ver=2), VersionError),
        "version_true": (change(ver=True), MalformedError),
        "anchoring_unknown": (change(anchoring="dns"), IdentityError),
        "anchoring_number": (change(anchoring=1), MalformedError),
        "keys_no_list": (change(hub_keys={}), MalformedError),
        "no_keys": (change(hub_keys=[]), IdentityError),
        "key_no_object": (change(hub_keys=[1]), MalformedError),
        "key_twice": (change(hub_keys=[ONE, ONE]), IdentityError),
        "key_id_of_another": (change(hub_keys=[{**ONE, "key_id": "0" * 16}]), MalformedError),
        "key_upper_case": (change(hub_keys=[{**ONE, "hub_pk": ONE["hub_pk"].upper()}]), MalformedError),
        "key_not_hex": (change(hub_keys=[{**ONE, "hub_pk": "zz"}]), MalformedError),
        "key_short": (change(hub_keys=[{**ONE, "hub_pk": "00"}]), MalformedError),
        "key_no_text": (change(hub_keys=[{**ONE, "hub_pk": 1}]), MalformedError),
        "valid_from_negative": (change(hub_keys=[{**ONE, "valid_from": -1}]), MalformedError),
        "valid_from_float": (change(hub_keys=[{**ONE, "valid_from": 1.5}]), MalformedError),
        "valid_from_bool": (change(hub_keys=[{**ONE, "valid_from": True}]), MalformedError),
        "ends_before_it_begins": (change(hub_keys=[{**ONE, "valid_until": 100}]), IdentityError),
        "another_hub_id": (change(hub_id="00" * 32), IdentityError),
    }.values(),
)
def test_what_is_not_an_identity_is_refused_by_name(data, error):
    with pytest.raises(error):
        HubIdentity.from_bytes(data)


def test_keys_out_of_order_are_refused():
    with pytest.raises(IdentityError, match="sorted"):
        HubIdentity(tuple(reversed(ROTATED.keys)))


def test_an_unknown_anchoring_is_refused():
    with pytest.raises(IdentityError, match="anchoring"):
        replace(FIRST, anchoring="dns")  # type: ignore[arg-type]  # that is the point


@pytest.mark.req("HID-10")
def test_key_ids_map_to_keys():
    """D-42: first 16 hex of H(hub_pk)"""
    assert ROTATED.key_map() == {key_id_of(key.public): key.public.hex() for key in (OLD, NEW)}
    assert key_id_of(OLD.public) == H(OLD.public).hex()[:16]


def test_errors_survive_pickling():
    error = pickle.loads(pickle.dumps(IdentityError("no key")))  # noqa: S301 - our own bytes
    assert isinstance(error, IdentityError)
    assert str(error) == "no key"
