"""The admission table, row by row, and its laws (spec §8.2, decisions §7)."""

from dataclasses import replace
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub import builders as w

from veen.core.errors import CapabilityError, MalformedError, Refusal
from veen.core.hashing import H
from veen.core.labels import label_of
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.control import CapAuthorize, LabelOpen
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.hub.admission.decide import Accept, Refuse, Resolver, check_structure, decide
from veen.storage.state import Cap

PROFILES = frozenset((w.BULK.profile_id(),))


def structure(raw, limits=DEFAULT_LIMITS):
    return check_structure(raw, PROFILES, limits)


def why(decision):
    assert isinstance(decision, Refuse), decision
    return decision.refusal


def judge(message, state=None, *, policy=None, resolver=None, now=w.NOW, find=lambda *_: None):
    return decide(state or w.state(), policy or w.policy(), resolver or w.resolver(), message, now, find)


def admit(state, message, now=w.NOW, **kwargs):
    """Decide and carry out, as the sequencer does."""
    decision = judge(message, state, now=now, **kwargs)
    if isinstance(decision, Refuse):
        return decision
    for body in decision.records:
        if isinstance(body, LabelOpen):
            state.open_label(body.label, body.epoch, body.stream_id)
        elif isinstance(body, CapAuthorize):
            state.caps[body.auth_ref] = Cap.begin(CapToken.from_bytes(body.token), state.limits, now)
    return state.admit(
        state.labels[message.label],
        client_id=message.client_id,
        client_seq=message.client_seq,
        prev_ack=message.prev_ack,
        auth_ref=message.auth_ref,
        leaf_hash=message.leaf_hash(),
        hub_ts=now,
    )


# --- structural ------------------------------------------------------------------------------------------


@pytest.mark.req("ADM-03", "INV-10", "INV-14")
def test_anything_but_canonical_cbor_is_cbor_invalid():
    good = w.msg().to_bytes()
    for raw in (b"", b"\xff", good[:-1], good + b"\x00", b"\x9f" + good[1:] + b"\xff", cbor2.dumps({1: 1}), good[1:]):
        assert why(structure(raw)) is Refusal.CBOR_INVALID
    items = cbor2.loads(good)
    for wrong in (items[:-1], [*items, 0], ["1", *items[1:]], [*items[:4], -1, *items[5:]]):
        assert why(structure(cbor2.dumps(wrong))) is Refusal.CBOR_INVALID


@pytest.mark.req("ADM-03", "LIM-09", "INV-11")
def test_wrong_sizes_are_field_size():
    items = cbor2.loads(w.msg().to_bytes())
    short_label = [*items[:2], items[2][:31], *items[3:]]
    assert why(structure(cbor2.dumps(short_label))) is Refusal.FIELD_SIZE
    assert why(structure(w.msg(ciphertext=bytes(39)).to_bytes())) is Refusal.FIELD_SIZE
    assert why(structure(w.msg(ciphertext=w.CIPHERTEXT[:-1]).to_bytes())) is Refusal.FIELD_SIZE
    assert why(structure(w.msg().to_bytes(), Limits(max_hdr_bytes=19))) is Refusal.FIELD_SIZE
    assert why(structure(w.msg().to_bytes(), Limits(max_body_bytes=23))) is Refusal.FIELD_SIZE
    assert isinstance(structure(w.msg().to_bytes(), Limits(max_hdr_bytes=20, max_body_bytes=24)), Msg)


@pytest.mark.req("CRY-10", "ADM-03", "INV-04")
def test_version_profile_hash_and_padding_each_have_their_own_answer():
    """decisions §7, structural rows."""
    items = cbor2.loads(w.msg().to_bytes())
    assert why(structure(cbor2.dumps([2, *items[1:]]))) is Refusal.VERSION
    assert why(structure(w.msg(profile=PRESETS["rotating"]).to_bytes())) is Refusal.PROFILE
    assert why(structure(w.msg(ct_hash=bytes(32)).to_bytes())) is Refusal.CT_HASH
    assert why(structure(w.msg(ciphertext=w.CIPHERTEXT + b"\x00\x01").to_bytes())) is Refusal.CT_PADDING
    assert isinstance(structure(w.msg(ciphertext=w.CIPHERTEXT + bytes(9)).to_bytes()), Msg)


