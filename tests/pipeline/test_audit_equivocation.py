"""Two directories of one identity: what the hub signed twice is proof, what it did not sign is damage."""

import random
from dataclasses import replace

import pytest
from tests.pipeline.audit_builders import Liar, chunks, dump, grow, log, reframed, run, signed
from tests.storage.builders import LABELS, LIMITS, copy_of
from tests.storage.driver import HUB

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.control import LimitsSet
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import HubIdentity
from veen.verify.audit.equivocation import NotComparable, compare


def branches(tmp_path):
    """One hub up to some point, then two of it."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 14)
    world.store.close()
    paths = []
    for name, seed in (("left", 1), ("right", 2)):
        branch = Liar(copy_of(world.fs))
        grow(branch, 10, random.Random(seed))
        branch.store.close()
        (tmp_path / name).mkdir()
        paths.append(str(dump(branch, tmp_path / name)))
    return paths


@pytest.mark.req("RCPT-07")
def test_a_hub_that_told_two_stories_is_proven_to(tmp_path):
    left, right = branches(tmp_path)
    assert run(left).ok  # each by itself is a good log
    assert run(right).ok
    comparison = compare(left, right)
    assert not comparison.ok
    assert {proof.label for proof in comparison.proven} == set(LABELS)
    for proof in comparison.proven:
        again = Equivocation.from_bytes(proof.evidence.to_bytes())
        again.verify()
        assert again.hub_pks == (HUB.public,)
    assert compare(right, left).proven == comparison.proven  # evidence has one form
    assert compare(left, left).ok


def test_copies_and_prefixes_agree(tmp_path):
    world = Liar()
    grow(world, 10)
    world.store.retire()
    for name in ("early", "late"):
        (tmp_path / name).mkdir()
    early = dump(world, tmp_path / "early")
    grow(world, 10)
    world.store.close()
    late = dump(world, tmp_path / "late")
    comparison = compare(str(early), str(late))
    assert comparison.ok
    assert sum(comparison.common.values()) == 10


def test_what_the_hub_did_not_sign_is_damage_and_no_proof(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    left, right = (dump(log(20), tmp_path / name) for name in ("one", "other"))
    stranger = SigningKey(b"\x77" * 32)
    reframed(chunks(right)[0], 1, lambda msg, receipt: (msg, signed(replace(receipt, mmr_root=bytes(32)), stranger)))
    comparison = compare(str(left), str(right))
    assert comparison.proven == ()
    assert [(finding.code, finding.stream_seq) for finding in comparison.findings] == [("hub_sig", 2)]
    reframed(chunks(right)[0], 1, lambda msg, receipt: (msg, signed(replace(receipt, mmr_root=bytes(32)))))
    assert [proof.stream_seq for proof in compare(str(left), str(right)).proven] == [2]


def test_directories_of_different_hubs_are_not_compared(tmp_path):
    path = str(dump(log(5), tmp_path))
    other = HubIdentity.first(SigningKey(b"\x77" * 32).public, valid_from=0)
    with pytest.raises(NotComparable, match="different hubs"):
        compare(path, path, other)
    (tmp_path / "hub-identity.json").unlink()
    with pytest.raises(NotComparable, match="which hub"):
        compare(path, path)
