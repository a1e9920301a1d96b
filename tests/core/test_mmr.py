"""The Merkle Mountain Range against the recursion of the spec, and the laws that let anyone cut a log anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import mmr_model as model

from veen.core.errors import ProofError
from veen.core.tree.mmr import (
    LABEL_TAGS,
    Mmr,
    MmrTree,
    Span,
    Tags,
    node_count,
    node_position,
    peak_nodes,
    root_of,
    span_nodes,
)

MAX = 300
LEAVES = model.leaves(MAX)
NODE_AT = model.nodes_of(LEAVES)
HUGE = [2**32 - 1, 2**32, 2**40 + 3, 2**63 - 1, 2**63 + 2**31 + 5, 2**64 - 2]

sizes = st.integers(0, MAX)
huge_sizes = st.integers(0, 2**64 - 1)


def folded(start: int, end: int) -> Span:
    return Span.of(start, LEAVES[start:end])


def by_the_model(start: int, end: int) -> Span:
    return Span(start, end, tuple(NODE_AT(*node) for node in model.subtrees(start, end)))


# Laws


@given(sizes, sizes, sizes, sizes)
def test_merging_spans_is_associative(a, b, c, d):
    """spec §11.3 for the MMR: three runs merge to the same Span in either order."""
    a, b, c, d = sorted((a, b, c, d))
    left, middle, right = folded(a, b), folded(b, c), folded(c, d)
    assert left.merge(middle).merge(right) == left.merge(middle.merge(right)) == by_the_model(a, d)


@given(sizes, sizes)
def test_an_empty_span_is_a_unit_where_it_stands(start, end):
    """spec §11.3 for the MMR"""
    start, end = sorted((start, end))
    span = folded(start, end)
    assert Span(start, start, ()).merge(span) == span == span.merge(Span(end, end, ()))
    assert Span.of(start, []) == Span(start, start, ())


@pytest.mark.req("MMR-06")
@given(sizes, st.sets(sizes))
def test_any_cut_of_a_log_into_chunks_gives_the_same_peaks(size, cuts):
    """spec §5.1: chunks may be folded apart, on machines that know nothing of each other, and merged."""
    bounds = [0, *sorted(cut for cut in cuts if cut < size), size]
    whole = Span(0, 0, ())
    for start, end in itertools.pairwise(bounds):
        whole = whole.merge(folded(start, end))
    assert whole.peaks() == tuple(model.peaks(LEAVES[:size]))
    assert whole == Span.from_peaks(size, whole.peaks())


def test_two_adjacent_runs_merge_for_every_cut():
    """spec §5.1: nothing depends on where the cut falls; every start, middle and end up to 40."""
    for start, middle, end in itertools.combinations_with_replacement(range(41), 3):
        assert folded(start, middle).merge(folded(middle, end)) == by_the_model(start, end)


@given(huge_sizes, huge_sizes, huge_sizes, st.integers(1, 2**32))
def test_spans_merge_at_sizes_no_test_can_fold(a, b, c, mark):
    """spec §5.1, by a log that is blank but for two leaves"""
    a, b, c = sorted((a, b, c))
    node_at = model.sparse_nodes({b: b"\x01" * 32, max(b - mark, 0): b"\x02" * 32})

    def span(start: int, end: int) -> Span:
        return Span(start, end, tuple(node_at(*node) for node in model.subtrees(start, end)))

    assert span(a, b).merge(span(b, c)) == span(a, c)


@given(sizes, sizes)
def test_resuming_from_peaks_is_continuing(size, more):
    """spec §3.4.1: the cursor (size, peaks) is all the state that appending needs."""
    size, end = sorted((size, more))
    first = Mmr()
    for leaf in LEAVES[:size]:
        first.append(leaf)
    resumed = Mmr(size, first.peaks())
    assert [first.append(leaf) for leaf in LEAVES[size:end]] == [resumed.append(leaf) for leaf in LEAVES[size:end]]
    assert (resumed.size, resumed.peaks()) == (first.size, first.peaks()) == (end, tuple(model.peaks(LEAVES[:end])))


# Golden values


@pytest.mark.req("MMR-02", "MMR-03", "MMR-04", "MMR-06")
@pytest.mark.parametrize(
    ("size", "root"),
    [
        (1, "01" * 32),
        (2, "fb9a1da1f46ed778af6d75756f52189e45367d04d9e4912c5beea6af79ca29b8"),
        (3, "3cf59a0f4e91a1502b10b04316f65e9127a54eec69432cdb5822a20a144f443e"),
        (5, "5da0c7d345ca78dac85d4d266fd0d94f4912dedf6115699df3f7c886ceceb672"),
    ],
)
def test_the_golden_roots_hold_however_they_are_computed(size, root):
    """decisions §18: leaves 0x01 x 32, 0x02 x 32 …"""
    leaves = [bytes([value]) * 32 for value in range(1, size + 1)]
    mmr = Mmr()
    for leaf in leaves:
        mmr.append(leaf)
    assert mmr.root().hex() == MmrTree(leaves).root().hex() == Span.of(0, leaves).root().hex() == root
    assert model.root(leaves).hex() == root


# Every size up to 300


@pytest.mark.req("MMR-01", "MMR-02", "MMR-03", "MMR-04", "MMR-06", "INV-03", "TS0-04", "TS0-06")
def test_cursor_tree_span_and_model_agree_at_every_size():
    """spec §5.1, I3: the root after the append at stream_seq is that of the first stream_seq leaves."""
    mmr, tree = Mmr(), MmrTree()
    for size in range(1, MAX + 1):
        mmr.append(LEAVES[size - 1])
        tree.append(LEAVES[size - 1])
        peaks, root = tuple(model.peaks(LEAVES[:size])), model.root(LEAVES[:size])
        assert mmr.size == tree.size == size
        assert mmr.peaks() == tree.peaks() == folded(0, size).peaks() == peaks
        assert mmr.root() == tree.root() == folded(0, size).root() == root_of(peaks) == root


def test_a_tree_still_knows_its_earlier_peaks_and_roots():
    """spec §5.1: peaks are never rewritten, only joined."""
    tree = MmrTree(LEAVES)
    for size in range(1, MAX + 1):
        assert tree.peaks(size) == tuple(model.peaks(LEAVES[:size]))
        assert tree.root(size) == model.root(LEAVES[:size])
    assert tree.peaks(0) == ()
    assert tree.peaks() == tree.peaks(MAX)


@pytest.mark.req("MMR-01", "INV-15")
def test_another_order_of_the_same_leaves_is_another_root():
    """spec §5.1: stream order is what the tree commits to; stream_seq is the leaf's index (001 I12)."""
    for size in range(2, 40):
        for pos in range(size - 1):
            swapped = LEAVES[:size]
            swapped[pos], swapped[pos + 1] = swapped[pos + 1], swapped[pos]
            assert Span.of(0, swapped).root() != folded(0, size).root()


