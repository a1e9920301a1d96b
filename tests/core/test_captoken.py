"""cap_token: spec §6, §6.1, D-43 … D-50."""

from dataclasses import replace
from hashlib import sha256
from itertools import pairwise

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey as NaclKey
from nacl.signing import VerifyKey
from tests.core import strategies
from tests.core.strategies import single_bit_flips

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import CapabilityError, FieldSizeError, MalformedError, VeenError
from veen.core.limits import Limits
from veen.core.objects.captoken import Allow, CapToken, Rate

ISSUER, OTHER = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
SUBJECT = SigningKey(b"\x03" * 32).public
STREAMS = [bytes((n,)) * 32 for n in (0x00, 0x7F, 0x80, 0xFF)]


def issue(stream_ids=STREAMS, *, ttl=3600, rate=None):
    return CapToken.issue(ISSUER, SUBJECT, stream_ids, ttl=ttl, rate=rate)


def tree_with(**changes):
    """A token as it stands on the wire, with members of token or allow replaced."""
    token = issue(rate=Rate(per_sec=1, burst=2)).to_tree()
    keys = {"ver": 1, "issuer_pk": 2, "subject_pk": 3, "allow": 4, "sig_chain": 5}
    allow_keys = {"stream_ids": 1, "ttl": 2, "rate": 3}
    for name, value in changes.items():
        if name in keys:
            token[keys[name]] = value
        else:
            token[4][allow_keys[name]] = value
    return token


def read(tree):
    return CapToken.from_bytes(cbor2.dumps(tree))


# --- shape --------------------------------------------------------------------------------------------------


@pytest.mark.req("CAP-01", "CBOR-08")
def test_a_token_is_the_three_maps_of_the_spec():
    """spec §6"""
    token = issue(rate=Rate(per_sec=10, burst=20))
    tree = {1: 1, 2: ISSUER.public, 3: SUBJECT, 4: {1: STREAMS, 2: 3600, 3: {1: 10, 2: 20}}, 5: [*token.sig_chain]}
    assert token.to_bytes() == cbor2.dumps(tree)
    assert read(tree) == token


@pytest.mark.req("CAP-03", "CBOR-05")
def test_an_absent_rate_is_omitted_and_null_is_refused():
    """spec §6"""
    assert list(issue().to_tree()[4]) == [1, 2]
    assert read(issue().to_tree()).allow.rate is None
    with pytest.raises(MalformedError, match="rate"):
        read(tree_with(rate=None))


@pytest.mark.req("CAP-03", "CBOR-06")
def test_unknown_keys_are_refused_in_all_three_maps():
    """spec §6"""
    for tree in (
        {**tree_with(), 6: 0},
        tree_with(allow={1: STREAMS, 2: 0, 3: {1: 1, 2: 2}, 4: 0}),
        tree_with(rate={1: 1, 2: 2, 3: 3}),
        tree_with(rate={1: 1}),
        tree_with(rate={2: 2, 1: 1}),
        tree_with(allow={2: 0, 1: STREAMS}),
        tree_with(allow={1: STREAMS}),
    ):
        with pytest.raises(MalformedError):
            read(tree)


@pytest.mark.req("CAP-02", "CBOR-14")
@given(st.lists(strategies.BSTR32, min_size=1, max_size=6))
def test_stream_ids_must_ascend_without_duplicates(stream_ids):
    """spec §6: any order but that of the bytes, read unsigned from the left, is refused."""
    ascending = all(
        next(a < b for a, b in zip(left, right, strict=True) if a != b) if left != right else False
        for left, right in pairwise(stream_ids)
    )
    if ascending:
        assert read(tree_with(stream_ids=stream_ids)).allow.stream_ids == tuple(stream_ids)
    else:
        with pytest.raises(MalformedError, match="ascend"):
            read(tree_with(stream_ids=stream_ids))
    assert issue(stream_ids).allow.stream_ids == tuple(sorted(set(stream_ids)))  # minting puts them right


@pytest.mark.req("CAP-02")
def test_stream_ids_are_never_empty():
    """spec §6"""
    with pytest.raises(FieldSizeError, match="stream_ids"):
        read(tree_with(stream_ids=[]))
    with pytest.raises(FieldSizeError, match="stream_ids"):
        issue([])


