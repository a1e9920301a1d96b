"""Invitations: opened by whom they are for, and by nobody else; each way to be wrong has its own error."""

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import CHEAP, NOW, identity, seeded

from veen.client.errors import (
    InviteConflict,
    InviteDamaged,
    InviteError,
    InviteExpired,
    InviteForAnother,
    InviteTruncated,
    NotAnInvite,
    UnknownStream,
    WrongCode,
)
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.passphrases import Kdf
from veen.client.invites import CODE_BITS, PREFIX, Invitation, SealedInvite, new_code, normal_code
from veen.core.objects.captoken import CapToken

ALICE, BOB, CAROL = (identity(name) for name in ("alice", "bob", "carol"))
KEYS = StreamKeys.create("orders", owner_pk=ALICE.id_sign_pk, random=seeded("orders"))
TOKEN = CapToken.issue(ALICE.id_sign, BOB.client_id, [KEYS.stream_id], ttl=60)
CODE = new_code(seeded("code"))


def invitation(**changes):
    fields = {
        "hub": "https://hub.example:8443",
        "pin": f"ed25519:{'a' * 64}",
        "hub_id": b"h" * 32,
        "ca_pem": b"-----BEGIN CERTIFICATE-----",
        "keys": (KEYS,),
        "token": TOKEN,
        "inviter": ALICE.card(),
        "context": "team",
        "invite_seed": b"s" * 32,
        "expires_at": NOW + 60,
        **changes,
    }
    return Invitation(**fields).sign(ALICE)


FOR_BOB = SealedInvite.for_card(invitation(), BOB.card(), random=seeded("card"))
BY_CODE = SealedInvite.for_code(invitation(), CODE, kdf=CHEAP, random=seeded("by code"))


def test_what_was_put_in_comes_out_for_a_card_and_for_a_code():
    for sealed in (FOR_BOB, BY_CODE):
        read = SealedInvite.from_text(f" {sealed.to_text()}\n")
        assert read == sealed
        assert read.open(NOW, identities=[CAROL, BOB], code=CODE) == invitation()


def test_no_secret_stands_outside():
    for sealed in (FOR_BOB, BY_CODE):
        data = sealed.to_bytes()
        for secret in (KEYS.secret(), KEYS.reader_pk, b"hub.example", b"s" * 32, normal_code(CODE).encode()):
            assert secret not in data
    assert KEYS.secret().hex() not in repr(invitation())


def test_a_code_has_eighty_bits_and_may_be_typed_in_any_way():
    assert CODE_BITS == 80
    assert len(normal_code(CODE)) * 5 == CODE_BITS
    assert len({new_code() for _ in range(100)}) == 100
    for typed in (CODE.lower(), CODE.replace("-", " "), CODE.replace("0", "o"), f"  {CODE}\n"):
        assert BY_CODE.open(NOW, code=typed) == invitation()


@pytest.mark.parametrize("code", [None, "", "AAAA-AAAA-AAAA-AAAA", CODE[:-1], CODE + "A"])
def test_a_wrong_code_is_told_as_that(code):
    with pytest.raises(WrongCode):
        BY_CODE.open(NOW, code=code)


def test_somebody_elses_invitation_is_told_as_that():
    with pytest.raises(InviteForAnother, match=BOB.card_id):
        FOR_BOB.open(NOW, identities=[CAROL])
    posing = replace(FOR_BOB, card_id=bytes.fromhex(CAROL.card_id))
    with pytest.raises(InviteDamaged):
        posing.open(NOW, identities=[CAROL])


def test_an_expired_invitation_is_refused_and_its_time_cannot_be_changed():
    for sealed in (FOR_BOB, BY_CODE):
        assert sealed.open(NOW + 60, identities=[BOB], code=CODE) == invitation()
        with pytest.raises(InviteExpired):
            sealed.open(NOW + 61, identities=[BOB], code=CODE)
        with pytest.raises(InviteDamaged):
            replace(sealed, expires_at=NOW + 1_000).open(NOW + 61, identities=[BOB], code=CODE)


@pytest.mark.parametrize(
    "text", ["", "hello", "veen1qqqq", KEYS.to_text(), "veen-evidence", "-----BEGIN CERTIFICATE-----"]
)
def test_another_kind_of_text_is_told_as_that(text):
    with pytest.raises(NotAnInvite):
        SealedInvite.from_text(text)


def test_another_file_behind_the_same_prefix_is_told_as_that():
    with pytest.raises(NotAnInvite):
        SealedInvite.from_text(PREFIX + base64.urlsafe_b64encode(b"something else entirely").decode())


def test_every_truncation_is_told_as_a_truncation():
    text = FOR_BOB.to_text()
    for length in range(1, len(text)):
        with pytest.raises(InviteTruncated):
            SealedInvite.from_text(text[:length])


