"""Records of VESN: one canonical encoding, tags, signatures."""

from dataclasses import replace
from random import Random

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.products.vesn import log_builders as w

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, MalformedError
from veen.core.hashing import H
from veen.products.vesn import ledger as merkle
from veen.products.vesn import objects
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.ledger import Ledger
from veen.products.vesn.objects import (
    DEFAULT_PROFILE,
    Allow,
    CapToken,
    Checkpoint,
    Equivocation,
    ErrorReply,
    IdentityCard,
    Pair,
    PayloadHdr,
    Profile,
    Rate,
    Receipt,
    RoutingSecret,
    SyncState,
)

LOG = w.log((4, 2))
TREE = merkle.Tree()
for receipt in LOG["receipts"]:
    TREE.append(receipt.leaf_hash)
FORKED = Receipt.issue(
    w.HUB, label=w.label(w.EPOCH_0), stream_seq=1, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=w.HUB_TS
)
SAMPLES = [
    LOG["payloads"][0],
    LOG["receipts"][0],
    LOG["checkpoints"][0],
    replace(LOG["checkpoints"][0], witness_sigs=None),
    Pair(ct_hash=H(b"x"), ciphertext=b"x"),
    w.TOKEN,
    replace(w.TOKEN, allow=Allow(ttl=0, stream_ids=(bytes(32),))),
    PayloadHdr(schema=bytes(32)),
    PayloadHdr(schema=bytes(32), cap_ref=bytes(32), att_root=bytes(32), parent_id=bytes(32), expires_at=2**64 - 1),
    SyncState(last_mmr_root=bytes(32), last_stream_seq=24),
    RoutingSecret(stream_id=w.STREAM_ID, routing_key=w.ROUTING_KEY),
    IdentityCard.issue(w.OWNER, w.READER_PK),
    ErrorReply(code="E.SIG"),
    ErrorReply(code="E.SIG", detail="no"),
    Equivocation.of(LOG["receipts"][0], FORKED, hub_pk=w.HUB.public),
    DEFAULT_PROFILE,
    w.KEYSTORE,
    merkle.prove(TREE.node_at, 3, 6),
]
IDS = [f"{type(sample).__name__}-{number}" for number, sample in enumerate(SAMPLES)]


def oracle(sample):
    """cbor2's canonical writer, an implementation of its own: keys by length, then bytewise."""
    return cbor2.dumps(cbor2.loads(sample.to_bytes()), canonical=True)


@pytest.mark.req("VESN-01")
@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_a_record_has_one_canonical_encoding(sample):
    """002 §1, §18; D-114"""
    data = sample.to_bytes()
    assert data == oracle(sample)
    assert type(sample).from_bytes(data) == sample
    assert type(sample).from_json(sample.to_json()) == sample
    tree = cbor2.loads(data)
    assert all(type(key) is str for key in tree)
    assert None not in tree.values()
    for spoilt in (
        data + b"\x00",
        data[:-1],
        cbor2.dumps(dict(reversed(tree.items()))),
        cbor2.dumps({**tree, "zzzzzzzzzzzzzzzzzzzz": 1}, canonical=True),
        cbor2.dumps({**tree, "extra": None}, canonical=True),
        bytes([0xBF]) + data[1:] + b"\xff",  # indefinite length
        bytes([0xB8, len(tree)]) + data[1:],  # a length that is not minimal
    ):
        if spoilt != data:
            with pytest.raises(FormatError):
                type(sample).from_bytes(spoilt)


@pytest.mark.req("VESN-01")
@pytest.mark.parametrize("name", ["cap_ref", "att_root", "parent_id", "expires_at"])
def test_null_is_no_way_to_leave_a_field_out(name):
    with pytest.raises(MalformedError):
        PayloadHdr.from_bytes(cbor2.dumps({"schema": bytes(32), name: None}, canonical=True))


@pytest.mark.req("VESN-01")
def test_integers_are_minimal():
    state = cbor2.dumps({"last_mmr_root": bytes(32), "last_stream_seq": 1}, canonical=True)
    assert SyncState.from_bytes(state).last_stream_seq == 1
    with pytest.raises(FormatError):
        SyncState.from_bytes(state[:-1] + b"\x18\x01")


@pytest.mark.req("VESN-01")
def test_all_tags_begin_with_vesn():
    """002 §18: each tag that the module hashes under"""
    import re
    from pathlib import Path

    tags = set()
    for path in Path(objects.__file__).parent.glob("*.py"):
        text = path.read_text("utf-8")
        tags |= set(re.findall(r'Ht\(\s*"([^"]+)"', text)) | set(re.findall(r'Tags\(node="([^"]+)", root=', text))
        tags |= set(re.findall(r'export\(b"([^"]+)"', text))
    assert {"vesn/profile", "vesn/label", "vesn/sig", "vesn/leaf", "vesn/cap", "vesn/mmr-node", "vesn/body-k"} <= tags
    assert all(tag.startswith("vesn/") for tag in tags)


