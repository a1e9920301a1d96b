"""The tree of VESN (002 §7, §8, §10; D-31, D-115)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.errors import FormatError
from veen.core.hashing import H
from veen.products.vesn.errors import Violation
from veen.products.vesn.ledger import MmrProof, Step, Tree, att_root_of, new_mmr, prove

LEAVES = [H(bytes([n])) for n in range(40)]


def perfect(leaves, tag):
    """The root of a perfect tree, by the definition and without any carry."""
    if len(leaves) == 1:
        return leaves[0]
    half = len(leaves) // 2
    return H(tag + b"\x00" + perfect(leaves[:half], tag) + perfect(leaves[half:], tag))


def model(leaves, node=b"vesn/mmr-node", root=b"vesn/mmr-root"):
    """Perfect trees of the binary decomposition, the smallest first, always under the root tag."""
    peaks: list[bytes] = []
    start = 0
    for height in reversed(range(len(leaves).bit_length())):
        if len(leaves) >> height & 1:
            peaks.insert(0, perfect(leaves[start : start + 2**height], node))
            start += 2**height
    return H(root + b"\x00" + b"".join(peaks))


@pytest.mark.req("VESN-08")
@pytest.mark.parametrize("size", range(1, 34))
def test_the_root_is_that_of_the_definition(size):
    """Also at one peak, where VEEN takes the peak itself, and at four leaves, where the text breaks (D-115)"""
    mmr, tree = new_mmr(), Tree()
    for leaf in LEAVES[:size]:
        mmr.append(leaf)
        tree.append(leaf)
    assert mmr.root() == tree.root() == model(LEAVES[:size])
    assert tree.root(1) == H(b"vesn/mmr-root\x00" + LEAVES[0])


@pytest.mark.req("VESN-10")
@pytest.mark.parametrize("count", range(1, 10))
def test_att_root(count):
    """002 §10"""
    assert att_root_of(LEAVES[:count]) == model(LEAVES[:count], b"vesn/att-node", b"vesn/att-root")
    assert att_root_of(LEAVES[:count]) != att_root_of(LEAVES[count - 1 :: -1]) or count == 1


TREE = Tree()
for leaf_ in LEAVES:
    TREE.append(leaf_)


@pytest.mark.req("VESN-09")
@given(st.integers(1, 40), st.integers(1, 40))
def test_a_proof_leads_to_the_root_of_its_size_and_no_other(one, other):
    seq, size = sorted((one, other))
    proof = MmrProof.from_bytes(prove(TREE.node_at, seq, size).to_bytes())
    proof.verify(leaf_hash=LEAVES[seq - 1], stream_seq=seq, tree_size=size, mmr_root=TREE.root(size))
    for wrong in (
        {"leaf_hash": LEAVES[seq % 40]},
        {"stream_seq": seq + 1},
        {"stream_seq": seq - 1},
        {"mmr_root": TREE.root(size % 40 + 1)},
        {"mmr_root": LEAVES[0]},
    ):
        options = {"leaf_hash": LEAVES[seq - 1], "stream_seq": seq, "tree_size": size, "mmr_root": TREE.root(size)}
        with pytest.raises(Violation):
            proof.verify(**{**options, **wrong})


@pytest.mark.req("VESN-09")
def test_dir_0_says_that_the_sibling_is_on_the_left():
    """The other way round than in VEEN (D-31); written out by hand for two leaves"""
    left, right = LEAVES[:2]
    root = H(b"vesn/mmr-root\x00" + H(b"vesn/mmr-node\x00" + left + right))
    of_right = MmrProof(path=(Step(dir=0, sib=left),), leaf_hash=right, peaks_after=())
    of_left = MmrProof(path=(Step(dir=1, sib=right),), leaf_hash=left, peaks_after=())
    of_right.verify(leaf_hash=right, stream_seq=2, mmr_root=root)
    of_left.verify(leaf_hash=left, stream_seq=1, tree_size=2, mmr_root=root)
    assert (prove(TREE.node_at, 2, 2), prove(TREE.node_at, 1, 2)) == (of_right, of_left)
    for proof, seq in ((of_right, 2), (of_left, 1)):
        step = proof.path[0]
        turned = replace(proof, path=(replace(step, dir=1 - step.dir),))
        with pytest.raises(Violation):
            turned.verify(leaf_hash=proof.leaf_hash, stream_seq=seq, tree_size=2, mmr_root=root)
    with pytest.raises(FormatError):
        Step.from_bytes(Step(dir=0, sib=left).to_bytes().replace(b"\x63dir\x00", b"\x63dir\x02"))


@pytest.mark.req("VESN-09")
def test_a_proof_cannot_be_stretched_or_cut():
    proof = prove(TREE.node_at, 5, 13)
    for changed in (
        replace(proof, path=proof.path[:-1]),
        replace(proof, path=(*proof.path, proof.path[0])),
        replace(proof, peaks_after=proof.peaks_after[:-1]),
        replace(proof, peaks_after=proof.peaks_after[::-1]),
        replace(proof, leaf_hash=LEAVES[7]),
    ):
        with pytest.raises(Violation):
            changed.verify(leaf_hash=LEAVES[4], stream_seq=5, tree_size=13, mmr_root=TREE.root(13))
    for seq, size in ((0, 1), (2, 1)):
        with pytest.raises(Violation):
            prove(TREE.node_at, seq, size)