@pytest.mark.req("MMR-05", "GEN-20")
def test_appending_is_constant_on_average_and_keeps_only_the_peaks():
    """001 spec-1 §17: fewer than two nodes per leaf in total, at most one peak per bit of the size."""
    mmr, count = Mmr(), 0
    for size in range(1, 5001):
        count += len(mmr.append(LEAVES[size % MAX]))
        assert count == node_count(size) < 2 * size
        assert len(mmr.peaks()) == size.bit_count() <= size.bit_length()
    assert Mmr.__slots__ == ("_stack", "_tags", "size")  # nothing else that could grow


# Node names and positions


def test_peaks_are_the_binary_decomposition_of_the_size():
    """D-30: by increasing height, the smallest and newest tree first"""
    assert peak_nodes(0) == []
    assert peak_nodes(1) == [(0, 0)]
    assert peak_nodes(11) == [(0, 10), (1, 4), (3, 0)]
    for size in range(1, MAX + 1):
        assert peak_nodes(size) == model.subtrees(0, size)[::-1]


@pytest.mark.parametrize("size", HUGE)
def test_peaks_are_the_binary_decomposition_of_a_huge_size(size):
    """D-30, D-07: up to the largest stream_seq"""
    assert peak_nodes(size) == model.subtrees(0, size)[::-1]
    assert sum(1 << height for height, _ in peak_nodes(size)) == size


