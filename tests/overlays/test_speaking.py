"""Who speaks for whom: bindings of client keys to principals, clause by clause, and against a second fold (D-179)."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.foreign.speaks import second_fold
from tests.overlays.operation_builders import codes, view
from tests.overlays.speaking_builders import (
    IDS,
    KEYS,
    NOW,
    OTHER_STREAM,
    PRINCIPALS,
    PROFILES,
    REALM,
    STREAM,
    KeyLog,
    bind,
    card,
    ctx_id,
    end,
    history,
    names_of_all,
    successor,
    write_agreement,
)

from veen.core import cbor
from veen.core.hashing import H
from veen.core.objects.speaking import SPEAKS_END_SCHEMA, SPEAKS_SCHEMA, SpeaksBinding
from veen.overlays.framework.fold import Mirrors, copy_draft
from veen.overlays.framework.schema import Draft
from veen.overlays.framework.speaking import MAX_OLDER
from veen.overlays.framework.stream import fold_events
from veen.overlays.operations.agreement import AgreementFold, confirm, define
from veen.overlays.operations.common import Speakers, Speaks
from veen.overlays.speaks import SpeaksFold
from veen.testing.laws import outcome

K1, K2, K3, K4, K5 = (key.public for key in KEYS)
P, Q, R = (principal.public for principal in PRINCIPALS)
ID = IDS[0]
BEFORE = json.loads((Path(__file__).parents[1] / "data" / "folds-before-speaks.json").read_text("utf-8"))


def agreed(*parties, by=KEYS[4]):
    """A log in which somebody has defined an agreement of some parties."""
    log = KeyLog()
    log.send(define(ID, 1, terms_hash=STREAM, parties=parties), by)
    return log


def decide(log, party, sender, decision="accept", **where):
    return log.send(confirm(ID, 1, party, decision), sender, **where)


def decisions(log, **settings):
    return {party: row.decision for (_, _, party), row in view(AgreementFold(**settings), log).decisions.items()}


def reasons(log, **settings):
    return [code for _, code in codes(AgreementFold(**settings), log)]


# --- rotation ---------------------------------------------------------------------------------------------------


def test_a_new_key_of_a_principal_withdraws_what_the_old_one_accepted():
    log = agreed(P)
    log.send(bind(0, 0), KEYS[0])
    decide(log, P, KEYS[0])
    log.send(bind(0, 1), KEYS[1])
    decide(log, P, KEYS[1], "withdraw")
    assert decisions(log) == {P: "withdraw"}
    assert reasons(log) == []


def test_a_new_key_speaks_for_the_names_of_all_keys_that_the_principal_bound():
    """Migration: an agreement that names a client key, which its owner binds long after."""
    log = agreed(K1)
    decide(log, K1, KEYS[0])
    log.send(bind(0, 0), KEYS[1])
    log.send(bind(0, 1), KEYS[1])
    decide(log, K1, KEYS[1], "withdraw", ts=200_000)
    assert reasons(log) == ["SPEAKS.TIME"]  # the new key is bound up to 87000
    log.send(bind(0, 2, not_before=199_000, not_after=201_000), KEYS[2])
    decide(log, K1, KEYS[2], "withdraw")
    assert decisions(log) == {K1: "withdraw"}


def test_without_a_binding_a_key_speaks_for_itself_alone():
    log = agreed(K1, P)
    decide(log, K1, KEYS[0])
    decide(log, P, KEYS[0])
    decide(log, K1, KEYS[1])
    assert decisions(log) == {K1: "accept"}
    assert reasons(log) == ["AGREE.SPEAKER"] * 2


def test_a_key_bound_to_another_principal_is_another_name():
    log = agreed(K2)
    log.send(bind(0, 0), KEYS[0])
    log.send(bind(1, 1), KEYS[1])
    decide(log, K2, KEYS[0])
    assert reasons(log) == ["AGREE.SPEAKER"]


# --- clause 1: which binding counts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        (bind(0, 0, stream=OTHER_STREAM), "SPEAKS.STREAM"),
        (bind(0, 0, forged="sig_client"), "SPEAKS.SIG"),
        (bind(0, 0, forged="sig_principal"), "SPEAKS.SIG"),
        (bind(0, 0, not_before=NOW, not_after=NOW), "SPEAKS.LIFETIME"),
        (bind(0, 0, not_before=NOW, not_after=NOW - 1), "SPEAKS.LIFETIME"),
        (bind(0, 0, not_before=0, not_after=87_001), "SPEAKS.LIFETIME"),
    ],
)
def test_a_binding_without_effect_binds_nothing(statement, code):
    log = agreed(P, K1)
    log.send(statement, KEYS[0])
    decide(log, P, KEYS[0])
    decide(log, K1, KEYS[0])
    assert reasons(log) == [code, "AGREE.SPEAKER"]
    assert decisions(log) == {K1: "accept"}


def test_the_longest_binding_is_a_day_and_ten_minutes():
    log = agreed(P)
    log.send(bind(0, 0, not_before=0, not_after=87_000), KEYS[0])
    decide(log, P, KEYS[0])
    assert decisions(log) == {P: "accept"}


def test_the_first_binding_of_a_key_counts():
    log = agreed(P, Q)
    log.send(bind(0, 0), KEYS[0])
    log.send(bind(1, 0), KEYS[0])
    decide(log, P, KEYS[0])
    decide(log, Q, KEYS[0])
    assert reasons(log) == ["SPEAKS.BOUND", "AGREE.SPEAKER"]
    assert decisions(log) == {P: "accept"}


def test_a_void_binding_is_not_the_first():
    log = agreed(Q)
    log.send(bind(0, 0, forged="sig_client"), KEYS[3])
    log.send(bind(1, 0), KEYS[0])
    decide(log, Q, KEYS[0])
    assert decisions(log) == {Q: "accept"}


def test_a_binding_does_not_work_backwards():
    log = agreed(P)
    decide(log, P, KEYS[0])
    log.send(bind(0, 0), KEYS[0])
    assert (decisions(log), reasons(log)) == ({}, ["AGREE.SPEAKER"])


def test_anybody_may_send_a_statement():
    """Both keys have signed it: who carries it needs no trust."""
    log = agreed(P)
    log.send(bind(0, 0), KEYS[3])
    decide(log, P, KEYS[0])
    assert decisions(log) == {P: "accept"}


def test_whoever_steals_an_old_key_that_sent_a_card_cannot_take_its_name():
    log = agreed(K1)
    log.send(card(0, 0), KEYS[0])
    log.send(bind(1, 0), KEYS[3])  # the thief binds the key to his principal
    decide(log, K1, KEYS[0])
    log.send(bind(1, 1), KEYS[1])
    decide(log, K1, KEYS[1], "withdraw")
    log.send(bind(0, 0), KEYS[0])
    assert reasons(log) == ["SPEAKS.CARD", "AGREE.SPEAKER"]
    assert decisions(log) == {K1: "accept"}


@pytest.mark.parametrize(
    ("draft", "sender"),
    [(card(0, 0), KEYS[1]), (card(0, 1), KEYS[0]), (card(0, 0, forged=True), KEYS[0])],
    ids=["sent by another key", "of another key", "not signed"],
)
def test_a_card_that_proves_nothing_keeps_no_principal_away(draft, sender):
    log = agreed(Q)
    log.send(draft, sender)
    log.send(bind(1, 0), KEYS[0])
    decide(log, Q, KEYS[0])
    assert (decisions(log), reasons(log)) == ({Q: "accept"}, [])


def test_the_first_card_of_a_key_counts():
    log = agreed(P, Q)
    log.send(card(0, 0), KEYS[0])
    log.send(card(1, 0), KEYS[0])
    log.send(bind(1, 0), KEYS[0])
    log.send(bind(0, 0), KEYS[0])
    decide(log, P, KEYS[0])
    assert (decisions(log), reasons(log)) == ({P: "accept"}, ["SPEAKS.CARD"])


# --- clause 2: ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, None], ids=["one", "all"])
def test_after_its_end_a_key_speaks_for_nobody_and_what_came_before_stays(which):
    log = agreed(P, K1)
    log.send(bind(0, 0), KEYS[0])
    decide(log, P, KEYS[0])
    log.send(end(0, which), KEYS[3])
    decide(log, P, KEYS[0], "withdraw")
    decide(log, K1, KEYS[0])
    assert decisions(log) == {P: "accept"}
    assert reasons(log) == ["SPEAKS.ENDED"] * 2


def test_after_a_revocation_ten_thousand_attempts_have_no_effect():
    log = agreed(P, K1)
    log.send(bind(0, 0), KEYS[0])
    decide(log, P, KEYS[0])
    before = view(AgreementFold(), log)
    log.send(end(0, 0), KEYS[3])
    for number in range(10_000):
        decide(log, (P, K1)[number % 2], KEYS[0], ("withdraw", "reject")[number % 3 == 0], ts=log.now)
    assert view(AgreementFold(), log) == before
    assert reasons(log) == ["SPEAKS.ENDED"] * 10_000


def test_an_end_of_all_bindings_leaves_later_ones():
    log = agreed(P)
    log.send(bind(0, 0), KEYS[0])
    log.send(end(0), KEYS[0])
    log.send(bind(0, 1), KEYS[1])
    decide(log, P, KEYS[1])
    decide(log, P, KEYS[0], "withdraw")
    assert (decisions(log), reasons(log)) == ({P: "accept"}, ["SPEAKS.ENDED"])


def test_who_repeats_an_end_of_all_bindings_ends_nothing():
    """A member could otherwise silence a principal for ever with one old statement."""
    log = agreed(P)
    log.send(end(0, ended_at=1), KEYS[0])
    log.send(bind(0, 0), KEYS[0])
    again = log.send(end(0, ended_at=1), KEYS[3])
    decide(log, P, KEYS[0])
    assert (decisions(log), codes(AgreementFold(), log)) == ({P: "accept"}, [(again.stream_seq, "SPEAKS.ENDED")])
    log.send(end(0, ended_at=2), KEYS[3])
    decide(log, P, KEYS[0], "withdraw")
    assert decisions(log) == {P: "accept"}


def test_a_stranger_ends_no_binding():
    log = agreed(P)
    log.send(bind(0, 0), KEYS[0])
    log.send(end(1, 0), KEYS[3])
    log.send(end(0, 0, forged=True), KEYS[3])
    log.send(end(0, 0, stream=OTHER_STREAM), KEYS[3])
    decide(log, P, KEYS[0])
    assert (decisions(log), reasons(log)) == ({P: "accept"}, ["SPEAKS.OWNER", "SPEAKS.SIG", "SPEAKS.STREAM"])


def test_an_end_before_its_binding_closes_the_pair_and_nothing_else():
    """A stranger could otherwise silence any key that is not bound yet."""
    log = agreed(K1, P, Q)
    log.send(end(1, 0), KEYS[3])
    decide(log, K1, KEYS[0])
    log.send(bind(0, 0), KEYS[0])
    decide(log, P, KEYS[0])
    assert (decisions(log), reasons(log)) == ({K1: "accept", P: "accept"}, [])
    log.send(end(1, 1), KEYS[3])
    log.send(bind(1, 1), KEYS[1])
    decide(log, Q, KEYS[1])
    assert reasons(log) == ["SPEAKS.ENDED"]


# --- clause 3: times and names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ts", "speaks"), [(1_009, False), (1_010, True), (1_050, True), (1_051, False)])
def test_a_binding_holds_from_its_first_to_its_last_second(ts, speaks):
    """ts* of the event counts, and the bounds belong to the time."""
    log = agreed(P, K1)
    log.send(bind(0, 0, not_before=1_010, not_after=1_050), KEYS[0], ts=1_001)
    decide(log, P, KEYS[0], ts=ts)
    decide(log, K1, KEYS[0], ts=ts)
    assert decisions(log) == ({P: "accept", K1: "accept"} if speaks else {})
    assert reasons(log) == ([] if speaks else ["SPEAKS.TIME"] * 2)


def test_ts_star_decides_and_not_the_time_of_the_hub():
    """D-27: the clock of the hub went back, and ts* does not."""
    log = agreed(P)
    log.send(bind(0, 0, not_before=1_000, not_after=1_050), KEYS[0], ts=1_001)
    log.send(confirm(ID, 1, P, "accept"), KEYS[4], ts=1_100)
    late = decide(log, P, KEYS[0], ts=1_010)
    assert (late.hub_ts, late.ts) == (1_010, 1_100)
    assert (decisions(log), reasons(log)) == ({}, ["AGREE.SPEAKER", "SPEAKS.TIME"])


def test_accounts_of_the_principal_are_its_names_in_the_realms_of_the_reader():
    log = agreed(ctx_id(P))
    log.send(bind(0, 0), KEYS[0])
    decide(log, ctx_id(P), KEYS[0])
    assert decisions(log) == {}
    assert decisions(log, realms=[REALM]) == {ctx_id(P): "accept"}
    assert AgreementFold().semantics() != AgreementFold(realms=[REALM]).semantics()


def test_a_binding_counts_in_its_stream_alone():
    """A fold of several streams: each has its own bindings."""
    log = KeyLog()
    log.send(define(ID, 1, terms_hash=STREAM, parties=[P]), KEYS[4])
    log.send(bind(0, 0), KEYS[0])
    log.send(confirm(ID, 1, P, "accept"), KEYS[0], stream="other")
    assert decisions(log) == {}
    log.send(bind(0, 0, stream=OTHER_STREAM), KEYS[0], stream="other")
    log.send(confirm(ID, 1, P, "accept"), KEYS[0], stream="other")
    assert decisions(log) == {P: "accept"}


def test_settings_of_the_reader_add_names_and_do_not_outlive_an_end():
    speakers = Speakers.by([Speaks(K1, Q)])
    log = agreed(P, Q)
    log.send(bind(0, 0), KEYS[0])
    decide(log, Q, KEYS[0])
    log.send(end(0, 0), KEYS[0])
    decide(log, Q, KEYS[0], "withdraw")
    assert decisions(log, speakers=speakers) == {Q: "accept"}


def test_a_copy_of_a_binding_from_another_stream_has_no_effect():
    """A bridge speaks as itself; what it copies is about the stream that it comes from."""
    bridge = KEYS[3]
    log = KeyLog()
    log.send(define(ID, 1, terms_hash=STREAM, parties=[P]), KEYS[4])
    bound = log.send(bind(0, 0), KEYS[0])
    log.send(copy_draft(bound, hub_id=H(b"hub")), bridge, stream="other")
    log.send(confirm(ID, 1, P, "accept"), KEYS[0], stream="other")
    mirrors = Mirrors.by([bridge.public])
    assert decisions(log, mirrors=mirrors) == decisions(log) == {}
    assert {"SPEAKS.STREAM", "AGREE.SPEAKER"} == set(reasons(log))


# --- clause 5: what is stored -------------------------------------------------------------------------------------


def test_a_definition_belongs_to_the_principal_and_to_no_key():
    log = KeyLog()
    log.send(bind(0, 0), KEYS[0])
    log.send(define(ID, 1, terms_hash=STREAM, parties=[K5]), KEYS[0])
    log.send(define(IDS[1], 1, terms_hash=STREAM, parties=[K5]), KEYS[2])
    stored = view(AgreementFold(), log).definitions
    assert [stored[key].definers for key in ((ID, 1), (IDS[1], 1))] == [{P}, {K3}]
    log.send(bind(0, 1), KEYS[1])
    log.send(define(ID, 2, terms_hash=STREAM, parties=[K5]), KEYS[1])
    log.send(define(ID, 3, terms_hash=STREAM, parties=[K5]), KEYS[3])
    assert reasons(log) == ["AGREE.OWNER"]


# --- successors of principals -------------------------------------------------------------------------------------


def test_the_next_key_of_a_principal_speaks_for_it_and_for_its_keys():
    log = agreed(P, K1, Q)
    log.send(bind(0, 0), KEYS[0])
    log.send(successor(0, 1), KEYS[3])
    log.send(bind(1, 1), KEYS[1])
    for party in (P, K1, Q):
        decide(log, party, KEYS[1])
    decide(log, Q, KEYS[0], "withdraw")  # who speaks for the old key does not speak for the new one
    assert decisions(log) == dict.fromkeys((P, K1, Q), "accept")
    assert reasons(log) == ["AGREE.SPEAKER"]


def test_what_the_old_key_binds_later_is_void_and_what_it_bound_stays():
    log = agreed(P)
    log.send(bind(0, 0), KEYS[0])
    log.send(successor(0, 1), KEYS[0])
    log.send(bind(0, 1), KEYS[1])
    decide(log, P, KEYS[0])
    decide(log, P, KEYS[1], "withdraw")
    assert (decisions(log), reasons(log)) == ({P: "accept"}, ["SPEAKS.ENDED", "AGREE.SPEAKER"])


@pytest.mark.parametrize("is_bound_by_thief", [False, True])
def test_a_principal_whose_place_was_taken_has_no_voice_when_its_key_signs_messages(is_bound_by_thief):
    """A thief with the long-term key signs with it as with a client key, and may bind it to a name of his own."""
    log = agreed(P)
    log.send(bind(0, 0), KEYS[0])
    log.send(successor(0, 1), KEYS[0])
    if is_bound_by_thief:
        issued = SpeaksBinding.issue(PRINCIPALS[2], PRINCIPALS[0], stream_id=STREAM, not_before=0, not_after=87_000)
        log.send(Draft(body=issued.to_bytes(), schema=SPEAKS_SCHEMA), KEYS[3])
    decide(log, P, PRINCIPALS[0])
    assert (decisions(log), reasons(log)) == ({}, ["SPEAKS.ENDED"])


def test_the_successor_ends_bindings_of_the_old_key():
    log = agreed(P)
    log.send(bind(0, 0), KEYS[0])
    log.send(successor(0, 1), KEYS[0])
    log.send(end(1, 0), KEYS[3])
    decide(log, P, KEYS[0])
    assert reasons(log) == ["SPEAKS.ENDED"]


def test_a_card_of_the_old_key_lets_the_successor_bind():
    log = agreed(P)
    log.send(card(0, 0), KEYS[0])
    log.send(successor(0, 1), KEYS[0])
    log.send(bind(1, 0), KEYS[0])
    decide(log, P, KEYS[0])
    assert decisions(log) == {P: "accept"}


@pytest.mark.parametrize("forged", ["sig_old", "sig_new"])
def test_a_successor_is_named_by_both_keys(forged):
    log = agreed(P)
    log.send(successor(0, 1, forged=forged), KEYS[3])
    log.send(bind(1, 1), KEYS[1])
    decide(log, P, KEYS[1])
    assert reasons(log) == ["SPEAKS.SIG", "AGREE.SPEAKER"]


def test_the_first_successor_counts_there_is_no_cycle_and_successors_have_successors():
    log = agreed(P, Q, R)
    for old, new in ((0, 0), (0, 1), (0, 2), (1, 2), (2, 0), (2, 1)):
        log.send(successor(old, new), KEYS[3])
    log.send(bind(2, 2), KEYS[2])
    for party in (P, Q, R):
        decide(log, party, KEYS[2])
    assert decisions(log) == dict.fromkeys((P, Q, R), "accept")
    assert reasons(log) == ["SPEAKS.BOUND"] * 4


def test_a_late_predecessor_reaches_all_successors():
    log = agreed(P)
    log.send(successor(1, 2), KEYS[3])
    log.send(successor(0, 1), KEYS[3])
    log.send(bind(2, 2), KEYS[2])
    decide(log, P, KEYS[2])
    assert decisions(log) == {P: "accept"}


def test_a_principal_takes_the_place_of_so_many_and_no_more():
    from veen.core.crypto.ed25519 import SigningKey
    from veen.core.objects.speaking import PRINCIPAL_NEXT_SCHEMA, PrincipalNext

    log = KeyLog()
    for number in range(MAX_OLDER + 1):
        old = SigningKey(bytes((100, number)) * 16)
        body = PrincipalNext.issue(old, PRINCIPALS[0], stream_id=STREAM).to_bytes()
        log.send(Draft(schema=PRINCIPAL_NEXT_SCHEMA, body=body), KEYS[0])
    assert codes(AgreementFold(), log) == [(MAX_OLDER + 1, "SPEAKS.BOUND")]


# --- off, and as before -------------------------------------------------------------------------------------------


def test_speaks_off_folds_by_the_old_rule_under_settings_of_its_own():
    log = agreed(P, K1)
    log.send(bind(0, 0), KEYS[0])
    log.send(end(0), KEYS[0])
    decide(log, P, KEYS[0])
    decide(log, K1, KEYS[0])
    assert decisions(log, speaks=False) == {K1: "accept"}
    assert reasons(log, speaks=False) == ["AGREE.SPEAKER"]
    on, off = AgreementFold(), AgreementFold(speaks=False)
    assert (on.semantics(), set(on.schemas)) != (off.semantics(), set(off.schemas))


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("speaks", [True, False], ids=["on", "off"])
def test_logs_without_bindings_fold_to_the_same_records_as_before(name, speaks):
    """The hashes are those of the release before bindings: state and issues, byte for byte."""
    make, write = PROFILES[name]
    fold = make(names_of_all(), speaks=speaks)
    for seed, expected in enumerate(BEFORE[name]):
        state, issues = outcome(fold, fold.summarize(history(seed, write).all()))
        assert H(state + repr(sorted(issues)).encode()).hex()[:16] == expected, seed


# --- laws ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("seed", range(4))
def test_any_cut_through_dump_and_load_gives_the_same_bytes(name, seed):
    """D-82, D-179: state of a stream is a function of its prefix, however it was reached."""
    make, write = PROFILES[name]
    fold = make(names_of_all())
    rng = Random(seed)
    events = history(1_000 + seed, write, statements=0.45).all()
    expected = outcome(fold, fold.summarize(events))
    assert outcome(fold, fold_events(fold, events)) == expected
    for cut in range(0, len(events) + 1, 3):
        first = fold.load(cbor.decode(cbor.encode(fold.dump(fold.summarize(events[:cut])))))
        assert outcome(fold, fold_events(fold, events[cut:], first)) == expected
        rest = events[cut:]
        rng.shuffle(rest)
        assert outcome(fold, fold.merge(first, fold.summarize(rest))) == expected


@examples(60)
@given(st.binary(max_size=80), st.sampled_from([SPEAKS_SCHEMA, SPEAKS_END_SCHEMA]), st.data())
def test_no_statement_makes_a_fold_raise(junk, schema, data):
    """A malformed statement is an issue at its place, whatever the bytes are."""
    good = data.draw(st.sampled_from([bind(0, 0), end(0, 0), end(0), successor(0, 1), card(0, 0)]))
    body = bytearray(good.body)
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    log = agreed(K1)
    log.send(Draft(schema=schema, body=junk), KEYS[0])
    log.send(replace(good, body=bytes(body)), KEYS[0])
    decide(log, K1, KEYS[1])
    decide(log, K1, KEYS[0])
    assert decisions(log).keys() <= {K1}
    assert (2, "OVL.CBOR") in codes(AgreementFold(), log) or (2, "OVL.BODY") in codes(AgreementFold(), log)


# --- the second fold ----------------------------------------------------------------------------------------------


def _plain(event):
    """What a stranger's fold is given of an event: places and bytes, and nothing that we have read."""
    return {
        "stream_id": event.stream_id,
        "label": event.label,
        "stream_seq": event.stream_seq,
        "client_id": event.client_id,
        "ts": event.ts,
        "schema": event.hdr.schema,
        "body": event.body,
    }


