"""Prekeys of an identity and of others (KEX0.2, D-102)."""

from dataclasses import replace

import pytest
from tests.client.builders import NOW, identity, seeded

from veen.client.errors import CardInvalid, PrekeyExpired
from veen.client.home import Home
from veen.client.identity.identity import (
    MAX_PREKEYS,
    PREKEY_KEEP_SEC,
    PREKEY_TTL_SEC,
    PrekeySecret,
    check_prekey,
    current,
    recent_prekeys,
)
from veen.client.identity.keystore import create_identity, open_identity
from veen.core.crypto import hpke, x25519
from veen.core.objects.card import Prekey

ALICE, BOB = identity("alice"), identity("bob")
MINE = PrekeySecret.create(ALICE, now=NOW, random=seeded("mine"))


@pytest.mark.req("KEX0-05", "CRY-18")
def test_a_prekey_is_signed_by_the_identity_and_expires():
    assert MINE.prekey.id_sign_pk == ALICE.id_sign_pk
    assert MINE.prekey.prekey_pk == x25519.public_key(MINE.sk)
    assert MINE.prekey.expires_at == NOW + PREKEY_TTL_SEC
    assert check_prekey(MINE.prekey, ALICE.card(), NOW) == MINE.prekey.prekey_pk


@pytest.mark.req("KEX0-05")
def test_nothing_is_sealed_to_an_expired_or_forged_prekey():
    expires = MINE.prekey.expires_at
    assert check_prekey(MINE.prekey, ALICE.card(), expires)
    with pytest.raises(PrekeyExpired, match="7 s ago"):
        check_prekey(MINE.prekey, ALICE.card(), expires + 7)
    with pytest.raises(CardInvalid, match="another identity than 'bob'"):
        check_prekey(MINE.prekey, BOB.card(), NOW)
    with pytest.raises(CardInvalid, match="does not verify"):
        check_prekey(replace(MINE.prekey, expires_at=2**60), ALICE.card(), NOW)
    taken_over = Prekey.issue(BOB.id_sign, MINE.prekey.prekey_pk, expires_at=expires)
    with pytest.raises(CardInvalid):
        check_prekey(replace(taken_over, id_sign_pk=ALICE.id_sign_pk), ALICE.card(), NOW)


@pytest.mark.req("KEX0-05")
def test_an_expired_prekey_still_opens_what_was_sealed_to_it_before():
    newer = PrekeySecret.create(ALICE, now=NOW + PREKEY_TTL_SEC, random=seeded("newer"))
    enc, sender = hpke.setup_sender(MINE.prekey.prekey_pk, bytes(32))
    sealed = sender.seal(b"aad", b"an old message")
    after = NOW + PREKEY_TTL_SEC + 1
    secrets = (MINE, newer)
    assert current(secrets, after) == newer
    assert hpke.setup_receiver(enc, MINE.sk).open(b"aad", sealed) == b"an old message"


def test_the_one_that_lasts_longest_is_handed_out():
    short = PrekeySecret.create(ALICE, now=NOW, ttl_sec=10, random=seeded("short"))
    assert current([short, MINE], NOW) == current([MINE, short], NOW) == MINE
    assert current([short], NOW + 10) == short
    assert current([short], NOW + 11) is None
    assert current([], NOW) is None


def test_the_oldest_go_when_there_are_too_many():
    many = [replace(MINE, prekey=replace(MINE.prekey, expires_at=number)) for number in range(MAX_PREKEYS + 5)]
    remaining = recent_prekeys(reversed(many), 0)
    assert [secret.prekey.expires_at for secret in remaining] == list(range(5, MAX_PREKEYS + 5))


def test_the_secret_half_goes_some_months_after_the_prekey_expired(tmp_path):
    """Kept for 17 years, expiry gave no forward secrecy."""
    end = MINE.prekey.expires_at + PREKEY_KEEP_SEC
    assert recent_prekeys([MINE], end) == (MINE,)
    assert recent_prekeys([MINE], end + 1) == ()
    keystore = create_identity(Home.at(tmp_path), "bob", None, now=NOW)
    (first,) = keystore.secrets.prekeys
    keystore.rotate(first.prekey.expires_at + PREKEY_KEEP_SEC + 1)
    assert first not in open_identity(Home.at(tmp_path), "bob", None).secrets.prekeys


def test_no_secret_is_shown():
    assert MINE.sk.hex() not in repr(MINE)
    assert repr(MINE.sk) not in repr(MINE)