@pytest.mark.req("VESN-02")
def test_the_default_profile_is_that_of_the_text():
    tree = {
        "aead": "xchacha20poly1305",
        "kdf": "hkdf-sha256",
        "sig": "ed25519",
        "dh": "x25519",
        "epoch_sec": 60,
        "pad_block": 0,
        "mmr_hash": "sha256",
    }
    data = cbor2.dumps(tree, canonical=True)
    assert DEFAULT_PROFILE.to_bytes() == data
    assert DEFAULT_PROFILE.profile_id() == H(b"vesn/profile\x00" + data)
    assert Profile(epoch_sec=61).profile_id() != DEFAULT_PROFILE.profile_id()


@pytest.mark.req("VESN-03")
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 1))
def test_labels(routing_key, stream_id, epoch):
    expected = H(b"vesn/label\x00" + routing_key + stream_id + epoch.to_bytes(8, "big"))
    assert objects.label_of(routing_key, stream_id, epoch) == expected


def test_epochs():
    assert DEFAULT_PROFILE.epoch_at(179) == 2
    assert Profile(epoch_sec=0).epoch_at(179) == 0


@pytest.mark.req("VESN-04")
def test_a_message_has_no_auth_ref_and_its_signature_covers_everything_else():
    msg = LOG["payloads"][0]
    tree = cbor2.loads(msg.to_bytes())
    assert "auth_ref" not in tree
    sig = tree.pop("sig")
    assert SigningKey(bytes([20]) * 32).sign(H(b"vesn/sig\x00" + cbor2.dumps(tree, canonical=True))) == sig
    msg.verify()
    for changed in (
        replace(msg, label=bytes(32)),
        replace(msg, prev_ack=1),
        replace(msg, client_seq=7),
        replace(msg, profile_id=bytes(32)),
        replace(msg, ciphertext=b"other", ct_hash=H(b"other")),
        replace(msg, client_id=w.HUB.public),
        replace(msg, sig=bytes(64)),
    ):
        with pytest.raises(Violation) as refused:
            changed.verify()
        assert refused.value.problem is Problem.SIG
    with pytest.raises(Violation) as refused:
        replace(msg, ciphertext=b"other").verify()
    assert refused.value.problem is Problem.I1


@pytest.mark.req("VESN-05")
def test_msg_id_is_the_leaf_hash():
    msg, receipt = LOG["payloads"][0], LOG["receipts"][0]
    expected = H(b"vesn/leaf\x00" + msg.ct_hash + msg.client_id + msg.client_seq.to_bytes(8, "big"))
    assert msg.leaf_hash() == receipt.leaf_hash == expected
    # Unlike in VEEN, neither label nor profile_id is covered.
    assert replace(msg, label=bytes(32), profile_id=bytes(32)).leaf_hash() == expected


@pytest.mark.req("VESN-06")
def test_a_receipt_is_signed_by_the_hub():
    receipt = LOG["receipts"][1]
    receipt.verify([w.CLIENT.public, w.HUB.public])
    for changed in (
        replace(receipt, label=bytes(32)),
        replace(receipt, stream_seq=9),
        replace(receipt, leaf_hash=bytes(32)),
        replace(receipt, mmr_root=bytes(32)),
        replace(receipt, hub_ts=0),
    ):
        with pytest.raises(Violation):
            changed.verify([w.HUB.public])
    for keys in ([], [w.CLIENT.public]):
        with pytest.raises(Violation):
            receipt.verify(keys)


@pytest.mark.req("VESN-06")
def test_a_checkpoint_may_have_witnesses():
    checkpoint = LOG["checkpoints"][0]
    assert checkpoint.witness_sigs is not None
    checkpoint.verify([w.HUB.public])
    checkpoint.verify([w.HUB.public], [w.CLIENT.public, w.WITNESS.public])
    for changed in (
        replace(checkpoint, epoch=0),
        replace(checkpoint, upto_seq=3),
        replace(checkpoint, mmr_root=bytes(32)),
        replace(checkpoint, label_prev=bytes(32)),
        replace(checkpoint, label_curr=bytes(32)),
    ):
        with pytest.raises(Violation):
            changed.verify([w.HUB.public])
    for signatures in ((bytes(64),), checkpoint.witness_sigs * 2):  # the same witness does not count twice
        with pytest.raises(Violation):
            replace(checkpoint, witness_sigs=signatures).verify([w.HUB.public], [w.WITNESS.public])
    assert "witness_sigs" not in cbor2.loads(replace(checkpoint, witness_sigs=None).to_bytes())
    with pytest.raises(FormatError):
        Checkpoint.from_bytes(cbor2.dumps({**cbor2.loads(checkpoint.to_bytes()), "witness_sigs": []}, canonical=True))


