"""Equivocation: spec §4.3, §4.4; spec-1 §14."""

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from tests.core.strategies import single_bit_flips

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import EvidenceError, FieldSizeError, MalformedError, SignatureError, VeenError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.evidence import Equivocation
from veen.core.objects.receipt import Receipt

HUB, NEXT = SigningKey(b"\x02" * 32), SigningKey(b"\x03" * 32)
LABEL, LEAF, ROOT = b"\x0a" * 32, b"\x0b" * 32, b"\x0c" * 32
OTHER_LEAF, OTHER_ROOT = b"\x1b" * 32, b"\x1c" * 32


def receipt(key=HUB, *, label=LABEL, seq=5, leaf=LEAF, root=ROOT, hub_ts=100):
    return Receipt.issue(key, label=label, stream_seq=seq, leaf_hash=leaf, mmr_root=root, hub_ts=hub_ts)


def checkpoint(key=HUB, *, prev=LABEL, label=LABEL, seq=5, root=ROOT, epoch=0):
    return Checkpoint.issue(key, label_prev=prev, label_curr=label, upto_seq=seq, mmr_root=root, epoch=epoch)


CONFLICTS = [
    pytest.param(receipt(), receipt(leaf=OTHER_LEAF), id="two leaves", marks=pytest.mark.req("RCPT-07")),
    pytest.param(receipt(), receipt(root=OTHER_ROOT), id="two roots", marks=pytest.mark.req("RCPT-07")),
    pytest.param(
        receipt(), receipt(leaf=OTHER_LEAF, root=OTHER_ROOT), id="leaf and root", marks=pytest.mark.req("RCPT-07")
    ),
    pytest.param(receipt(), checkpoint(root=OTHER_ROOT), id="receipt and checkpoint"),
    pytest.param(checkpoint(), checkpoint(root=OTHER_ROOT), id="two checkpoints"),
    pytest.param(checkpoint(prev=ROOT, epoch=1), checkpoint(root=OTHER_ROOT), id="checkpoints of two shapes"),
]

AGREEMENTS = [
    pytest.param(receipt(), receipt(), id="the same receipt"),
    pytest.param(receipt(), receipt(hub_ts=101), id="two times"),
    pytest.param(receipt(), checkpoint(), id="receipt and checkpoint"),
    pytest.param(checkpoint(), checkpoint(), id="the same checkpoint"),
    pytest.param(checkpoint(), checkpoint(epoch=1), id="two epochs"),
    pytest.param(checkpoint(), checkpoint(prev=ROOT), id="two label_prev"),
]

POSITIONS = [
    pytest.param(receipt(), receipt(seq=6, root=OTHER_ROOT), id="two sequence numbers"),
    pytest.param(receipt(), receipt(label=ROOT, root=OTHER_ROOT), id="two labels"),
    pytest.param(receipt(), checkpoint(seq=6, root=OTHER_ROOT), id="checkpoint further on"),
    pytest.param(receipt(), checkpoint(prev=LABEL, label=ROOT, root=OTHER_ROOT), id="label_prev is no position"),
    pytest.param(checkpoint(), checkpoint(seq=4, root=OTHER_ROOT), id="two prefixes"),
]


@pytest.mark.parametrize(("one", "other"), CONFLICTS)
def test_two_statements_that_cannot_both_be_true_are_proof(one, other):
    """RCPT-07: for anyone, offline, in one form whatever the order they came in."""
    evidence = Equivocation.of(one, other, one_pk=HUB.public)
    assert evidence.hub_pks == (HUB.public,)
    again = Equivocation.from_bytes(evidence.to_bytes())
    assert again == evidence
    again.verify()
    Equivocation.from_json(evidence.to_json()).verify()
    assert Equivocation.of(other, one, one_pk=HUB.public).to_bytes() == evidence.to_bytes()
    with pytest.raises(EvidenceError, match="order"):
        replace(evidence, first=evidence.second, second=evidence.first).verify()


@pytest.mark.parametrize(("one", "other"), AGREEMENTS)
def test_statements_that_agree_prove_nothing(one, other):
    """spec-1 §14: equal leaf and root, whatever else differs."""
    with pytest.raises(EvidenceError):
        Equivocation.of(one, other, one_pk=HUB.public)


@pytest.mark.parametrize(("one", "other"), POSITIONS)
def test_statements_about_different_positions_prove_nothing(one, other):
    """RCPT-07: equal (label, stream_seq)"""
    with pytest.raises(EvidenceError, match="different positions"):
        Equivocation.of(one, other, one_pk=HUB.public)