def test_a_token_names_at_most_1024_streams():
    """D-49"""
    ids = [n.to_bytes(32, "big") for n in range(1025)]
    assert CapToken.from_bytes(issue(ids[:1024]).to_bytes()).allow.stream_ids == tuple(ids[:1024])
    with pytest.raises(FieldSizeError, match="1 to 1024"):
        issue(ids)
    with pytest.raises(FieldSizeError, match="1 to 1024"):
        read(tree_with(stream_ids=ids))


@pytest.mark.req("CAP-07", "LIM-04")
def test_a_chain_has_one_to_eight_links():
    """spec §14, D-43"""
    token = issue()
    for _ in range(7):
        token = token.renew(ISSUER)
    assert CapToken.from_bytes(token.to_bytes()) == token
    token.verify()
    with pytest.raises(CapabilityError, match="at most 8 links"):
        token.renew(ISSUER)
    nine = replace(token, sig_chain=(*token.sig_chain, ISSUER.sign(token._link_digest(token.sig_chain[-1]))))
    with pytest.raises(FieldSizeError, match="1 to 8"):
        nine.to_bytes()
    with pytest.raises(FieldSizeError, match="1 to 8"):
        read(nine.to_tree())


@pytest.mark.req("CAP-07")
def test_an_empty_chain_is_refused_on_every_way():
    """D-43: nobody has signed it."""
    unsigned = replace(issue(), sig_chain=())
    for attempt in (unsigned.to_bytes, unsigned.auth_ref, unsigned.verify, lambda: read(unsigned.to_tree())):
        with pytest.raises((FieldSizeError, CapabilityError)):
            attempt()


@pytest.mark.req("CBOR-09")
@pytest.mark.parametrize(
    "changes",
    [
        {"issuer_pk": bytes(31)},
        {"subject_pk": bytes(33)},
        {"stream_ids": [bytes(31)]},
        {"sig_chain": [bytes(63)]},
        {"sig_chain": [bytes(64), bytes(65)]},
    ],
)
def test_byte_strings_have_their_exact_size(changes):
    """spec §6"""
    with pytest.raises(FieldSizeError):
        read(tree_with(**changes))


# --- signatures ---------------------------------------------------------------------------------------------


@pytest.mark.req("CAP-05", "CAP-06")
def test_each_link_signs_the_token_and_the_link_before():
    """spec §6: computed here from the words of the spec, and verified with another library."""
    token = issue(rate=Rate(per_sec=1, burst=2)).renew(ISSUER).renew(ISSUER)
    unsigned = cbor2.dumps({key: value for key, value in token.to_tree().items() if key != 5})
    previous = bytes(64)
    for link in token.sig_chain:
        digest = sha256(b"veen/cap-link\x00" + unsigned + previous).digest()
        VerifyKey(ISSUER.public).verify(digest, link)
        assert NaclKey(ISSUER.seed).sign(digest).signature == link
        previous = link
    assert len(token.sig_chain) == 3
    token.verify()


@pytest.mark.req("CAP-06")
def test_links_of_others_out_of_order_or_missing_are_refused():
    """spec §6: all links verify under issuer_pk; the chain is a history, not a set."""
    token = issue().renew(ISSUER).renew(ISSUER)
    first, second, third = token.sig_chain
    foreign = OTHER.sign(token._link_digest(first))
    for number, chain in (
        (1, (second,)),
        (1, (second, first)),
        (2, (first, third)),
        (2, (first, first)),
        (2, (first, foreign)),
        (3, (first, second, second)),
    ):
        with pytest.raises(CapabilityError, match=f"link {number}"):
            replace(token, sig_chain=chain).verify()


@pytest.mark.req("CAP-06")
def test_only_the_issuer_can_renew():
    """spec §6: v0.0.1 does not define delegation."""
    for other in (OTHER, SigningKey(b"\x03" * 32)):  # a stranger, and the subject itself
        with pytest.raises(CapabilityError, match="only the issuer"):
            issue().renew(other)
    with pytest.raises(CapabilityError, match="link 1"):
        replace(issue(), issuer_pk=OTHER.public).verify()