def test_a_run_is_covered_by_its_maximal_aligned_subtrees():
    """spec §5.1: the same nodes that a search from the top finds, for every run up to 70"""
    for start, end in itertools.combinations_with_replacement(range(71), 2):
        assert span_nodes(start, end) == model.subtrees(start, end)
    assert span_nodes(5, 4) == []


@given(huge_sizes, huge_sizes)
def test_a_huge_run_is_covered_by_its_maximal_aligned_subtrees(start, end):
    """spec §5.1, D-07"""
    start, end = sorted((start, end))
    assert span_nodes(start, end) == model.subtrees(start, end)
    assert len(span_nodes(start, end)) <= 128


def test_node_positions_are_distinct_dense_and_in_the_order_of_append():
    """D-71: an append-only file of nodes needs no index; a leaf, then the parents that it completes."""
    written: list[bytes] = []
    mmr = Mmr()
    for size in range(1, MAX + 1):
        written += mmr.append(LEAVES[size - 1])
        assert len(written) == node_count(size)
    nodes = [(height, index) for height in range(9) for index in range(MAX >> height)]
    assert sorted(node_position(*node) for node in nodes) == list(range(node_count(MAX)))
    tree = MmrTree(LEAVES)
    for height, index in nodes:
        expected = model.fold(LEAVES[index << height : (index + 1) << height])
        assert written[node_position(height, index)] == tree.node_at(height, index) == expected


@given(huge_sizes, st.integers(1, 63))
def test_a_parent_lies_right_behind_its_right_child(pos, height):
    """D-71, at positions no test can write: the leaf at the end, then parent after parent"""
    assert node_position(0, pos) == node_count(pos)
    index = pos >> height
    assert node_position(height, index) == node_position(height - 1, 2 * index + 1) + 1


def test_an_empty_log_has_no_nodes():
    """spec §5.1"""
    assert node_count(0) == 0
    assert node_position(0, 0) == 0


# Awkward input


def test_an_empty_tree_has_no_root():
    """D-30"""
    for empty in (Mmr(), MmrTree(), Span(0, 0, ())):
        assert empty.peaks() == ()
        with pytest.raises(ProofError, match=r"^an empty tree has no root$"):
            empty.root()
    with pytest.raises(ProofError, match=r"^an empty tree has no root$"):
        root_of([])


def test_a_single_peak_is_the_root_unless_the_tree_always_hashes():
    """D-30 for labels, D-13 for attachments"""
    assert (LABEL_TAGS.node_prefix, LABEL_TAGS.root_prefix) == (b"veen/mmr-node\x00", b"veen/mmr-root\x00")
    always = Tags(node="n", root="r", hash_single_peak=True)
    assert root_of(LEAVES[:1], Tags(node="n", root="r")) == LEAVES[0]
    for size in (1, 2, 3, 4):
        plain, hashed = Mmr(), Mmr(tags=always)
        for leaf in LEAVES[:size]:
            plain.append(leaf)
            hashed.append(leaf)
        peaks = model.peaks(LEAVES[:size], "n")
        assert hashed.root() == hashed.copy().root() == root_of(peaks, always) == model.ht("r", b"".join(peaks))
        assert (plain.root() == plain.peaks()[0]) == (size.bit_count() == 1)


def test_a_copy_goes_its_own_way():
    """spec §3.4.1: a cursor can be tried out without being moved."""
    mmr = Mmr()
    for leaf in LEAVES[:7]:
        mmr.append(leaf)
    copy = mmr.copy()
    copy.append(LEAVES[7])
    assert (mmr.size, mmr.root()) == (7, model.root(LEAVES[:7]))
    assert (copy.size, copy.root()) == (8, model.root(LEAVES[:8]))


def test_the_leaves_of_a_resumed_cursor_are_not_those_of_its_caller():
    """The cursor copies the peaks it is given."""
    peaks = model.peaks(LEAVES[:3])
    mmr = Mmr(3, peaks)
    mmr.append(LEAVES[3])
    assert peaks == model.peaks(LEAVES[:3])