@pytest.mark.req("VESN-07", "VESN-11")
def test_cap_ref_is_the_hash_of_the_token():
    assert w.TOKEN.cap_ref() == H(b"vesn/cap\x00" + w.TOKEN.to_bytes())


def link(token, number):
    """The formula of 001 (D-116), written out again."""
    previous = bytes(32) if number == 0 else H(token.sig_chain[number - 1])
    allow = cbor2.dumps(cbor2.loads(token.to_bytes())["allow"], canonical=True)
    return H(b"vesn/cap-link\x00" + token.issuer_pk + token.subject_pk + allow + previous)


@pytest.mark.req("VESN-11")
def test_a_token_needs_an_acyclic_chain_of_its_issuer():
    token = w.TOKEN
    token.verify()
    assert token.sig_chain == tuple(w.ISSUER.sign(link(token, number)) for number in range(2))
    first, second = token.sig_chain
    for chain in ((), (second,), (second, first), (first, first), (first, second, first), (first, bytes(64))):
        with pytest.raises(Violation) as refused:
            replace(token, sig_chain=chain).verify()
        assert refused.value.problem is Problem.I7
    for changed in (
        replace(token, subject_pk=w.HUB.public),
        replace(token, issuer_pk=w.HUB.public),
        replace(token, allow=replace(token.allow, ttl=7200)),
        replace(token, allow=replace(token.allow, rate=None)),
        replace(token, allow=replace(token.allow, rate=Rate(per_sec=2, burst=2))),
        replace(token, allow=replace(token.allow, stream_ids=(bytes(32),))),
    ):
        with pytest.raises(Violation):
            changed.verify()


@pytest.mark.req("VESN-11")
def test_a_token_ends_and_is_for_its_streams_only():
    """ttl counts from the first use, inclusive"""
    w.TOKEN.check(stream_id=w.STREAM_ID, first_used_at=100, now=3700)
    for stream_id, now in ((w.STREAM_ID, 3701), (H(b"another"), 100)):
        with pytest.raises(Violation) as refused:
            w.TOKEN.check(stream_id=stream_id, first_used_at=100, now=now)
        assert refused.value.problem is Problem.I7


@pytest.mark.req("VESN-11")
def test_sizes_of_tokens_are_bounded():
    for changed in (
        replace(w.TOKEN, sig_chain=(bytes(64),) * 9),
        replace(w.TOKEN, allow=Allow(ttl=1, stream_ids=(bytes(32),) * 257)),
        replace(w.TOKEN, allow=Allow(ttl=1, stream_ids=())),
        replace(w.TOKEN, sig_chain=()),
    ):
        with pytest.raises(FormatError):
            CapToken.from_bytes(cbor2.dumps(changed.to_tree()))


@pytest.mark.req("VESN-16")
def test_two_receipts_for_one_position_convict_the_hub():
    """002 §14"""
    receipt = LOG["receipts"][0]
    evidence = Equivocation.of(FORKED, receipt, hub_pk=w.HUB.public)
    assert evidence == Equivocation.of(receipt, FORKED, hub_pk=w.HUB.public)
    Equivocation.from_bytes(evidence.to_bytes()).verify()
    same_root = Receipt.issue(
        w.HUB, label=receipt.label, stream_seq=1, leaf_hash=bytes(32), mmr_root=receipt.mmr_root, hub_ts=0
    )
    Equivocation.of(receipt, same_root, hub_pk=w.HUB.public)  # one root cannot stand for two leaves
    later = Receipt.issue(
        w.HUB, label=receipt.label, stream_seq=1, leaf_hash=receipt.leaf_hash, mmr_root=receipt.mmr_root, hub_ts=9
    )
    elsewhere = Receipt.issue(w.HUB, label=bytes(32), stream_seq=1, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=9)
    forged = Receipt.issue(
        w.OTHER_HUB, label=receipt.label, stream_seq=1, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=9
    )
    for other in (receipt, later, elsewhere, forged, LOG["receipts"][1]):
        with pytest.raises(Violation):
            Equivocation.of(receipt, other, hub_pk=w.HUB.public)
    with pytest.raises(Violation):
        replace(evidence, first=evidence.second, second=evidence.first).verify()


def test_a_ledger_never_equivocates_by_itself():
    rng, ledger = Random(1), Ledger(w.HUB)
    seqs = []
    for number in range(1, 20):
        msg, _ = w.message(SigningKey(rng.randbytes(32)), 1, at=w.label(rng.randrange(2)), prev_ack=0)
        receipt = ledger.accept(msg, hub_ts=number)
        seqs.append((receipt.label, receipt.stream_seq))
    assert len(set(seqs)) == len(seqs)


def test_secrets_are_not_shown():
    for record in (RoutingSecret(stream_id=bytes(32), routing_key=b"\xab" * 32), w.KEYSTORE.open(w.PASSPHRASE)):
        assert "abab" not in repr(record)
        assert w.READER_SK.hex() not in repr(record)