def _check_second(seed, fold, *, realms):
    names = [*names_of_all(), *map(ctx_id, (P, Q, R))]
    count = Random(seed).randrange(4, 30)
    events = history(seed, write_agreement, statements=0.5, count=count, names=names).all()
    summary = fold_events(fold, events)
    shown = fold.view(summary)
    definitions, decided, theirs = second_fold.fold_agreements(map(_plain, events), realms)
    ours = [(issue.label, issue.stream_seq, issue.code) for issue in fold.issues(summary)]
    ours = [(label, seq, "OVL" if code.startswith("OVL.") else code) for label, seq, code in ours]
    assert sorted(ours) == theirs, seed
    assert {key: set(row.definers) for key, row in shown.definitions.items()} == {
        key: {row["definer"]} for key, row in definitions.items()
    }, seed
    assert {key: row.decision for key, row in shown.decisions.items()} == decided, seed
    return {code for _, _, code in theirs}


def test_a_second_fold_from_the_text_agrees_on_random_histories():
    codes_seen = set()
    for realms in ((), (REALM,)):
        fold = AgreementFold(realms=realms)
        for seed in range(200):
            codes_seen |= _check_second(seed, fold, realms=realms)
    wanted = ["STREAM", "SIG", "LIFETIME", "BOUND", "CARD", "OWNER", "ENDED", "TIME"]
    assert {f"SPEAKS.{code}" for code in wanted} <= codes_seen  # the histories reach every clause


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_a_second_fold_from_the_text_agrees_on_a_hundred_thousand_histories():
    fold = AgreementFold(realms=(REALM,))
    for seed in range(100_000, 200_000):
        _check_second(seed, fold, realms=(REALM,))


# --- the state of its own -----------------------------------------------------------------------------------------


def test_the_fold_of_statements_shows_keys_ends_and_successors():
    log = KeyLog()
    for draft in (bind(0, 0), bind(0, 1), bind(0, 2), end(0, 0), successor(0, 1), bind(1, 3), end(1)):
        log.send(draft, KEYS[4])
    shown = view(SpeaksFold(), log)
    assert {client_id: (row.principal_pk, row.is_ended) for (_, client_id), row in shown.keys.items()} == {
        K1: (P, True),
        K2: (P, False),
        K3: (P, False),
        K4: (Q, True),
    }
    assert {pk: row.successor_pk for (_, pk), row in shown.successors.items()} == {P: Q}
    assert [shown.principal_of(STREAM, key, 1) for key in (K1, K2, K5)] == [None, P, None]
    assert [shown.principal_of(STREAM, K2, at) for at in (87_000, 87_001)] == [P, None]
    assert codes(SpeaksFold(), log) == []
