"""CHECKPOINT: spec §4.4, §4.4.1."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import cbor2
import pytest
from hypothesis import given
from nacl.signing import VerifyKey
from tests.core import strategies
from tests.core.strategies import single_bit_flips

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, MalformedError, SignatureError, VeenError, VerifyError
from veen.core.labels import label_of
from veen.core.objects.checkpoint import Checkpoint

HUB, WITNESSES = SigningKey(b"\x02" * 32), tuple(SigningKey(bytes((n,)) * 32) for n in range(3, 19))
ROUTING_KEY, STREAM_ID, ROOT = b"\x0a" * 32, b"\x0b" * 32, b"\x0c" * 32


def label(epoch, stream_id=STREAM_ID):
    return label_of(ROUTING_KEY, stream_id, epoch)


def issue(*, label_prev=None, label_curr=None, epoch=9, witnesses=()):
    return Checkpoint.issue(
        HUB,
        label_prev=label(8) if label_prev is None else label_prev,
        label_curr=label(9) if label_curr is None else label_curr,
        upto_seq=1024,
        mmr_root=ROOT,
        epoch=epoch,
        witnesses=witnesses,
    )


@pytest.mark.req("TS0-02")
@given(strategies.CHECKPOINT)
def test_a_checkpoint_has_seven_items_or_eight(checkpoint):
    """spec §4.4: trailing trim."""
    tree = checkpoint.to_tree()
    assert len(tree) == (7 if checkpoint.witness_sigs is None else 8)
    assert checkpoint.to_bytes() == cbor2.dumps(tree) == cbor.encode(tree)
    assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


@pytest.mark.req("CKPT-01", "CBOR-07")
def test_the_items_stand_in_the_order_of_the_spec():
    """spec §4.4"""
    checkpoint = issue(witnesses=WITNESSES[:2])
    assert checkpoint.to_bytes() == cbor2.dumps(
        [1, label(8), label(9), 1024, ROOT, 9, checkpoint.hub_sig, list(checkpoint.witness_sigs)]
    )


@pytest.mark.req("CKPT-02", "CBOR-05")
def test_without_witnesses_the_array_ends_at_seven():
    """spec §4.4: null is not permitted; nor is an empty list, which would be a second way to say none."""
    tree = issue().to_tree()
    assert len(tree) == 7
    assert Checkpoint.from_bytes(cbor2.dumps(tree)).witness_sigs is None
    wrong: Any
    for wrong in (None, 0, b"", {}):
        with pytest.raises(MalformedError):
            Checkpoint.from_bytes(cbor2.dumps([*tree, wrong]))
    with pytest.raises(FieldSizeError, match="1 to 16"):
        Checkpoint.from_bytes(cbor2.dumps([*tree, []]))
    with pytest.raises(MalformedError):
        Checkpoint.from_bytes(cbor2.dumps([*tree, [bytes(64)], 0]))
    with pytest.raises(MalformedError):
        Checkpoint.from_bytes(cbor2.dumps(tree[:6]))


@pytest.mark.req("CKPT-12", "CBOR-09")
def test_witness_signatures_are_64_bytes_each_and_at_most_16():
    """spec §4.4, D-37"""
    tree = issue(witnesses=WITNESSES).to_tree()
    assert Checkpoint.from_bytes(cbor2.dumps(tree)).to_tree() == tree
    assert len(tree[7]) == 16
    for wrong in ([bytes(63)], [bytes(64), bytes(65)], [bytes(64)] * 17):
        with pytest.raises(FieldSizeError):
            Checkpoint.from_bytes(cbor2.dumps([*tree[:7], wrong]))
    sig: Any
    for sig in (None, 0, "x" * 64, []):
        with pytest.raises(MalformedError):
            Checkpoint.from_bytes(cbor2.dumps([*tree[:7], [bytes(64), sig]]))


@pytest.mark.req("CKPT-03")
def test_hub_sig_is_over_the_tagged_hash_of_the_first_six_items():
    """D-36: computed here from its words, and verified with another library; witnesses change nothing."""
    for witnesses in ((), WITNESSES[:1]):
        checkpoint = issue(witnesses=witnesses)
        digest = sha256(b"veen/sig\x00" + cbor2.dumps(checkpoint.to_tree()[:6])).digest()
        assert checkpoint.signing_digest() == digest
        VerifyKey(HUB.public).verify(digest, checkpoint.hub_sig)
        checkpoint.verify(HUB.public)
        with pytest.raises(SignatureError, match="CHECKPOINT 1024"):
            checkpoint.verify(WITNESSES[0].public)


@pytest.mark.req("CKPT-12")
def test_witnesses_sign_the_digest_that_the_hub_signs():
    """D-37"""
    checkpoint = issue(witnesses=WITNESSES[:3])
    for witness, sig in zip(WITNESSES, checkpoint.witness_sigs, strict=False):
        VerifyKey(witness.public).verify(checkpoint.signing_digest(), sig)
    keys = [witness.public for witness in WITNESSES]
    assert checkpoint.verify_witnesses(keys) == tuple(keys[:3])
    assert checkpoint.verify_witnesses(keys[2:0:-1]) == tuple(keys[2:0:-1])
    assert issue().verify_witnesses(keys) == ()
    assert replace(checkpoint, epoch=8).verify_witnesses(keys) == ()


def test_every_single_bit_flip_is_refused():
    """spec §4.4: by the reader or by `verify`; all bits of one checkpoint."""
    data = issue().to_bytes()
    Checkpoint.from_bytes(data).verify(HUB.public)
    for flipped in single_bit_flips(data):
        with pytest.raises(VeenError):
            Checkpoint.from_bytes(flipped).verify(HUB.public)


def test_a_bit_flip_anywhere_costs_the_hub_or_the_witness():
    """D-37: with a witness there are two signatures; no flip leaves both intact."""
    data, witness = issue(witnesses=WITNESSES[:1]).to_bytes(), WITNESSES[0].public
    for flipped in single_bit_flips(data):
        try:
            checkpoint = Checkpoint.from_bytes(flipped)
            checkpoint.verify(HUB.public)
        except VeenError:
            continue
        assert checkpoint.verify_witnesses([witness]) == ()


# --- labels and epoch ---------------------------------------------------------------------------------------


@pytest.mark.req("CKPT-08")
def test_a_rotation_comes_from_the_label_of_the_preceding_epoch():
    """spec §4.4.1"""
    issue().check_labels(ROUTING_KEY, STREAM_ID)
    for wrong in (label(7), label(10), label(8, stream_id=ROOT), bytes(32)):
        with pytest.raises(VerifyError, match="label_prev"):
            issue(label_prev=wrong).check_labels(ROUTING_KEY, STREAM_ID)


@pytest.mark.req("CKPT-08")
def test_nothing_rotates_into_epoch_0():
    """spec §4.4.1: there is no epoch before it."""
    for wrong in (label(1), label(2**64 - 1), bytes(32)):
        with pytest.raises(VerifyError, match="label_prev"):
            issue(label_prev=wrong, label_curr=label(0), epoch=0).check_labels(ROUTING_KEY, STREAM_ID)


@pytest.mark.req("CKPT-09")
@pytest.mark.parametrize("epoch", [0, 1, 9])
def test_equal_labels_mean_no_rotation_in_the_epoch_of_the_label(epoch):
    """spec §4.4.1"""
    issue(label_prev=label(epoch), label_curr=label(epoch), epoch=epoch).check_labels(ROUTING_KEY, STREAM_ID)
    wrong = issue(label_prev=label(epoch), label_curr=label(epoch), epoch=epoch + 1)
    with pytest.raises(VerifyError, match="label_curr"):
        wrong.check_labels(ROUTING_KEY, STREAM_ID)


@pytest.mark.req("CKPT-10")
def test_the_epoch_must_be_that_of_label_curr():
    """spec §4.4.1"""
    for epoch in (0, 8, 10):
        with pytest.raises(VerifyError, match="label_curr"):
            issue(epoch=epoch).check_labels(ROUTING_KEY, STREAM_ID)
    with pytest.raises(VerifyError, match="label_curr"):
        issue().check_labels(ROUTING_KEY, ROOT)
    with pytest.raises(VerifyError, match="label_curr"):
        issue().check_labels(ROOT, STREAM_ID)
