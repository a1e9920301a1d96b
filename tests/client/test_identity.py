"""Identities and their client keys (spec-1 §3, KEX0.2, D-102a)."""

import contextlib
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import NOW, HubLog, identity, message, seeded

from veen.client.errors import NameInvalid
from veen.client.identity.identity import MAX_CLIENT_KEYS, ClientKey, Identity, check_name
from veen.core.crypto.ed25519 import SigningKey

ALICE = identity()


@pytest.mark.req("CRY-18")
def test_a_new_identity_has_a_signing_key_a_dh_key_and_one_client_key_all_different():
    keys = [ALICE.id_sign.seed, ALICE.dh_sk, ALICE.client_key.key.seed]
    assert len(set(keys)) == 3
    assert all(len(key) == 32 for key in keys)
    assert ALICE.client_key.generation == 1
    assert ALICE.client_key.created_at == NOW
    assert Identity.create("alice", now=NOW) != ALICE  # drawn anew unless a test says otherwise


@pytest.mark.req("KEX0-04")
def test_rotation_gives_a_new_client_key_and_keeps_who_we_are():
    rotated = ALICE.with_new_client_key(NOW + 5, random=seeded("next"))
    assert rotated.client_id != ALICE.client_id
    assert (rotated.client_key.generation, rotated.client_key.created_at) == (2, NOW + 5)
    assert (rotated.id_sign, rotated.dh_sk, rotated.card_id) == (ALICE.id_sign, ALICE.dh_sk, ALICE.card_id)
    assert rotated.client_key_of(ALICE.client_id) == ALICE.client_key
    assert rotated.client_key_of(bytes(32)) is None


@pytest.mark.req("KEX0-04", "CRY-19")
def test_a_message_carries_the_client_key_and_nothing_of_the_identity_or_of_the_key_before():
    rotated = ALICE.with_new_client_key(NOW, random=seeded("next"))
    label = HubLog().label("room")
    for sender in (ALICE, rotated):
        data = message(sender.client_key.key, label, 1).to_bytes()
        assert sender.client_id in data
        for hidden in (ALICE.id_sign_pk, ALICE.dh_pk, b"alice"):
            assert hidden not in data
    assert ALICE.client_id not in message(rotated.client_key.key, label, 1).to_bytes()


def test_the_oldest_client_keys_go_when_there_are_too_many():
    key = SigningKey(bytes(32))
    many = tuple(ClientKey(key=key, created_at=0, generation=number) for number in range(1, MAX_CLIENT_KEYS + 1))
    rotated = replace(ALICE, client_keys=many).with_new_client_key(NOW)
    assert len(rotated.client_keys) == MAX_CLIENT_KEYS
    assert rotated.client_keys[0].generation == 2
    assert rotated.client_key.generation == MAX_CLIENT_KEYS + 1


def test_no_secret_is_shown():
    shown = f"{ALICE!r} {ALICE} {ALICE.client_key!r} {ALICE.client_keys} {ALICE.id_sign!r}"
    assert ALICE.card_id in shown
    assert "alice" in shown
    for secret in (ALICE.id_sign.seed, ALICE.dh_sk, ALICE.client_key.key.seed):
        assert secret.hex() not in shown
        assert repr(secret) not in shown


def test_an_identity_is_a_value():
    assert pickle.loads(pickle.dumps(ALICE)) == ALICE  # noqa: S301 - our own bytes
    with pytest.raises(AttributeError):
        ALICE.name = "mallory"  # type: ignore[misc]  # that is the point
    with pytest.raises(ValueError, match="client keys"):
        replace(ALICE, client_keys=())
    with pytest.raises(ValueError, match="without gaps"):
        replace(ALICE, client_keys=(ALICE.client_key, replace(ALICE.client_key, generation=3)))


@pytest.mark.parametrize("name", ["a", "alice", "ci-runner_7.dev", "A" * 64, "0"])
def test_plain_names_are_good(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "-x", "a/b", "a\\b", "a b", "é", "a" * 65, "a\n", "a\x00"])
def test_names_that_could_leave_the_directory_or_confuse_are_refused(name):
    with pytest.raises(NameInvalid):
        check_name(name)
    with pytest.raises(NameInvalid):
        identity(name)


@given(st.text(max_size=70))
def test_a_good_name_is_a_single_part_of_a_path(name):
    with contextlib.suppress(NameInvalid):
        check_name(name)
        assert not set(name) & set("/\\\x00 \n")
        assert name not in (".", "..")
