"""Proofs drawn: what is in the picture was computed from the proof."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.client.read.picture import Picture, short, text, to_svg
from veen.core.errors import ProofError
from veen.core.hashing import H
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_inclusion


def tree_of(size):
    return MmrTree(H(b"%d" % number) for number in range(size))


def picture_of(size, stream_seq):
    tree = tree_of(size)
    proof = prove_inclusion(tree.node_at, stream_seq, size)
    return tree, Picture.of(proof, stream_seq=stream_seq, tree_size=size, root=tree.root())


@given(st.integers(1, 300).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))))
def test_every_node_of_a_picture_is_the_one_of_the_tree(drawn):
    tree, picture = picture_of(*drawn)
    nodes = [picture.leaf, *picture.peaks]
    for step in picture.steps:
        nodes += [step.sibling, step.parent]
    for node in nodes:
        count = node.last - node.first + 1
        height = count.bit_length() - 1
        assert tree.node_at(height, (node.first - 1) >> height) == node.hash
    covered = [seq for peak in picture.peaks for seq in range(peak.first, peak.last + 1)]
    assert covered == list(range(1, picture.tree_size + 1))


@given(st.integers(1, 100).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))))
def test_text_and_svg_show_every_hash_of_the_proof(drawn):
    _, picture = picture_of(*drawn)
    drawing = "\n".join(text(picture))
    svg = to_svg(picture)
    ElementTree.fromstring(svg)  # noqa: S314 - ours
    assert "<script" not in svg
    assert "href" not in svg
    for node in (picture.leaf, *picture.peaks, *(step.sibling for step in picture.steps)):
        assert short(node.hash) in drawing
        assert node.hash.hex() in svg
    assert "this message" in drawing


def test_there_is_no_picture_of_a_proof_that_does_not_hold():
    tree = tree_of(5)
    proof = prove_inclusion(tree.node_at, 3, 5)
    broken = replace(proof, peaks_after=(H(b"another"),))
    with pytest.raises(ProofError):
        Picture.of(broken, stream_seq=3, tree_size=5, root=tree.root())


def test_a_small_tree_as_text():
    _, picture = picture_of(5, 3)
    assert list(text(picture)) == [
        "root a5f0…1904",
        "├─ peak 1-4 cc56…cedb ─┬─ 1-2 dd6f…8fa5  sibling",
        "│                      └─ 3-4 406d…47a3 ─┬─ 3 d473…ab35  <- this message",
        "│                                        └─ 4 4e07…9fce  sibling",
        "└─ peak 5 4b22…bf8a",
    ]


def test_a_large_tree_is_a_ladder():
    _, picture = picture_of(1_003, 700)
    lines = list(text(picture))
    assert len(lines) == 2 + len(picture.steps) + 1 + len(picture.peaks)
    assert max(map(len, lines)) < 80