@pytest.mark.parametrize("size", HUGE)
def test_a_cursor_resumes_at_a_huge_size(size):
    """spec §3.4.1, D-07: appending costs one hash per trailing one bit of the size, however large."""
    node_at = model.sparse_nodes({size: b"\x07" * 32, size + 1: b"\x08" * 32})
    mmr = Mmr(size, [node_at(*node) for node in peak_nodes(size)])
    assert mmr.root() == model.root_at(node_at, size)
    created = mmr.append(b"\x07" * 32)
    assert len(created) == node_count(size + 1) - node_count(size)
    assert mmr.root() == model.root_at(node_at, size + 1)


@pytest.mark.parametrize(
    ("size", "peaks"),
    [
        (0, [LEAVES[0]]),
        (1, []),
        (2, [LEAVES[0], LEAVES[1]]),
        (3, [LEAVES[0]]),
        (3, [LEAVES[0], LEAVES[1], LEAVES[2]]),
        (1, [LEAVES[0][:31]]),
        (1, [LEAVES[0] + b"\x00"]),
        (3, [LEAVES[0], b""]),
    ],
)
def test_a_cursor_refuses_peaks_that_do_not_fit_its_size(size, peaks):
    """spec §5.1: as many peaks as one bits in the size, 32 bytes each"""
    with pytest.raises(
        ProofError, match=f"^{size} leaves have {size.bit_count()} peaks of 32 bytes, not {len(peaks)}$"
    ):
        Mmr(size, peaks)


def test_a_cursor_refuses_a_negative_size():
    """spec §5.1: a size is a count."""
    with pytest.raises(ProofError):
        Mmr(-1, [LEAVES[0]])


@given(sizes, sizes, sizes, sizes)
def test_spans_that_do_not_meet_are_refused(a, b, c, d):
    """spec §5.1: a gap or an overlap would make another log of it."""
    a, b = sorted((a, b))
    c, d = sorted((c, d))
    if b == c:
        assert folded(a, b).merge(folded(c, d)) == by_the_model(a, d)
    else:
        with pytest.raises(ProofError, match=f"spans do not meet: one ends at {b}, the next begins at {c}"):
            folded(a, b).merge(folded(c, d))


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 9), st.booleans())
def test_a_span_with_another_number_of_nodes_than_its_bounds_demand_is_refused(a, b, c, count, left):
    """D-35: nothing can be slipped in or left out."""
    a, b, c = sorted((a, b, c))
    start, end = (a, b) if left else (b, c)
    expected = len(model.subtrees(start, end))
    span = Span(start, end, tuple(LEAVES[:count]))
    pair = (span, folded(b, c)) if left else (folded(a, b), span)
    if count == expected:
        span.check()
        assert pair[0].merge(pair[1]).end == c
    else:
        complaint = f"leaves {start} to {end} fold into {expected} nodes, found {count}"
        with pytest.raises(ProofError, match=complaint):
            span.check()
        with pytest.raises(ProofError, match=complaint):
            pair[0].merge(pair[1])


@pytest.mark.parametrize("span", [Span(5, 4, ()), Span(-1, 0, ()), Span(-1, 0, (LEAVES[0],)), Span(-2, -1, ())])
def test_bounds_that_name_no_run_are_refused(span):
    """spec §5.1: pos counts from 0, upwards"""
    with pytest.raises(ProofError, match="fold into -1 nodes"):
        span.check()
    with pytest.raises(ProofError, match="fold into -1 nodes"):
        Span(span.start, span.start, ()).merge(span)
    with pytest.raises(ProofError, match="fold into -1 nodes"):
        span.merge(Span(span.end, span.end, ()))


@pytest.mark.parametrize("start", [1, 2, 64])
def test_only_a_span_from_the_first_leaf_has_peaks_and_a_root(start):
    """spec §5.1: a run inside the log is no MMR of its own."""
    for end in (start, start + 1, start + 64):
        with pytest.raises(ProofError, match=r"^only a span from leaf 0 has peaks$"):
            folded(start, end).peaks()
        with pytest.raises(ProofError, match=r"^only a span from leaf 0 has peaks$"):
            folded(start, end).root()
