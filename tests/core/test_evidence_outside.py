"""Proofs by others in an evidence file, judged by a policy of witnesses."""

from dataclasses import replace

import pytest
from tests.evidence_builders import World, pinned

from veen.core.catalogue import catalogue
from veen.core.crypto.ed25519 import SigningKey
from veen.core.evidence_check import check_evidence
from veen.core.evidence_file import EvidenceFault, EvidenceFile, OutsideProof
from veen.core.hashing import H
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tlog.note import COSIGNATURE, ED25519, LogCheckpoint, VerifierKey, cosign
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tlog.proof import CoseReceipt, OuterLeaf, TlogProof
from veen.core.tlog.tree import TlogTree, prove_inclusion

LOG, WITNESS, OTHER = (SigningKey(bytes([n]) * 32) for n in (11, 12, 13))
ORIGIN = "hub.example/veen"
LOG_KEY = VerifierKey(ORIGIN, ED25519, LOG.public)
WITNESS_KEY = VerifierKey("w.example", COSIGNATURE, WITNESS.public)
OTHER_KEY = VerifierKey("o.example", COSIGNATURE, OTHER.public)
POLICY = WitnessPolicy.parse(f"log {LOG_KEY}\nwitness w {WITNESS_KEY}\nwitness o {OTHER_KEY}\nquorum w\n")
STRICT = WitnessPolicy.parse(
    f"log {LOG_KEY}\nwitness w {WITNESS_KEY}\nwitness o {OTHER_KEY}\ngroup g all w o\nquorum g\n"
)
FILE = World().evidence((1, 5), head=7)
RAW = FILE.logs[0].checkpoints[-1]


def proofs(raw=RAW, *, spoil=None, size=4):
    """The file with a tlog-proof and a receipt of one of its checkpoints."""
    leaf = OuterLeaf.of_checkpoint(Checkpoint.from_bytes(raw)).to_bytes()
    tree = TlogTree([b"identity", leaf, b"more", b"leaves"])
    head = LogCheckpoint(ORIGIN, size, tree.root(size))
    note = head.sign(LOG).with_signatures((cosign(WITNESS, "w.example", head.text, 1_700_000_000),))
    path = prove_inclusion(tree.node_at, 1, size)
    receipt = CoseReceipt.issue(LOG, head, 1, path, subject="x", issued_at=1_700_000_000)
    data = {"tlog-proof": TlogProof(1, path, note).to_bytes(), "cose-receipt": receipt.to_bytes()}
    data.update(spoil or {})
    return [OutsideProof(kind=kind, checkpoint_hash=H(raw), data=value) for kind, value in data.items() if value]


def file_with(*outside):
    file = replace(FILE, outside=tuple(outside))
    return EvidenceFile.from_file(file.to_file())


def test_a_cosigned_listing_is_part_of_what_is_proven():
    report = check_evidence(file_with(*proofs()), pinned(), POLICY)
    assert report.outside == ()
    assert any("cosigned by w" in sentence for sentence in report.proves())
    assert not any("same log" in sentence for sentence in report.limits())


def test_without_a_policy_nothing_is_claimed():
    report = check_evidence(file_with(*proofs()), pinned())
    assert report.outside == ("tlog-proof", "cose-receipt")
    assert any("were not checked" in sentence for sentence in report.limits())


@pytest.mark.parametrize(
    ("name", "outside", "policy", "code"),
    [
        ("no proof", (), POLICY, "QUORUM"),
        ("a receipt alone", proofs(spoil={"tlog-proof": None}), POLICY, "QUORUM"),
        ("too few witnesses", proofs(), STRICT, "QUORUM"),
        ("rubbish", proofs(spoil={"tlog-proof": b"rubbish\n"}), POLICY, "OUTSIDE"),
        ("a rubbish receipt", proofs(spoil={"cose-receipt": b"\xd2rubbish"}), POLICY, "OUTSIDE"),
        ("a receipt of another size", [proofs()[0], proofs(size=3)[1]], POLICY, "OUTSIDE"),
        ("a log of nobody", proofs(), WitnessPolicy.parse("quorum none\n"), "QUORUM"),
    ],
)
def test_a_missing_quorum_is_told_from_a_proof_that_is_wrong(name, outside, policy, code):
    """walk A15: what is missing is a matter of policy (exit 6), what is wrong is bad evidence (exit 1)."""
    file = file_with(*outside) if outside else FILE
    with pytest.raises(EvidenceFault) as caught:
        check_evidence(file, pinned(), policy)
    assert caught.value.code == f"E.EVIDENCE.{code}"
    assert catalogue()[type(caught.value).code].exit_status == (6 if code == "QUORUM" else 1)


def test_a_proof_of_another_checkpoint_does_not_help():
    first = FILE.logs[0].checkpoints[0]
    mixed = [replace(proof, checkpoint_hash=H(first)) for proof in proofs()]
    with pytest.raises(EvidenceFault) as caught:
        check_evidence(file_with(*mixed), pinned(), POLICY)
    assert caught.value.code == "E.EVIDENCE.OUTSIDE"