@pytest.mark.req("ADM-01", "ADM-06", "OP0-01", "SH1-02")
def test_the_first_structural_fault_in_the_order_of_the_table_wins():
    bad = w.msg(
        profile=PRESETS["rotating"], ciphertext=w.CIPHERTEXT + b"\x01", ct_hash=bytes(32)
    )  # profile, hash and padding are all wrong
    assert why(structure(bad.to_bytes())) is Refusal.PROFILE
    short = w.msg(profile=PRESETS["rotating"], ciphertext=bytes(10))
    assert why(structure(short.to_bytes())) is Refusal.FIELD_SIZE
    items = cbor2.loads(bad.to_bytes())
    assert why(structure(cbor2.dumps([2, *items[1:]]))) is Refusal.VERSION
    assert why(structure(cbor2.dumps([2, items[1][:5], *items[2:]]))) is Refusal.FIELD_SIZE
    short_items = cbor2.loads(short.to_bytes())
    assert why(structure(cbor2.dumps([2, *short_items[1:]]))) is Refusal.FIELD_SIZE
    assert why(structure(cbor2.dumps([2, items[1][:5], *items[2:9], "sig"]))) is Refusal.CBOR_INVALID
    hash_and_padding = w.msg(ciphertext=w.CIPHERTEXT + b"\x01", ct_hash=bytes(32))
    assert why(structure(hash_and_padding.to_bytes())) is Refusal.CT_HASH


# --- auth ------------------------------------------------------------------------------------------------


def test_a_good_first_message_opens_its_label():
    decision = judge(w.msg())
    assert decision == Accept((LabelOpen(label=w.LABEL, epoch=0, stream_id=w.STREAM),))


@pytest.mark.req("GEN-12")
def test_without_a_token_nothing_is_admitted_under_gating():
    assert why(judge(w.msg(token=None))) is Refusal.CAP_MISSING
    assert isinstance(judge(w.msg(token=None), policy=w.policy(capability_gating=False)), Accept)


def test_an_unknown_token_is_missing_even_without_gating():
    """D-56a"""
    stranger = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=1)
    for gating in (True, False):
        assert why(judge(w.msg(token=stranger), policy=w.policy(capability_gating=gating))) is Refusal.CAP_MISSING


@pytest.mark.req("CAP-20")
def test_a_token_of_an_issuer_that_is_not_trusted_is_invalid():
    for trusted in ({}, {w.ISSUER.public: frozenset((w.OTHER_STREAM,))}):
        assert why(judge(w.msg(), policy=w.policy(trusted_issuers=trusted))) is Refusal.CAP_INVALID
    for accepted in (
        {"trusted_issuers": {w.ISSUER.public: frozenset((w.STREAM, w.OTHER_STREAM))}},
        {"trusted_issuers": {}, "trust_any_issuer": True},
    ):
        assert isinstance(judge(w.msg(), policy=w.policy(**accepted)), Accept)


def test_a_token_of_somebody_else_is_refused():
    """D-49"""
    assert why(judge(w.msg(w.BOB))) is Refusal.AUTH_REF


@pytest.mark.req("ADM-12")
def test_a_label_outside_the_token_is_out_of_scope():
    other = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
    assert why(judge(w.msg(label=other), resolver=w.resolver(w.STREAM, w.OTHER_STREAM))) is Refusal.CAP_SCOPE
    assert why(judge(w.msg(label=H(b"no label of ours")))) is Refusal.CAP_SCOPE


