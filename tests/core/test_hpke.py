"""HPKE base mode: the vectors of RFC 9180, and another implementation as oracle."""

import json
from pathlib import Path

import pyhpke
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.crypto import hpke, x25519
from veen.core.errors import InvalidKeyError, OpenError

VECTOR_FILE = Path(__file__).parents[1] / "vectors" / "hpke-rfc9180-base-x25519-chacha20poly1305.json"
[VECTOR] = json.loads(VECTOR_FILE.read_text("utf-8"))["vectors"]
ORACLE = pyhpke.CipherSuite.new(
    pyhpke.KEMId.DHKEM_X25519_HKDF_SHA256, pyhpke.KDFId.HKDF_SHA256, pyhpke.AEADId.CHACHA20_POLY1305
)
LOW_ORDER = [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")]

SK_R, PK_R = hpke.derive_key_pair(b"\x03" * 32)
IKM_E = b"\x04" * 32
ikms = st.binary(min_size=32, max_size=32)


def unhex(name: str) -> bytes:
    return bytes.fromhex(VECTOR[name])


def flips(data: bytes) -> list[bytes]:
    """Every way to turn one bit."""
    number = int.from_bytes(data, "big")
    return [(number ^ 1 << bit).to_bytes(len(data), "big") for bit in range(8 * len(data))]


# Laws


@pytest.mark.req("CRY-05")
@given(ikms, ikms, st.binary(), st.lists(st.tuples(st.binary(), st.binary()), max_size=4), st.booleans())
def test_the_receiver_opens_what_the_sender_seals_in_order(ikm_r, ikm_e, info, messages, pass_pk_r):
    """RFC 9180 §5.2"""
    sk_r, pk_r = hpke.derive_key_pair(ikm_r)
    enc, sender = hpke.setup_sender(pk_r, ikm_e, info)
    receiver = hpke.setup_receiver(enc, sk_r, info, pk_r=pk_r if pass_pk_r else None)
    for aad, pt in messages:
        assert receiver.open(aad, sender.seal(aad, pt)) == pt
    assert sender.export(b"veen/body-k", 32) == receiver.export(b"veen/body-k", 32)


@given(ikms, st.binary(max_size=40), st.integers(0, 100))
def test_exports_are_bound_to_setup_context_and_length(ikm_e, exporter_context, length):
    """RFC 9180 §5.3; spec §4.2 takes the body key from here"""
    _, sender = hpke.setup_sender(PK_R, ikm_e)
    _, same = hpke.setup_sender(PK_R, ikm_e)
    _, other_info = hpke.setup_sender(PK_R, ikm_e, b"x")
    exported = sender.export(exporter_context, 32)
    same.seal(b"", b"")
    assert same.export(exporter_context, 32) == exported  # sealing does not change what is exported
    assert other_info.export(exporter_context, 32) != exported
    assert sender.export(exporter_context + b"\x00", 32) != exported
    assert len(sender.export(exporter_context, length)) == length
    assert sender.export(exporter_context, 33)[:32] != exported  # the length is hashed as well


def test_every_setup_makes_another_key():
    """D-09: a fresh ephemeral for every message"""
    enc_1, first = hpke.setup_sender(PK_R, b"\x04" * 32)
    enc_2, two = hpke.setup_sender(PK_R, b"\x05" * 32)
    assert enc_1 != enc_2
    assert first.seal(b"", bytes(32)) != two.seal(b"", bytes(32))


@pytest.mark.req("CRY-05")
def test_no_single_bit_of_enc_aad_or_ciphertext_can_change():
    """RFC 9180 §5.2. The top bit of enc included: X25519 ignores it, but the key schedule hashes enc as it came."""
    enc, sender = hpke.setup_sender(PK_R, IKM_E)
    ct = sender.seal(b"aad", b"header")
    receiver = hpke.setup_receiver(enc, SK_R, pk_r=PK_R)
    for other in flips(ct):
        with pytest.raises(OpenError):
            receiver.open(b"aad", other)
    for aad in flips(b"aad"):
        with pytest.raises(OpenError):
            receiver.open(aad, ct)
    for other in flips(enc):
        with pytest.raises(OpenError):
            hpke.setup_receiver(other, SK_R, pk_r=PK_R).open(b"aad", ct)
    assert receiver.open(b"aad", ct) == b"header"  # failures used up no sequence number


# Vectors


@pytest.mark.req("CRY-05")
def test_the_keys_of_rfc_9180_derive_as_published():
    """RFC 9180 §7.1.3, A.2.1"""
    assert hpke.derive_key_pair(unhex("ikmR")) == (unhex("skRm"), unhex("pkRm"))
    assert hpke.derive_key_pair(unhex("ikmE")) == (unhex("skEm"), unhex("pkEm"))


@pytest.mark.req("CRY-05")
def test_the_encryptions_of_rfc_9180_hold_both_ways():
    """RFC 9180 A.2.1.1: 257 of them, so that the sequence number grows into its second byte"""
    enc, sender = hpke.setup_sender(unhex("pkRm"), unhex("ikmE"), unhex("info"))
    receiver = hpke.setup_receiver(unhex("enc"), unhex("skRm"), unhex("info"))
    assert enc == unhex("enc")
    assert len(VECTOR["encryptions"]) == 257
    for case in VECTOR["encryptions"]:
        aad, pt, ct = (bytes.fromhex(case[name]) for name in ("aad", "pt", "ct"))
        assert sender.seal(aad, pt) == ct
        assert receiver.open(aad, ct) == pt


@pytest.mark.req("CRY-05")
def test_the_exports_of_rfc_9180_hold_on_both_sides():
    """RFC 9180 A.2.1.2"""
    _, sender = hpke.setup_sender(unhex("pkRm"), unhex("ikmE"), unhex("info"))
    receiver = hpke.setup_receiver(unhex("enc"), unhex("skRm"), unhex("info"), pk_r=unhex("pkRm"))
    assert len(VECTOR["exports"]) == 3
    for case in VECTOR["exports"]:
        for context in (sender, receiver):
            assert context.export(bytes.fromhex(case["exporter_context"]), case["L"]).hex() == case["exported_value"]


# Another implementation


@pytest.mark.req("CRY-05")
@given(ikms, ikms, st.binary(max_size=64), st.binary(), st.binary(min_size=1))
def test_pyhpke_opens_what_we_seal(ikm_r, ikm_e, info, aad, pt):
    """D-20"""
    sk_r, pk_r = hpke.derive_key_pair(ikm_r)
    enc, sender = hpke.setup_sender(pk_r, ikm_e, info)
    receiver = ORACLE.create_recipient_context(enc, ORACLE.kem.deserialize_private_key(sk_r), info)
    for _ in range(2):
        assert receiver.open(sender.seal(aad, pt), aad) == pt
    assert receiver.export(b"veen/body-k", 32) == sender.export(b"veen/body-k", 32)
    assert receiver.export(b"veen/att-k", 77) == sender.export(b"veen/att-k", 77)


@pytest.mark.req("CRY-05")
@given(ikms, st.binary(max_size=64), st.binary(), st.binary(min_size=1))
def test_we_open_what_pyhpke_seals(ikm_r, info, aad, pt):
    """D-20"""
    sk_r, pk_r = hpke.derive_key_pair(ikm_r)
    enc, sender = ORACLE.create_sender_context(ORACLE.kem.deserialize_public_key(pk_r), info)
    receiver = hpke.setup_receiver(enc, sk_r, info)
    for _ in range(2):
        assert receiver.open(aad, sender.seal(pt, aad)) == pt
    assert receiver.export(b"veen/body-k", 32) == sender.export(b"veen/body-k", 32)


@pytest.mark.req("CRY-05")
@given(st.binary(min_size=32, max_size=80))
def test_pyhpke_derives_the_same_keys(ikm):
    """RFC 9180 §7.1.3"""
    pair = ORACLE.kem.derive_key_pair(ikm)
    assert hpke.derive_key_pair(ikm) == (pair.private_key.to_private_bytes(), pair.public_key.to_public_bytes())


# Awkward input


def test_a_message_opens_only_at_its_place_in_the_sequence():
    """RFC 9180 §5.2"""
    enc, sender = hpke.setup_sender(PK_R, IKM_E)
    receiver = hpke.setup_receiver(enc, SK_R)
    first, second = sender.seal(b"", b"1"), sender.seal(b"", b"2")
    with pytest.raises(OpenError):
        receiver.open(b"", second)
    assert receiver.open(b"", first) == b"1"
    with pytest.raises(OpenError):
        receiver.open(b"", first)
    assert receiver.open(b"", second) == b"2"


def test_another_key_another_info_or_another_public_key_does_not_open():
    """RFC 9180 §5.1"""
    enc, sender = hpke.setup_sender(PK_R, IKM_E)
    ct = sender.seal(b"", b"header")
    other_sk, other_pk = hpke.derive_key_pair(b"\x06" * 32)
    for receiver in (
        hpke.setup_receiver(enc, other_sk),
        hpke.setup_receiver(enc, SK_R, b"info"),
        hpke.setup_receiver(enc, SK_R, pk_r=other_pk),
    ):
        with pytest.raises(OpenError):
            receiver.open(b"", ct)


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_a_low_order_point_is_refused_on_both_sides(point):
    """RFC 9180 §7.1.4. The sender chose a bad key; to the receiver it is one more ciphertext that does not open."""
    with pytest.raises(InvalidKeyError, match="low order"):
        hpke.setup_sender(point, IKM_E)
    with pytest.raises(OpenError):
        hpke.setup_receiver(point, SK_R)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_keys_of_another_length_are_refused(length):
    """RFC 9180 §7.1.1"""
    wrong, enc = bytes(range(length)), x25519.public_key(IKM_E)
    with pytest.raises(InvalidKeyError, match=f"public key: expected 32 bytes, found {length}"):
        hpke.setup_sender(wrong, IKM_E)
    with pytest.raises(InvalidKeyError, match=f"secret key: expected 32 bytes, found {length}"):
        hpke.setup_receiver(enc, wrong)
    with pytest.raises(InvalidKeyError, match=f"secret key: expected 32 bytes, found {length}"):
        hpke.setup_receiver(enc, wrong, pk_r=PK_R)
    with pytest.raises(OpenError):
        hpke.setup_receiver(wrong, SK_R)


def test_key_material_shorter_than_a_key_is_refused():
    """RFC 9180 §7.1.3: at least Nsk bytes"""
    for ikm in (b"", bytes(31)):
        with pytest.raises(InvalidKeyError, match=f"at least 32 bytes, found {len(ikm)}"):
            hpke.derive_key_pair(ikm)
        with pytest.raises(InvalidKeyError, match="at least 32 bytes"):
            hpke.setup_sender(PK_R, ikm)


def test_each_side_does_only_its_own_half():
    """RFC 9180 §5.2: both sides hold one key, so a receiver that sealed would use a nonce twice."""
    enc, sender = hpke.setup_sender(PK_R, IKM_E)
    receiver = hpke.setup_receiver(enc, SK_R)
    with pytest.raises(ValueError, match="must not seal"):
        receiver.seal(b"", b"")
    with pytest.raises(ValueError, match="must not open"):
        sender.open(b"", sender.seal(b"", b""))


@pytest.mark.parametrize("length", [-1, 8161, 65536])
def test_an_export_longer_than_hkdf_can_give_is_our_own_mistake(length):
    """RFC 9180 §7.2.1"""
    _, sender = hpke.setup_sender(PK_R, IKM_E)
    assert len(sender.export(b"", 8160)) == 8160
    with pytest.raises(ValueError, match=f"not {length}"):
        sender.export(b"", length)


def test_a_context_shows_no_secret():
    """A context may end up in a log line or a traceback; its keys must not."""
    enc, sender = hpke.setup_sender(PK_R, IKM_E)
    receiver = hpke.setup_receiver(enc, SK_R)
    sender.seal(b"", b"")
    assert repr(sender) == "Context(sender, seq=1)"
    assert repr(receiver) == "Context(receiver, seq=0)"
    assert not hasattr(sender, "__dict__")
