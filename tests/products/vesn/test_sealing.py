"""Keys of a VESN endpoint: payloads, rekey chain, rotation, keystore (002 §3, §6, §9.1, §10, §15)."""

import hmac
from dataclasses import replace

import pytest
from tests.products.vesn import log_builders as w

from veen.core.errors import OpenError
from veen.core.hashing import H
from veen.products.vesn.errors import Violation
from veen.products.vesn.ledger import att_root_of
from veen.products.vesn.objects import IdentityCard, Profile
from veen.products.vesn.sealing import (
    ROTATE_AFTER,
    Keystore,
    direction_keys,
    needs_rotation,
    next_rk,
    open_attachment,
    open_payload,
)


def hkdf(ikm, info):
    """RFC 5869 with an empty salt and one block."""
    prk = hmac.digest(bytes(32), ikm, "sha256")
    return hmac.digest(prk, info + b"\x01", "sha256")


@pytest.mark.req("VESN-14")
def test_the_rekey_chain():
    """002 §9.1 e"""
    rk = next_rk(bytes(32), 7)
    assert rk == hkdf(bytes(32), b"vesn/rk" + (7).to_bytes(8, "big"))
    assert next_rk(bytes(32), 8) != rk
    assert direction_keys(rk) == (hkdf(rk, b"vesn/send"), hkdf(rk, b"vesn/recv"))


@pytest.mark.req("VESN-14")
def test_a_client_id_is_rotated_each_epoch_or_after_256_messages():
    """002 §3"""
    assert ROTATE_AFTER == 256
    assert not needs_rotation(epoch_sec=60, key_epoch=5, epoch=5, messages=10_000)
    assert needs_rotation(epoch_sec=60, key_epoch=5, epoch=6, messages=1)
    assert not needs_rotation(epoch_sec=0, key_epoch=0, epoch=0, messages=255)
    assert needs_rotation(epoch_sec=0, key_epoch=0, epoch=0, messages=256)


@pytest.mark.req("VESN-07", "VESN-10")
def test_header_body_and_attachments_come_back():
    msg, sealed = w.message(
        w.CLIENT, 3, at=w.label(1), prev_ack=2, body=b"hello", attachments=[b"one", b"two"], cap_ref=w.TOKEN.cap_ref()
    )
    opened = open_payload(w.READER_SK, msg)
    assert opened.body == b"hello"
    assert opened.hdr.cap_ref == w.TOKEN.cap_ref()
    assert opened.hdr.att_root == att_root_of([H(blob) for blob in sealed])
    assert [open_attachment(w.READER_SK, msg, index, blob) for index, blob in enumerate(sealed)] == [b"one", b"two"]
    with pytest.raises(OpenError):
        open_attachment(w.READER_SK, msg, 1, sealed[0])
    for changed in (
        replace(msg, client_seq=4),
        replace(msg, ciphertext=msg.ciphertext[:-1]),
        replace(msg, ciphertext=msg.ciphertext + b"\x01"),
        replace(msg, ciphertext=msg.ciphertext[:39]),
        replace(msg, ciphertext=msg.ciphertext[:32] + b"\xff" * 8 + msg.ciphertext[40:]),
        replace(msg, ciphertext=bytes(32) + msg.ciphertext[32:]),
    ):
        with pytest.raises(OpenError):
            open_payload(w.READER_SK, changed)


@pytest.mark.req("VESN-18")
def test_padding_is_zeros_up_to_the_block_and_is_hashed():
    """002 §18"""
    msg, _ = w.message(w.CLIENT, 1, at=w.label(1), body=b"x", profile=Profile(pad_block=256))
    assert len(msg.ciphertext) == 256
    assert msg.ciphertext.endswith(bytes(50))
    assert msg.ct_hash == H(msg.ciphertext)
    assert open_payload(w.READER_SK, msg).body == b"x"


def test_the_keystore_opens_with_its_passphrase_only_and_shows_damage_without_it():
    card = IdentityCard.issue(w.OWNER, w.READER_PK)
    keystore = Keystore.from_bytes(w.KEYSTORE.to_bytes())
    keystore.verify(card.id_sign_pk)
    assert keystore.open(w.PASSPHRASE).id_sign_sk == w.OWNER.seed
    with pytest.raises(OpenError):
        keystore.open("wrong")
    with pytest.raises(OpenError):
        replace(keystore, sealed=keystore.sealed[:-1] + b"\x00").open(w.PASSPHRASE)
    with pytest.raises(Violation):
        replace(keystore, nonce=b"\x01" * 24).verify(card.id_sign_pk)