def test_open_scope_takes_any_label_and_says_so_in_the_record():
    """D-24"""
    decision = judge(w.msg(label=b"x" * 32), policy=w.policy(stream_scope="open"))
    assert decision == Accept((LabelOpen(label=b"x" * 32, epoch=0),))
    with pytest.raises(MalformedError, match="stream_scope"):
        w.policy(stream_scope="open", profiles=(PRESETS["rotating"],))
    with pytest.raises(MalformedError, match="epoch_sec"):
        w.policy(profiles=(PRESETS["rotating"], PRESETS["bulk"]))


def test_a_label_without_a_stream_stays_open_after_its_first_entry():
    """D-24: what the hub did not know at the first message it does not know at the second."""
    state, policy = w.state(w.FREE_TOKEN), w.policy(stream_scope="open")
    for seq in (1, 2):
        message = w.msg(token=w.FREE_TOKEN, seq=seq, label=b"x" * 32)
        assert not isinstance(admit(state, message, policy=policy), Refuse)


def test_a_token_names_the_streams_whose_labels_are_known():
    """D-23: nobody registered the stream; the token of the message lists it, authorised or preloaded."""
    resolver = Resolver(w.ROUTING_KEY, 0, 60)
    opened = LabelOpen(label=w.LABEL, epoch=0, stream_id=w.STREAM)
    assert judge(w.msg(), resolver=resolver) == Accept((opened,))
    preloaded = w.policy(preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
    first_use = judge(w.msg(token=w.FREE_TOKEN), policy=preloaded, resolver=Resolver(w.ROUTING_KEY, 0, 60))
    assert first_use == Accept((CapAuthorize.of(w.FREE_TOKEN), opened))
    other = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
    assert why(judge(w.msg(label=other), resolver=resolver)) is Refusal.CAP_SCOPE


@pytest.mark.req("CAP-08", "CAP-09", "INV-07", "KEX1-04")
def test_the_ttl_ends_inclusively():
    assert isinstance(judge(w.msg(), now=w.NOW + 600), Accept)
    assert why(judge(w.msg(), now=w.NOW + 601)) is Refusal.CAP_TTL


@pytest.mark.req("CAP-08", "OP0-04", "INV-07")
def test_the_bucket_empties_and_refills_by_whole_seconds():
    """D-50: burst 5, two tokens a second."""
    state = w.state()
    for seq in range(1, 6):
        assert not isinstance(admit(state, w.msg(seq=seq)), Refuse)
    refused = admit(state, w.msg(seq=6))
    assert refused == Refuse(Refusal.CAP_RATE, retry_after=1)
    for seq in (6, 7):
        assert not isinstance(admit(state, w.msg(seq=seq), w.NOW + 1), Refuse)
    assert why(admit(state, w.msg(seq=8), w.NOW + 1)) is Refusal.CAP_RATE
    for seq in range(8, 13):
        assert not isinstance(admit(state, w.msg(seq=seq), w.NOW + 100), Refuse)
    assert why(admit(state, w.msg(seq=13), w.NOW + 100)) is Refusal.CAP_RATE


def test_a_rate_of_zero_never_says_when_to_come_back():
    """D-50"""
    for rate in (Rate(per_sec=0, burst=1), Rate(per_sec=1, burst=0)):
        token = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=600, rate=rate)
        state = w.state(token)
        if rate.burst:
            admit(state, w.msg(token=token))
        refused = admit(state, w.msg(token=token, seq=rate.burst + 1))
        assert isinstance(refused, Refuse)
        assert (refused.refusal, refused.retry_after) == (Refusal.CAP_RATE, None)


