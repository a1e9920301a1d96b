"""The view of a label: it grows only along roots that were signed, whichever way it grows (spec §5, D-33, D-66)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.client.errors import Dropped, Equivocated, ProofInvalid, ReceiptMismatch, Reordered, RootMismatch
from veen.client.pin import HubPin
from veen.client.view import LabelView, check_order, contradiction, peaks_before
from veen.core.checkpoint import Checkpoint
from veen.core.ed25519 import SigningKey
from veen.core.hashing import H, u64be
from veen.core.mmr import MmrTree
from veen.core.proof import prove_consistency, prove_inclusion
from veen.core.receipt import Receipt

KEY = SigningKey(b"\x02" * 32)
PIN = HubPin.of_key(KEY.public)
L = b"L" * 32
SIZE = 70
LEAVES = [H(u64be(number)) for number in range(1, SIZE + 1)]
TREE = MmrTree(LEAVES)
RECEIPTS = [
    Receipt.issue(KEY, label=L, stream_seq=seq, leaf_hash=leaf, mmr_root=TREE.root(seq), hub_ts=7)
    for seq, leaf in enumerate(LEAVES, start=1)
]
sizes = st.integers(0, SIZE - 1)


def view_of(size, *, light=False):
    last = RECEIPTS[size - 1] if size else None
    root = TREE.root(size) if size else None
    return LabelView(L, size, root, peaks=None if light else TREE.peaks(size), last=last)


@given(sizes)
def test_a_view_grows_entry_by_entry_and_proves_each_one(size):
    view = view_of(size)
    proof = view.proof_of_next(LEAVES[size])
    view.append(LEAVES[size], RECEIPTS[size])
    assert (view.size, view.root, view.peaks) == (size + 1, TREE.root(size + 1), TREE.peaks(size + 1))
    assert proof == prove_inclusion(TREE.node_at, size + 1)
    assert peaks_before(proof) == TREE.peaks(size)


@given(sizes)
def test_one_proof_starts_a_view_anywhere(size):
    view = LabelView(L)
    view.start_before(RECEIPTS[size], prove_inclusion(TREE.node_at, size + 1))
    view.append(LEAVES[size], RECEIPTS[size])
    assert view.root == TREE.root(size + 1)


@pytest.mark.req("CLNT-01")
@given(st.integers(1, SIZE - 1), st.data(), st.booleans())
def test_a_consistency_proof_carries_a_view_over_what_it_does_not_read(start, data, light):
    """D-66: also from nothing but size and root, which is all that a light client keeps."""
    end = data.draw(st.integers(start, SIZE - 1))
    view = view_of(start, light=light)
    view.skip_to(end, prove_consistency(TREE.node_at, start, end))
    view.append(LEAVES[end], RECEIPTS[end])
    assert (view.root, view.peaks) == (TREE.root(end + 1), TREE.peaks(end + 1))


@given(st.integers(1, SIZE - 2), st.data())
def test_a_proof_of_another_log_or_place_carries_nothing(start, data):
    end = data.draw(st.integers(start + 1, SIZE - 1))
    good = prove_consistency(TREE.node_at, start, end)
    other = MmrTree([H(leaf) for leaf in LEAVES])
    for light in (False, True):
        for bad in (
            prove_consistency(other.node_at, start, end),
            replace(good, to_size=end + 1),
            replace(good, from_size=start + 1),
            replace(good, added=good.added[:-1]),
            replace(good, peaks=good.peaks[::-1]) if len(set(good.peaks)) > 1 else replace(good, peaks=()),
        ):
            with pytest.raises(ProofInvalid):
                view_of(start, light=light).skip_to(end, bad)
    changed = view_of(start)
    changed.skip_to(end, replace(good, added=(H(good.added[0]), *good.added[1:])))
    with pytest.raises(RootMismatch):  # the proof alone is not believed: the next signed root decides
        changed.append(LEAVES[end], RECEIPTS[end])


def test_what_is_not_the_next_entry_is_named():
    view = view_of(5)
    with pytest.raises(Dropped):
        view.append(LEAVES[6], RECEIPTS[6])
    with pytest.raises(Reordered):
        view.append(LEAVES[3], RECEIPTS[3])
    with pytest.raises(ReceiptMismatch):
        view.append(LEAVES[6], RECEIPTS[5])
    with pytest.raises(ReceiptMismatch):
        view.append(LEAVES[5], replace(RECEIPTS[5], label=b"M" * 32))
    with pytest.raises(RootMismatch):
        view.append(LEAVES[5], replace(RECEIPTS[5], mmr_root=b"x" * 32))
    with pytest.raises(ProofInvalid):
        LabelView(L).start_before(RECEIPTS[6], prove_inclusion(TREE.node_at, 6))
    for unknown in (view_of(5, light=True),):
        with pytest.raises(ProofInvalid):
            unknown.append(LEAVES[5], RECEIPTS[5])
        with pytest.raises(ProofInvalid):
            unknown.proof_of_next(LEAVES[5])


@pytest.mark.req("RCPT-07")
def test_two_statements_about_one_place_are_evidence():
    receipt = RECEIPTS[4]
    forked = Receipt.issue(KEY, label=L, stream_seq=5, leaf_hash=b"f" * 32, mmr_root=b"f" * 32, hub_ts=8)
    signed = Checkpoint.issue(KEY, label_prev=L, label_curr=L, upto_seq=5, mmr_root=b"f" * 32, epoch=0)
    for other in (forked, signed):
        for one, two in ((receipt, other), (other, receipt)):
            with pytest.raises(Equivocated) as caught:
                contradiction(one, two, PIN)
            caught.value.evidence.verify()
    agreeing = Checkpoint.issue(KEY, label_prev=L, label_curr=L, upto_seq=5, mmr_root=receipt.mmr_root, epoch=0)
    for other in (agreeing, receipt, RECEIPTS[5], replace(receipt, label=b"M" * 32)):
        contradiction(receipt, other, PIN)


def test_a_copy_is_free_to_fail():
    view = view_of(5)
    copy = view.copy()
    copy.append(LEAVES[5], RECEIPTS[5])
    assert (view.size, view.root, view.last) == (5, TREE.root(5), RECEIPTS[4])


@given(st.integers(1, 50), st.integers(2, 9), st.randoms(use_true_random=False))
def test_the_order_of_a_page_is_one_thing_and_its_completeness_another(first, count, random):
    seqs = list(range(first, first + count))
    check_order(L, first, seqs)
    check_order(L, first, [])
    shuffled = random.sample(seqs, count)
    if shuffled != seqs:
        with pytest.raises(Reordered):
            check_order(L, first, shuffled)
    gone = random.randrange(count - 1)
    with pytest.raises(Dropped):
        check_order(L, first, seqs[:gone] + seqs[gone + 1 :])
    with pytest.raises(Reordered):
        check_order(L, first, [*seqs[: gone + 1], seqs[gone]])
