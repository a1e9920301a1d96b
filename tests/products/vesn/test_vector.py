"""The vector of 002 §20: frozen bytes, checked by code that shares nothing with the module."""

import hashlib
import json
from pathlib import Path

import cbor2
import pyhpke
import pytest
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_decrypt
from nacl.signing import SigningKey
from tests.products.vesn import section_20 as vector

import vesn_verify
from veen.products.vesn.errors import Violation
from veen.products.vesn.ledger import new_mmr
from veen.products.vesn.logcheck import check_entry, check_payload
from veen.products.vesn.objects import Msg, Receipt
from veen.products.vesn.portability import encode_set
from veen.products.vesn.sealing import open_payload

FILE = Path(__file__).parents[2] / "vectors" / "vesn-v0.0.1.json"
GOLDEN = {name: bytes.fromhex(value) for name, value in json.loads(FILE.read_text("utf-8")).items()}
SUITE = pyhpke.CipherSuite.new(
    pyhpke.KEMId.DHKEM_X25519_HKDF_SHA256, pyhpke.KDFId.HKDF_SHA256, pyhpke.AEADId.CHACHA20_POLY1305
)


def h(data):
    return hashlib.sha256(data).digest()


def ht(tag, data):
    return h(tag.encode() + b"\x00" + data)


@pytest.mark.req("VESN-17")
def test_the_module_makes_the_frozen_bytes():
    assert vector.section_20() == GOLDEN


@pytest.mark.req("VESN-17", "VESN-02", "VESN-03", "VESN-04", "VESN-05")
def test_every_value_follows_from_the_text_alone():
    """D-118 gives the seeds; everything else is 002, computed here with hashlib, cbor2, PyNaCl and pyhpke"""
    client, hub = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
    profile = {
        "aead": "xchacha20poly1305",
        "kdf": "hkdf-sha256",
        "sig": "ed25519",
        "dh": "x25519",
        "epoch_sec": 0,
        "pad_block": 0,
        "mmr_hash": "sha256",
    }
    profile_id = ht("vesn/profile", cbor2.dumps(profile, canonical=True))
    label = ht("vesn/label", bytes(32) + h(b"test") + bytes(8))
    assert (GOLDEN["profile_id"], GOLDEN["label"]) == (profile_id, label)
    client_id = bytes(client.verify_key)
    ciphertext = GOLDEN["ciphertext"]
    msg = {
        "ver": 1,
        "profile_id": profile_id,
        "label": label,
        "client_id": client_id,
        "client_seq": 1,
        "prev_ack": 0,
        "ct_hash": h(ciphertext),
        "ciphertext": ciphertext,
    }
    sig = client.sign(ht("vesn/sig", cbor2.dumps(msg, canonical=True))).signature
    assert GOLDEN["msg"] == cbor2.dumps({**msg, "sig": sig}, canonical=True)
    leaf = ht("vesn/leaf", h(ciphertext) + client_id + (1).to_bytes(8, "big"))
    assert GOLDEN["msg_id"] == GOLDEN["leaf_hash"] == leaf
    receipt = {
        "ver": 1,
        "label": label,
        "stream_seq": 1,
        "leaf_hash": leaf,
        "mmr_root": ht("vesn/mmr-root", leaf),
        "hub_ts": 0,
    }
    hub_sig = hub.sign(ht("vesn/sig", cbor2.dumps(receipt, canonical=True))).signature
    assert GOLDEN["receipt"] == cbor2.dumps({**receipt, "hub_sig": hub_sig}, canonical=True)


@pytest.mark.req("VESN-17", "VESN-07")
def test_another_hpke_opens_the_ciphertext():
    """D-116: the framing of 001, empty associated data"""
    ciphertext = GOLDEN["ciphertext"]
    enc, hdr_len, body_len = ciphertext[:32], *(int.from_bytes(ciphertext[at : at + 4], "big") for at in (32, 36))
    assert len(ciphertext) == 40 + hdr_len + body_len
    context = SUITE.create_recipient_context(enc, SUITE.kem.deserialize_private_key(b"\x03" * 32))
    header = context.open(ciphertext[40 : 40 + hdr_len], b"")
    assert cbor2.loads(header) == {"schema": h(b"chat.v1")}
    nonce = ht("vesn/nonce", GOLDEN["label"] + bytes(8) + GOLDEN["client_id"] + (1).to_bytes(8, "big"))[:24]
    key = context.export(b"vesn/body-k", 32)
    assert crypto_aead_xchacha20poly1305_ietf_decrypt(ciphertext[40 + hdr_len :], b"", nonce, key) == b""


@pytest.mark.req("VESN-17", "VESN-12")
def test_the_invariants_hold_for_the_vector():
    msg, receipt = Msg.from_bytes(GOLDEN["msg"]), Receipt.from_bytes(GOLDEN["receipt"])
    profiles = {vector.PROFILE.profile_id(): vector.PROFILE}
    check_entry(receipt, msg, mmr=new_mmr(), hub_pks=[vector.HUB_PK], profiles=profiles)
    opened = open_payload(vector.RECEIVER_SK, msg)
    assert opened.body == b""
    check_payload(opened.hdr, stream_id=GOLDEN["stream_id"], first_used_at=0, hub_ts=0)
    with pytest.raises(Violation):
        check_entry(receipt, msg, mmr=new_mmr(), hub_pks=[GOLDEN["client_id"]], profiles=profiles)


@pytest.mark.req("VESN-17")
def test_the_second_verifier_accepts_the_vector():
    files = encode_set(receipts=[Receipt.from_bytes(GOLDEN["receipt"])], payloads=[Msg.from_bytes(GOLDEN["msg"])])
    assert vesn_verify.verify(files, [vector.HUB_PK], [], [0]) == 1