def test_nobody_is_framed_with_the_signature_of_another():
    """RCPT-07: both statements must be the accused hub's own."""
    forged = receipt(NEXT, leaf=OTHER_LEAF)
    with pytest.raises(SignatureError):
        Equivocation.of(receipt(), forged, one_pk=HUB.public)
    with pytest.raises(SignatureError):
        Equivocation.of(receipt(), receipt(leaf=OTHER_LEAF), one_pk=NEXT.public)
    altered = replace(receipt(), leaf_hash=OTHER_LEAF)
    with pytest.raises(SignatureError):
        Equivocation.of(receipt(), altered, one_pk=HUB.public)


@pytest.mark.parametrize("leaf", [OTHER_LEAF, bytes(32)], ids=["sorts after", "sorts before"])
def test_a_hub_that_rotated_its_key_in_between_is_still_caught(leaf):
    """spec §8.4: one key for each statement, in the order of the statements."""
    first, other = receipt(HUB), receipt(NEXT, leaf=leaf)
    evidence = Equivocation.of(first, other, one_pk=HUB.public, other_pk=NEXT.public)
    expected = (HUB.public, NEXT.public) if first.to_bytes() < other.to_bytes() else (NEXT.public, HUB.public)
    assert evidence.hub_pks == expected
    Equivocation.from_bytes(evidence.to_bytes()).verify()
    with pytest.raises(SignatureError):
        replace(evidence, hub_pks=expected[::-1]).verify()
    with pytest.raises(SignatureError):
        replace(evidence, hub_pks=expected[:1]).verify()


def test_one_key_is_listed_once():
    """One form only: equal evidence has equal bytes."""
    evidence = Equivocation.of(receipt(), receipt(leaf=OTHER_LEAF), one_pk=HUB.public, other_pk=HUB.public)
    assert evidence.hub_pks == (HUB.public,)
    with pytest.raises(EvidenceError, match="twice"):
        replace(evidence, hub_pks=(HUB.public, HUB.public)).verify()


@pytest.mark.req("RCPT-07")
@pytest.mark.parametrize("rotated", [False, True])
def test_two_receipts_fit_into_512_bytes(rotated):
    """Also with the largest integers and two keys: small enough for a QR code or a text message."""
    most = {"seq": 2**64 - 1, "hub_ts": 2**64 - 1}
    other_key = NEXT if rotated else HUB
    evidence = Equivocation.of(
        receipt(**most), receipt(other_key, leaf=OTHER_LEAF, **most), one_pk=HUB.public, other_pk=other_key.public
    )
    assert len(evidence.to_bytes()) == (451 if rotated else 417) <= 512


def test_every_single_bit_flip_is_refused():
    """By the reader or by `verify`; all bits of one report."""
    data = Equivocation.of(receipt(), receipt(leaf=OTHER_LEAF), one_pk=HUB.public).to_bytes()
    Equivocation.from_bytes(data).verify()
    for flipped in single_bit_flips(data):
        with pytest.raises(VeenError):
            Equivocation.from_bytes(flipped).verify()


def test_the_report_is_a_map_of_four_keys():
    """Its two statements are told apart by their third item."""
    receipt_statement, other = receipt(), checkpoint(root=OTHER_ROOT)
    evidence = Equivocation.of(receipt_statement, other, one_pk=HUB.public)
    first, second = sorted((receipt_statement, other), key=lambda statement: statement.to_bytes())
    tree = {1: 1, 2: [HUB.public], 3: first.to_tree(), 4: second.to_tree()}
    assert evidence.to_bytes() == cbor2.dumps(tree)
    wrong: Any
    for key in (3, 4):
        for wrong in (None, 0, b"", [], [1], [1, LABEL], [1, LABEL, None], [1, LABEL, "x"], {}, [1, LABEL, True]):
            with pytest.raises(MalformedError):
                Equivocation.from_bytes(cbor2.dumps({**tree, key: wrong}))
    for keys in ([], [bytes(32)] * 3, [bytes(31)]):
        with pytest.raises(FieldSizeError):
            Equivocation.from_bytes(cbor2.dumps({**tree, 2: keys}))


def test_evidence_errors_are_verify_errors():
    """Whoever checks evidence needs to catch one class only."""
    assert issubclass(EvidenceError, VerifyError)
    assert issubclass(SignatureError, VerifyError)
