"""Verification of portability sets (002 §12, §15; D-117, D-153): good sets pass, each kind of fault is named."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.products.vesn import log_builders as w

import vesn_verify
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError
from veen.core.hashing import H
from veen.products.vesn import logcheck, portability
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.ledger import Ledger, att_root_of, new_mmr
from veen.products.vesn.logcheck import Trust, check_entry, check_payload
from veen.products.vesn.objects import (
    Allow,
    CapToken,
    Checkpoint,
    Equivocation,
    IdentityCard,
    Msg,
    Pair,
    PayloadHdr,
    Profile,
    Receipt,
    RoutingSecret,
    SyncState,
)
from veen.products.vesn.portability import MemorySource, conflicts, encode_set, sequence_of, verify_set

LOG = w.log((2, 2))
FILES = encode_set(**LOG, **w.COMMON)


def report(files, trust=w.TRUST):
    return verify_set(MemorySource(files), trust)


def codes(files, trust=w.TRUST):
    return {finding.problem for finding in report(files, trust).findings}


def changed(**parts):
    """The files with some parts of the log exchanged; sync_state follows the receipts."""
    return encode_set(**{**LOG, **w.COMMON, **parts})


def joined(records):
    return b"".join(record.to_bytes() for record in records)


@pytest.mark.req("VESN-15")
def test_a_whole_set_verifies():
    """002 §15: receipts, checkpoints, payloads, sync_state, tokens, routing_secret, attachments, card, keystore"""
    good = report(FILES)
    assert (good.verdict, good.findings, good.missing, good.notes) == ("verified", (), (), ())
    assert (good.receipts, good.messages, good.checkpoints, good.tokens, good.attachments) == (4, 4, 1, 1, 2)
    assert [(log.first_seq, log.last_seq) for log in good.logs] == [(1, 2), (3, 4)]
    assert good.logs[1].continues == good.logs[0].label
    assert set(good.files) == set(FILES)
    assert good.to_json()["verdict"] == "verified"


@pytest.mark.req("VESN-15", "VESN-12")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 1000))
def test_whatever_a_ledger_writes_verifies_for_both_verifiers(counts, seed):
    files = w.small_set(counts, seed=seed)
    assert report(files).verdict == "verified"
    assert vesn_verify.verify(files, [w.HUB.public], [w.WITNESS.public], [60, 0]) == sum(counts)


def test_an_empty_set_verifies():
    assert report(encode_set(receipts=[])).verdict == "verified"


@pytest.mark.req("VESN-15")
def test_export_gives_the_same_files_again():
    parsed: dict[str, Any] = {
        "receipts": [Receipt.from_bytes(raw) for raw in sequence_of([FILES["receipts.cborl"]], what="")],
        "payloads": [Msg.from_bytes(raw) for raw in sequence_of([FILES["payloads.cborl"]], what="")],
        "checkpoints": [Checkpoint.from_bytes(raw) for raw in sequence_of([FILES["checkpoints.cborl"]], what="")],
        "attachments": [data for name, data in FILES.items() if name.startswith("attachments/")],
    }
    assert encode_set(**parsed, **w.COMMON) == FILES


# --- each invariant -----------------------------------------------------------------------------------------------


def resigned(msg, **fields):
    """A message with other fields and a good signature: only a check of the field itself finds it."""
    key = SigningKey(bytes([20 if msg.label == w.label(w.EPOCH_0) else 21]) * 32)
    unsigned = replace(msg, **fields, client_id=key.public)
    return replace(unsigned, sig=key.sign(unsigned.digest_without("sig")))


def relogged(*msgs, hub_ts=w.HUB_TS):
    """The receipts of a hub that accepts whatever it gets."""
    mmr, receipts = new_mmr(), []
    for msg in msgs:
        mmr.append(msg.leaf_hash())
        receipts.append(
            Receipt.issue(
                w.HUB,
                label=msg.label,
                stream_seq=mmr.size,
                leaf_hash=msg.leaf_hash(),
                mmr_root=mmr.root(),
                hub_ts=hub_ts,
            )
        )
    return receipts


FIRST, SECOND = LOG["payloads"][:2]
PLAIN: dict[str, Any] = {"checkpoints": [], "attachments": []}


def with_messages(*msgs):
    return changed(receipts=relogged(*msgs), payloads=msgs, **PLAIN)


def test_the_hub_that_accepts_everything_makes_good_sets_of_good_messages():
    assert report(with_messages(FIRST, SECOND)).verdict == "verified"


@pytest.mark.req("VESN-12")
def test_i1_ct_hash():
    bad = resigned(FIRST, ciphertext=b"other")
    assert Problem.I1 in codes(with_messages(bad, SECOND))


@pytest.mark.req("VESN-12")
def test_i2_leaf_hash():
    """A receipt for something else than the message"""
    receipts = relogged(FIRST, resigned(SECOND, client_seq=9))
    assert Problem.I2 in codes(changed(receipts=receipts, payloads=[FIRST, SECOND], **PLAIN))
    assert Problem.I2 in codes(changed(payloads=[*LOG["payloads"][1:], FIRST]))  # payloads in another order
    profiles = w.TRUST.profiles_by_id()
    check_entry(LOG["receipts"][0], FIRST, mmr=new_mmr(), hub_pks=[w.HUB.public], profiles=profiles)
    with pytest.raises(Violation) as refused:
        check_entry(LOG["receipts"][0], SECOND, mmr=new_mmr(), hub_pks=[w.HUB.public], profiles=profiles)
    assert refused.value.problem is Problem.I2


@pytest.mark.req("VESN-12", "VESN-08")
def test_i3_mmr_root():
    first, two = relogged(FIRST, SECOND)
    wrong = Receipt.issue(
        w.HUB, label=two.label, stream_seq=2, leaf_hash=two.leaf_hash, mmr_root=first.mmr_root, hub_ts=w.HUB_TS
    )
    assert codes(changed(receipts=[first, wrong], payloads=[FIRST, SECOND], **PLAIN)) == {Problem.I3}


@pytest.mark.req("VESN-12", "VESN-02")
def test_i4_profile():
    strange = resigned(FIRST, profile_id=Profile(epoch_sec=3600).profile_id())
    assert codes(with_messages(strange, SECOND)) == {Problem.I4}
    trust = replace(w.TRUST, profiles=(*logcheck.SUPPORTED, Profile(epoch_sec=3600)))
    assert codes(with_messages(strange, SECOND), trust) == set()


@pytest.mark.req("VESN-12", "VESN-10")
def test_i5_att_root():
    coids = [H(b"a"), H(b"b")]
    hdr = PayloadHdr(schema=bytes(32), att_root=att_root_of(coids))
    fields: dict[str, Any] = {"stream_id": w.STREAM_ID, "first_used_at": 0, "hub_ts": 0}
    check_payload(hdr, coids=coids, **fields)
    for wrong in (None, [], coids[:1], coids[::-1]):
        with pytest.raises(Violation) as refused:
            check_payload(hdr, coids=wrong, **fields)
        assert refused.value.problem is Problem.I5


@pytest.mark.req("VESN-12")
def test_i6_prev_ack():
    assert codes(with_messages(FIRST, resigned(SECOND, prev_ack=2))) == {Problem.I6}
    assert codes(with_messages(FIRST, resigned(SECOND, prev_ack=1))) == set()


@pytest.mark.req("VESN-12", "VESN-11")
def test_i7_capability():
    hdr = PayloadHdr(schema=bytes(32), cap_ref=w.TOKEN.cap_ref())
    check_payload(hdr, tokens=[w.TOKEN], stream_id=w.STREAM_ID, first_used_at=5, hub_ts=3605)
    wrong: list[dict[str, Any]] = [
        {"tokens": []},
        {"tokens": [w.TOKEN], "hub_ts": 3606},
        {"tokens": [w.TOKEN], "stream_id": bytes(32)},
    ]
    for options in wrong:
        with pytest.raises(Violation) as refused:
            check_payload(hdr, **{"stream_id": w.STREAM_ID, "first_used_at": 5, "hub_ts": 5, **options})
        assert refused.value.problem is Problem.I7


@pytest.mark.req("VESN-12", "VESN-04")
def test_signatures_of_clients_and_hub():
    assert Problem.SIG in codes(changed(payloads=[replace(FIRST, sig=bytes(64)), *LOG["payloads"][1:]]))
    assert codes(FILES, Trust(hub_pks=(w.OTHER_HUB.public,))) >= {Problem.SIG}
    assert (
        report(FILES, Trust(hub_pks=(w.OTHER_HUB.public, w.HUB.public), witness_pks=(w.WITNESS.public,))).findings == ()
    )


# --- order, labels, checkpoints -------------------------------------------------------------------------------------


@pytest.mark.req("VESN-15")
def test_missing_and_repeated_receipts_are_gaps():
    receipts, payloads = LOG["receipts"], LOG["payloads"]
    for cut in (slice(1, None), slice(None, None, 2)):
        assert Problem.GAP in codes(changed(receipts=receipts[cut], payloads=payloads[cut]))
    assert Problem.GAP in codes(changed(receipts=[receipts[0], *receipts], payloads=[payloads[0], *payloads]))
    # Cut off at the end: the checkpoint covers more than there is, and sync_state of the owner says so too.
    cut_off = {**FILES, "receipts.cborl": joined(receipts[:1]), "payloads.cborl": joined(payloads[:1])}
    assert codes(cut_off) == {Problem.GAP, Problem.SYNC}


@pytest.mark.req("VESN-15")
def test_a_checkpoint_links_labels_and_without_it_a_new_tree_must_start():
    """D-117"""
    unlinked = codes(changed(checkpoints=[]))
    assert Problem.GAP in unlinked
    ledger = Ledger(w.HUB)
    parts = [w.message(SigningKey(bytes([30 + n]) * 32), 1, at=w.label(w.EPOCH_0 + n))[0] for n in range(2)]
    receipts = [ledger.accept(msg, hub_ts=w.HUB_TS + 60 * n) for n, msg in enumerate(parts)]
    separate = report(changed(receipts=receipts, payloads=parts, **PLAIN))
    assert separate.verdict == "verified"
    assert any("2 separate trees" in note for note in separate.notes)


def test_a_link_may_lead_over_epochs_without_a_message():
    ledger = Ledger(w.HUB)
    message, _ = w.message(w.CLIENT, 1, at=w.label(w.EPOCH_0))
    receipts = [ledger.accept(message, hub_ts=w.HUB_TS)]
    links = [
        ledger.rotate(w.label(w.EPOCH_0 + n), w.label(w.EPOCH_0 + n + 1), epoch=w.EPOCH_0 + n + 1) for n in range(5)
    ]
    two, _ = w.message(w.OWNER, 1, at=w.label(w.EPOCH_0 + 5), prev_ack=1)
    receipts.append(ledger.accept(two, hub_ts=w.HUB_TS + 300))
    files = changed(receipts=receipts, payloads=[message, two], checkpoints=links, attachments=[])
    assert report(files).findings == ()
    assert report(files).logs[1].continues == w.label(w.EPOCH_0)
    assert vesn_verify.verify(files, [w.HUB.public], [], [60, 0]) == 2


def test_a_log_that_went_on_elsewhere_takes_no_more_entries():
    extra, _ = w.message(w.OWNER, 1, at=w.label(w.EPOCH_0))
    receipt = Receipt.issue(
        w.HUB, label=extra.label, stream_seq=5, leaf_hash=extra.leaf_hash(), mmr_root=bytes(32), hub_ts=w.HUB_TS
    )
    files = changed(receipts=[*LOG["receipts"], receipt], payloads=[*LOG["payloads"], extra])
    assert Problem.GAP in codes(files)


@pytest.mark.req("VESN-06", "VESN-15")
def test_a_checkpoint_must_agree_with_the_receipts():
    good = LOG["checkpoints"][0]
    wrong = Checkpoint.issue(
        w.HUB,
        label_prev=good.label_prev,
        label_curr=good.label_curr,
        upto_seq=1,
        mmr_root=good.mmr_root,
        epoch=good.epoch,
    )
    assert codes(changed(checkpoints=[good, wrong])) == {Problem.CHECKPOINT}
    beyond = Checkpoint.issue(
        w.HUB,
        label_prev=good.label_curr,
        label_curr=good.label_curr,
        upto_seq=9,
        mmr_root=good.mmr_root,
        epoch=good.epoch,
    )
    assert codes(changed(checkpoints=[good, beyond])) == {Problem.GAP}


@pytest.mark.req("VESN-06")
def test_witnesses_are_judged_by_the_keys_that_are_given():
    unjudged = report(FILES, replace(w.TRUST, witness_pks=()))
    assert unjudged.verdict == "incomplete"
    assert "--witness" in unjudged.missing[0]
    assert codes(FILES, replace(w.TRUST, witness_pks=(w.CLIENT.public,))) >= {Problem.SIG}


@pytest.mark.req("VESN-03", "VESN-15")
def test_labels_must_be_those_of_the_stream():
    for secret in (
        RoutingSecret(stream_id=H(b"another"), routing_key=w.ROUTING_KEY),
        RoutingSecret(stream_id=w.STREAM_ID, routing_key=bytes(32)),
    ):
        assert codes(changed(routing=secret)) == {Problem.LABEL}
    without = report(changed(routing=None))
    assert without.verdict == "verified"
    assert "routing_secret" in without.notes[0]


@pytest.mark.req("VESN-15")
def test_sync_state_must_be_that_of_the_last_receipt():
    last = LOG["receipts"][-1]
    for state in (
        SyncState(last_mmr_root=last.mmr_root, last_stream_seq=3),
        SyncState(last_mmr_root=bytes(32), last_stream_seq=4),
    ):
        assert codes({**FILES, "sync_state": state.to_bytes()}) == {Problem.SYNC}


def test_client_seq_increases_and_gaps_are_only_noted():
    """D-153"""
    skipped = report(with_messages(FIRST, resigned(SECOND, client_seq=7)))
    assert (skipped.verdict, skipped.notes) == ("verified", ("client_seq skips numbers 1 times (D-153)",))
    again = resigned(SECOND, client_seq=1)
    assert codes(with_messages(FIRST, again)) == {Problem.CLIENT_SEQ}


@pytest.mark.req("VESN-14")
def test_a_client_that_does_not_rotate_is_noted():
    message, _ = w.message(w.CLIENT, 1, at=w.label(w.EPOCH_0))
    two, _ = w.message(w.CLIENT, 2, at=w.label(w.EPOCH_0 + 1), prev_ack=1)
    ledger = Ledger(w.HUB)
    receipts = [ledger.accept(message, hub_ts=w.HUB_TS)]
    link = ledger.rotate(message.label, two.label, epoch=w.EPOCH_0 + 1)
    receipts.append(ledger.accept(two, hub_ts=w.HUB_TS + 60))
    noted = report(changed(receipts=receipts, payloads=[message, two], checkpoints=[link], attachments=[]))
    assert noted.verdict == "verified"
    assert "not rotated" in noted.notes[0]


@pytest.mark.req("VESN-18")
def test_padding_must_fill_the_block():
    profile = Profile(pad_block=256)
    trust = replace(w.TRUST, profiles=(*logcheck.SUPPORTED, profile))
    good, _ = w.message(w.CLIENT, 1, at=w.label(w.EPOCH_0), profile=profile)
    assert codes(with_messages(good), trust) == set()
    ciphertext = good.ciphertext[:-1]
    bad = Msg.compose(
        w.CLIENT,
        profile_id=profile.profile_id(),
        label=good.label,
        client_seq=1,
        prev_ack=0,
        ciphertext=ciphertext,
    )
    assert codes(with_messages(bad), trust) == {Problem.PADDING}


# --- equivocation ---------------------------------------------------------------------------------------------------


@pytest.mark.req("VESN-16")
def test_two_stories_in_one_set_are_proven():
    receipt = LOG["receipts"][1]
    forked = Receipt.issue(
        w.HUB, label=receipt.label, stream_seq=2, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=w.HUB_TS
    )
    caught = report(changed(receipts=[*LOG["receipts"], forked]))
    assert Problem.EQUIVOCATION in {finding.problem for finding in caught.findings}
    assert caught.evidence == (Equivocation.of(receipt, forked, hub_pk=w.HUB.public),)
    repeated = report(changed(receipts=[*LOG["receipts"], receipt]))
    assert repeated.evidence == ()


@pytest.mark.req("VESN-16")
def test_two_sets_of_one_hub_are_compared():
    other = w.small_set((2, 2), seed=7)
    assert report(other).verdict == "verified"
    proofs = conflicts(MemorySource(FILES), MemorySource(other), [w.HUB.public])
    assert {proof.first.stream_seq for proof in proofs} == {1, 2, 3, 4}
    for proof in proofs:
        proof.verify()
    assert conflicts(MemorySource(FILES), MemorySource(FILES), [w.HUB.public]) == []
    assert (
        conflicts(MemorySource(FILES), MemorySource(w.small_set((2, 2), seed=7, hub=w.OTHER_HUB)), [w.HUB.public]) == []
    )
    assert conflicts(MemorySource(FILES), MemorySource({}), [w.HUB.public]) == []


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.req("VESN-15")
@pytest.mark.parametrize("name", ["receipts.cborl", "sync_state"])
def test_what_no_set_can_do_without(name):
    files = {key: data for key, data in FILES.items() if key != name}
    assert Problem.FILE in codes(files)


@pytest.mark.parametrize("name", ["notes.txt", "attachments/readme", "manifest.cbor", "\x1b[31m\n"])
def test_a_file_that_no_set_has_is_named_safely(name):
    result = report({**FILES, name: b"x"})
    assert [finding.problem for finding in result.findings] == [Problem.FILE]
    assert result.findings[0].where.isprintable()
    assert report({**FILES, name: b"x"}, replace(w.TRUST, ignore=frozenset((name,)))).verdict == "incomplete"


@pytest.mark.req("VESN-10", "VESN-15")
def test_an_attachment_is_its_hash():
    name = next(name for name in FILES if name.startswith("attachments/"))
    assert codes({**FILES, name: b"other"}) == {Problem.ATTACHMENT}


def test_cards_and_keystores_are_signed_by_their_owner():
    stranger = IdentityCard.issue(w.CLIENT, w.READER_PK)
    assert codes(changed(card=stranger)) == {Problem.SIG}  # the keystore is another owner's
    assert report(changed(card=None)).verdict == "incomplete"


@pytest.mark.req("VESN-11", "VESN-15")
def test_tokens_of_a_set_are_verified():
    broken = replace(w.TOKEN, subject_pk=w.HUB.public)
    assert codes(changed(tokens=[w.TOKEN, broken])) == {Problem.I7}
    other = CapToken.issue(w.ISSUER, w.HUB.public, Allow(ttl=1, stream_ids=(bytes(32),)))
    assert codes(changed(tokens=[w.TOKEN, other])) == set()


@pytest.mark.req("VESN-15")
def test_payloads_may_be_absent_or_bare_pairs_but_then_the_set_is_incomplete():
    """002 §15 says "ciphertext and ct_hash": that much shows I1 and nothing else"""
    absent = report(changed(payloads=[]))
    assert absent.verdict == "incomplete"
    assert "4 of 4 entries have no message" in absent.missing[0]
    some = report(changed(payloads=LOG["payloads"][1::2]))
    assert (some.verdict, some.messages) == ("incomplete", 2)
    pairs = [Pair(ct_hash=msg.ct_hash, ciphertext=msg.ciphertext) for msg in LOG["payloads"]]
    bare = report(changed(payloads=pairs))
    assert bare.verdict == "incomplete"
    assert "4 payloads have no client_id" in bare.missing[0]
    assert codes(changed(payloads=[replace(pairs[0], ciphertext=b"")])) == {Problem.I1}


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_reading_ends_after_enough_findings():
    """A file of nonsense is not read to its end"""
    read = 0

    class Endless(MemorySource):
        def items(self, name):
            nonlocal read
            while True:
                read += 1
                yield b"\x00"

    result = verify_set(Endless(FILES), w.TRUST)
    assert (result.verdict, result.stopped, len(result.findings)) == ("failed", True, logcheck.MAX_FINDINGS)
    assert read <= 200


@pytest.mark.parametrize(
    ("module", "name", "limit"),
    [
        (logcheck, "MAX_LABELS", 1),
        (logcheck, "MAX_CLIENTS", 1),
        (logcheck, "MAX_CHECKPOINTS", 0),
        (logcheck, "MAX_STEPS", 0),
        (portability, "MAX_RECORDS", 3),
        (portability, "_MAX_TOKENS", 0),
        (portability, "SMALL_FILE_BYTES", 10),
    ],
)
def test_every_count_is_bounded(monkeypatch, module, name, limit):
    monkeypatch.setattr(module, name, limit)
    assert Problem.LIMIT in codes(FILES)


def test_a_sequence_is_cut_the_same_in_any_pieces():
    data = FILES["payloads.cborl"]
    whole = list(sequence_of([data], what="x"))
    assert b"".join(whole) == data
    for size in (1, 7, 100):
        assert list(sequence_of([data[at : at + size] for at in range(0, len(data), size)], what="x")) == whole
    assert list(sequence_of([], what="x")) == []
    with pytest.raises(FormatError, match="record 4"):
        list(sequence_of([data[:-1]], what="x"))


def test_an_item_that_claims_to_be_huge_is_refused_without_waiting_for_it():
    pulled = 0

    def pieces():
        nonlocal pulled
        yield b"\x5b" + b"\x00\x00\x00\xff\xff\xff\xff\xff"
        while True:
            pulled += 1
            yield bytes(1 << 20)

    with pytest.raises((FormatError, Violation)):
        list(sequence_of(pieces(), what="x"))
    assert pulled <= 3
