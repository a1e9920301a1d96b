"""Sealing and opening: every step of the spec rebuilt with other libraries, and every way to tamper."""

import os
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import Any

import cbor2
import pyhpke
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt

from veen.core.crypto import ed25519, hpke, x25519
from veen.core.errors import (
    FieldSizeError,
    FormatError,
    InvalidKeyError,
    LimitError,
    OpenError,
    PaddingError,
    VeenError,
    VerifyError,
)
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.sealing.ciphertext import Binding, Opened, Parts, open_msg, seal

ORACLE = pyhpke.CipherSuite.new(
    pyhpke.KEMId.DHKEM_X25519_HKDF_SHA256, pyhpke.KDFId.HKDF_SHA256, pyhpke.AEADId.CHACHA20_POLY1305
)
READER_SK, READER_PK = hpke.derive_key_pair(b"\x01" * 32)
OTHER_SK, OTHER_PK = hpke.derive_key_pair(b"\x02" * 32)
CLIENT = ed25519.SigningKey(b"\x03" * 32)
IKM = b"\x04" * 32
NO_KEY = b""  # what is refused with this key is refused before any decryption: it would be an InvalidKeyError
LOW_ORDER = [bytes(32), (1).to_bytes(32, "little"), (2**255 - 20).to_bytes(32, "little")]
PAD_BLOCKS = [0, 1, 16, 256, 1024]

BINDING = Binding(
    profile_id=b"\x11" * 32,
    label=b"\x12" * 32,
    client_id=CLIENT.public,
    client_seq=7,
    prev_ack=5,
    auth_ref=b"\x13" * 32,
)
HDR = PayloadHdr(schema=sha256(b"test.v1").digest())

bytes_32 = st.binary(min_size=32, max_size=32)
uints = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
bindings = st.builds(
    Binding,
    profile_id=bytes_32,
    label=bytes_32,
    client_id=bytes_32,
    client_seq=uints,
    prev_ack=uints,
    auth_ref=st.none() | bytes_32,
)
headers = st.builds(
    PayloadHdr,
    schema=bytes_32,
    parent_id=st.none() | bytes_32,
    cap_ref=st.none() | bytes_32,
    expires_at=st.none() | uints,
)
bodies = st.one_of(st.binary(max_size=64), st.integers(0, 5000).map(lambda size: b"\xa5" * size))


def as_msg(ciphertext: bytes, binding: Binding = BINDING) -> Msg:
    """A message around a ciphertext. Nobody opening it looks at the signature, so it has none."""
    return Msg(
        profile_id=binding.profile_id,
        label=binding.label,
        client_id=binding.client_id,
        client_seq=binding.client_seq,
        prev_ack=binding.prev_ack,
        auth_ref=binding.auth_ref,
        ct_hash=sha256(ciphertext).digest(),
        ciphertext=ciphertext,
        sig=bytes(64),
    )


