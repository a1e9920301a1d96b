"""Attachments: sealed beside a message, and never added, dropped, swapped or changed unseen."""

import itertools
from dataclasses import replace
from hashlib import sha256
from typing import Any, cast

import cbor2
import pyhpke
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt
from tests.core import mmr_model as model

from veen.core.crypto import hpke
from veen.core.errors import FormatError, LimitError, OpenError, VerifyError
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.sealing.ciphertext import (
    ATTACHED_SCHEMA,
    EMPTY_ATT_ROOT,
    Attached,
    Attachment,
    Binding,
    Opened,
    Parts,
    Sealed,
    SealedAttachments,
    att_root_of,
    open_attachments,
    open_msg,
    seal,
    seal_attachments,
)

ORACLE = pyhpke.CipherSuite.new(
    pyhpke.KEMId.DHKEM_X25519_HKDF_SHA256, pyhpke.KDFId.HKDF_SHA256, pyhpke.AEADId.CHACHA20_POLY1305
)
READER_SK, READER_PK = hpke.derive_key_pair(b"\x01" * 32)
IKM = b"\x04" * 32
NO_CONTEXT = cast(hpke.Context, None)  # what is refused with this context is refused before any cryptography
BINDING = Binding(
    profile_id=b"\x11" * 32, label=b"\x12" * 32, client_id=b"\x13" * 32, client_seq=7, prev_ack=5, auth_ref=None
)
HDR = PayloadHdr(schema=sha256(b"test.v1").digest())
FILES = (b"first", b"", b"third file", b"first", bytes(1000))
LEAVES = model.leaves(70)

files = st.lists(st.binary(max_size=40), max_size=9).map(tuple)
bytes_32 = st.binary(min_size=32, max_size=32)


def as_msg(ciphertext: bytes, binding: Binding = BINDING) -> Msg:
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


def sealed(attachments: tuple[bytes, ...], hdr: PayloadHdr = HDR, **changes: Any) -> Sealed:
    arguments: dict[str, Any] = {"ikm": IKM, "pad_block": 0, **changes}
    return seal(READER_PK, BINDING, hdr, b"body", attachments=attachments, **arguments)


def opened(message: Sealed, attachments: tuple[bytes, ...], **changes: Any) -> Opened:
    return open_msg(READER_SK, as_msg(message.ciphertext), attachments=attachments, **changes)


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def root_by_the_spec(coids: list[bytes]) -> bytes:
    """spec §4.6: the peaks of the recursion in §5.1 under other tags, always hashed (D-13)"""
    return model.ht("veen/att-root", b"".join(model.peaks(coids, "veen/att-node")))


# The spec, step by step


@pytest.mark.req("ATT-01", "ATT-02", "ATT-03", "ATT-04", "ATT-05")
@given(files, bytes_32)
def test_every_step_of_the_spec_done_elsewhere_gives_the_same_bytes(attachments, ikm):
    """spec §4.6, D-12, D-14: indices from 0, an empty associated data, the aad value in the place of msg_id"""
    message = sealed(attachments, ikm=ikm)
    context = ORACLE.create_recipient_context(
        Parts.split(message.ciphertext).enc, ORACLE.kem.deserialize_private_key(READER_SK)
    )
    b = BINDING
    aad = model.ht("veen/aad", b.profile_id + b.label + b.client_id + u64(b.client_seq) + u64(b.prev_ack) + bytes(32))
    ciphertexts = []
    for i, attachment in enumerate(attachments):
        k_att = context.export(b"veen/att-k" + u64(i), 32)
        n_att = model.ht("veen/att-nonce", aad + u64(i))[:24]
        ciphertexts.append(crypto_aead_xchacha20poly1305_ietf_encrypt(attachment, b"", n_att, k_att))
    coids = [sha256(ciphertext).digest() for ciphertext in ciphertexts]
    assert message.attachments == SealedAttachments(tuple(ciphertexts), tuple(coids))
    hdr = opened(message, ()).hdr
    assert hdr == replace(HDR, att_root=root_by_the_spec(coids) if coids else None)


@pytest.mark.req("ATT-04", "ATT-05")
def test_the_root_is_that_of_the_recursion_for_any_count():
    """spec §4.6, D-13: peaks by increasing height under their own tags"""
    for count in range(71):
        assert att_root_of(LEAVES[:count]) == root_by_the_spec(LEAVES[:count])


@pytest.mark.req("ATT-05")
def test_the_root_of_one_attachment_is_hashed():
    """D-13: never the coid itself"""
    coid = LEAVES[0]
    assert att_root_of([coid]) == model.ht("veen/att-root", coid) != coid
    pair = model.ht("veen/att-node", LEAVES[0] + LEAVES[1])
    assert att_root_of(LEAVES[:2]) == model.ht("veen/att-root", pair)
    assert att_root_of(LEAVES[:3]) == model.ht("veen/att-root", LEAVES[2] + pair)