def test_a_preloaded_token_counts_from_its_first_message():
    """D-47"""
    policy = w.policy(preloaded={w.TOKEN.auth_ref(): w.TOKEN})
    state = w.state()
    state.caps.clear()
    decision = judge(w.msg(), state, policy=policy, now=w.NOW + 50)
    assert isinstance(decision, Accept)
    assert decision.records[0] == CapAuthorize.of(w.TOKEN)
    admit(state, w.msg(), w.NOW + 50, policy=policy)
    assert isinstance(judge(w.msg(seq=2), state, policy=policy, now=w.NOW + 650), Accept)
    assert why(judge(w.msg(seq=2), state, policy=policy, now=w.NOW + 651)) is Refusal.CAP_TTL


@pytest.mark.req("ERR-06")
def test_what_a_refusal_says_has_stable_keys_and_true_values():
    """spec §10.6: field, expected, actual, max_allowed, label and stream_seq; for programs, so word for word."""
    items = cbor2.loads(w.msg().to_bytes())
    other = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
    longer = {"field": "ciphertext", "expected": "at least 84 bytes by its own length fields", "actual": 83}
    state = w.state(w.FREE_TOKEN)
    for seq in (1, 2):
        admit(state, w.msg(token=w.FREE_TOKEN, seq=seq, ack=seq - 1))

    def free(seq, ack):
        return judge(w.msg(token=w.FREE_TOKEN, seq=seq, ack=ack), state)

    epochs = {"policy": w.policy(profiles=(PRESETS["ref"],)), "resolver": w.resolver(epoch_sec=60)}
    epoch = w.NOW // 60
    early = w.msg(label=label_of(w.ROUTING_KEY, w.STREAM, epoch - 2), profile=PRESETS["ref"])
    for refuse, refusal, detail in (
        (structure(b""), "CBOR_INVALID", {}),
        (structure(cbor2.dumps([7, *items[1:]])), "VERSION", {"field": "ver", "expected": 1, "actual": 7}),
        (
            structure(cbor2.dumps([*items[:2], items[2][:31], *items[3:]])),
            "FIELD_SIZE",
            {"field": "MSG.label", "expected": "32 bytes", "actual": 31},
        ),
        (structure(w.msg(ciphertext=w.CIPHERTEXT[:-1]).to_bytes()), "FIELD_SIZE", longer),
        (
            structure(w.msg().to_bytes(), Limits(max_hdr_bytes=19)),
            "FIELD_SIZE",
            {"field": "max_hdr_bytes", "actual": 20, "max_allowed": 19},
        ),
        (structure(w.msg(profile=PRESETS["rotating"]).to_bytes()), "PROFILE", {"field": "profile_id"}),
        (structure(w.msg(ct_hash=bytes(32)).to_bytes()), "CT_HASH", {"field": "ct_hash"}),
        (structure(w.msg(ciphertext=w.CIPHERTEXT + b"\x01").to_bytes()), "CT_PADDING", {"field": "ciphertext"}),
        (judge(w.msg(token=None)), "CAP_MISSING", {"field": "auth_ref"}),
        (judge(w.msg(token=w.FREE_TOKEN)), "CAP_MISSING", {"field": "auth_ref"}),
        (judge(w.msg(), policy=w.policy(trusted_issuers={})), "CAP_INVALID", {"field": "issuer_pk"}),
        (judge(w.msg(w.BOB)), "AUTH_REF", {"field": "subject_pk"}),
        (judge(w.msg(label=other)), "CAP_SCOPE", {"label": other.hex()}),
        (judge(w.msg(), now=w.NOW + 601), "CAP_TTL", {"expected": w.NOW + 600, "actual": w.NOW + 601}),
        (free(3, 0), "PREV_ACK", {"field": "prev_ack", "actual": 0, "expected": "1..2"}),
        (free(3, 3), "PREV_ACK", {"field": "prev_ack", "actual": 3, "expected": "1..2"}),
        (free(2, 1), "DUPLICATE", {"field": "client_seq", "expected": 3, "actual": 2}),
        (free(4, 1), "CLIENT_SEQ", {"field": "client_seq", "expected": 3, "actual": 4}),
        (judge(early, **epochs), "EPOCH", {"expected": epoch, "actual": epoch - 2}),
    ):
        assert refuse == Refuse(Refusal[refusal], detail)
    message = w.msg(token=w.FREE_TOKEN, seq=2, ack=1)
    again = judge(message, state, find=lambda label, row, seq: (2, message.leaf_hash()))
    assert again.detail["label"] == w.LABEL.hex()
    assert again.detail["stream_seq"] == 2


