"""`letter`: the folds that follow WAL and ID to the letter agree with a reading of the text alone (D-180)."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.overlays.by_the_letter import Wallets, last_writers, state0
from tests.overlays.id_builders import ACME_ID, ALICE_APP, APP, BOB_APP, IdLog
from tests.overlays.wallet_reference import ANN, BOB, BRIDGE, DAY, World, opened, worlds, xfer

from veen.overlays.framework.fold import AnyFold, Mirrors
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.state import state_hash
from veen.overlays.id import drafts as id_drafts
from veen.overlays.id.fold import IdFold
from veen.overlays.id.letter import LetterIdFold
from veen.overlays.wallet import LedgerFold, drafts
from veen.overlays.wallet.letter import LetterLedgerFold
from veen.testing.laws import outcome

WORDS = (
    "wallet.open", "wallet.close", "wallet.deposit", "wallet.withdraw", "wallet.transfer", "wallet.adjust",
    "wallet.limit", "wallet.freeze", "wallet.unfreeze", "id.ctx.profile", "id.org.profile", "id.handlemap",
)  # fmt: skip
SCHEMA_TEXTS = {sha256(f"{word}.v1".encode()).digest(): f"{word}.v1" for word in WORDS}
FIELDS = tuple(state0())


def messages(events):
    """What a reader of the text sees of events."""
    return [
        {
            "msg_id": event.leaf_hash,
            "parent_id": event.hdr.parent_id,
            "schema": SCHEMA_TEXTS.get(event.hdr.schema),
            "stream": event.stream_id,
            "stream_seq": event.stream_seq,
            "body": cbor2.loads(event.body),
            "bridge": event.client_id == BRIDGE,
        }
        for event in sorted(events, key=lambda event: event.order)
    ]


def letter(events, kind=LetterLedgerFold):
    fold = kind(mirrors=Mirrors.by([BRIDGE]))
    ledger = fold.view(fold.summarize(events))
    return {wallet_id: {name: getattr(wallet, name) for name in FIELDS} for wallet_id, wallet in ledger.wallets.items()}


def touched(wallets):
    return {wallet_id: state for wallet_id, state in wallets.items() if state != state0()}


@pytest.mark.long
@pytest.mark.req("WAL-11", "WAL-13", "WAL-15", "WALBR-03")
@examples(300)
@given(worlds(max_events=40), st.data())
def test_wallets_agree_with_a_reading_of_the_text_on_any_history(world, data):
    """WAL §5, §6, §11.4, hostile histories included; and however the log is cut."""
    events = world.all()
    assert touched(letter(events)) == Wallets().fold(messages(events))
    fold = LetterLedgerFold(mirrors=Mirrors.by([BRIDGE]))
    cut = data.draw(st.integers(0, len(events)))
    parts = [fold.summarize(events[cut:]), fold.summarize(events[:cut])]
    assert outcome(fold, fold.merge(*parts)) == outcome(fold, fold.summarize(events))


@pytest.mark.long
@pytest.mark.req("ID-12", "ID-13", "ID-19")
@examples(200)
@given(st.data())
def test_profiles_and_handles_agree_with_a_reading_of_the_text_on_any_history(data):
    """ID §7.1, §8.1, §10.1: the greatest (updated_at, stream_seq), also if it lies far ahead."""
    log, times = IdLog(), st.sampled_from([0, 990, 1_000, 1_001, 2_000, 2**63])
    for number in range(data.draw(st.integers(0, 15))):
        ts, name = data.draw(times), f"name {number}"
        draft = data.draw(
            st.sampled_from(
                [
                    id_drafts.ctx_profile(ALICE_APP, APP, updated_at=ts, display_name=name),
                    id_drafts.org_profile(ACME_ID, created_at=1, updated_at=ts, display_name=name),
                    id_drafts.handle(
                        APP, "@a", target_type="ctx", target_id=data.draw(st.sampled_from([ALICE_APP, BOB_APP])), ts=ts
                    ),
                ]
            )
        )
        log.send(draft, ts=1_000 + data.draw(st.integers(0, 3)))
    fold = LetterIdFold()
    state = fold.view(fold.summarize(log.events))
    shown: dict[tuple[Any, ...], Any] = {("ctx", *key): profile.display_name for key, profile in state.contexts.items()}
    shown |= {("org", org_id): profile.display_name for org_id, profile in state.orgs.items()}
    shown |= {("handle", *key): handle.target_id for key, handle in state.handles.items()}
    assert shown == last_writers(messages(log.events))


def both(*sent):
    world = World()
    world.send_all(opened("ann", 1_000), opened("bob", 1_000), drafts.deposit(ANN, 100, ts=1_000))
    for draft, options in sent:
        world.send(draft, **{"at": world.now + 1, **options})
    return letter(world.all()), letter(world.all(), LedgerFold)


@pytest.mark.req("WAL-13", "WAL-15")
def test_where_the_default_and_the_letter_part():
    """Each exception that docs/compliance.md names, by one history."""
    own = {"at": DAY}
    by_letter, default = both(
        (drafts.limit(ANN, 10, ts=DAY), own),
        (drafts.withdraw(ANN, 10, ts=DAY), own),
        (drafts.withdraw(ANN, 10, ts=5), own),  # an earlier day, far from the hub's time
    )
    assert (by_letter[ANN]["balance"], default[ANN]["balance"]) == (80, 90)
    to_self = drafts.transfer(ANN, ANN, 10, ts=1_004, transfer_id=xfer(1))
    by_letter, default = both((to_self, {}))
    assert (by_letter[ANN]["balance"], default[ANN]["balance"]) == (90, 100)
    to_closed = drafts.transfer(ANN, BOB, 10, ts=1_005, transfer_id=xfer(1))
    by_letter, default = both((drafts.close(BOB, ts=1_004), {}), (to_closed, {}))
    assert (by_letter[ANN]["balance"], default[ANN]["balance"]) == (90, 100)
    from_frozen = drafts.transfer(ANN, BOB, 10, ts=1_005, transfer_id=xfer(1))
    by_letter, default = both((drafts.freeze(ANN, ts=1_004), {}), (from_frozen, {}))
    assert (by_letter[BOB]["balance"], default[BOB]["balance"]) == (10, 0)
    twice = drafts.deposit(ANN, 5, ts=1_004, ref=b"r")
    by_letter, default = both((twice, {}), (twice, {}))
    assert (by_letter[ANN]["balance"], default[ANN]["balance"]) == (110, 105)


@pytest.mark.req("WALBR-03")
def test_a_stranger_who_names_a_payment_as_parent_voids_it_by_the_letter_alone():
    """§11.4; the default asks for a registered bridge and the same body (D-176)."""
    world = World()
    world.send_all(opened("ann", 1_000), opened("bob", 1_000))
    paid = drafts.deposit(BOB, 7, ts=world.now + 2)
    later = world.send(paid, at=world.now + 2)
    forged = replace(drafts.deposit(ANN, 0, ts=world.now - 1), parent_id=later.msg_id)
    world.send(forged, at=world.now - 1)
    assert letter(world.all())[BOB]["balance"] == 0
    assert letter(world.all(), LedgerFold)[BOB]["balance"] == 7


@pytest.mark.req("ID-12")
def test_a_profile_that_is_dated_ahead_wins_by_the_letter_alone():
    log = IdLog()
    log.send(id_drafts.ctx_profile(ALICE_APP, APP, updated_at=10**9, display_name="ahead"), ts=1_000)
    log.send(id_drafts.ctx_profile(ALICE_APP, APP, updated_at=1_001, display_name="now"), ts=1_001)
    names = []
    for fold in (LetterIdFold(), IdFold()):
        state = fold.view(fold.summarize(log.events))
        names.append(state.contexts[ALICE_APP, APP].display_name)
    assert names == ["ahead", "now"]


def test_states_of_the_letter_have_classes_of_their_own():
    """A state of one is never taken for a state of the other."""
    pairs: tuple[tuple[AnyFold, AnyFold], ...] = ((LedgerFold(), LetterLedgerFold()), (IdFold(), LetterIdFold()))
    for default, by_letter in pairs:
        assert by_letter.name == f"{default.name}.letter"
        state = [fold.view(fold.identity()) for fold in (default, by_letter)]
        assert state_hash(default.name, state[0]) != state_hash(by_letter.name, state[1])
        assert getattr(BUILTIN.make_fold(by_letter.name), "name", None) == by_letter.name
    assert getattr(BUILTIN.make_fold("wallet"), "name", None) == "wallet.ledger"  # as before