def test_the_last_character_has_no_second_form():
    """Its unused bits say nothing about the bytes, so another character could stand for the same ones."""
    text = FOR_BOB.to_text()
    for char in set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") - {text[-1]}:
        with pytest.raises(InviteDamaged):
            SealedInvite.from_text(text[:-1] + char)


@given(st.data())
def test_no_change_of_a_character_goes_unnoticed(data):
    text = FOR_BOB.to_text()
    place = data.draw(st.integers(0, len(text) - 1))
    char = data.draw(st.sampled_from("ABCxyz019-_."))
    changed = text[:place] + char + text[place + 1 :]
    if changed == text:
        return
    with pytest.raises(InviteError):
        SealedInvite.from_text(changed).open(NOW, identities=[BOB])


@given(st.text(max_size=200))
def test_any_text_ends_in_a_named_error(text):
    for candidate in (text, PREFIX + text):
        with pytest.raises(InviteError):
            SealedInvite.from_text(candidate)


def test_a_hostile_cost_of_the_code_is_refused_before_it_is_paid():
    for memory_kib, passes in ((Kdf.MAX_MEMORY_KIB + 1, 1), (8, 10**6), (0, 1)):
        with pytest.raises(InviteDamaged):
            replace(BY_CODE, memory_kib=memory_kib, passes=passes).open(NOW, code=CODE)


def test_an_invitation_that_the_inviter_did_not_sign_is_refused():
    forged = replace(invitation(), hub="https://evil.example", sig=CAROL.id_sign.sign(b"x" * 32))
    with pytest.raises(InviteDamaged, match="signed"):
        SealedInvite.for_card(forged, BOB.card()).open(NOW, identities=[BOB])
    bad_pin = invitation(pin="ed25519:12")
    with pytest.raises(InviteDamaged):
        SealedInvite.for_card(bad_pin, BOB.card()).open(NOW, identities=[BOB])


HUB, OTHER_HUB = b"\x11" * 32, b"\x22" * 32


def test_the_keys_are_added_and_another_owner_is_a_conflict():
    ring = invitation().add_to(Keyring(), HUB)
    assert ring.for_stream("orders").can_read
    theirs = StreamKeys.create("orders", owner_pk=CAROL.id_sign_pk)
    with pytest.raises(InviteConflict):
        invitation().add_to(Keyring().with_keys(theirs), HUB)


@pytest.mark.parametrize("owner", ["nobody", "the inviter's victim"])
def test_another_key_of_a_stream_that_one_has_is_a_conflict_and_nothing_is_replaced(owner):
    """The next message at the right hub would be sealed to the attacker."""
    owner_pk = None if owner == "nobody" else ALICE.id_sign_pk
    mine = Keyring().with_keys(StreamKeys.create("orders", owner_pk=owner_pk))
    evil = StreamKeys.create("orders", owner_pk=owner_pk)
    sent = replace(invitation(keys=(evil,)), inviter=CAROL.card()).sign(CAROL)
    with pytest.raises(InviteConflict, match="other keys"):
        sent.add_to(mine, HUB)


def test_the_known_owner_may_bring_another_generation():
    """D-183."""
    first = StreamKeys.create("orders", owner_pk=ALICE.id_sign_pk)
    second = replace(StreamKeys.create("orders", owner_pk=ALICE.id_sign_pk), gen=1)
    ring = invitation(keys=(second, first)).add_to(Keyring().with_keys(first), HUB)
    assert [keys.generation for keys in ring.at(HUB).readers("orders")] == [1, 0]


def test_keys_of_an_invitation_are_used_at_its_hub_and_at_no_other():
    ring = invitation().add_to(Keyring(), OTHER_HUB)
    assert ring.at(OTHER_HUB).for_stream("orders").can_read
    with pytest.raises(UnknownStream):
        ring.at(HUB).for_stream("orders")
    here = StreamKeys.create("orders", owner_pk=BOB.id_sign_pk)
    both = invitation().add_to(Keyring().with_keys(here).bind("orders", HUB), OTHER_HUB)
    assert both.at(HUB).for_stream("orders").reader_pk == here.reader_pk
    assert both.at(OTHER_HUB).for_stream("orders").reader_pk != here.reader_pk
    assert len(both.entries) == 2
    assert Keyring(both.entries) == both


def test_the_rights_are_those_that_were_given():
    """walk A1: a reading invitation said "read and write"."""
    limited = replace(invitation(), rights="read").sign(ALICE)
    opened = SealedInvite.for_card(limited, BOB.card()).open(NOW, identities=[BOB])
    assert opened.rights_text == "read"
    assert replace(opened, rights=None).rights_text == "read and write"
