"""Proofs: every honest one verifies, and no changed one does.

Roots and nodes come from the model of the spec (`mmr_model`), so the prover and the verifier are judged apart.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import mmr_model as model

from veen.core.crypto import ed25519
from veen.core.entry import leaf_hash_of
from veen.core.errors import FieldSizeError, FormatError, MalformedError, ProofError, VersionError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import LABEL_TAGS
from veen.core.tree.proof import (
    ConsistencyProof,
    MmrProof,
    PathStep,
    RangeProof,
    prove_consistency,
    prove_inclusion,
    prove_range,
)

T = TypeVar("T")

MAX = 300
LEAVES = model.leaves(MAX)
NODE_AT = model.nodes_of(LEAVES)
ROOTS = [b"", *(model.root(LEAVES[:size]) for size in range(1, MAX + 1))]
STRANGER = model.leaves(1, "stranger")[0]  # a hash that no tree here contains
BITS = (0, 7, 8, 100, 255)  # of a hash: first, last, ends and inside of bytes

# All places in small trees, and in larger ones those at the edges of a peak.
SMALL = [(seq, size) for size in range(1, 18) for seq in range(1, size + 1)]
LARGE = [(seq, size) for size in (31, 32, 33, 100, 255, 256, 299, 300) for seq in (1, 2, size // 2, size - 1, size)]

hashes = st.binary(min_size=32, max_size=32)
uints = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
steps = st.builds(PathStep, dir=uints, sib=hashes)
inclusion_proofs = st.builds(
    MmrProof,
    leaf_hash=hashes,
    path=st.lists(steps, max_size=64).map(tuple),
    peaks_after=st.lists(hashes, max_size=64).map(tuple),
)
consistency_proofs = st.builds(
    ConsistencyProof,
    from_size=uints,
    to_size=uints,
    peaks=st.lists(hashes, max_size=64).map(tuple),
    added=st.lists(hashes, max_size=10).map(tuple),
)
range_proofs = st.builds(
    RangeProof,
    first_seq=uints,
    last_seq=uints,
    tree_size=uints,
    before=st.lists(hashes, max_size=64).map(tuple),
    after=st.lists(hashes, max_size=10).map(tuple),
)
any_proof = st.one_of(inclusion_proofs, consistency_proofs, range_proofs)


def flipped(data: bytes, bit: int) -> bytes:
    return (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big")


def accepts(verify: Callable[..., None], *args: Any, **kwargs: Any) -> bool:
    """Whether a proof passes; anything but a ProofError is a defect and comes through."""
    try:
        verify(*args, **kwargs)
    except ProofError:
        return False
    return True


def few(items: Iterable[T], count: int = 25) -> list[T]:
    """A sample, the same for the same items: for places where trying all of them takes too long."""
    listed = list(items)
    return random.Random(7).sample(listed, min(count, len(listed)))


def altered_lists(items: tuple[Any, ...], extra: Any) -> Iterator[tuple[Any, ...]]:
    """Every way to drop, repeat or exchange one item of a list, or to put another one in."""
    for i in range(len(items)):
        yield items[:i] + items[i + 1 :]
        yield items[: i + 1] + items[i:]
        for j in range(i):
            if items[i] != items[j]:
                yield (*items[:j], items[i], *items[j + 1 : i], items[j], *items[i + 1 :])
    for i in range(len(items) + 1):
        yield (*items[:i], extra, *items[i:])
    if items:
        yield ()
        yield items[::2] if len(items) > 1 else (*items, *items)
    if len(items) > 1 and items[::-1] != items:
        yield items[::-1]


def altered_hashes(items: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    """As above, and single bits turned."""
    yield from altered_lists(items, STRANGER)
    for i, item in enumerate(items):
        for bit in BITS:
            yield (*items[:i], flipped(item, bit), *items[i + 1 :])


def altered_proofs(proof: MmrProof) -> Iterator[MmrProof]:
    """Proofs that differ from a good one in one respect."""
    for bit in BITS:
        yield replace(proof, leaf_hash=flipped(proof.leaf_hash, bit))
    yield replace(proof, leaf_hash=STRANGER)
    for extra in (PathStep(dir=0, sib=STRANGER), PathStep(dir=1, sib=STRANGER)):
        for path in altered_lists(proof.path, extra):
            yield replace(proof, path=path)
    for level, step in enumerate(proof.path):
        for other in (
            *(replace(step, dir=value) for value in (1 - step.dir, 2, 3, 256, 2**64 - 1)),
            *(replace(step, sib=flipped(step.sib, bit)) for bit in BITS),
            replace(step, sib=proof.leaf_hash),
        ):
            yield replace(proof, path=(*proof.path[:level], other, *proof.path[level + 1 :]))
    for peaks in altered_hashes(proof.peaks_after):
        yield replace(proof, peaks_after=peaks)
    for level, step in enumerate(proof.path):  # a sibling is offered as a peak, or a peak as a sibling
        yield replace(proof, path=proof.path[:level], peaks_after=(step.sib, *proof.peaks_after))
    for i, peak in enumerate(proof.peaks_after):
        path = (*proof.path, PathStep(dir=1, sib=peak))
        yield replace(proof, path=path, peaks_after=proof.peaks_after[:i] + proof.peaks_after[i + 1 :])


def check_inclusion(proof: MmrProof, seq: int, size: int) -> None:
    proof.verify(leaf_hash=LEAVES[seq - 1], stream_seq=seq, expected_root=ROOTS[size], tree_size=size)


def shape(seq: int, size: int) -> tuple[str, int, int]:
    """What a proof of one leaf looks like: the directions of its path, and where its peak stands among how many."""
    peaks = model.subtrees(0, size)[::-1]
    [mine] = [peak for peak in peaks if peak[1] == (seq - 1) >> peak[0]]
    dirs = "".join(str((seq - 1) >> level & 1) for level in range(mine[0]))
    return dirs, peaks.index(mine), len(peaks)


# Inclusion: honest proofs


@pytest.mark.req("PROOF-03", "PROOF-04", "PROOF-08", "PROOF-11", "TS0-04")
def test_every_leaf_has_a_minimal_proof_under_every_later_root():
    """spec §5.2, §5.3, D-32, D-34: height of the peak above the leaf, plus all other peaks, and nothing else"""
    for size in range(1, MAX + 1):
        for height, index in model.subtrees(0, size):
            for pos in range(index << height, (index + 1) << height):
                proof = prove_inclusion(NODE_AT, pos + 1, size)
                check_inclusion(proof, pos + 1, size)
                assert len(proof.path) == height
                assert len(proof.peaks_after) == size.bit_count() - 1


@pytest.mark.req("PROOF-02", "PROOF-03", "PROOF-12")
def test_a_proof_for_the_root_of_its_own_receipt_needs_no_size():
    """D-33: size = stream_seq, so the path has as many steps as stream_seq has trailing zeros, all with dir 1."""
    for seq in range(1, MAX + 1):
        proof = prove_inclusion(NODE_AT, seq)
        proof.verify(leaf_hash=LEAVES[seq - 1], stream_seq=seq, expected_root=ROOTS[seq])
        trailing_zeros = len(bin(seq)) - len(bin(seq).rstrip("0"))
        assert [step.dir for step in proof.path] == [1] * trailing_zeros
        assert proof == prove_inclusion(NODE_AT, seq, seq) == prove_inclusion(model.nodes_of(LEAVES), seq)


@pytest.mark.req("PROOF-02", "PROOF-04")
def test_the_proofs_of_a_small_tree_are_those_written_by_hand():
    """spec §5.2, D-31, D-32: eleven leaves are trees of 8, 2 and 1; dir 0 means our node is the left one."""
    proof = prove_inclusion(NODE_AT, 5, 11)
    assert proof == MmrProof(
        leaf_hash=LEAVES[4],
        path=(
            PathStep(dir=0, sib=LEAVES[5]),
            PathStep(dir=0, sib=model.fold(LEAVES[6:8])),
            PathStep(dir=1, sib=model.fold(LEAVES[0:4])),
        ),
        peaks_after=(LEAVES[10], model.fold(LEAVES[8:10])),
    )
    proof = prove_inclusion(NODE_AT, 10, 11)
    assert proof == MmrProof(
        leaf_hash=LEAVES[9],
        path=(PathStep(dir=1, sib=LEAVES[8]),),
        peaks_after=(LEAVES[10], model.fold(LEAVES[0:8])),
    )


@pytest.mark.req("PROOF-12")
@given(st.integers(1, 2**64 - 1), st.integers(1, 2**64 - 1), st.integers(0, 63))
def test_proofs_stay_short_at_any_size(seq, size, spread):
    """001 spec-1 §17: O(log N) hashes and as many reads, up to the largest stream_seq there is"""
    seq, size = sorted((seq, size))
    node_at = model.sparse_nodes({(seq - 1) ^ 1 << spread: b"\x02" * 32, seq - 1: b"\x01" * 32})
    reads: list[tuple[int, int]] = []

    def counted(height: int, index: int) -> bytes:
        reads.append((height, index))
        return node_at(height, index)

    proof = prove_inclusion(counted, seq, size)
    assert len(reads) == len(set(reads)) == 1 + len(proof.path) + len(proof.peaks_after)
    assert len(proof.path) <= 63
    assert len(proof.path) + len(proof.peaks_after) < 2 * size.bit_length()
    root = model.root_at(node_at, size)
    proof.verify(leaf_hash=b"\x01" * 32, stream_seq=seq, expected_root=root, tree_size=size)
    for bad in few(altered_proofs(proof)):
        assert not accepts(bad.verify, leaf_hash=b"\x01" * 32, stream_seq=seq, expected_root=root, tree_size=size)


@pytest.mark.req("PROOF-03", "PROOF-06", "PROOF-07", "CRY-16", "INV-02")
def test_a_proof_ties_the_fields_of_a_message_to_a_receipt_and_a_checkpoint():
    """spec §5.4: the verifier recomputes leaf_hash from the MSG and takes size and root from what the hub signed."""
    hub = ed25519.SigningKey(b"\x09" * 32)
    fields: dict[str, Any] = {
        "label": b"\x01" * 32,
        "profile_id": b"\x02" * 32,
        "ct_hash": b"\x03" * 32,
        "client_id": b"\x04" * 32,
        "client_seq": 5,
    }
    leaf = leaf_hash_of(**fields)
    expected = b"\x01" * 32 + b"\x02" * 32 + b"\x03" * 32 + b"\x04" * 32 + (5).to_bytes(8, "big")
    assert leaf == model.ht("veen/leaf", expected)
    log = [*LEAVES[:21], leaf, *LEAVES[22:30]]
    node_at = model.nodes_of(log)
    receipt = Receipt.issue(
        hub, label=b"\x01" * 32, stream_seq=22, leaf_hash=leaf, mmr_root=model.root(log[:22]), hub_ts=1
    )
    checkpoint = Checkpoint.issue(
        hub, label_prev=b"\x01" * 32, label_curr=b"\x01" * 32, upto_seq=30, mmr_root=model.root(log), epoch=0
    )
    own = prove_inclusion(node_at, receipt.stream_seq)
    later = prove_inclusion(node_at, receipt.stream_seq, checkpoint.upto_seq)
    last = prove_inclusion(node_at, checkpoint.upto_seq)

    def check(leaf_hash: bytes) -> list[bool]:
        return [
            accepts(own.verify, leaf_hash=leaf_hash, stream_seq=22, expected_root=receipt.mmr_root),
            accepts(
                later.verify,
                leaf_hash=leaf_hash,
                stream_seq=22,
                expected_root=checkpoint.mmr_root,
                tree_size=checkpoint.upto_seq,
            ),
        ]

    assert check(leaf) == [True, True]
    last.verify(leaf_hash=log[-1], stream_seq=checkpoint.upto_seq, expected_root=checkpoint.mmr_root)
    for name, value in fields.items():
        other = value + 1 if isinstance(value, int) else flipped(value, 17)
        assert check(leaf_hash_of(**{**fields, name: other})) == [False, False]


# Inclusion: dishonest proofs


@pytest.mark.req("PROOF-04", "PROOF-08", "PROOF-09")
def test_no_changed_reordered_extended_or_shortened_proof_passes():
    """spec §5.3, §5.4, D-35: every leaf of every tree up to 17, and the edges of larger ones"""
    for seq, size in SMALL + LARGE:
        proof = prove_inclusion(NODE_AT, seq, size)
        check_inclusion(proof, seq, size)
        for bad in altered_proofs(proof):
            assert bad != proof
            assert not accepts(check_inclusion, bad, seq, size), (seq, size, bad)


@pytest.mark.req("PROOF-09")
def test_not_one_bit_of_a_proof_can_change():
    """spec §5.4: every bit of every hash"""
    seq, size = 5, 11
    proof = prove_inclusion(NODE_AT, seq, size)
    data = proof.to_bytes()
    for bit in range(8 * len(data)):
        other = flipped(data, bit)
        with pytest.raises((FormatError, ProofError)):
            check_inclusion(MmrProof.from_bytes(other), seq, size)


@pytest.mark.req("PROOF-07", "PROOF-08", "PROOF-09")
def test_a_proof_holds_for_no_other_leaf_place_or_size():
    """spec §5.4: with the root that belongs to the claimed size, only the true claim passes."""
    places = [(seq, size) for size in range(1, 18) for seq in range(1, size + 1)]
    for seq, size in places:
        proof = prove_inclusion(NODE_AT, seq, size)
        for other_seq, other_size in places:
            passes = accepts(
                proof.verify,
                leaf_hash=LEAVES[seq - 1],
                stream_seq=other_seq,
                expected_root=ROOTS[other_size],
                tree_size=other_size,
            )
            assert passes == ((seq, size) == (other_seq, other_size))
        for other in range(1, 18):
            if other != seq:
                with pytest.raises(ProofError, match="for another leaf"):
                    proof.verify(leaf_hash=LEAVES[other - 1], stream_seq=seq, expected_root=ROOTS[size], tree_size=size)
        for bit in BITS:
            with pytest.raises(ProofError, match="leads to root"):
                proof.verify(
                    leaf_hash=LEAVES[seq - 1],
                    stream_seq=seq,
                    expected_root=flipped(ROOTS[size], bit),
                    tree_size=size,
                )


@pytest.mark.long
@pytest.mark.req("PROOF-08")
@pytest.mark.parametrize("sizes", [10, pytest.param(17, marks=pytest.mark.slow)])
def test_a_root_does_not_tell_its_size_so_sizes_come_from_what_the_hub_signed(sizes):
    """spec §5.1 hashes no size into the root: a false (size, root) pair passes exactly if the shape is the same.

    That is why RECEIPT and CHECKPOINT sign the size next to the root, and why `verify` takes both from there.
    """
    places = [(seq, size) for size in range(1, sizes + 1) for seq in range(1, size + 1)]
    assert shape(5, 5) == shape(9, 9)  # the smallest example
    for seq, size in places:
        proof = prove_inclusion(NODE_AT, seq, size)
        for other_seq, other_size in places:
            passes = accepts(
                proof.verify,
                leaf_hash=LEAVES[seq - 1],
                stream_seq=other_seq,
                expected_root=ROOTS[size],
                tree_size=other_size,
            )
            assert passes == (shape(seq, size) == shape(other_seq, other_size))


@pytest.mark.req("PROOF-08", "PROOF-09")
@given(st.data())
def test_whatever_is_done_to_a_proof_it_passes_only_unchanged(data):
    """spec §5.4, D-35: by search, up to 300 leaves"""
    size = data.draw(st.integers(1, MAX), "size")
    seq = data.draw(st.integers(1, size), "seq")
    proof = prove_inclusion(NODE_AT, seq, size)
    some_hash = st.one_of(
        st.sampled_from([proof.leaf_hash, *(step.sib for step in proof.path), *proof.peaks_after, *LEAVES]), hashes
    )
    some_step = st.one_of(
        st.sampled_from([*proof.path, PathStep(dir=0, sib=STRANGER)]),
        st.builds(PathStep, dir=st.integers(0, 2), sib=some_hash),
    )
    path, peaks = list(proof.path), list(proof.peaks_after)
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        which = data.draw(st.sampled_from(["path", "peaks"]))
        items, some = (path, some_step) if which == "path" else (peaks, some_hash)
        start = data.draw(st.integers(0, len(items)))
        end = data.draw(st.integers(start, min(start + 2, len(items))))
        items[start:end] = data.draw(st.lists(some, max_size=2))
    other = replace(proof, path=tuple(path), peaks_after=tuple(peaks))
    assert accepts(check_inclusion, other, seq, size) == (other == proof)


@pytest.mark.req("PROOF-07")
@pytest.mark.parametrize(("seq", "size"), [(0, 0), (0, 1), (0, 7), (2, 1), (8, 7), (301, 300), (-1, 7), (1, 0)])
def test_a_place_outside_the_tree_can_neither_be_proved_nor_verified(seq, size):
    """spec §5.4: stream_seq 0 is refused, and so is a stream_seq above the size"""
    complaint = f"stream_seq {seq} is not inside a tree of {size} leaves"
    with pytest.raises(ProofError, match=complaint):
        prove_inclusion(NODE_AT, seq, size)
    proof = MmrProof(leaf_hash=LEAVES[0], path=(), peaks_after=())
    with pytest.raises(ProofError, match=complaint):
        proof.verify(leaf_hash=LEAVES[0], stream_seq=seq, expected_root=LEAVES[0], tree_size=size)
    if seq == size:
        with pytest.raises(ProofError, match=complaint):
            prove_inclusion(NODE_AT, seq)
        with pytest.raises(ProofError, match=complaint):
            proof.verify(leaf_hash=LEAVES[0], stream_seq=seq, expected_root=LEAVES[0])


@pytest.mark.req("PROOF-08")
def test_a_peak_that_occurs_twice_is_refused_even_under_a_root_that_fits():
    """spec §5.4 lists duplicates among the reasons to refuse"""
    twice = (STRANGER, STRANGER)
    root = model.ht("veen/mmr-root", LEAVES[6] + STRANGER + STRANGER)
    proof = MmrProof(leaf_hash=LEAVES[6], path=(), peaks_after=twice)
    with pytest.raises(ProofError, match=r"^a peak occurs twice$"):
        proof.verify(leaf_hash=LEAVES[6], stream_seq=7, expected_root=root)
    own = MmrProof(leaf_hash=LEAVES[2], path=(), peaks_after=(LEAVES[2],))
    with pytest.raises(ProofError, match=r"^a peak occurs twice$"):
        own.verify(leaf_hash=LEAVES[2], stream_seq=3, expected_root=model.ht("veen/mmr-root", LEAVES[2] * 2))
    once = replace(proof, peaks_after=(STRANGER, LEAVES[0]))
    once.verify(
        leaf_hash=LEAVES[6],
        stream_seq=7,
        expected_root=model.ht("veen/mmr-root", LEAVES[6] + STRANGER + LEAVES[0]),
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"leaf_hash": STRANGER}, "^the proof is for another leaf$"),
        ({"path": ()}, "^leaf 5 of 11 has a path of 3 steps, found 0$"),
        ({"path": (PathStep(dir=1, sib=STRANGER),) * 3}, "^step 0 of the path has the wrong direction for leaf 5$"),
        ({"peaks_after": ()}, "^a tree of 11 has 2 other peaks, found 0$"),
        (
            {"peaks_after": (STRANGER, LEAVES[0])},
            f"^the proof leads to root [0-9a-f]{{64}}, expected {ROOTS[11].hex()}$",
        ),
    ],
)
def test_a_refused_proof_says_what_is_wrong_with_it(change, complaint):
    """spec §5.4: each rejection condition by name"""
    proof = replace(prove_inclusion(NODE_AT, 5, 11), **change)
    with pytest.raises(ProofError, match=complaint):
        check_inclusion(proof, 5, 11)


def test_hashes_cut_at_other_places_are_another_proof():
    """spec §5.4, wrong lengths: peaks and leaves are concatenated, so 16 + 48 bytes hash like 32 + 32"""
    small, large = prove_inclusion(NODE_AT, 7).peaks_after
    recut = replace(prove_inclusion(NODE_AT, 7), peaks_after=(small[:16], small[16:] + large))
    assert not accepts(recut.verify, leaf_hash=LEAVES[6], stream_seq=7, expected_root=ROOTS[7])
    run = [LEAVES[2][:16], LEAVES[2][16:] + LEAVES[3]]
    proof = prove_range(NODE_AT, 3, 4, 11)
    assert not accepts(proof.verify, leaves=run, first_seq=3, tree_size=11, expected_root=ROOTS[11])
    same = prove_consistency(NODE_AT, 7, 7)
    first, two, four = same.peaks
    cut = replace(same, peaks=(first[:16], first[16:] + two, four))
    assert not accepts(cut.verify, from_size=7, from_root=ROOTS[7], to_size=7, to_root=ROOTS[7])


# Another verifier


def verify_mmr_proof(data: bytes, expected_root: bytes, stream_seq: int, leaf_hash: bytes) -> bool:
    """The pseudocode of spec §5.4 line by line, on the bytes of a proof, with cbor2 and hashlib only."""
    proof = cbor2.loads(data)
    if list(proof) != [1, 2, 3, 4] or proof[1] != 1 or stream_seq < 1 or proof[2] != leaf_hash:
        return False
    acc = leaf_hash
    for step in proof[3]:
        if list(step) != [1, 2] or step[1] not in (0, 1) or len(step[2]) != 32:
            return False
        acc = model.ht("veen/mmr-node", acc + step[2] if step[1] == 0 else step[2] + acc)
    # integrate_peak: the leaf stream_seq is the last one, so its tree is the lowest peak of that many leaves.
    heights = [height for height in range(64) if stream_seq & 1 << height]
    if len(proof[3]) != heights[0] or len(proof[4]) != len(heights) - 1 or any(len(peak) != 32 for peak in proof[4]):
        return False
    peaks = [acc, *proof[4]]
    if len(set(peaks)) != len(peaks):
        return False
    return (peaks[0] if len(peaks) == 1 else model.ht("veen/mmr-root", b"".join(peaks))) == expected_root


@pytest.mark.req("PROOF-03", "PROOF-06", "PROOF-08", "PROOF-09")
def test_a_verifier_written_from_the_pseudocode_gives_the_same_verdicts():
    """spec §5.4, D-33: on honest proofs and on altered ones"""
    for seq in (*range(1, 34), 48, 63, 64, 65, 96, 127, 128, 256, 299, 300):
        proof = prove_inclusion(NODE_AT, seq)
        for other in (proof, *altered_proofs(proof)):
            ours = accepts(other.verify, leaf_hash=LEAVES[seq - 1], stream_seq=seq, expected_root=ROOTS[seq])
            assert ours == verify_mmr_proof(other.to_bytes(), ROOTS[seq], seq, LEAVES[seq - 1]) == (other == proof)


# Consistency


def check_consistency(proof: ConsistencyProof, from_size: int, to_size: int) -> None:
    proof.verify(from_size=from_size, from_root=ROOTS[from_size], to_size=to_size, to_root=ROOTS[to_size])


def altered_consistency(proof: ConsistencyProof) -> Iterator[ConsistencyProof]:
    for peaks in altered_hashes(proof.peaks):
        yield replace(proof, peaks=peaks)
    for added in altered_hashes(proof.added):
        yield replace(proof, added=added)
    for change in (-1, 1):
        yield replace(proof, from_size=proof.from_size + change)
        yield replace(proof, to_size=proof.to_size + change)
    yield replace(proof, peaks=proof.added, added=proof.peaks)
    yield replace(proof, peaks=(), added=())
    if proof.added:
        yield replace(proof, peaks=(*proof.peaks, proof.added[0]), added=proof.added[1:])
    yield replace(proof, peaks=proof.peaks[:-1], added=(proof.peaks[-1], *proof.added))


def pairs_to_sample(count: int) -> list[tuple[int, int]]:
    rng = random.Random(5)
    drawn = [sorted((rng.randint(1, MAX), rng.randint(1, MAX))) for _ in range(count)]
    return [(low, high) for low, high in drawn]


def test_every_size_is_proved_to_extend_every_smaller_one():
    """D-35: append-only between two roots; the old peaks and the subtrees in between, and nothing else"""
    pairs = [(low, high) for high in range(1, 65) for low in range(1, high + 1)]
    for low, high in pairs + pairs_to_sample(500) + [(1, MAX), (MAX, MAX), (255, 256), (256, 257)]:
        proof = prove_consistency(NODE_AT, low, high)
        check_consistency(proof, low, high)
        assert proof == prove_consistency(model.nodes_of(LEAVES), low, high)
        assert (proof.from_size, proof.to_size) == (low, high)
        assert list(proof.peaks) == [NODE_AT(*node) for node in model.subtrees(0, low)[::-1]]
        assert list(proof.added) == [NODE_AT(*node) for node in model.subtrees(low, high)]


def test_no_changed_consistency_proof_passes():
    """D-35: changed, reordered, extended or shortened; every pair up to 16, and some beyond"""
    pairs = [(low, high) for high in range(1, 17) for low in range(1, high + 1)]
    for low, high in pairs + pairs_to_sample(20):
        proof = prove_consistency(NODE_AT, low, high)
        for bad in altered_consistency(proof):
            assert bad != proof
            assert not accepts(check_consistency, bad, low, high), (low, high, bad)


def test_a_consistency_proof_holds_for_no_other_sizes_or_roots():
    """D-35: also when sizes are changed in the proof and in the claim alike"""
    pairs = [(low, high) for high in range(1, 13) for low in range(1, high + 1)]
    for low, high in pairs:
        proof = prove_consistency(NODE_AT, low, high)
        for other_low, other_high in pairs:
            if (other_low, other_high) != (low, high):
                with pytest.raises(ProofError, match=f"^the proof is for sizes {low} and {high}$"):
                    check_consistency(proof, other_low, other_high)
                relabelled = replace(proof, from_size=other_low, to_size=other_high)
                assert not accepts(check_consistency, relabelled, other_low, other_high)
        for bit in BITS:
            with pytest.raises(ProofError, match=r"^the proof does not lead to the older root$"):
                proof.verify(from_size=low, from_root=flipped(ROOTS[low], bit), to_size=high, to_root=ROOTS[high])
            with pytest.raises(
                ProofError, match=r"^the proof does not lead to the newer root: the log was not only appended to$"
            ):
                proof.verify(from_size=low, from_root=ROOTS[low], to_size=high, to_root=flipped(ROOTS[high], bit))


def test_a_forked_history_is_refused_wherever_it_forks():
    """D-35: a leaf changed before the older size, or after it, however the two proofs are mixed"""
    for low, high in [(1, 2), (3, 7), (4, 8), (5, 12), (8, 9), (13, 21), (20, 20)]:
        for at in range(high):
            forked = [*LEAVES[:at], STRANGER, *LEAVES[at + 1 : high]]
            theirs, ours = prove_consistency(model.nodes_of(forked), low, high), prove_consistency(NODE_AT, low, high)
            their_roots, our_roots = (model.root(forked[:low]), model.root(forked)), (ROOTS[low], ROOTS[high])
            assert their_roots[1] != our_roots[1]
            mixed = replace(ours, peaks=theirs.peaks), replace(ours, added=theirs.added)
            roots = itertools.product((their_roots[0], our_roots[0]), (their_roots[1], our_roots[1]))
            for proof, (old, new) in itertools.product((ours, theirs, *mixed), set(roots)):
                passes = accepts(proof.verify, from_size=low, from_root=old, to_size=high, to_root=new)
                assert passes == ((proof, (old, new)) in ((ours, our_roots), (theirs, their_roots)))


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1), (0, 9), (2, 1), (9, 8), (-1, 8)])
def test_an_empty_or_longer_log_has_nothing_that_extends_it(low, high):
    """D-30: an empty log has no root to start from; D-35: a shorter log extends no longer one."""
    complaint = f"^a log of {high} entries cannot extend one of {low}$"
    with pytest.raises(ProofError, match=complaint):
        prove_consistency(NODE_AT, low, high)
    for peaks in ((), (LEAVES[0],)):
        proof = ConsistencyProof(from_size=low, to_size=high, peaks=peaks, added=())
        with pytest.raises(ProofError, match=complaint):
            proof.verify(from_size=low, from_root=LEAVES[0], to_size=high, to_root=LEAVES[0])


huge = st.one_of(
    st.integers(1, 2**64 - 1),
    st.builds(lambda power, k: max(1, 2**power + k), st.integers(30, 63), st.integers(-3, 3)),
)


@given(huge, huge)
def test_consistency_is_proved_and_refused_at_huge_sizes(low, high):
    """D-35, D-07: a blank log with marks on both sides of the older size"""
    low, high = sorted((low, high))
    node_at = model.sparse_nodes({low - 1: b"\x01" * 32, low: b"\x02" * 32, high - 1: b"\x03" * 32})
    from_root, to_root = model.root_at(node_at, low), model.root_at(node_at, high)
    proof = prove_consistency(node_at, low, high)

    def check(proof: ConsistencyProof, from_root: bytes = from_root, to_root: bytes = to_root) -> bool:
        return accepts(proof.verify, from_size=low, from_root=from_root, to_size=high, to_root=to_root)

    assert check(proof)
    assert len(proof.peaks) <= 64
    assert len(proof.added) <= 128
    assert proof == ConsistencyProof.from_bytes(proof.to_bytes())
    for bad in (
        replace(proof, peaks=proof.peaks[1:]),
        replace(proof, peaks=(*proof.peaks, STRANGER)),
        replace(proof, added=(*proof.added, STRANGER)),
        replace(proof, peaks=(flipped(proof.peaks[0], 3), *proof.peaks[1:])),
        *([replace(proof, added=proof.added[:-1])] if proof.added else []),
    ):
        assert not check(bad)
    forked = model.sparse_nodes({low - 1: b"\x04" * 32, low: b"\x02" * 32, high - 1: b"\x03" * 32})
    if low != high:
        assert not check(prove_consistency(forked, low, high))
        assert not check(proof, to_root=model.root_at(forked, high))


# Ranges


def check_range(proof: RangeProof, leaves: Sequence[bytes], first: int, size: int) -> None:
    proof.verify(leaves=leaves, first_seq=first, tree_size=size, expected_root=ROOTS[size])


def altered_ranges(proof: RangeProof) -> Iterator[RangeProof]:
    for before in altered_hashes(proof.before):
        yield replace(proof, before=before)
    for after in altered_hashes(proof.after):
        yield replace(proof, after=after)
    for change in (-1, 1):
        yield replace(proof, first_seq=proof.first_seq + change)
        yield replace(proof, last_seq=proof.last_seq + change)
        yield replace(proof, tree_size=proof.tree_size + change)
    if proof.before != proof.after:
        yield replace(proof, before=proof.after, after=proof.before)


def ranges(largest: int) -> list[tuple[int, int, int]]:
    return list(itertools.combinations_with_replacement(range(1, largest + 1), 3))


def test_every_run_of_leaves_is_proved_under_its_root():
    """D-35, for runs: every range of every tree up to 20, and some up to 300"""
    rng = random.Random(6)
    sample = [sorted(rng.randint(1, MAX) for _ in range(3)) for _ in range(200)]
    for first, last, size in ranges(20) + [(a, b, c) for a, b, c in sample] + [(1, MAX, MAX), (MAX, MAX, MAX)]:
        proof = prove_range(NODE_AT, first, last, size)
        check_range(proof, LEAVES[first - 1 : last], first, size)
        assert (proof.first_seq, proof.last_seq, proof.tree_size) == (first, last, size)
        assert list(proof.before) == [NODE_AT(*node) for node in model.subtrees(0, first - 1)[::-1]]
        assert list(proof.after) == [NODE_AT(*node) for node in model.subtrees(last, size)]


def test_no_changed_range_proof_passes():
    """D-35, for runs"""
    for first, last, size in [*ranges(9), (1, 64, 64), (17, 40, 100), (100, 100, 300), (150, 300, 300)]:
        leaves = LEAVES[first - 1 : last]
        proof = prove_range(NODE_AT, first, last, size)
        for bad in altered_ranges(proof):
            assert bad != proof
            assert not accepts(check_range, bad, leaves, first, size)


def test_a_range_proof_holds_for_no_other_leaves():
    """D-35, for runs: a leaf changed, missing, repeated, added or out of order"""
    for first, last, size in [*ranges(8), (17, 40, 100)]:
        proof = prove_range(NODE_AT, first, last, size)
        leaves = tuple(LEAVES[first - 1 : last])
        for other in altered_hashes(leaves):
            assert not accepts(check_range, proof, other, first, size)
            relabelled = replace(proof, last_seq=first + len(other) - 1)
            assert not accepts(check_range, relabelled, other, first, size)


def test_a_range_proof_holds_for_no_other_place_size_or_root():
    """D-35, for runs"""
    for first, last, size in ranges(8):
        proof = prove_range(NODE_AT, first, last, size)
        leaves = LEAVES[first - 1 : last]
        for other_first, other_size in itertools.product(range(10), range(10)):
            if (other_first, other_size) == (first, size):
                continue
            with pytest.raises(ProofError, match=f"^the proof is for a range from {first} in a tree of {size}$"):
                check_range(proof, leaves, other_first, other_size)
            relabelled = replace(
                proof, first_seq=other_first, last_seq=other_first + len(leaves) - 1, tree_size=other_size
            )
            assert not accepts(check_range, relabelled, leaves, other_first, other_size)
        with pytest.raises(ProofError, match=r"^the range does not lead to the expected root$"):
            proof.verify(leaves=leaves, first_seq=first, tree_size=size, expected_root=flipped(ROOTS[size], 9))


@pytest.mark.parametrize(
    ("first", "last", "size"), [(0, 0, 0), (0, 1, 8), (1, 0, 8), (5, 4, 8), (1, 9, 8), (9, 9, 8), (-1, 2, 8), (1, 1, 0)]
)
def test_what_is_no_range_inside_the_tree_is_refused(first, last, size):
    """spec §2: stream_seq counts from 1 and is contiguous."""
    complaint = f"^{first} to {last} is not a range inside a tree of {size} leaves$"
    with pytest.raises(ProofError, match=complaint):
        prove_range(NODE_AT, first, last, size)
    proof = RangeProof(first_seq=first, last_seq=last, tree_size=size, before=(), after=())
    count = last - first + 1
    expected = complaint if count > 0 else f"^the proof is for leaves {first} to {last}, given 0$"
    with pytest.raises(ProofError, match=expected):
        proof.verify(leaves=LEAVES[:count], first_seq=first, tree_size=size, expected_root=LEAVES[0])


def test_a_run_of_another_length_than_the_proof_says_is_refused():
    """D-35, for runs: also an empty one, which would prove nothing"""
    proof = prove_range(NODE_AT, 3, 5, 11)
    for count in (0, 1, 2, 4, 9):
        with pytest.raises(ProofError, match=f"^the proof is for leaves 3 to 5, given {count}$"):
            check_range(proof, LEAVES[2 : 2 + count], 3, 11)


@given(huge, huge, st.integers(1, 5))
def test_ranges_are_proved_and_refused_at_huge_sizes(first, size, count):
    """D-35, D-07"""
    first, size = sorted((first, size))
    last = min(first + count - 1, size)
    marked = {pos: bytes([1 + pos - first + 1]) * 32 for pos in range(first - 1, last)}
    node_at = model.sparse_nodes(marked)
    root = model.root_at(node_at, size)
    leaves = [marked[pos] for pos in range(first - 1, last)]
    proof = prove_range(node_at, first, last, size)
    proof.verify(leaves=leaves, first_seq=first, tree_size=size, expected_root=root)
    for bad in few(altered_ranges(proof)):
        assert not accepts(bad.verify, leaves=leaves, first_seq=first, tree_size=size, expected_root=root)
    for run in altered_hashes(tuple(leaves)):
        assert not accepts(proof.verify, leaves=run, first_seq=first, tree_size=size, expected_root=root)


# The wire


@pytest.mark.req("PROOF-01")
def test_the_encoding_is_the_map_of_the_spec():
    """spec §5.2: {1: ver, 2: leaf_hash, 3: [{1: dir, 2: sib} …], 4: peaks_after}, written out by hand"""
    proof = prove_inclusion(NODE_AT, 10, 11)
    expected = b"".join(
        (
            b"\xa4\x01\x01\x02\x58\x20",
            LEAVES[9],
            b"\x03\x81\xa2\x01\x01\x02\x58\x20",
            LEAVES[8],
            b"\x04\x82\x58\x20",
            LEAVES[10],
            b"\x58\x20",
            model.fold(LEAVES[:8]),
        )
    )
    assert proof.to_bytes() == expected
    assert MmrProof.from_bytes(expected) == proof


@given(any_proof)
def test_proofs_come_back_from_cbor_and_json_unchanged(proof):
    """spec §5.2, D-62"""
    kind = type(proof)
    data = proof.to_bytes()
    assert kind.from_bytes(data) == proof
    assert kind.from_bytes(data).to_bytes() == data
    assert kind.from_json(json.loads(json.dumps(proof.to_json()))) == proof


def test_our_own_proofs_have_named_fields_in_a_fixed_order():
    """D-34, D-35: version, sizes, hashes"""
    consistency, run = prove_consistency(NODE_AT, 5, 7), prove_range(NODE_AT, 4, 6, 9)
    assert cbor2.loads(consistency.to_bytes()) == {
        1: 1,
        2: 5,
        3: 7,
        4: [LEAVES[4], model.fold(LEAVES[:4])],
        5: [LEAVES[5], LEAVES[6]],
    }
    assert cbor2.loads(run.to_bytes()) == {
        1: 1,
        2: 4,
        3: 6,
        4: 9,
        5: [LEAVES[2], model.fold(LEAVES[:2])],
        6: [model.fold(LEAVES[6:8]), LEAVES[8]],
    }
    assert list(consistency.to_json()) == ["ver", "from_size", "to_size", "peaks", "added"]
    assert list(run.to_json()) == ["ver", "first_seq", "last_seq", "tree_size", "before", "after"]
    assert list(prove_inclusion(NODE_AT, 2, 3).to_json()) == ["ver", "leaf_hash", "path", "peaks_after"]
    assert prove_inclusion(NODE_AT, 2, 3).to_json()["path"] == [{"dir": 1, "sib": LEAVES[0].hex()}]
    assert MmrProof.KIND == "mmr_proof"
    assert (ConsistencyProof.KIND, RangeProof.KIND, PathStep.KIND) == ("consistency_proof", "range_proof", "path step")


PROOF_TREE = cbor2.loads(prove_inclusion(NODE_AT, 5, 11).to_bytes())
STEP_TREE = PROOF_TREE[3][0]


def with_path(step: Any) -> dict[int, Any]:
    return {**PROOF_TREE, 3: [step, *PROOF_TREE[3][1:]]}


@pytest.mark.req("PROOF-05", "PROOF-09")
@pytest.mark.parametrize(
    ("tree", "error"),
    [
        pytest.param({**PROOF_TREE, 5: 0}, MalformedError, id="unknown key"),
        pytest.param({0: 0, **PROOF_TREE}, MalformedError, id="unknown key first"),
        pytest.param({**PROOF_TREE, "x": 0}, MalformedError, id="unknown text key"),
        pytest.param(dict(reversed(PROOF_TREE.items())), MalformedError, id="keys in reverse"),
        pytest.param({2: PROOF_TREE[2], **PROOF_TREE}, MalformedError, id="leaf_hash before ver"),
        pytest.param({1: 1, 2: PROOF_TREE[2], 4: PROOF_TREE[4], 3: PROOF_TREE[3]}, MalformedError, id="peaks first"),
        *(
            pytest.param({k: v for k, v in PROOF_TREE.items() if k != key}, MalformedError, id=f"without {key}")
            for key in PROOF_TREE
        ),
        pytest.param(list(PROOF_TREE.values()), MalformedError, id="array"),
        pytest.param({**PROOF_TREE, 1: 2}, VersionError, id="version 2"),
        pytest.param({**PROOF_TREE, 1: 0}, VersionError, id="version 0"),
        pytest.param({**PROOF_TREE, 1: True}, MalformedError, id="version true"),
        pytest.param({**PROOF_TREE, 2: LEAVES[0][:31]}, FieldSizeError, id="short leaf_hash"),
        pytest.param({**PROOF_TREE, 2: LEAVES[0] + b"\x00"}, FieldSizeError, id="long leaf_hash"),
        pytest.param({**PROOF_TREE, 2: "x" * 32}, MalformedError, id="text leaf_hash"),
        pytest.param({**PROOF_TREE, 3: {}}, MalformedError, id="path is a map"),
        pytest.param({**PROOF_TREE, 3: None}, MalformedError, id="path is null"),
        pytest.param({**PROOF_TREE, 4: LEAVES[0]}, MalformedError, id="peaks_after is bytes"),
        pytest.param({**PROOF_TREE, 4: [LEAVES[0], LEAVES[0][:31]]}, FieldSizeError, id="short peak"),
        pytest.param({**PROOF_TREE, 4: [LEAVES[0], LEAVES[0] + b"\x00"]}, FieldSizeError, id="long peak"),
        pytest.param({**PROOF_TREE, 4: [1, 2]}, MalformedError, id="peaks are numbers"),
        pytest.param(with_path([0, LEAVES[0]]), MalformedError, id="step is an array"),
        pytest.param(with_path({**STEP_TREE, 3: 0}), MalformedError, id="step with unknown key"),
        pytest.param(with_path({2: LEAVES[0], 1: 0}), MalformedError, id="step out of order"),
        pytest.param(with_path({1: 0}), MalformedError, id="step without sib"),
        pytest.param(with_path({2: LEAVES[0]}), MalformedError, id="step without dir"),
        pytest.param(with_path({1: -1, 2: LEAVES[0]}), MalformedError, id="negative dir"),
        pytest.param(with_path({1: False, 2: LEAVES[0]}), MalformedError, id="dir is false"),
        pytest.param(with_path({1: 0, 2: LEAVES[0][:31]}), FieldSizeError, id="short sib"),
        pytest.param(with_path({1: 0, 2: LEAVES[0] + b"\x00"}), FieldSizeError, id="long sib"),
    ],
)
def test_what_is_not_the_map_of_the_spec_is_refused(tree, error):
    """spec §5.3, §5.4: unknown keys, wrong order, wrong types, wrong lengths, another version"""
    with pytest.raises(error):
        MmrProof.from_bytes(cbor2.dumps(tree))


@pytest.mark.req("PROOF-05")
def test_another_encoding_of_the_same_map_is_refused():
    """spec §5.4: non-canonical CBOR"""
    data = prove_inclusion(NODE_AT, 2, 3).to_bytes()
    for other in (
        data + b"\x00",
        data[:-1],
        b"",
        b"\xbf" + data[1:] + b"\xff",
        data.replace(b"\x02\x58\x20", b"\x02\x59\x00\x20", 1),
        b"\xa4\x18\x01\x01" + data[3:],
        b"\xa5\x01\x01" + data[1:],
        b"\xc0" + data,
    ):
        with pytest.raises(FormatError):
            MmrProof.from_bytes(other)


@pytest.mark.req("PROOF-09")
@pytest.mark.parametrize("value", [2, 3, 255, 2**64 - 1])
def test_a_direction_that_is_neither_left_nor_right_is_refused(value):
    """spec §5.4: any dir other than 0 or 1"""
    for step in range(3):
        tree = cbor2.loads(prove_inclusion(NODE_AT, 5, 11).to_bytes())
        tree[3][step][1] = value
        with pytest.raises(ProofError, match="wrong direction"):
            check_inclusion(MmrProof.from_bytes(cbor2.dumps(tree)), 5, 11)


@pytest.mark.req("PROOF-10", "LIM-04")
def test_a_path_of_more_than_64_siblings_is_refused():
    """spec §14; 64 are read, though no log has a tree that high"""
    path = tuple(PathStep(dir=1, sib=STRANGER) for _ in range(65))
    fits = MmrProof(leaf_hash=LEAVES[0], path=path[:64], peaks_after=())
    assert MmrProof.from_bytes(fits.to_bytes()) == fits
    too_long = cbor2.dumps({**PROOF_TREE, 3: [{1: 1, 2: STRANGER}] * 65})
    with pytest.raises(FieldSizeError, match="0 to 64 elements, found 65"):
        MmrProof.from_bytes(too_long)
    with pytest.raises(FieldSizeError, match="0 to 64 elements, found 65"):
        replace(fits, path=path).to_bytes()
    with pytest.raises(ProofError):
        replace(fits, path=path).verify(leaf_hash=LEAVES[0], stream_seq=2**64 - 1, expected_root=ROOTS[1])


def test_lists_longer_than_any_tree_needs_are_refused():
    """D-07: 64 peaks and 128 subtrees are enough for every size below 2^64"""
    consistency = ConsistencyProof(from_size=1, to_size=2, peaks=(STRANGER,) * 64, added=(STRANGER,) * 128)
    assert ConsistencyProof.from_bytes(consistency.to_bytes()) == consistency
    run = RangeProof(first_seq=1, last_seq=1, tree_size=1, before=(STRANGER,) * 64, after=(STRANGER,) * 128)
    assert RangeProof.from_bytes(run.to_bytes()) == run
    inclusion = MmrProof(leaf_hash=STRANGER, path=(), peaks_after=(STRANGER,) * 64)
    assert MmrProof.from_bytes(inclusion.to_bytes()) == inclusion
    for too_long in (
        replace(consistency, peaks=(STRANGER,) * 65),
        replace(consistency, added=(STRANGER,) * 129),
        replace(run, before=(STRANGER,) * 65),
        replace(run, after=(STRANGER,) * 129),
        replace(inclusion, peaks_after=(STRANGER,) * 65),
    ):
        with pytest.raises(FieldSizeError):
            too_long.to_bytes()


@pytest.mark.parametrize(
    ("kind", "tree", "name"),
    [
        (ConsistencyProof, {1: 1, 2: 5, 3: 7, 4: [LEAVES[0]], 5: [LEAVES[1]]}, "consistency_proof"),
        (RangeProof, {1: 1, 2: 1, 3: 2, 4: 3, 5: [LEAVES[0]], 6: [LEAVES[1]]}, "range_proof"),
    ],
)
def test_our_own_proofs_are_read_as_strictly(kind, tree, name):
    """D-06: unknown, missing or misplaced keys, wrong lengths, another version"""
    assert kind.from_bytes(cbor2.dumps(tree)).to_tree() == tree
    last = len(tree)
    bad_hash = {**tree, last: [LEAVES[1][:31]]}
    for other in ({**tree, last + 1: 0}, dict(reversed(tree.items())), {**tree, 2: -1}, {**tree, 2: 2**64}, [1]):
        with pytest.raises(MalformedError, match=name):
            kind.from_bytes(cbor2.dumps(other))
    for key in tree:
        with pytest.raises(MalformedError, match=name):
            kind.from_bytes(cbor2.dumps({k: v for k, v in tree.items() if k != key}))
        if key > 1 and not isinstance(tree[key], list):
            with pytest.raises(MalformedError, match=f"{name}.[a-z]+_[a-z]+: expected an integer"):
                kind.from_bytes(cbor2.dumps({**tree, key: b""}))
    for key in (last - 1, last):
        with pytest.raises(FieldSizeError, match=f"{name}.[a-z]+: expected 32 bytes each, found 31"):
            kind.from_bytes(cbor2.dumps({**tree, key: [LEAVES[1][:31]]}))
    with pytest.raises(FieldSizeError):
        kind.from_bytes(cbor2.dumps({**bad_hash, 1: 2}))  # spec §8.2 ranks sizes above the version
    with pytest.raises(VersionError, match="version 2"):
        kind.from_bytes(cbor2.dumps({**tree, 1: 2}))


@pytest.mark.parametrize(
    "change",
    [
        {"more": 1},
        {"ver": 2},
        {"ver": "1"},
        {"leaf_hash": LEAVES[0].hex().upper()},
        {"leaf_hash": LEAVES[0].hex()[:-1]},
        {"leaf_hash": LEAVES[0].hex() + "00"},
        {"leaf_hash": None},
        {"path": [{"dir": 0, "sib": LEAVES[0].hex(), "more": 1}]},
        {"path": [{"dir": 0}]},
        {"path": [[0, LEAVES[0].hex()]]},
        {"peaks_after": [LEAVES[0].hex() + " "]},
        {"peaks_after": LEAVES[0].hex()},
    ],
)
def test_json_that_is_not_the_form_of_a_proof_is_refused(change):
    """D-62: the same rules as in CBOR"""
    good = prove_inclusion(NODE_AT, 5, 11).to_json()
    with pytest.raises(FormatError):
        MmrProof.from_json({**good, **change})
    for name in good:
        with pytest.raises(FormatError):
            MmrProof.from_json({key: value for key, value in good.items() if key != name})


def test_proofs_hash_with_the_tags_of_the_label_tree():
    """spec §5.1"""
    assert LABEL_TAGS.node_prefix == b"veen/mmr-node\x00"
    proof = MmrProof(leaf_hash=LEAVES[0], path=(PathStep(dir=0, sib=LEAVES[1]),), peaks_after=())
    root = model.ht("veen/mmr-node", LEAVES[0] + LEAVES[1])
    proof.verify(leaf_hash=LEAVES[0], stream_seq=1, expected_root=root, tree_size=2)