@pytest.mark.req("ATT-06")
def test_the_root_of_no_attachments_is_the_golden_constant():
    """spec §4.6, decisions §18"""
    golden = "d8502e2b7365f07d065ff0ef5d1237b733d31554ac4b5e7dd806b6e15552d311"
    assert EMPTY_ATT_ROOT.hex() == att_root_of([]).hex() == model.ht("veen/att-root", b"").hex() == golden


@pytest.mark.req("ATT-06")
def test_without_attachments_the_root_is_left_out_or_the_constant():
    """spec §4.6: SHOULD be omitted, and MUST be the constant if it is there"""
    assert opened(sealed(()), ()).hdr.att_root is None
    constant = replace(HDR, att_root=EMPTY_ATT_ROOT)
    assert opened(sealed((), constant), ()).hdr == constant
    with pytest.raises(VerifyError, match="att_root does not match the attachments"):
        sealed((), replace(HDR, att_root=att_root_of([LEAVES[0]])))


# Laws


@pytest.mark.req("ATT-01", "ATT-02", "INV-05")
@given(files, bytes_32)
def test_opening_gives_back_the_attachments_in_order(attachments, ikm):
    """spec §4.6, I5"""
    message = sealed(attachments, ikm=ikm)
    result = opened(message, message.attachments.ciphertexts)
    assert result.attachments == attachments
    assert result.body == b"body"
    assert opened(message, ()).attachments == ()  # header and body can be read without fetching them


@pytest.mark.req("ATT-04")
def test_order_and_number_make_the_root():
    """spec §4.6: the leaves are the coids by ascending index."""
    roots = {att_root_of(order) for count in range(5) for order in itertools.permutations(LEAVES[:4], count)}
    assert len(roots) == 1 + 4 + 12 + 24 + 24


def test_equal_attachments_are_sealed_apart():
    """spec §4.6: the index is in key and nonce, so nobody sees that two are the same."""
    message = sealed((b"same", b"same", b"same"))
    assert len(set(message.attachments.coids)) == 3


def test_equal_attachments_of_two_messages_are_sealed_apart():
    """D-09: a fresh context for every message"""
    first, two = sealed(FILES), sealed(FILES, ikm=b"\x05" * 32)
    assert not set(first.attachments.coids) & set(two.attachments.coids)


# Tampering


@pytest.mark.req("ATT-08", "INV-05")
def test_attachments_swapped_missing_or_added_are_refused():
    """spec §4.6, I5: every order but the right one, every subset but the whole, every list with one more"""
    message = sealed(FILES)
    good = message.attachments.ciphertexts
    assert opened(message, good).attachments == FILES
    others = [order for order in itertools.permutations(good) if order != good]
    others += [some for count in range(1, 5) for some in itertools.combinations(good, count)]
    foreign = sealed((b"foreign",)).attachments.ciphertexts[0]
    for extra in (b"", foreign, *good):
        others += [(*good[:i], extra, *good[i:]) for i in range(6)]
    for other in others:
        with pytest.raises(VerifyError, match=r"not those of this message: att_root differs \(I5\)"):
            opened(message, other)


@pytest.mark.req("ATT-08", "INV-05")
def test_not_one_bit_of_an_attachment_can_change():
    """I5"""
    message = sealed((b"first", b"second"))
    first, second = message.attachments.ciphertexts
    for bit in range(8 * len(second)):
        other = (int.from_bytes(second, "big") ^ 1 << bit).to_bytes(len(second), "big")
        with pytest.raises(VerifyError, match="att_root differs"):
            opened(message, (first, other))
    for other in (second[:-1], second[1:], second + b"\x00", b""):
        with pytest.raises(VerifyError, match="att_root differs"):
            opened(message, (first, other))


@pytest.mark.req("INV-05")
def test_attachments_of_a_message_that_declares_none_are_refused():
    """I5: an absent att_root matches no attachment, and the constant for none does not either"""
    for hdr in (HDR, replace(HDR, att_root=EMPTY_ATT_ROOT)):
        with pytest.raises(VerifyError, match="att_root differs"):
            opened(sealed((), hdr), (b"\x00" * 20,))


@pytest.mark.req("ATT-08")
def test_a_declared_root_that_disagrees_is_refused_at_sealing():
    """spec §4.6: a caller that sets att_root must have set the right one"""
    right = att_root_of(sealed(FILES).attachments.coids)
    assert sealed(FILES, replace(HDR, att_root=right)) == sealed(FILES)
    for wrong in (EMPTY_ATT_ROOT, bytes(32), right[:31] + bytes([right[31] ^ 1]), att_root_of([LEAVES[0]])):
        with pytest.raises(VerifyError, match=r"payload_hdr.att_root does not match the attachments \(I5\)"):
            sealed(FILES, replace(HDR, att_root=wrong))


