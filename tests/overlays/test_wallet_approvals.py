"""m-of-n approvals: exactly this transfer, by enough different approvers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.overlays.wallet_reference import ANN, ANY_TIME, BOB, CAT, World, opened, xfer

from veen.core.crypto.ed25519 import SigningKey
from veen.overlays.framework.schema import Typed
from veen.overlays.wallet import LedgerFold, drafts
from veen.overlays.wallet.approvals import (
    NotApproved,
    Quorum,
    TransferApproval,
    attach,
    attached,
    digest_of,
    find_unapproved,
)
from veen.overlays.wallet.bodies import TRANSFER, Transfer, approval_hash

KEYS = [SigningKey(bytes([n]) * 32) for n in range(4)]
TWO_OF_THREE = Quorum(threshold=2, approvers=frozenset(key.public for key in KEYS[:3]))
MOVE = Transfer(wallet_id=ANN, to_wallet_id=BOB, amount=500, ts=7, transfer_id=xfer(1), metadata={"note": "rent"})


def signed(*indices, transfer=MOVE):
    return [TransferApproval.sign(KEYS[index], transfer) for index in indices]


@pytest.mark.req("WAL-18")
def test_approvers_sign_the_approval_hash():
    assert digest_of(MOVE) == approval_hash(wallet_id=ANN, to_wallet_id=BOB, amount=500, ts=7, transfer_id=xfer(1))
    assert TransferApproval.sign(KEYS[0], MOVE).signature == KEYS[0].sign(digest_of(MOVE))
    assert TransferApproval.sign(KEYS[0], MOVE).holds_for(MOVE)


@pytest.mark.req("WAL-18")
def test_enough_different_approvers_are_needed():
    TWO_OF_THREE.check(MOVE, signed(0, 2))
    for several in (signed(), signed(0), signed(0, 0), signed(0, 3)):  # one twice; one who is no approver
        with pytest.raises(NotApproved, match=r"[01] of 2 approvals"):
            TWO_OF_THREE.check(MOVE, several)


@pytest.mark.req("WAL-18")
@pytest.mark.parametrize(
    "other",
    [{"wallet_id": CAT}, {"to_wallet_id": CAT}, {"amount": 501}, {"ts": 8}, {"transfer_id": xfer(2)}],
)
def test_an_approval_holds_for_one_transfer_only(other):
    assert not TWO_OF_THREE.is_met(replace(MOVE, **other), signed(0, 1, 2))


def test_approvals_travel_in_the_metadata_and_what_was_signed_stays():
    sent = attach(MOVE, signed(2, 0, 2))
    read = Transfer.from_bytes(sent.to_bytes())
    assert digest_of(read) == digest_of(MOVE)
    assert attached(read) == tuple(sorted(set(signed(0, 2))))
    assert read.metadata is not None
    assert read.metadata["note"] == "rent"
    TWO_OF_THREE.check(read, attached(read))


@given(
    st.recursive(
        st.none() | st.integers(0, 9) | st.binary(max_size=4) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=6,
    )
)
def test_free_form_metadata_is_never_mistaken_for_approvals(anything):
    assert attached(replace(MOVE, metadata={"approvals": anything})) == ()
    assert attached(replace(MOVE, metadata=None)) == ()


def test_small_transfers_may_need_no_approval():
    quorum = replace(TWO_OF_THREE, from_amount=500)
    assert not quorum.is_met(MOVE, ())
    assert quorum.is_met(replace(MOVE, amount=499), ())


@pytest.mark.parametrize("threshold", [0, 4])
def test_a_threshold_must_be_reachable(threshold):
    with pytest.raises(ValueError, match="approvers"):
        replace(TWO_OF_THREE, threshold=threshold)


@pytest.mark.req("WAL-18", "WAL-19")
def test_auditors_find_what_was_sent_without_approval_and_the_fold_does_not_care():
    world = World()
    world.send_all(opened("ann"), opened("bob"), drafts.deposit(ANN, 1_000, ts=0))
    world.send_all(TRANSFER.draft(attach(MOVE, signed(0, 1))), TRANSFER.draft(replace(MOVE, transfer_id=xfer(2))))
    fold = LedgerFold(policy=ANY_TIME)
    summary = fold.summarize(world.all())
    missing = list(find_unapproved(TWO_OF_THREE, summary.segment.values()))
    assert [typed.body.transfer_id for typed in missing] == [xfer(2)]
    assert all(isinstance(typed, Typed) for typed in missing)
    assert fold.view(summary).balance(BOB) == 1_000
