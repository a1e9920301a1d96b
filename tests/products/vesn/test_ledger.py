"""Admission of a VESN hub (002 §11, §13)."""

from dataclasses import replace

import pytest
from tests.products.vesn import log_builders as w

from veen.products.vesn.errors import Refusal, Refused, Violation
from veen.products.vesn.ledger import Bucket, Ledger
from veen.products.vesn.objects import Allow, CapToken, ErrorReply, Profile, Rate

AT = w.label(0)


def refusal(call, *args, **options):
    with pytest.raises(Refused) as refused:
        call(*args, **options)
    reply = ErrorReply.of(refused.value)
    assert ErrorReply.from_bytes(reply.to_bytes()) == reply
    assert reply.code == refused.value.refusal.value
    return refused.value.refusal


@pytest.mark.req("VESN-13")
def test_the_codes_are_those_of_the_text():
    codes = {"E.SIG", "E.SIZE", "E.SEQ", "E.CAP", "E.RATE", "E.PROFILE", "E.DUP"}
    assert {code.value for code in Refusal} == codes
    assert ErrorReply(code="E.SIG").to_tree() == {"code": "E.SIG"}
    assert ErrorReply(code="E.SIG", detail="why").to_tree() == {"code": "E.SIG", "detail": "why"}


@pytest.mark.req("VESN-13")
def test_every_refusal_of_messages():
    ledger = Ledger(w.HUB, max_msg_bytes=1000, max_client_gap=10)
    msg, _ = w.message(w.CLIENT, 2, at=AT)
    ledger.accept(msg, hub_ts=0)
    assert refusal(ledger.accept, msg, hub_ts=0) is Refusal.DUP
    other, _ = w.message(w.CLIENT, 2, at=AT, body=b"x")
    assert refusal(ledger.accept, other, hub_ts=0) is Refusal.SEQ
    assert refusal(ledger.accept, w.message(w.CLIENT, 1, at=AT)[0], hub_ts=0) is Refusal.SEQ
    assert refusal(ledger.accept, w.message(w.CLIENT, 13, at=AT)[0], hub_ts=0) is Refusal.SEQ
    third, _ = w.message(w.CLIENT, 3, at=AT)
    assert refusal(ledger.accept, replace(third, prev_ack=1), hub_ts=0) is Refusal.SIG
    assert refusal(ledger.accept, replace(third, ciphertext=b""), hub_ts=0) is Refusal.SIG
    strange, _ = w.message(w.CLIENT, 3, at=AT, profile=Profile(epoch_sec=61))
    assert refusal(ledger.accept, strange, hub_ts=0) is Refusal.PROFILE
    large, _ = w.message(w.CLIENT, 3, at=AT, body=bytes(1000))
    assert refusal(ledger.submit, large.to_bytes(), hub_ts=0) is Refusal.SIZE
    assert refusal(ledger.submit, b"\xa0", hub_ts=0) is Refusal.SIG
    assert ledger.submit(third.to_bytes(), hub_ts=0).stream_seq == 2  # nothing of this changed the log


@pytest.mark.req("VESN-11", "VESN-13")
def test_capabilities_and_their_rate():
    ledger = Ledger(w.HUB, stream_ids={AT: w.STREAM_ID})
    msgs = [w.message(w.CLIENT, seq, at=AT)[0] for seq in range(1, 8)]
    assert refusal(ledger.accept, msgs[0], hub_ts=100) is Refusal.CAP
    foreign = CapToken.issue(w.ISSUER, w.CLIENT.public, Allow(ttl=9, stream_ids=(bytes(32),)))
    assert refusal(ledger.accept, msgs[0], hub_ts=100, token=foreign) is Refusal.CAP
    broken = replace(w.TOKEN, sig_chain=w.TOKEN.sig_chain[1:])
    assert refusal(ledger.accept, msgs[0], hub_ts=100, token=broken) is Refusal.CAP
    for msg in msgs[:2]:  # burst 2, then one a second
        ledger.accept(msg, hub_ts=100, token=w.TOKEN)
    assert refusal(ledger.accept, msgs[2], hub_ts=100, token=w.TOKEN) is Refusal.RATE
    ledger.accept(msgs[2], hub_ts=101, token=w.TOKEN)
    ledger.accept(msgs[3], hub_ts=3700, token=w.TOKEN)
    assert refusal(ledger.accept, msgs[4], hub_ts=3701, token=w.TOKEN) is Refusal.CAP  # ttl 3600 from the first use


@pytest.mark.req("VESN-11")
def test_a_bucket_fills_up_to_its_burst_and_not_when_time_goes_back():
    bucket = Bucket(Rate(per_sec=2, burst=3))
    assert [bucket.take(10) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(11) for _ in range(3)] == [True, True, False]
    assert not bucket.take(5)
    assert [bucket.take(1000) for _ in range(4)] == [True, True, True, False]
    assert not Bucket(Rate(per_sec=0, burst=0)).take(1)


@pytest.mark.req("VESN-06")
def test_checkpoints_need_entries_and_link_labels():
    ledger = Ledger(w.HUB)
    with pytest.raises(Violation):
        ledger.checkpoint(AT, epoch=0)
    ledger.accept(w.message(w.CLIENT, 1, at=AT)[0], hub_ts=0)
    link = ledger.rotate(AT, w.label(1), epoch=1)
    assert (link.label_prev, link.label_curr, link.upto_seq, link.epoch) == (AT, w.label(1), 1, 1)
    assert ledger.accept(w.message(w.CLIENT, 2, at=w.label(1))[0], hub_ts=60).stream_seq == 2
    for labels in ((AT, w.label(2)), (w.label(1), w.label(1))):
        with pytest.raises(Violation):
            ledger.rotate(*labels, epoch=2)