# --- commit ----------------------------------------------------------------------------------------------


@pytest.mark.req("INV-06", "ADM-09", "GEN-18")
def test_prev_ack_lies_between_the_clients_last_and_the_head():
    state = w.state(w.FREE_TOKEN)
    assert why(judge(w.msg(token=w.FREE_TOKEN, ack=1), state)) is Refusal.PREV_ACK
    for seq in (1, 2):
        admit(state, w.msg(token=w.FREE_TOKEN, seq=seq, ack=seq - 1))
    assert why(judge(w.msg(token=w.FREE_TOKEN, seq=3, ack=3), state)) is Refusal.PREV_ACK
    assert why(judge(w.msg(token=w.FREE_TOKEN, seq=3, ack=0), state)) is Refusal.PREV_ACK
    assert isinstance(judge(w.msg(token=w.FREE_TOKEN, seq=3, ack=2), state), Accept)


@pytest.mark.req("INV-08", "INV-09", "MSG-06", "GEN-18")
def test_client_seq_goes_up_by_one_from_one():
    state = w.state(w.FREE_TOKEN)
    for wrong in (0, 2, 7):
        assert why(judge(w.msg(token=w.FREE_TOKEN, seq=wrong), state)) is Refusal.CLIENT_SEQ
    admit(state, w.msg(token=w.FREE_TOKEN))
    assert why(judge(w.msg(token=w.FREE_TOKEN, seq=1), state)) is Refusal.DUPLICATE
    assert why(judge(w.msg(token=w.FREE_TOKEN, seq=0), state)) is Refusal.CLIENT_SEQ
    assert why(judge(w.msg(token=w.FREE_TOKEN, seq=3), state)) is Refusal.CLIENT_SEQ


def test_the_same_message_again_is_told_where_it_stands():
    """D-56: only the identical leaf learns its place."""
    state = w.state(w.FREE_TOKEN)
    first = w.msg(token=w.FREE_TOKEN)
    admit(state, first)
    refused = judge(first, state, find=lambda *_: (1, first.leaf_hash()))
    assert isinstance(refused, Refuse)
    assert (refused.detail["stream_seq"], refused.detail["label"]) == (1, w.LABEL.hex())
    other = w.msg(token=w.FREE_TOKEN, ciphertext=w.CIPHERTEXT + bytes(1))
    refused = judge(other, state, find=lambda *_: (1, first.leaf_hash()))
    assert isinstance(refused, Refuse)
    assert "stream_seq" not in refused.detail


SLOW_TOKEN = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=600, rate=Rate(per_sec=0, burst=3))
RESENT: dict[
    Refusal, dict[str, Any]
] = {  # why the first of three accepted messages is refused now, and what has happened since
    Refusal.PREV_ACK: {},
    Refusal.CAP_RATE: {"token": SLOW_TOKEN},
    Refusal.CAP_TTL: {"now": w.NOW + 601},
    Refusal.CAP_INVALID: {"policy": w.policy(trusted_issuers={})},
}


def test_a_refusal_of_somebody_who_never_wrote_to_the_label_has_no_place():
    state = w.state(w.FREE_TOKEN)
    admit(state, w.msg(token=w.FREE_TOKEN))

    def never(*_):
        raise AssertionError("there is nothing to look up")

    for message in (w.msg(w.BOB, token=None), w.msg(w.BOB, token=None, label=H(b"a label without entries"))):
        assert judge(message, state, find=never) == Refuse(Refusal.CAP_MISSING, {"field": "auth_ref"})