def sealed(body: bytes = b"body", **changes: Any) -> bytes:
    arguments: dict[str, Any] = {"ikm": IKM, "pad_block": 0, **changes}
    return seal(READER_PK, BINDING, HDR, body, **arguments).ciphertext


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Every way to turn one bit, with the byte it is in."""
    number = int.from_bytes(data, "big")
    for bit in range(8 * len(data)):
        yield len(data) - 1 - bit // 8, (number ^ 1 << bit).to_bytes(len(data), "big")


# The spec, step by step


def ht(tag: str, *parts: bytes) -> bytes:
    return sha256(tag.encode() + b"\x00" + b"".join(parts)).digest()


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def sealed_by_the_spec(binding: Binding, hdr: dict[int, Any], body: bytes, ikm: bytes, pad_block: int) -> bytes:
    """Steps 1 to 11 of spec §4.2 with pyhpke, libsodium, hashlib and cbor2."""
    b = binding
    enc, ctx = ORACLE.create_sender_context(
        ORACLE.kem.deserialize_public_key(READER_PK), eks=ORACLE.kem.derive_key_pair(ikm)
    )
    auth_ref_or_zero = bytes(32) if b.auth_ref is None else b.auth_ref
    aad = ht("veen/aad", b.profile_id, b.label, b.client_id, u64(b.client_seq), u64(b.prev_ack), auth_ref_or_zero)
    hpke_ct_hdr = ctx.seal(cbor2.dumps(hdr), aad)
    k_body = ctx.export(b"veen/body-k", 32)
    nonce = ht("veen/nonce", b.label, u64(b.prev_ack), b.client_id, u64(b.client_seq))[:24]
    aead_ct_body = crypto_aead_xchacha20poly1305_ietf_encrypt(body, aad, nonce, k_body)
    hdr_len = len(hpke_ct_hdr).to_bytes(4, "big")
    body_len = len(aead_ct_body).to_bytes(4, "big")
    ciphertext = enc + hdr_len + body_len + hpke_ct_hdr + aead_ct_body
    while pad_block > 0 and len(ciphertext) % pad_block:
        ciphertext += b"\x00"
    return ciphertext


def header_map(hdr: PayloadHdr) -> dict[int, Any]:
    """spec §4.5"""
    fields = {1: hdr.schema, 2: hdr.parent_id, 3: hdr.att_root, 4: hdr.cap_ref, 5: hdr.expires_at}
    return {key: value for key, value in fields.items() if value is not None}


@pytest.mark.req("CT-01", "CT-02", "CT-03", "CT-04", "CT-05", "CT-06", "CT-07", "CT-08")
@given(bindings, headers, bodies, bytes_32, st.sampled_from(PAD_BLOCKS))
def test_every_step_of_the_spec_done_elsewhere_gives_the_same_bytes(binding, hdr, body, ikm, pad_block):
    """spec §4.2, steps 1 to 11"""
    ours = seal(READER_PK, binding, hdr, body, ikm=ikm, pad_block=pad_block)
    assert ours.ciphertext == sealed_by_the_spec(binding, header_map(hdr), body, ikm, pad_block)
    assert len(Parts.split(ours.ciphertext).enc) == 32


@pytest.mark.req("CT-01", "CT-02", "CT-03", "CT-06", "CLNT-03")
@given(bindings, headers, bodies, bytes_32, st.sampled_from(PAD_BLOCKS))
def test_a_message_sealed_elsewhere_opens_here(binding, hdr, body, ikm, pad_block):
    """spec §4.2, §9"""
    msg = as_msg(sealed_by_the_spec(binding, header_map(hdr), body, ikm, pad_block), binding)
    assert open_msg(READER_SK, msg) == Opened(hdr, body, ())


@pytest.mark.req("CT-09", "CRY-16", "INV-01", "INV-02")
def test_hash_and_leaf_cover_the_ciphertext_with_its_padding():
    """spec §4.2, steps 12 and 13; I1, I2"""
    ciphertext = sealed(pad_block=256)
    msg = Msg.compose(
        CLIENT,
        profile_id=BINDING.profile_id,
        label=BINDING.label,
        client_seq=BINDING.client_seq,
        prev_ack=BINDING.prev_ack,
        auth_ref=BINDING.auth_ref,
        ciphertext=ciphertext,
    )
    assert Parts.split(ciphertext).padding
    assert msg.ct_hash == sha256(ciphertext).digest()
    assert msg.leaf_hash() == ht(
        "veen/leaf", BINDING.label, BINDING.profile_id, msg.ct_hash, CLIENT.public, u64(BINDING.client_seq)
    )
    assert open_msg(READER_SK, msg).body == b"body"


# Laws


@pytest.mark.req("CLNT-03")
@given(bindings, headers, bodies, bytes_32, st.sampled_from(PAD_BLOCKS), st.booleans())
def test_opening_gives_back_what_was_sealed(binding, hdr, body, ikm, pad_block, pass_pk):
    """spec §4.2"""
    result = seal(READER_PK, binding, hdr, body, ikm=ikm, pad_block=pad_block)
    opened = open_msg(READER_SK, as_msg(result.ciphertext, binding), reader_pk=READER_PK if pass_pk else None)
    assert (opened.hdr, opened.body, opened.attachments) == (hdr, body, ())
    assert (result.attachments.ciphertexts, result.attachments.coids) == ((), ())


@pytest.mark.req("CT-08")
@given(bodies, st.one_of(st.sampled_from(PAD_BLOCKS), st.integers(0, 5000)))
def test_padding_is_zero_minimal_and_reaches_a_multiple(body, pad_block):
    """spec §4.2 step 11, D-17"""
    bare, padded = sealed(body), sealed(body, pad_block=pad_block)
    padding = padded[len(bare) :]
    assert padded.startswith(bare)
    assert padding == bytes(len(padding))
    assert Parts.split(padded).padding == padding
    if pad_block:
        assert len(padded) % pad_block == 0
        assert len(padding) < pad_block
    else:
        assert not padding


@pytest.mark.req("CT-13")
def test_padding_is_a_matter_of_the_profile_and_the_profile_is_sealed_in():
    """spec §4.2, §3.2: equal profiles pad alike, and another pad_block is another profile_id, which does not open."""
    quiet, loud = Profile(epoch_sec=0, pad_block=256), Profile(epoch_sec=0, pad_block=512)
    binding = replace(BINDING, profile_id=quiet.profile_id())
    first = seal(READER_PK, binding, HDR, b"body", ikm=IKM, pad_block=quiet.pad_block).ciphertext
    again = seal(READER_PK, binding, HDR, b"body", ikm=IKM, pad_block=quiet.pad_block).ciphertext
    assert first == again
    assert len(first) == 256
    assert open_msg(READER_SK, as_msg(first, binding)).body == b"body"
    with pytest.raises(OpenError):
        open_msg(READER_SK, as_msg(first, replace(binding, profile_id=loud.profile_id())))


@pytest.mark.req("CT-02")
@pytest.mark.parametrize(
    "change",
    [
        {"profile_id": b"\x99" * 32},
        {"label": b"\x99" * 32},
        {"client_id": b"\x99" * 32},
        {"client_seq": 8},
        {"client_seq": 7 + 2**32},
        {"prev_ack": 6},
        {"prev_ack": 0},
        {"client_seq": 5, "prev_ack": 7},
        {"auth_ref": b"\x99" * 32},
        {"auth_ref": None},
    ],
)
def test_a_ciphertext_opens_only_at_its_own_place(change):
    """spec §4.2 step 3: bound to profile, label, client, sequence numbers and capability"""
    ciphertext = sealed()
    assert open_msg(READER_SK, as_msg(ciphertext)).body == b"body"
    with pytest.raises(OpenError):
        open_msg(READER_SK, as_msg(ciphertext, replace(BINDING, **change)))


@given(bindings, st.sampled_from(["profile_id", "label", "client_id", "client_seq", "prev_ack", "auth_ref"]), st.data())
def test_no_other_binding_opens_a_ciphertext(binding, name, data):
    """spec §4.2 step 3, by search. Only a capability of 32 zero bytes looks like none: step 2 says so."""
    ciphertext = seal(READER_PK, binding, HDR, b"body", ikm=IKM, pad_block=0).ciphertext
    value = data.draw(uints if name in ("client_seq", "prev_ack") else bytes_32)
    other = replace(binding, **{name: value})
    if other.aad() == binding.aad():
        assert other == binding or (other.auth_ref, binding.auth_ref) == (bytes(32), None)
    else:
        with pytest.raises(OpenError):
            open_msg(READER_SK, as_msg(ciphertext, other))


@pytest.mark.req("CT-02")
def test_an_absent_capability_counts_as_32_zero_bytes():
    """spec §4.2 step 2"""
    absent = replace(BINDING, auth_ref=None)
    b = absent
    assert absent.aad() == replace(BINDING, auth_ref=bytes(32)).aad()
    assert absent.aad() == ht(
        "veen/aad", b.profile_id, b.label, b.client_id, u64(b.client_seq), u64(b.prev_ack), bytes(32)
    )


@pytest.mark.req("CT-05")
@given(bindings, bindings)
def test_the_nonce_follows_from_label_client_and_both_sequence_numbers(one, two):
    """spec §4.2 step 6: not from profile or capability"""

    def place(binding: Binding) -> tuple[Any, ...]:
        return binding.label, binding.client_id, binding.client_seq, binding.prev_ack

    assert len(one.nonce()) == 24
    assert (one.nonce() == two.nonce()) == (place(one) == place(two))
    same_place = replace(
        two, label=one.label, client_id=one.client_id, client_seq=one.client_seq, prev_ack=one.prev_ack
    )
    assert same_place.nonce() == one.nonce()
    swapped = replace(one, client_seq=one.prev_ack, prev_ack=one.client_seq)
    assert (swapped.nonce() == one.nonce()) == (one.client_seq == one.prev_ack)


# Nonces


@pytest.mark.req("CT-01", "CT-12", "INV-15", "TS0-03")
def test_repeated_sends_never_share_a_key_and_nonce():
    """001 I11, TS0.1, D-09: the same message at the same place, sealed again and again with fresh randomness"""
    used: set[tuple[bytes, bytes]] = set()
    encs: set[bytes] = set()
    rounds, attachments = 200, (b"one", b"one", b"two")
    for _ in range(rounds):
        result = seal(READER_PK, BINDING, HDR, b"body", ikm=os.urandom(32), pad_block=0, attachments=attachments)
        enc = Parts.split(result.ciphertext).enc
        context = ORACLE.create_recipient_context(enc, ORACLE.kem.deserialize_private_key(READER_SK))
        encs.add(enc)
        used.add((context.export(b"veen/body-k", 32), BINDING.nonce()))
        for i in range(len(attachments)):
            nonce = ht("veen/att-nonce", BINDING.aad(), u64(i))[:24]
            used.add((context.export(b"veen/att-k" + u64(i), 32), nonce))
    assert len(encs) == rounds  # so no two headers share their HPKE context either
    assert len({key for key, _ in used}) == len(used) == rounds * 4


def test_the_same_randomness_again_is_the_same_key_again():
    """D-09 in reverse: why a retry that changes anything must bring new randomness"""
    parts = Parts.split(sealed(b"one"))
    two = Parts.split(seal(READER_PK, replace(BINDING, client_seq=8), HDR, b"two", ikm=IKM, pad_block=0).ciphertext)
    assert parts.enc == two.enc
    assert sealed(b"one") == sealed(b"one")  # resending identical bytes is what a retransmission does


# Tampering


@pytest.mark.req("CT-10", "CT-11", "INV-01")
def test_no_single_bit_of_a_ciphertext_can_change():
    """I1 for those who leave ct_hash alone, the seals and the lengths for those who recompute it"""
    ciphertext = sealed(pad_block=60)
    parts = Parts.split(ciphertext)
    end = len(ciphertext) - len(parts.padding)
    assert parts.padding
    genuine = as_msg(ciphertext)
    for at, other in flips(ciphertext):
        with pytest.raises(VerifyError, match=r"\(I1\)"):
            open_msg(NO_KEY, replace(genuine, ciphertext=other))
        if 32 <= at < 40:
            expected: tuple[type[VeenError], ...] = (OpenError, FieldSizeError, LimitError, PaddingError)
        else:
            expected = (PaddingError,) if at >= end else (OpenError,)
        with pytest.raises(expected):
            open_msg(READER_SK, as_msg(other), reader_pk=READER_PK)


@pytest.mark.req("INV-01")
def test_another_hash_than_that_of_the_ciphertext_is_refused_first():
    """I1: before the ciphertext is even cut"""
    for ciphertext in (b"", sealed()):
        for _, other in flips(as_msg(ciphertext).ct_hash):
            with pytest.raises(VerifyError, match=r"\(I1\)"):
                open_msg(NO_KEY, replace(as_msg(ciphertext), ct_hash=other))


@pytest.mark.req("CT-10", "LIM-09")
@given(bodies, st.sampled_from(PAD_BLOCKS), st.data())
def test_a_ciphertext_shorter_than_its_parts_is_refused_before_any_decryption(body, pad_block, data):
    """spec §4.2: cut anywhere before the end of the body"""
    ciphertext = sealed(body, pad_block=pad_block)
    parts = Parts.split(ciphertext)
    end = len(ciphertext) - len(parts.padding)
    keep = data.draw(st.integers(0, end - 1))
    needed = 40 if keep < 40 else end
    with pytest.raises(FieldSizeError, match=f"at least {needed} bytes.*found {keep}") as caught:
        open_msg(NO_KEY, as_msg(ciphertext[:keep]))
    assert caught.value.actual == keep
    assert Parts.split(ciphertext[:end]) == replace(parts, padding=b"")


@pytest.mark.req("CT-11", "CLNT-03")
@given(st.integers(1, 600), st.data())
def test_any_number_of_zeros_at_the_end_is_ignored_and_anything_else_refused(count, data):
    """spec §4.2, D-17: alignment is not checked, the bytes are"""
    ciphertext = sealed()
    assert open_msg(READER_SK, as_msg(ciphertext + bytes(count)), reader_pk=READER_PK).body == b"body"
    padding = bytearray(count)
    padding[data.draw(st.integers(0, count - 1))] = data.draw(st.integers(1, 255))
    with pytest.raises(PaddingError):
        open_msg(NO_KEY, as_msg(ciphertext + padding))


@pytest.mark.parametrize("key", [OTHER_SK, bytes(31) + b"\x01"])
def test_another_key_does_not_open(key):
    """D-10: read authority is possession of the key"""
    with pytest.raises(OpenError):
        open_msg(key, as_msg(sealed()))


def test_the_right_key_with_another_public_key_does_not_open():
    """RFC 9180 §5.1: the public key is part of the key schedule"""
    with pytest.raises(OpenError):
        open_msg(READER_SK, as_msg(sealed()), reader_pk=OTHER_PK)
    with pytest.raises(InvalidKeyError):
        open_msg(NO_KEY, as_msg(sealed()))


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_an_enc_of_low_order_does_not_open(point):
    """RFC 9180 §7.1.4: it would give a secret that everyone knows."""
    with pytest.raises(OpenError):
        open_msg(READER_SK, as_msg(point + sealed()[32:]))
    with pytest.raises(InvalidKeyError, match="low order"):
        seal(point, BINDING, HDR, b"body", ikm=IKM, pad_block=0)


def test_header_and_body_of_two_messages_do_not_go_together():
    """spec §4.2 step 5: the body key comes from the context of the header."""
    first, two = Parts.split(sealed(b"one")), Parts.split(sealed(b"two", ikm=b"\x05" * 32))

    def join(enc: bytes, hdr: bytes, body: bytes) -> bytes:
        return b"".join((enc, len(hdr).to_bytes(4, "big"), len(body).to_bytes(4, "big"), hdr, body))

    assert open_msg(READER_SK, as_msg(join(first.enc, first.hpke_ct_hdr, first.aead_ct_body))).body == b"one"
    for mixed in (
        join(first.enc, first.hpke_ct_hdr, two.aead_ct_body),
        join(first.enc, two.hpke_ct_hdr, first.aead_ct_body),
        join(two.enc, first.hpke_ct_hdr, first.aead_ct_body),
        join(first.enc, first.aead_ct_body, first.hpke_ct_hdr),
        join(first.enc, b"", first.aead_ct_body),
        join(first.enc, first.hpke_ct_hdr, b""),
        join(first.enc, b"", b""),
    ):
        with pytest.raises(OpenError):
            open_msg(READER_SK, as_msg(mixed))


def sealed_with_header(plain: bytes) -> Msg:
    """What a sender with its own program can send: a good seal around whatever it likes."""
    enc, context = hpke.setup_sender(READER_PK, IKM)
    aad = BINDING.aad()
    hdr = context.seal(aad, plain)
    body = crypto_aead_xchacha20poly1305_ietf_encrypt(b"", aad, BINDING.nonce(), context.export(b"veen/body-k", 32))
    return as_msg(b"".join((enc, len(hdr).to_bytes(4, "big"), len(body).to_bytes(4, "big"), hdr, body)))


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {2: bytes(32)},
        {1: bytes(31)},
        {1: bytes(32), 6: 0},
        {1: bytes(32), 2: None},
        {2: bytes(32), 1: bytes(32)},
        {1: bytes(32), 5: -1},
        [bytes(32)],
    ],
    ids=repr,
)
def test_a_genuine_seal_around_a_wrong_header_is_a_format_error(tree):
    """spec §4.5: unknown keys, null and wrong sizes are refused; the seal is not at fault."""
    assert open_msg(READER_SK, sealed_with_header(cbor2.dumps({1: bytes(32)}))).hdr == PayloadHdr(schema=bytes(32))
    with pytest.raises(FormatError):
        open_msg(READER_SK, sealed_with_header(cbor2.dumps(tree)))


# Limits


def with_lengths(hdr_len: int, body_len: int, rest: int = 0) -> bytes:
    return bytes(32) + hdr_len.to_bytes(4, "big") + body_len.to_bytes(4, "big") + bytes(rest)


@pytest.mark.req("LIM-02", "LIM-03", "LIM-09")
@pytest.mark.parametrize(
    ("hdr_len", "body_len", "name"),
    [
        (16_385, 0, "max_hdr_bytes"),
        (2**32 - 1, 0, "max_hdr_bytes"),
        (16_385, 1_048_321, "max_hdr_bytes"),
        (0, 1_048_321, "max_body_bytes"),
        (16_384, 2**32 - 1, "max_body_bytes"),
    ],
)
def test_lengths_above_the_limits_are_refused_by_name_before_any_decryption(hdr_len, body_len, name):
    """spec §14.2: judged from the length fields, also where the bytes are not there"""
    for rest in (0, 100):
        with pytest.raises(LimitError) as caught:
            open_msg(NO_KEY, as_msg(with_lengths(hdr_len, body_len, rest)))
        error = caught.value
        expected = (hdr_len, 16_384) if name == "max_hdr_bytes" else (body_len, 1_048_320)
        assert (error.name, error.actual, error.maximum) == (name, *expected)


@pytest.mark.req("LIM-02", "LIM-03")
def test_lengths_at_the_limits_are_cut():
    """spec §14: 16,384 and 1,048,320 bytes, tags included (D-18)"""
    parts = Parts.split(with_lengths(16_384, 1_048_320, 16_384 + 1_048_320 + 7))
    assert (len(parts.hpke_ct_hdr), len(parts.aead_ct_body), len(parts.padding)) == (16_384, 1_048_320, 7)
    small = Limits(max_hdr_bytes=10, max_body_bytes=20)
    assert len(Parts.split(with_lengths(10, 20, 30), small).aead_ct_body) == 20
    with pytest.raises(LimitError, match="max_hdr_bytes: 11 is above the maximum of 10"):
        Parts.split(with_lengths(11, 20, 31), small)
    with pytest.raises(LimitError, match="max_body_bytes: 21 is above the maximum of 20"):
        Parts.split(with_lengths(10, 21, 31), small)


def test_a_ciphertext_of_nothing_but_empty_parts_is_cut_but_does_not_open():
    """D-18: hubs enforce no minimum; readers find no seal in it."""
    assert Parts.split(bytes(40)) == Parts(bytes(32), b"", b"", b"")
    assert Parts.split(bytes(range(32)) + bytes(8)).enc == bytes(range(32))
    with pytest.raises(OpenError):
        open_msg(READER_SK, as_msg(b"\x09" * 32 + bytes(8)))
    with pytest.raises(FieldSizeError, match="at least 40 bytes, found 39"):
        Parts.split(bytes(39))


@pytest.mark.req("LIM-03")
def test_a_body_of_the_largest_size_passes_and_one_byte_more_does_not():
    """spec §14, D-18: max_body_bytes counts the tag of 16 bytes"""
    largest = DEFAULT_LIMITS.max_body_bytes - 16
    ciphertext = sealed(b"\x5a" * largest)
    assert len(Parts.split(ciphertext).aead_ct_body) == DEFAULT_LIMITS.max_body_bytes == 1_048_320
    assert open_msg(READER_SK, as_msg(ciphertext)).body == b"\x5a" * largest
    with pytest.raises(LimitError) as caught:
        sealed(bytes(largest + 1))
    assert (caught.value.name, caught.value.actual) == ("max_body_bytes", 1_048_321)


@pytest.mark.req("LIM-02")
def test_a_header_of_the_largest_size_passes_and_one_byte_more_does_not():
    """spec §14: max_hdr_bytes counts the encrypted header, tag included"""
    size = len(Parts.split(sealed()).hpke_ct_hdr)
    exact, tight = Limits(max_hdr_bytes=size), Limits(max_hdr_bytes=size - 1)
    ciphertext = sealed(limits=exact)
    assert open_msg(READER_SK, as_msg(ciphertext), limits=exact).body == b"body"
    with pytest.raises(LimitError, match=f"max_hdr_bytes: {size} is above the maximum of {size - 1}"):
        sealed(limits=tight)
    with pytest.raises(LimitError, match="max_hdr_bytes"):
        open_msg(NO_KEY, as_msg(ciphertext), limits=tight)


@pytest.mark.req("LIM-10")
def test_padding_counts_toward_the_message_but_not_toward_the_body():
    """spec §14.2"""
    bare = len(sealed())
    roomy = Limits(max_msg_bytes=512, max_body_bytes=20)
    assert len(sealed(pad_block=512, limits=roomy)) == 512  # far more padding than max_body_bytes
    assert open_msg(READER_SK, as_msg(sealed(pad_block=512)), limits=roomy).body == b"body"
    with pytest.raises(LimitError, match="max_msg_bytes: 513 is above the maximum of 512"):
        sealed(pad_block=513, limits=roomy)
    assert len(sealed(limits=Limits(max_msg_bytes=bare))) == bare
    with pytest.raises(LimitError, match=f"max_msg_bytes: {bare} is above the maximum of {bare - 1}"):
        sealed(limits=Limits(max_msg_bytes=bare - 1))


def test_a_pad_block_beyond_all_limits_is_refused_before_the_padding_is_made():
    """spec §14.2; a profile may name any 64-bit pad_block"""
    with pytest.raises(LimitError, match="max_msg_bytes"):
        sealed(pad_block=2**62)


def test_key_material_shorter_than_a_key_is_refused():
    """RFC 9180 §7.1.3"""
    with pytest.raises(InvalidKeyError, match="at least 32 bytes"):
        sealed(ikm=bytes(31))


# Silence


def shown(error: BaseException | None) -> str:
    """All that a log would show of an exception and of what caused it."""
    text = ""
    while error is not None:
        text += f"{error} {error!r} {error.args!r} "
        error = error.__cause__ or error.__context__
    return text


def test_the_repr_of_what_was_opened_shows_no_plaintext():
    """errors and values end up in logs"""
    hdr = PayloadHdr(schema=b"\x21" * 32, parent_id=b"\x22" * 32, cap_ref=b"\x23" * 32, expires_at=987_654_321)
    ciphertext = seal(READER_PK, BINDING, hdr, b"secret body", ikm=IKM, pad_block=0, attachments=[b"secret file"])
    opened = open_msg(READER_SK, as_msg(ciphertext.ciphertext), attachments=ciphertext.attachments.ciphertexts)
    assert (opened.body, opened.attachments) == (b"secret body", (b"secret file",))
    assert repr(opened) == f"Opened(schema={'21' * 32}, 11 body bytes)"
    for text in (repr(opened), str(opened), f"{opened}", repr([opened]), repr(ciphertext)):
        for secret in (b"secret", b"\x22" * 32, b"\x23" * 32):
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text
        assert "987654321" not in text


def test_errors_show_no_plaintext():
    """Whatever goes wrong after or before decryption, the error may be logged."""
    secret = b"the secret plan"
    ciphertext = sealed(secret)
    cases = [as_msg(other) for _, other in flips(ciphertext[:40])]
    cases += [as_msg(ciphertext[:-1]), as_msg(ciphertext + b"\x01"), as_msg(ciphertext, replace(BINDING, prev_ack=6))]
    cases += [sealed_with_header(secret), sealed_with_header(cbor2.dumps(secret.decode()))]
    cases += [sealed_with_header(cbor2.dumps({1: secret})), sealed_with_header(cbor2.dumps({1: secret.decode()}))]
    for msg in cases:
        with pytest.raises(VeenError) as caught:
            open_msg(READER_SK, msg)
        text = shown(caught.value)
        assert "secret" not in text
        assert secret.hex() not in text
    with pytest.raises(LimitError) as limit:
        sealed(secret, limits=Limits(max_body_bytes=20))
    assert "secret" not in shown(limit.value)


@pytest.mark.parametrize(
    "plain",
    [cbor2.dumps({1: bytes(32), "secret": 0}), b"\xa2\x66secret\x00\x66secret\x00"],
    ids=["unknown key", "repeated key"],
)
def test_errors_about_a_decrypted_header_do_not_quote_it(plain):
    """errors.py: no error holds a plaintext, so any may be logged"""
    with pytest.raises(FormatError) as caught:
        open_msg(READER_SK, sealed_with_header(plain))
    assert "secret" not in shown(caught.value)


def test_an_opening_opens_its_message_and_no_other():
    """D-130: 32 bytes stand in for the reader key, for one message."""
    from veen.core.sealing.ciphertext import open_with_opening, opening_of

    keys = [x25519.public_key(bytes([number]) * 32) for number in (1, 2)]
    key = ed25519.SigningKey(b"\x07" * 32)

    def message(number):
        place = Binding(
            profile_id=bytes(32), label=bytes(32), client_id=key.public, client_seq=number, prev_ack=0, auth_ref=None
        )
        sealed = seal(
            keys[0], place, PayloadHdr(schema=bytes(32)), b"body %d" % number, ikm=bytes([number]) * 32, pad_block=0
        )
        return Msg.compose(
            key,
            profile_id=place.profile_id,
            label=place.label,
            client_seq=number,
            prev_ack=0,
            auth_ref=None,
            ciphertext=sealed.ciphertext,
        )

    first, second = message(1), message(2)
    opening = opening_of(b"\x01" * 32, first)
    assert open_with_opening(opening, first) == open_msg(b"\x01" * 32, first)
    for wrong, msg in ((opening, second), (bytes(32), first), (opening_of(b"\x02" * 32, first), first)):
        with pytest.raises(OpenError):
            open_with_opening(wrong, msg)
    with pytest.raises(InvalidKeyError):
        open_with_opening(opening[:-1], first)
