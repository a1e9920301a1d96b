"""The control journal: spec §6.1, D-46, D-47."""

from dataclasses import replace
from hashlib import sha256

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import VerifyKey
from tests.core import strategies
from tests.core.strategies import single_bit_flips

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, FormatError, MalformedError, SignatureError, VeenError, VerifyError
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import BODIES, CapAuthorize, ControlRecord, KeyRotate, LimitsSet, StreamRegister

HUB, ISSUER = SigningKey(b"\x02" * 32), SigningKey(b"\x01" * 32)
TOKEN = CapToken.issue(ISSUER, bytes(32), [b"\x0b" * 32], ttl=60)


def journal(bodies, times=None):
    records: list[ControlRecord] = []
    for number, body in enumerate(bodies):
        hub_ts = times[number] if times else 1_700_000_000 + number
        records.append(ControlRecord.issue(HUB, records[-1] if records else None, body, hub_ts=hub_ts))
    return records


def check(records):
    previous = None
    for record in records:
        record.verify(HUB.public)
        record.check_follows(previous)
        previous = record


CHAIN = journal([StreamRegister(stream_id=bytes((n,)) * 32) for n in range(4)])


@given(st.lists(st.one_of(*strategies.BODIES.values()), max_size=5))
def test_a_journal_of_any_bodies_is_one_verifiable_chain(bodies):
    """D-46: also after it was written and read."""
    records = [ControlRecord.from_bytes(record.to_bytes()) for record in journal(bodies)]
    check(records)
    assert [record.body for record in records] == bodies
    assert [record.seq for record in records] == list(range(1, len(bodies) + 1))


def test_a_record_is_an_array_of_seven_items():
    """D-46: [ver, seq, kind, hub_ts, prev_hash, body, hub_sig]"""
    first, second = CHAIN[:2]
    assert first.to_bytes() == cbor2.dumps(
        [1, 1, "stream.register", 1_700_000_000, bytes(32), {1: bytes(32)}, first.hub_sig]
    )
    assert second.to_tree()[:5] == [1, 2, "stream.register", 1_700_000_001, sha256(first.to_bytes()).digest()]


def test_hub_sig_is_over_the_tagged_hash_of_the_other_items():
    """D-46: Ht("veen/control", CBOR without sig), verified with another library."""
    record = CHAIN[1]
    digest = sha256(b"veen/control\x00" + cbor2.dumps(record.to_tree()[:6])).digest()
    assert record.signing_digest() == digest
    VerifyKey(HUB.public).verify(digest, record.hub_sig)
    with pytest.raises(SignatureError, match="control record 2"):
        record.verify(ISSUER.public)


def test_every_single_bit_flip_is_refused():
    """D-46: by the reader or by `verify`; all bits of a record that carries a token."""
    data = journal([CapAuthorize.of(TOKEN)])[0].to_bytes()
    ControlRecord.from_bytes(data).verify(HUB.public)
    for flipped in single_bit_flips(data):
        with pytest.raises(VeenError):
            ControlRecord.from_bytes(flipped).verify(HUB.public)


@pytest.mark.parametrize("order", [(1,), (0, 2), (0, 0), (0, 1, 3), (1, 0), (0, 1, 1)])
def test_a_missing_repeated_or_misplaced_record_is_noticed(order):
    """D-46: seq rises by one from 1."""
    check(CHAIN)
    with pytest.raises(VerifyError, match="a record is missing"):
        check([CHAIN[index] for index in order])


def test_a_record_that_continues_another_past_is_noticed():
    """D-46: prev_hash; a hub that rewrites one record must rewrite all that follow."""
    other = journal([StreamRegister(stream_id=b"\xff" * 32)])
    with pytest.raises(VerifyError, match="record 2: does not continue"):
        check([*other, *CHAIN[1:]])
    resigned = ControlRecord.issue(HUB, None, CHAIN[0].body, hub_ts=CHAIN[0].hub_ts)
    check([resigned, *CHAIN[1:]])  # Ed25519 is deterministic: the same statement is the same record
    unsigned = replace(CHAIN[0], prev_hash=b"\x01" * 32, hub_sig=b"")
    first = replace(unsigned, hub_sig=HUB.sign(unsigned.signing_digest()))
    with pytest.raises(VerifyError, match="record 1: does not continue"):
        check([first])


def test_time_stands_still_or_advances():
    """D-28: hub_ts never decreases."""
    body = StreamRegister(stream_id=bytes(32))
    check(journal([body] * 3, times=[5, 5, 6]))
    with pytest.raises(VerifyError, match="record 3: its time lies before"):
        check(journal([body] * 3, times=[5, 6, 5]))


@pytest.mark.parametrize("kind", ["", "CAP.AUTHORIZE", "stream.register ", "policy.unheard"])
def test_an_unknown_kind_is_refused(kind):
    """D-46: state that is not understood must not be skipped."""
    tree = CHAIN[0].to_tree()
    tree[2] = kind
    with pytest.raises(MalformedError, match="unknown kind"):
        ControlRecord.from_bytes(cbor2.dumps(tree))


def test_a_body_must_be_of_its_kind():
    """D-46: the reader of one kind refuses the body of another that has other fields."""
    bodies = [
        CapAuthorize.of(TOKEN),
        StreamRegister(stream_id=bytes(32)),
        LimitsSet(limits=DEFAULT_LIMITS.to_json()),
        KeyRotate(hub_pk=bytes(32), valid_from=1, retired_pk=bytes(32), retired_until=2),
    ]
    for body in bodies:
        tree = journal([body])[0].to_tree()
        for kind in BODIES:
            tree[2] = kind
            if kind == body.KIND:
                assert ControlRecord.from_bytes(cbor2.dumps(tree)).body == body
            else:
                with pytest.raises(MalformedError):
                    ControlRecord.from_bytes(cbor2.dumps(tree))


def test_there_is_a_strategy_for_every_kind():
    """A kind that is added without one would go untested."""
    assert set(BODIES.values()) == set(strategies.BODIES)


def test_the_registry_travels_through_the_journal():
    """D-75"""
    limits = Limits(max_msg_bytes=4096, compression="zlib")
    record = ControlRecord.from_bytes(journal([LimitsSet(limits=limits.to_json())])[0].to_bytes())
    assert isinstance(record.body, LimitsSet)
    assert Limits.from_json(record.body.limits) == limits


def test_an_authorisation_gives_back_the_token_it_is_about():
    """spec §6.1: token bytes, auth_ref and hash of the bytes."""
    body = CapAuthorize.of(TOKEN)
    assert body.check() == TOKEN
    assert body.token == TOKEN.to_bytes()
    assert body.auth_ref == TOKEN.auth_ref()
    assert body.token_hash == sha256(TOKEN.to_bytes()).digest()


def test_an_authorisation_about_other_bytes_is_refused():
    """spec §6.1"""
    body, other = CapAuthorize.of(TOKEN), CapAuthorize.of(TOKEN.renew(ISSUER))
    for wrong in (
        replace(body, auth_ref=other.auth_ref),
        replace(body, token_hash=other.token_hash),
        replace(body, token=other.token),
    ):
        with pytest.raises(VerifyError, match="does not match the token"):
            wrong.check()
    for damaged in (b"", body.token[:-1], body.token + b"\x00"):
        with pytest.raises(FormatError):
            replace(body, token=damaged).check()


@pytest.mark.parametrize("field", ["prev_hash", "hub_sig"])
def test_byte_strings_have_their_exact_size(field):
    """D-46"""
    with pytest.raises(FieldSizeError, match=field):
        replace(CHAIN[0], **{field: b"short"}).to_bytes()