@pytest.mark.parametrize("refusal", RESENT)
def test_any_refusal_of_an_accepted_message_says_where_it_stands(refusal):
    """D-161: a sender whose answer was lost learns from whatever refuses the second attempt that the first counted."""
    changes = dict(RESENT[refusal])
    token = changes.pop("token", w.TOKEN)
    state = w.state(token)
    messages = [w.msg(token=token, seq=seq, ack=seq - 1) for seq in (1, 2, 3)]
    leaves = [admit(state, message).leaf_hash for message in messages]

    def find(label, client_row, client_seq):
        assert (label.label, client_row) == (w.LABEL, 1)
        return client_seq, leaves[client_seq - 1]

    again = judge(messages[0], state, find=find, **changes)
    assert why(again) is refusal
    assert (again.detail["label"], again.detail["stream_seq"]) == (w.LABEL.hex(), 1)
    other = w.msg(token=token, seq=1, ciphertext=w.CIPHERTEXT[:-1] + b"c")  # the same number, another message
    assert "stream_seq" not in judge(other, state, find=find, **changes).detail
    unsent = judge(w.msg(token=token, seq=4, ack=9), state, find=find, **changes)
    assert isinstance(unsent, Refuse)
    assert "stream_seq" not in unsent.detail


@pytest.mark.req("ADM-10", "ADM-11", "INV-12")
def test_epochs_are_accepted_within_the_window():
    """D-24: w = floor(skew / epoch_sec)."""
    ref = PRESETS["ref"]
    policy = w.policy(profiles=(ref,))
    epoch = w.NOW // 60
    for skew, window in ((60, 1), (59, 0), (150, 2)):
        resolver = w.resolver(epoch_sec=60, skew=skew)
        for offset in range(-window - 1, window + 2):
            label = label_of(w.ROUTING_KEY, w.STREAM, epoch + offset)
            decision = judge(w.msg(label=label, profile=ref), policy=policy, resolver=resolver)
            if abs(offset) <= window:
                assert isinstance(decision, Accept)
            else:
                assert why(decision) is Refusal.EPOCH
        far = label_of(w.ROUTING_KEY, w.STREAM, epoch + window + 2)
        assert why(judge(w.msg(label=far, profile=ref), policy=policy, resolver=resolver)) is Refusal.CAP_SCOPE
    for epoch in (1, w.NOW // 60, 2**64 - 1):  # without rotation there is epoch 0 and no other
        other = label_of(w.ROUTING_KEY, w.STREAM, epoch)
        assert why(judge(w.msg(label=other), resolver=w.resolver(epoch_sec=0))) is Refusal.CAP_SCOPE


def test_a_label_with_entries_is_known_for_ever():
    """D-23: an old epoch is told as what it is."""
    ref = PRESETS["ref"]
    policy, resolver = w.policy(profiles=(ref,)), w.resolver(epoch_sec=60)
    state = w.state(w.FREE_TOKEN)
    label = label_of(w.ROUTING_KEY, w.STREAM, w.NOW // 60)
    first = w.msg(token=w.FREE_TOKEN, label=label, profile=ref)
    admit(state, first, policy=policy, resolver=resolver)
    later = w.msg(token=w.FREE_TOKEN, label=label, profile=ref, seq=2)
    decision = judge(later, state, policy=policy, resolver=resolver, now=w.NOW + 6000)
    assert why(decision) is Refusal.EPOCH


def test_without_rotation_only_epoch_zero_exists():
    label = label_of(w.ROUTING_KEY, w.STREAM, 1)
    assert why(judge(w.msg(label=label))) is Refusal.CAP_SCOPE


@pytest.mark.req("ADM-01", "ADM-06", "ADM-04", "OP0-01", "SH1-02")
def test_the_first_fault_in_the_order_of_the_table_wins():
    """Each step mends the first fault of a message that has all of them."""
    other = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
    state = w.state(w.TOKEN, issued_at=w.NOW - 10_000)
    state.caps[w.TOKEN.auth_ref()].tokens = 0
    state.caps[w.TOKEN.auth_ref()].bucket_ts = w.NOW
    untrusting = w.policy(trusted_issuers={})
    steps = [
        (w.msg(w.BOB, token=None, label=other, seq=5, ack=9), untrusting, Refusal.CAP_MISSING),
        (w.msg(w.BOB, label=other, seq=5, ack=9), untrusting, Refusal.CAP_INVALID),
        (w.msg(w.BOB, label=other, seq=5, ack=9), w.policy(), Refusal.AUTH_REF),
        (w.msg(label=other, seq=5, ack=9), w.policy(), Refusal.CAP_SCOPE),
        (w.msg(seq=5, ack=9), w.policy(), Refusal.CAP_TTL),
    ]
    for message, policy, expected in steps:
        assert why(judge(message, state, policy=policy, resolver=w.resolver(w.STREAM, w.OTHER_STREAM))) is expected
    state.caps[w.TOKEN.auth_ref()].issued_at = w.NOW
    assert why(judge(w.msg(seq=5, ack=9), state)) is Refusal.CAP_RATE
    state.caps[w.TOKEN.auth_ref()].tokens = 1
    assert why(judge(w.msg(seq=5, ack=9), state)) is Refusal.PREV_ACK
    assert why(judge(w.msg(seq=5), state)) is Refusal.CLIENT_SEQ
    assert isinstance(judge(w.msg(), state), Accept)


# --- laws ------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(
        st.sampled_from(["alice", "bob"]),
        st.integers(0, 6),  # client_seq
        st.integers(0, 4),  # prev_ack
        st.integers(0, 2),  # seconds that pass
        st.sampled_from(["token", "none", "other"]),
    ),
    max_size=40,
)
KEYS = {"alice": w.ALICE, "bob": w.BOB}
TOKENS = {
    name: CapToken.issue(w.ISSUER, key.public, [w.STREAM], ttl=20, rate=Rate(per_sec=1, burst=3))
    for name, key in KEYS.items()
}


