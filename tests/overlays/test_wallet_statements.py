"""Statements add up, agree with the ledger, and every line can be proven."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.overlays.wallet_reference import ANN, ANY_TIME, BOB, BRIDGE, CAT, WALLETS, World, opened, worlds, xfer

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import ProofError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_inclusion
from veen.overlays.framework.fold import Mirrors
from veen.overlays.wallet import LedgerFold, drafts
from veen.overlays.wallet.statements import statement

FOLD = LedgerFold(mirrors=Mirrors.by([BRIDGE]), policy=ANY_TIME)


def small_world() -> World:
    world = World()
    world.send_all(
        opened("ann"),  # 1001
        opened("bob"),
        drafts.deposit(ANN, 100, ts=3, ref=b"bank 7"),
        drafts.transfer(ANN, BOB, 30, ts=4, transfer_id=xfer(1)),  # 1004
        drafts.freeze(ANN, ts=5),
        drafts.withdraw(ANN, 1, ts=6),  # refused, 1006
        drafts.unfreeze(ANN, ts=7),
        drafts.transfer(BOB, ANN, 5, ts=8, transfer_id=xfer(2)),
        drafts.transfer(BOB, ANN, 500, ts=9, transfer_id=xfer(3)),  # refused, 1009
        drafts.withdraw(ANN, 2, ts=10),
    )
    world.copy(world.all()[3])
    return world


def test_a_statement_tells_what_happened_and_what_was_refused():
    account = statement(FOLD, small_world().all(), ANN, since=1_004, until=1_009)
    account.check()
    assert (account.opening, account.closing, account.currency) == (100, 75, "USD")
    assert [(line.operation, line.delta, line.balance, line.other, line.ref) for line in account.lines] == [
        ("transfer", -30, 70, BOB, xfer(1)),
        ("freeze", 0, 70, None, None),
        ("unfreeze", 0, 70, None, None),
        ("transfer", 5, 75, BOB, xfer(2)),
    ]
    assert [issue.code for issue in account.refused] == ["WAL.FROZEN", "WAL.INSUFFICIENT_FUNDS"]
    assert next((line.hub_ts, line.ts) for line in account.lines) == (1_004, 4)


def test_a_statement_of_everything_begins_with_nothing():
    report = statement(FOLD, small_world().all(), ANN)
    assert (report.opening, report.closing, report.lines[0].operation, report.lines[1].ref) == (
        0,
        73,
        "open",
        b"bank 7",
    )
    nothing = statement(FOLD, small_world().all(), CAT)
    assert (nothing.opening, nothing.lines, nothing.closing, nothing.currency) == (0, (), 0, None)


@pytest.mark.req("WAL-21")
@examples(150)
@given(worlds(), st.sampled_from(sorted(WALLETS.values())), st.data())
def test_statements_agree_with_the_ledger_and_join_without_a_gap(world, wallet_id, data):
    """An auditor folds everything again: opening and closing are the balances of the ledger at those moments."""
    events = world.all()
    end = max(event.ts for event in events)
    middle = data.draw(st.integers(999, end + 1))
    first = statement(FOLD, events, wallet_id, until=middle)
    prefix = FOLD.seal(FOLD.summarize([event for event in events if event.ts <= middle]))
    second = statement(FOLD, events, wallet_id, since=middle + 1, until=end, prefix=prefix)
    assert second == statement(FOLD, events, wallet_id, since=middle + 1, until=end)
    whole = statement(FOLD, events, wallet_id)
    for account in (first, second, whole):
        account.check()
    assert first.closing == second.opening == FOLD.view(prefix).balance(wallet_id)
    assert second.closing == whole.closing == FOLD.view(FOLD.summarize(events)).balance(wallet_id)
    assert first.lines + second.lines == whole.lines
    assert first.refused + second.refused == whole.refused


def test_a_prefix_must_end_before_the_statement_begins():
    events = small_world().all()
    with pytest.raises(ValueError, match="prefix ends"):
        statement(FOLD, events, ANN, since=1_004, prefix=FOLD.summarize(events))
    with_empty = statement(FOLD, events, ANN, since=1_004, prefix=FOLD.identity())
    assert with_empty == statement(FOLD, events, ANN, since=1_004)


@pytest.mark.req("WAL-21")
def test_every_line_is_proven_against_a_checkpoint():
    """WAL §12: the event existed at or before it, whoever wrote the statement."""
    world = small_world()
    account = statement(FOLD, world.all(), ANN)
    hub = SigningKey(bytes(32))
    trees = {label: MmrTree(event.leaf_hash for event in events) for label, events in world.by_label.items()}
    for line in account.lines:
        tree = trees[line.label]
        checkpoint = Checkpoint.issue(
            hub, label_prev=line.label, label_curr=line.label, upto_seq=tree.size, mmr_root=tree.root(), epoch=0
        )
        proof = prove_inclusion(tree.node_at, line.stream_seq, tree.size)
        line.verify(proof, checkpoint)
        with pytest.raises(ProofError):
            replace(line, leaf_hash=bytes(32)).verify(proof, checkpoint)
        with pytest.raises(VerifyError, match="another label"):
            line.verify(proof, replace(checkpoint, label_curr=bytes(32)))
    assert {line.label for line in account.lines} == {world.all()[0].label, account.lines[5].label}


@pytest.mark.parametrize("broken", ["delta", "closing", "negative"])
def test_figures_that_do_not_add_up_are_found(broken):
    account = statement(FOLD, small_world().all(), ANN)
    lines = list(account.lines)
    match broken:
        case "delta":
            lines[1] = replace(lines[1], delta=99)
            wrong = replace(account, lines=tuple(lines))
        case "closing":
            wrong = replace(account, closing=74)
        case _:
            wrong = replace(account, lines=(replace(lines[0], delta=-1, balance=-1),), closing=-1)
    account.check()
    with pytest.raises(VerifyError):
        wrong.check()
