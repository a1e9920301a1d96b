"""MSG: spec §2, §4.1."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import VerifyKey
from tests.core import strategies
from tests.core.strategies import single_bit_flips
from tests.examples import examples

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.entry import leaf_hash_of
from veen.core.errors import FieldSizeError, FormatError, MalformedError, SignatureError, VeenError, VerifyError
from veen.core.objects.msg import Msg, end_of

KEY = SigningKey(b"\x01" * 32)
PROFILE_ID, LABEL, AUTH_REF = b"\x0a" * 32, b"\x0b" * 32, b"\x0c" * 32


def compose(key=KEY, *, client_seq=7, prev_ack=300, auth_ref=AUTH_REF, ciphertext=b"ciphertext"):
    return Msg.compose(
        key,
        profile_id=PROFILE_ID,
        label=LABEL,
        client_seq=client_seq,
        prev_ack=prev_ack,
        auth_ref=auth_ref,
        ciphertext=ciphertext,
    )


def general(data):
    """The reader that all wire objects share, without the fast path of MSG."""
    return super(Msg, Msg).from_bytes(data)


def outcome(read, data):
    try:
        return read(data)
    except FormatError as exc:
        return type(exc), str(exc)


# --- laws ---------------------------------------------------------------------------------------------------


@pytest.mark.req("INV-10", "TS0-05")
@examples(500)
@given(strategies.mutated(strategies.MSG.map(Msg.to_bytes)))
def test_the_fast_path_agrees_with_the_general_reader(data):
    """I10: in the value, in the class of the error and in its words."""
    assert outcome(Msg.from_bytes, data) == outcome(general, data)


@pytest.mark.req("TS0-02")
@given(strategies.MSG)
def test_the_fast_writer_agrees_with_the_general_one(msg):
    """I10"""
    data = msg.to_bytes()
    assert data == cbor.encode(msg.to_tree()) == cbor2.dumps(msg.to_tree())
    assert Msg.from_bytes(data) == general(data) == msg


def test_the_fast_path_agrees_on_every_single_bit_flip_and_every_cut():
    """I10: exhaustive for one message without and one with auth_ref."""
    for auth_ref in (None, AUTH_REF):
        data = compose(auth_ref=auth_ref).to_bytes()
        for damaged in (*single_bit_flips(data), *(data[:end] for end in range(len(data))), data + b"\x00"):
            assert outcome(Msg.from_bytes, damaged) == outcome(general, damaged)


@pytest.mark.parametrize("length", [0, 23, 24, 255, 256, 65535, 65536])
@pytest.mark.parametrize("number", strategies.EDGES)
def test_the_fast_path_agrees_where_widths_change(length, number):
    """spec §3.1: minimal-length integers and lengths."""
    msg = replace(compose(), client_seq=number, prev_ack=number, ciphertext=bytes(length))
    data = msg.to_bytes()
    assert data == cbor2.dumps(msg.to_tree())
    assert Msg.from_bytes(data) == general(data) == msg


def test_the_fast_path_knows_the_same_bound_in_size():
    """D-06: over-long items are refused, whichever way they are read."""
    data = replace(compose(), ciphertext=bytes(cbor.MAX_ITEM_BYTES)).to_bytes()
    with pytest.raises(FieldSizeError):
        general(data)
    with pytest.raises(FieldSizeError):
        Msg.from_bytes(data)


# --- shape and signature ------------------------------------------------------------------------------------


@pytest.mark.req("MSG-01", "MSG-02", "CBOR-01", "CBOR-07")
def test_a_msg_is_an_array_of_ten_items():
    """spec §4.1"""
    msg = compose()
    items = [1, PROFILE_ID, LABEL, KEY.public, 7, 300, AUTH_REF, sha256(b"ciphertext").digest(), b"ciphertext", msg.sig]
    assert msg.to_bytes() == cbor2.dumps(items)
    assert Msg.from_bytes(cbor2.dumps(items)) == msg


@pytest.mark.req("MSG-02", "CBOR-09")
@pytest.mark.parametrize(("index", "size"), [(1, 32), (2, 32), (3, 32), (6, 32), (7, 32), (9, 64)])
def test_byte_strings_have_their_exact_size(index, size):
    """spec §4.1: bstr32, and bstr64 for sig."""
    for wrong in (0, size - 1, size + 1, 96 - size):
        items = compose().to_tree()
        items[index] = bytes(wrong)
        with pytest.raises(FieldSizeError) as caught:
            Msg.from_bytes(cbor2.dumps(items))
        assert (caught.value.expected, caught.value.actual) == (f"{size} bytes", wrong)


@pytest.mark.req("CBOR-09")
@pytest.mark.parametrize("field", ["profile_id", "label", "client_id", "auth_ref", "ct_hash", "sig"])
def test_a_wrong_size_is_not_written(field):
    """spec §4.1"""
    with pytest.raises(FieldSizeError, match=f"MSG.{field}"):
        replace(compose(), **{field: b"short"}).to_bytes()


@pytest.mark.parametrize("field", ["client_seq", "prev_ack"])
@pytest.mark.parametrize("value", [-1, 2**64])
def test_an_integer_outside_64_bits_is_not_written(field, value):
    """D-07"""
    with pytest.raises(MalformedError):
        replace(compose(), **{field: value}).to_bytes()


@pytest.mark.req("MSG-03", "CBOR-05")
def test_an_absent_auth_ref_is_null():
    """spec §4.1: it appears mid-array, so it cannot be omitted."""
    items = compose(auth_ref=None).to_tree()
    assert len(items) == 10
    assert items[6] is None
    assert Msg.from_bytes(cbor2.dumps(items)).auth_ref is None
    with pytest.raises(MalformedError):
        Msg.from_bytes(cbor2.dumps(items[:6] + items[7:]))
    wrong: Any
    for wrong in (0, False, "", [], {}):
        items[6] = wrong
        with pytest.raises(MalformedError):
            Msg.from_bytes(cbor2.dumps(items))


@pytest.mark.req("MSG-04", "MSG-05")
@pytest.mark.parametrize("auth_ref", [None, AUTH_REF], ids=["open", "capability"])
def test_sig_is_over_the_tagged_hash_of_the_first_nine_items(auth_ref):
    """spec §4.1: computed here from the words of the spec, and verified with another library."""
    msg = compose(auth_ref=auth_ref)
    digest = sha256(b"veen/sig" + b"\x00" + cbor2.dumps(msg.to_tree()[:9])).digest()
    assert msg.signing_digest() == digest
    VerifyKey(msg.client_id).verify(digest, msg.sig)
    msg.verify()


@pytest.mark.req("MSG-05")
def test_only_the_key_that_is_client_id_can_sign():
    """spec §2: ClientID is the key that verifies MSG.sig."""
    msg, other = compose(), SigningKey(b"\x02" * 32)
    with pytest.raises(SignatureError, match="client_id"):
        replace(msg, client_id=other.public).verify()
    with pytest.raises(SignatureError):
        replace(msg, sig=other.sign(msg.signing_digest())).verify()


def test_the_ciphertext_must_be_the_hashed_one():
    """I1: H(ciphertext) = ct_hash, judged before the signature."""
    with pytest.raises(VerifyError, match="I1"):
        replace(compose(), ciphertext=b"other", sig=bytes(64)).verify()


@pytest.mark.req("CRY-16")
def test_leaf_hash_is_the_tagged_hash_of_five_fields():
    """spec §2, §4.2 step 13; I2"""
    msg = compose()
    data = LABEL + PROFILE_ID + msg.ct_hash + KEY.public + (7).to_bytes(8, "big")
    expected = sha256(b"veen/leaf\x00" + data).digest()
    assert msg.leaf_hash() == expected
    named = leaf_hash_of(label=LABEL, profile_id=PROFILE_ID, ct_hash=msg.ct_hash, client_id=KEY.public, client_seq=7)
    assert named == expected


@pytest.mark.req("CRY-16")
def test_leaf_hash_covers_its_five_fields_and_no_other():
    """spec §2: prev_ack, auth_ref and sig are not part of it; a retransmission is the same leaf."""
    msg = compose()
    for change in (
        {"label": PROFILE_ID},
        {"profile_id": LABEL},
        {"ct_hash": LABEL},
        {"client_id": LABEL},
        {"client_seq": 8},
    ):
        assert replace(msg, **change).leaf_hash() != msg.leaf_hash()
    assert replace(msg, prev_ack=0, auth_ref=None, sig=bytes(64)).leaf_hash() == msg.leaf_hash()


def test_every_single_bit_flip_is_refused():
    """spec §4.1: by the reader or by `verify`; all bits of one small message."""
    data = compose(ciphertext=b"ct").to_bytes()
    Msg.from_bytes(data).verify()
    for flipped in single_bit_flips(data):
        with pytest.raises(VeenError):
            Msg.from_bytes(flipped).verify()


def test_composing_twice_gives_the_same_bytes():
    """I10: nothing random is left to sign once the ciphertext is sealed."""
    assert compose() == compose()


@given(strategies.MSG)
def test_the_digest_of_the_raw_bytes_is_the_digest_of_the_message(msg):
    assert Msg.digest_of(msg.to_bytes()) == msg.signing_digest()


def test_a_million_tiny_items_are_not_read_before_they_are_refused():
    """Linear is not enough when each byte costs a microsecond."""
    with pytest.raises(MalformedError, match="items"):
        Msg.from_bytes(b"\x9a\x00\x0f\x00\x00" + bytes(0xF0000))


@given(st.data())
def test_end_of_agrees_with_the_general_walk(data):
    """The short way and the long way cut a batch at the same places, or the short way declines."""
    raw = data.draw(strategies.MSG).to_bytes()
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 2))):
        damaged[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    before = data.draw(st.binary(max_size=3))
    end = end_of(before + bytes(damaged) + raw[: data.draw(st.integers(0, 80))], len(before))
    if bytes(damaged) == raw:
        assert end == len(before) + len(raw)
    if end is not None:
        assert end == cbor.item_end(before + bytes(damaged) + raw, len(before))


@pytest.mark.parametrize(
    "change",
    [
        {"sig": compose(client_seq=4).sig},
        {"sig": b"short"},
        {"ciphertext": b"another"},
        {"client_id": SigningKey(b"\x02" * 32).public},
    ],
)
def test_a_message_that_was_changed_does_not_verify(change):
    """I1 and the signature."""
    compose(client_seq=3).verify()
    with pytest.raises(VerifyError):
        replace(compose(client_seq=3), **change).verify()
