"""The view of a label: it grows only along roots that were signed, whichever way it grows (spec §5, D-33, D-66)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.client.errors import (
    Dropped,
    Equivocated,
    ProofInvalid,
    ReceiptMismatch,
    Reordered,
    RetiredKey,
    RootMismatch,
)
from veen.client.verify.pin import HubPin
from veen.client.verify.view import LabelView, check_order, contradiction, peaks_before
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H, u64be
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_consistency, prove_inclusion

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


def places(kind, work):
    """What a divergence says to programs: where it is, and the two values that cannot both be."""
    with pytest.raises(kind) as caught:
        work()
    return caught.value.label, caught.value.seq, caught.value.expected, caught.value.found


def test_what_is_not_the_next_entry_is_named_with_its_place():
    view, light = view_of(5), view_of(5, light=True)
    elsewhere, otherwise = replace(RECEIPTS[5], label=b"M" * 32), replace(RECEIPTS[5], mmr_root=b"x" * 32)
    assert places(Dropped, lambda: view.append(LEAVES[6], RECEIPTS[6])) == (L, 6, 6, 7)
    assert places(Reordered, lambda: view.append(LEAVES[3], RECEIPTS[3])) == (L, 6, 6, 4)
    mismatch = places(ReceiptMismatch, lambda: view.append(LEAVES[6], RECEIPTS[5]))
    assert mismatch == (L, 6, LEAVES[6], LEAVES[5])
    assert places(ReceiptMismatch, lambda: view.append(LEAVES[5], elsewhere)) == (L, 6, L, b"M" * 32)
    assert places(RootMismatch, lambda: view.append(LEAVES[5], otherwise)) == (L, 6, TREE.root(6), b"x" * 32)
    for seq, work in (
        (7, lambda: LabelView(L).start_before(RECEIPTS[6], prove_inclusion(TREE.node_at, 6))),
        (6, lambda: light.append(LEAVES[5], RECEIPTS[5])),
        (6, lambda: light.proof_of_next(LEAVES[5])),
        (9, lambda: light.skip_to(9, prove_consistency(TREE.node_at, 4, 9))),
    ):
        assert places(ProofInvalid, work) == (L, seq, None, None)


def test_a_view_remembers_the_last_receipt_only_while_it_is_the_last_one():
    """A receipt that is not at the end of the view is not compared with what the hub says about the end."""
    view = view_of(5)
    view.skip_to(5, prove_consistency(TREE.node_at, 5, 5))
    assert view.last == RECEIPTS[4]
    view.skip_to(9, prove_consistency(TREE.node_at, 5, 9))
    assert view.last is None
    view.append(LEAVES[9], RECEIPTS[9])
    assert view.last == RECEIPTS[9]
    view.start_before(RECEIPTS[6], prove_inclusion(TREE.node_at, 7))
    assert view.last is None
    forked = Receipt.issue(KEY, label=L, stream_seq=5, leaf_hash=b"f" * 32, mmr_root=b"f" * 32, hub_ts=8)
    view.check_known(forked, PIN)
    with pytest.raises(Equivocated):
        view_of(5).check_known(forked, PIN)


@pytest.mark.req("RCPT-07")
def test_two_statements_about_one_place_are_evidence():
    receipt = RECEIPTS[4]
    forked = Receipt.issue(KEY, label=L, stream_seq=5, leaf_hash=b"f" * 32, mmr_root=b"f" * 32, hub_ts=8)
    signed = Checkpoint.issue(KEY, label_prev=L, label_curr=L, upto_seq=5, mmr_root=b"f" * 32, epoch=0)
    for other in (forked, signed):
        for earlier, two in ((receipt, other), (other, receipt)):
            with pytest.raises(Equivocated) as caught:
                contradiction(earlier, two, PIN)
            caught.value.evidence.verify()
            assert (caught.value.label, caught.value.seq) == (L, 5)
    # Another leaf under the same root, and another root over the same leaf.
    for leaf, root in ((b"f" * 32, receipt.mmr_root), (receipt.leaf_hash, b"f" * 32)):
        with pytest.raises(Equivocated):
            contradiction(
                receipt, Receipt.issue(KEY, label=L, stream_seq=5, leaf_hash=leaf, mmr_root=root, hub_ts=8), PIN
            )
    agreeing = Checkpoint.issue(KEY, label_prev=L, label_curr=L, upto_seq=5, mmr_root=receipt.mmr_root, epoch=0)
    for other in (agreeing, receipt, RECEIPTS[5], replace(receipt, label=b"M" * 32)):
        contradiction(receipt, other, PIN)


def test_keys_of_two_statements_are_those_of_their_times():
    """A fork over a rotation: each statement is signed by the key of its own time, or it is no evidence."""
    other = SigningKey(b"\x03" * 32)
    rotated = HubIdentity.first(KEY.public, valid_from=0).with_rotation(other.public, valid_from=100, overlap_until=100)
    pin = HubPin.of_identity(rotated)
    early, late = (
        Checkpoint.issue(key, label_prev=L, label_curr=L, upto_seq=5, mmr_root=b"f" * 32, epoch=epoch)
        for key, epoch in ((KEY, 0), (other, 5))
    )
    for earlier, two in ((RECEIPTS[4], late), (late, RECEIPTS[4]), (RECEIPTS[4], early)):
        with pytest.raises(Equivocated) as caught:
            contradiction(earlier, two, pin, epoch_sec=60)
        caught.value.evidence.verify()
        with pytest.raises(Equivocated):
            view_of(5).check_known(late, pin, 60)
    retired = Checkpoint.issue(KEY, label_prev=L, label_curr=L, upto_seq=5, mmr_root=b"f" * 32, epoch=5)
    for earlier, two in ((RECEIPTS[4], retired), (retired, RECEIPTS[4])):
        with pytest.raises(RetiredKey):
            contradiction(earlier, two, pin, epoch_sec=60)
    with pytest.raises(RetiredKey):
        view_of(5).check_known(retired, pin, 60)


@pytest.mark.parametrize("light", [False, True])
def test_a_copy_is_free_to_fail(light):
    view = view_of(5, light=light)
    copy = view.copy()
    assert (copy.label, copy.size, copy.root, copy.peaks, copy.last) == (
        L, 5, TREE.root(5), view.peaks, RECEIPTS[4],
    )  # fmt: skip
    copy.skip_to(7, prove_consistency(TREE.node_at, 5, 7))
    assert (view.size, view.root, view.last) == (5, TREE.root(5), RECEIPTS[4])


@given(st.integers(1, 50), st.integers(2, 9), st.randoms(use_true_random=False))
def test_the_order_of_a_page_is_one_thing_and_its_completeness_another(first, count, random):
    seqs = list(range(first, first + count))
    check_order(L, first, seqs)
    check_order(L, first, [])
    shuffled = random.sample(seqs, count)
    if shuffled != seqs:
        want, seq = next((want, seq) for want, seq in zip(seqs, shuffled, strict=True) if want != seq)
        assert places(Reordered, lambda: check_order(L, first, shuffled)) == (L, want, want, seq)
    gone = random.randrange(count - 1)
    hole, twice = seqs[:gone] + seqs[gone + 1 :], [*seqs[: gone + 1], seqs[gone]]
    assert places(Dropped, lambda: check_order(L, first, hole)) == (L, seqs[gone], seqs[gone], seqs[gone + 1])
    assert places(Reordered, lambda: check_order(L, first, twice)) == (L, seqs[gone] + 1, seqs[gone] + 1, seqs[gone])