def test_a_ciphertext_under_the_wrong_index_key_or_aad_does_not_open():
    """D-12: att_root aside, each attachment opens only at its own index in its own message"""
    _, sender = hpke.setup_sender(READER_PK, IKM)
    aad = BINDING.aad()
    parts = seal_attachments(sender, aad, (b"zero", b"one"), DEFAULT_LIMITS)
    zero, first = parts.ciphertexts

    def open_as(ciphertexts: tuple[bytes, ...], aad: bytes = aad, ikm: bytes = IKM) -> tuple[bytes, ...]:
        root = att_root_of([sha256(ciphertext).digest() for ciphertext in ciphertexts])  # as a lying sender would
        enc, _ = hpke.setup_sender(READER_PK, ikm)
        receiver = hpke.setup_receiver(enc, READER_SK)
        return open_attachments(receiver, aad, replace(HDR, att_root=root), ciphertexts, DEFAULT_LIMITS)

    assert open_as((zero, first)) == (b"zero", b"one")
    assert open_as((zero,)) == (b"zero",)  # what the declared list is for (D-16)
    for ciphertexts in ((first, zero), (first,), (zero, zero), (zero, first, zero), (zero[:-1],), (b"",), (bytes(15),)):
        with pytest.raises(OpenError):
            open_as(ciphertexts)
    with pytest.raises(OpenError):
        open_as((zero, first), replace(BINDING, client_seq=8).aad())
    with pytest.raises(OpenError):
        open_as((zero, first), ikm=b"\x05" * 32)


# Limits


@pytest.mark.req("ATT-09", "LIM-04")
def test_1024_attachments_pass_and_one_more_does_not():
    """spec §14"""
    message = sealed((b"x",) * 1024)
    assert opened(message, message.attachments.ciphertexts).attachments == (b"x",) * 1024
    with pytest.raises(LimitError, match="max_attachments_per_msg: 1025 is above the maximum of 1024"):
        sealed((b"x",) * 1025)
    with pytest.raises(LimitError, match="max_attachments_per_msg: 1025 is above the maximum of 1024"):
        opened(message, (*message.attachments.ciphertexts, b""))


@pytest.mark.req("ATT-09")
def test_the_largest_attachment_passes_and_one_byte_more_does_not():
    """spec §14.1: max_attachment_bytes counts the plaintext"""
    limits = Limits(max_attachment_bytes=100)
    message = sealed((b"", bytes(100)), limits=limits)
    assert opened(message, message.attachments.ciphertexts, limits=limits).attachments == (b"", bytes(100))
    with pytest.raises(LimitError, match="max_attachment_bytes: 101 is above the maximum of 100"):
        sealed((b"", bytes(101), bytes(5)), limits=limits)
    larger = sealed((bytes(101), b""))
    with pytest.raises(LimitError, match="max_attachment_bytes: 101 is above the maximum of 100"):
        opened(larger, larger.attachments.ciphertexts, limits=limits)
    with pytest.raises(LimitError, match="max_attachment_bytes: 1048321 is above the maximum of 1048320"):
        sealed((bytes(DEFAULT_LIMITS.max_attachment_bytes + 1),))


@pytest.mark.req("ATT-09")
def test_limits_are_checked_before_any_key_is_made_or_root_computed():
    """spec §14.2"""
    limits = Limits(max_attachments_per_msg=2, max_attachment_bytes=10)
    for attachments, name in (((b"",) * 3, "max_attachments_per_msg"), ((bytes(27),), "max_attachment_bytes")):
        with pytest.raises(LimitError, match=name):
            seal_attachments(NO_CONTEXT, bytes(32), attachments, limits)
        with pytest.raises(LimitError, match=name):  # a VerifyError if the root were computed first
            open_attachments(NO_CONTEXT, bytes(32), HDR, attachments, limits)
    assert seal_attachments(NO_CONTEXT, bytes(32), (), limits) == SealedAttachments((), ())
    with pytest.raises(LimitError, match="max_attachments_per_msg: 1 is above the maximum of 0"):
        seal_attachments(NO_CONTEXT, bytes(32), (b"",), Limits(max_attachments_per_msg=0))


# The declared list


def declare(plain: tuple[bytes, ...]) -> Any:
    """The body as a function: it names its attachments by coid, which exist only once they are sealed."""

    def body(parts: SealedAttachments) -> bytes:
        declared = tuple(Attachment(coid=coid, size=len(data)) for coid, data in zip(parts.coids, plain, strict=True))
        return Attached(body=b"inner", attachments=declared).to_bytes()

    return body