def test_every_single_bit_flip_is_refused():
    """spec §6: by the reader or by `verify`; all bits of one token with two links."""
    data = issue(STREAMS[:1], rate=Rate(per_sec=1, burst=2)).renew(ISSUER).to_bytes()
    CapToken.from_bytes(data).verify()
    for flipped in single_bit_flips(data):
        with pytest.raises(VeenError):
            CapToken.from_bytes(flipped).verify()


# --- auth_ref, minting and renewal --------------------------------------------------------------------------


@pytest.mark.req("CAP-04", "CAP-18")
def test_auth_ref_is_the_tagged_hash_of_the_exact_bytes():
    """spec §6"""
    token = issue()
    assert token.auth_ref() == sha256(b"veen/cap\x00" + token.to_bytes()).digest()


@pytest.mark.req("CAP-18")
@given(strategies.CAP_TOKEN, strategies.CAP_TOKEN)
def test_one_auth_ref_names_one_token(one, other):
    """spec §6.1: bound to a unique representation, so equal references mean equal bytes."""
    assert (one.auth_ref() == other.auth_ref()) == (one.to_bytes() == other.to_bytes()) == (one == other)


@pytest.mark.req("CAP-15", "TS0-02")
def test_minting_is_deterministic():
    """spec §6.1: the order in which streams are given, and repetition, change nothing."""
    assert issue().to_bytes() == issue(STREAMS[::-1] + STREAMS).to_bytes()
    assert issue().to_bytes() != issue(ttl=3601).to_bytes()


def test_renewal_gives_a_new_auth_ref_that_verifies():
    """D-44"""
    token = issue()
    renewed = token.renew(ISSUER)
    assert renewed.auth_ref() != token.auth_ref()
    assert replace(renewed, sig_chain=token.sig_chain) == token
    renewed.verify()
    assert CapToken.from_bytes(renewed.to_bytes()) == renewed


# --- time and rate ------------------------------------------------------------------------------------------


@pytest.mark.req("CAP-09")
@given(st.integers(0, 2**63), st.integers(0, 2**64 - 1), st.integers(0, 2**63))
def test_a_token_lives_to_the_last_second_of_its_ttl(issued_at, ttl, hub_ts):
    """spec §6: hub_ts <= issued_at + ttl"""
    token = CapToken(
        issuer_pk=bytes(32), subject_pk=bytes(32), allow=Allow(stream_ids=(bytes(32),), ttl=ttl), sig_chain=()
    )
    assert token.is_live(issued_at=issued_at, hub_ts=hub_ts) == (hub_ts <= issued_at + ttl)


@pytest.mark.req("CAP-09")
def test_the_end_of_a_ttl_is_inclusive_also_for_zero():
    """D-48: ttl = 0 is legal and lasts that second."""
    token = issue(ttl=60)
    assert token.is_live(issued_at=100, hub_ts=160)
    assert not token.is_live(issued_at=100, hub_ts=161)
    brief = CapToken.from_bytes(issue(ttl=0).to_bytes())
    assert brief.is_live(issued_at=100, hub_ts=100)
    assert not brief.is_live(issued_at=100, hub_ts=101)


@given(st.none() | strategies.RATE, st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_effective_rate_is_the_lower_of_token_and_registry(rate, per_sec, burst):
    """D-50: absent means the registry's maxima; a token can lower them, never raise."""
    limits = Limits(max_cap_rate_per_sec=per_sec, max_cap_rate_burst=burst)
    effective = Allow(stream_ids=(bytes(32),), ttl=0, rate=rate).bucket(limits)
    if rate is None:
        assert effective == (per_sec, burst)
    else:
        assert effective == (min(rate.per_sec, per_sec), min(rate.burst, burst))


def test_a_rate_of_zero_stays_zero():
    """D-50: zero is a rate, not the absence of one."""
    allow = Allow(stream_ids=(bytes(32),), ttl=0, rate=Rate(per_sec=0, burst=0))
    assert allow.bucket(Limits()) == (0, 0)