@given(steps)
@pytest.mark.req("INV-13", "GEN-04", "CAP-10", "GEN-28", "TS0-04", "INV-08")
def test_replaying_what_was_accepted_accepts_all_of_it_again(plan):
    """D-60: decisions are a function of the log, the journal, the limits and hub_ts."""
    state, now = w.state(*TOKENS.values()), w.NOW
    accepted, answers = [], []
    for name, seq, ack, seconds, kind in plan:
        now += seconds
        token = {"token": TOKENS[name], "none": None, "other": TOKENS["bob"]}[kind]
        message = w.msg(KEYS[name], seq=seq, ack=ack, token=token)
        answer = admit(state, message, now)
        answers.append(answer.refusal if isinstance(answer, Refuse) else answer.stream_seq)
        if not isinstance(answer, Refuse):
            accepted.append((message, now, answer.mmr_root))
    for name, key in KEYS.items():  # I8, I9: no number twice, none left out
        numbers = [message.client_seq for message, _, _ in accepted if message.client_id == key.public]
        assert numbers == list(range(1, len(numbers) + 1)), name
    again = w.state(*TOKENS.values())
    for message, at, root in accepted:
        replayed = admit(again, message, at)
        assert not isinstance(replayed, Refuse)
        assert replayed.mmr_root == root
    for cap, other in zip(state.caps.values(), again.caps.values(), strict=True):
        assert replace(cap) == replace(other)


@pytest.mark.req("CAP-06")
def test_a_forged_token_cannot_even_be_preloaded():
    forged = w.forged(w.TOKEN)
    with pytest.raises(CapabilityError, match="link 1"):
        w.policy(preloaded={forged.auth_ref(): forged})