@pytest.mark.req("ATT-07", "ATT-08")
def test_a_body_names_its_attachments_and_is_checked_against_them():
    """D-16: count, coids and plaintext sizes are declared inside the encrypted body, not in the header."""
    hdr = PayloadHdr(schema=ATTACHED_SCHEMA)
    message = seal(READER_PK, BINDING, hdr, declare(FILES), ikm=IKM, pad_block=256, attachments=FILES)
    result = open_msg(READER_SK, as_msg(message.ciphertext), attachments=message.attachments.ciphertexts)
    attached = Attached.from_bytes(result.body)
    assert attached.body == b"inner"
    assert [item.size for item in attached.attachments] == [5, 0, 10, 5, 1000]
    assert cbor2.loads(cbor2.dumps(result.hdr.to_tree())).keys() == {1, 3}  # schema and att_root: no count, no size
    attached.check(message.attachments.coids, result.attachments)


@pytest.mark.req("ATT-08")
def test_a_list_that_differs_from_the_declared_one_is_refused():
    """spec §4.6: length, size and identity; that is how a dropped or an added attachment is noticed."""
    parts = sealed(FILES).attachments
    coids = parts.coids
    attached = Attached.from_bytes(declare(FILES)(parts))
    attached.check(coids, FILES)
    for fewer in range(5):
        with pytest.raises(VerifyError, match=f"5 attachments are declared, {fewer} were supplied"):
            attached.check(coids[:fewer], FILES[:fewer])
    with pytest.raises(VerifyError, match="5 attachments are declared, 6 were supplied"):
        attached.check((*coids, coids[0]), (*FILES, FILES[0]))
    with pytest.raises(VerifyError, match="attachments are declared"):
        attached.check(coids[:4], FILES)
    with pytest.raises(VerifyError, match="attachments are declared"):
        attached.check(coids, FILES[:4])
    with pytest.raises(VerifyError, match="attachment 0 is not the declared one: its coid differs"):
        attached.check(coids[::-1], FILES)
    with pytest.raises(VerifyError, match="attachment 3 is not the declared one"):
        attached.check((*coids[:3], LEAVES[0], coids[4]), FILES)
    with pytest.raises(VerifyError, match="attachment 2: 10 bytes declared, 9 found"):
        attached.check(coids, (*FILES[:2], FILES[2][:-1], *FILES[3:]))
    Attached(body=b"", attachments=()).check((), ())
    with pytest.raises(VerifyError, match="0 attachments are declared, 1 were supplied"):
        Attached(body=b"", attachments=()).check(coids[:1], FILES[:1])


@given(
    st.binary(max_size=20),
    st.lists(
        st.builds(
            Attachment,
            coid=bytes_32,
            size=st.integers(0, 2**64 - 1),
            name=st.none() | st.text(max_size=5),
            media_type=st.none() | st.text(max_size=5),
        ),
        max_size=4,
    ).map(tuple),
)
def test_the_declaring_body_comes_back_unchanged(body, attachments):
    """D-16, D-02"""
    attached = Attached(body=body, attachments=attachments)
    data = attached.to_bytes()
    assert Attached.from_bytes(data) == attached
    tree = cbor2.loads(data)
    assert list(tree) == ["body", "attachments"]
    for item, declared in zip(tree["attachments"], attachments, strict=True):
        fields = {"coid": declared.coid, "size": declared.size}
        fields |= {"name": declared.name} if declared.name is not None else {}
        fields |= {"media_type": declared.media_type} if declared.media_type is not None else {}
        assert list(item.items()) == list(fields.items())


@pytest.mark.req("ATT-09")
def test_a_body_that_declares_more_than_1024_attachments_is_refused():
    """spec §14"""
    item = Attachment(coid=LEAVES[0], size=0)
    fits = Attached(body=b"", attachments=(item,) * 1024)
    assert Attached.from_bytes(fits.to_bytes()) == fits
    with pytest.raises(FormatError, match="0 to 1024 elements, found 1025"):
        replace(fits, attachments=(item,) * 1025).to_bytes()


def test_a_body_function_that_is_too_long_is_refused_like_any_body():
    """spec §14"""
    limits = Limits(max_body_bytes=30)
    fits = seal(READER_PK, BINDING, HDR, lambda _: bytes(14), ikm=IKM, pad_block=0, limits=limits)
    assert opened(fits, ()).body == bytes(14)
    with pytest.raises(LimitError, match="max_body_bytes: 31 is above the maximum of 30"):
        seal(READER_PK, BINDING, HDR, lambda _: bytes(15), ikm=IKM, pad_block=0, limits=limits)
