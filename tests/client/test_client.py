"""Sending: one message and many, in both modes, through lost answers, lost state and refusals (spec §9, D-56, D-66)."""

import os
from dataclasses import replace
from functools import reduce

import pytest
from tests.client.hubs import (
    GATED,
    IMPATIENT,
    ISSUER,
    OPEN,
    ORDERS,
    QUICK,
    RING,
    Clock,
    all_of,
    bodies,
    client_at,
    connected,
    copy_of,
    hub_at,
    person,
    pin_of,
    run,
    token_for,
    visiting,
)

from veen.client.errors import HubRefused, IdentityInUse, LocalError, Rewound, RotationDue, TokenExpired, Unreachable
from veen.client.home import Home
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.rotation import RotationBounds
from veen.client.send.sealing import Draft, Prepared
from veen.client.send.writing import Sent
from veen.client.state import StateStore, rekey
from veen.client.transport.calls import Answer, Retry
from veen.client.transport.inprocess import InProcess
from veen.core.errors import LimitError
from veen.core.hashing import H
from veen.core.labels import epoch_at
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.envelopes import ErrorEnvelope, StreamRequest
from veen.core.objects.msg import Msg
from veen.core.objects.tooling import ClientCursorResponse
from veen.core.sealing.ciphertext import open_msg
from veen.core.tree.mmr import Mmr
from veen.testing.hostile import HostileHub, LosesAnswers

MODES = pytest.mark.parametrize("mode", ["full", "light"])


@MODES
@pytest.mark.req("CLNT-01", "CLNT-03", "RES-05", "MSG-07", "MSG-08")
def test_a_sent_message_has_a_receipt_that_proves_its_place(tmp_path, mode):
    drawn = []

    def random(size):
        drawn.append(os.urandom(size))
        return drawn[-1]

    async def check():
        async with connected(tmp_path, mode=mode, random=random) as (_, _, client):
            sents = [await client.send("orders", b"message %d" % number) for number in range(1, 6)]
            tree = Mmr()
            for number, sent in enumerate(sents, start=1):
                tree.append(sent.msg.leaf_hash())
                assert (sent.seq, sent.root, sent.msg_id) == (number, tree.root(), sent.msg.leaf_hash())
                assert sent.receipt.stream_seq == number
                assert sent.mode == mode
                assert (sent.msg.client_seq, sent.msg.prev_ack) == (number, number - 1)
                assert open_msg(ORDERS.secret(), sent.msg).body == b"message %d" % number
            hub_id, label = client.hub_id, client.label("orders")
        with StateStore.open(Home.at(tmp_path / "home"), "alice") as store:
            state = store.load(hub_id, label, client.client_id)
        assert state is not None
        assert (state.client_seq, state.prev_ack, state.last_stream_seq, state.pending) == (5, 5, 5, ())
        assert state.last_mmr_root == tree.root()
        assert state.peaks == (tree.peaks() if mode == "full" else ())
        assert state.profile_id == sents[-1].msg.profile_id
        assert state.rk in [reduce(rekey, range(1, 6), seed) for seed in drawn]  # a link for each receipt (D-11)

    run(check())


@MODES
def test_a_client_goes_on_where_the_one_before_it_stopped(tmp_path, mode):
    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            for number in range(1, 4):
                transport = InProcess(hub.api)
                async with client_at(
                    transport, pin_of(hub), person("alice", 0), tmp_path / "home", mode=mode, bounds=None
                ) as client:
                    sent = await client.send("orders", b"%d" % number)
                    assert (sent.seq, sent.msg.client_seq) == (number, number)
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as other:
                assert await bodies(other) == [b"1", b"2", b"3"]

    run(check())


@pytest.mark.req("CLNT-01")
@pytest.mark.parametrize("modes", [("full", "light"), ("light", "full"), ("full", "full"), ("light", "light")])
def test_two_writers_of_one_stream_each_follow_what_the_other_wrote(tmp_path, modes):
    """D-66: a full client folds the entries in between, a light one takes a proof about them."""

    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            wires = [HostileHub(InProcess(hub.api)) for _ in modes]
            alice = client_at(wires[0], pin_of(hub), person("alice"), tmp_path / "a", mode=modes[0])
            bob = client_at(wires[1], pin_of(hub), person("bob"), tmp_path / "b", mode=modes[1])
            async with alice as first, bob as other:
                for turn in range(1, 5):
                    for _ in range(turn):
                        await first.send("orders", b"alice")
                    sent = await other.send("orders", b"bob")
                    assert sent.receipt.stream_seq == sum(range(1, turn + 1)) + turn
                asked = {operation for operation, _ in wires[1].calls}
                assert ("v1/stream" in asked) == (modes[1] == "full")
                assert len(await bodies(other)) == 14

    run(check())


def test_a_light_client_can_become_a_full_one_and_back(tmp_path):
    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            who = person("alice")
            for mode in ("light", "full", "light", "full"):
                async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "home", mode=mode) as client:
                    sents = [await client.send("orders", b"x") for _ in range(3)]
                    assert {sent.mode for sent in sents} == {mode}
                    assert len(await bodies(client)) == sents[-1].seq

    run(check())


# --- many -------------------------------------------------------------------------------------------------


@MODES
def test_a_batch_has_one_outcome_for_each_message(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (_, wire, client):
            outcomes = await client.send_many("orders", (b"%d" % number for number in range(150)), batch=64)
            assert [outcome.seq for outcome in outcomes] == list(range(1, 151))
            assert [outcome.receipt.stream_seq for outcome in outcomes] == list(range(1, 151))
            assert [operation for operation, _ in wire.calls].count("tooling/submit_batch") == 3
            assert await bodies(client) == [b"%d" % number for number in range(150)]

    run(check())


@pytest.mark.req("LIM-03")
def test_a_message_that_is_too_large_fails_alone(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            huge = bytes(DEFAULT_LIMITS.max_body_bytes)
            outcomes = await client.send_many("orders", [b"one", huge, b"three"])
            assert [type(outcome) for outcome in outcomes] == [Sent, LimitError, Sent]
            assert await bodies(client) == [b"one", b"three"]

    run(check())


@MODES
def test_prepared_messages_are_sent_as_they_are_and_may_be_sent_again(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (_, _, client):
            await client.send("orders", b"before")
            prepared = await client.prepare("orders", [b"%d" % number for number in range(10)])
            outcomes = await client.submit_prepared("orders", prepared, batch=4)
            assert [outcome.raw for outcome in outcomes] == [message.raw for message in prepared]
            again = await client.submit_prepared("orders", prepared, batch=4)
            assert [each.receipt for each in again] == [each.receipt for each in outcomes]
            assert (await client.send("orders", b"after")).seq == 12

    run(check())


def test_prepared_messages_that_were_never_sent_leave_no_hole(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            await client.prepare("orders", [b"never", b"sent"])
            await client.send("orders", b"one")
            assert (await client.send_many("orders", [b"two", b"three"]))[-1].msg.client_seq == 3
            assert await bodies(client) == [b"one", b"two", b"three"]

    run(check())


# --- lost answers and lost state --------------------------------------------------------------------------


@MODES
@pytest.mark.req("CLNT-01")
def test_a_lost_answer_doubles_nothing(tmp_path, mode):
    """D-56: the same bytes again; the hub recognises them and the first receipt counts."""

    async def check():
        async with connected(tmp_path, mode=mode) as (_, wire, client):
            await client.send("orders", b"first")
            wire.lies.append(LosesAnswers(2))
            sent = await client.send("orders", b"second")
            assert sent.receipt.stream_seq == 2
            submitted = [body for operation, body in wire.calls if operation == "v1/submit"]
            assert len(submitted) == 4
            assert len(set(submitted)) == 2
            assert await bodies(client) == [b"first", b"second"]

    run(check())


@MODES
def test_a_lost_answer_to_a_batch_doubles_nothing(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (_, wire, client):
            wire.lies.append(LosesAnswers(2, "tooling/submit_batch"))
            outcomes = await client.send_many("orders", [b"%d" % number for number in range(20)])
            assert [outcome.receipt.stream_seq for outcome in outcomes] == list(range(1, 21))
            assert await bodies(client) == [b"%d" % number for number in range(20)]

    run(check())


class LosesOneThen:
    """The answer to the first submit is lost; then `change` happens, and what `later` makes of the next answers."""

    def __init__(self, change=lambda: None, later=lambda answer: answer, prefix="v1/submit"):
        self.change, self.later, self.prefix, self.lost = change, later, prefix, False

    def __call__(self, operation, body, answer):
        if not operation.startswith(self.prefix):
            return answer
        if self.lost:
            return self.later(answer)
        self.lost = True
        self.change()
        raise Unreachable("the connection broke")


def operations(wire):
    return [operation for operation, _ in wire.calls]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("reason", ["CAP_TTL", "CAP_RATE", "CLIENT_SEQ"])
def test_a_retry_that_is_refused_for_another_reason_is_recognised_as_accepted(tmp_path, reason, prepared):
    """D-161: the refusal says where the message stands, so nothing is read, waited for, or sent twice."""
    clock = Clock()

    async def check():
        settings = GATED if reason != "CLIENT_SEQ" else OPEN
        async with connected(tmp_path, clock=clock, settings=settings) as (_, wire, client):
            if reason != "CLIENT_SEQ":
                rate = Rate(per_sec=0, burst=1) if reason == "CAP_RATE" else None
                await client.authorize(CapToken.issue(ISSUER, client.client_id, [ORDERS.stream_id], ttl=600, rate=rate))

            def change():
                clock.now += 601 if reason == "CAP_TTL" else 0

            wire.lies.append(LosesOneThen(change, renamed if reason == "CLIENT_SEQ" else lambda answer: answer))
            if prepared:
                (sent,) = await client.submit_prepared("orders", await client.prepare("orders", [b"once"]))
            else:
                sent = await client.send("orders", b"once")
            assert (sent.seq, sent.msg.client_seq) == (1, 1)
            assert operations(wire).count("v1/submit") == 2
            assert "v1/stream" not in operations(wire)
            assert await bodies(client) == [b"once"]

    def renamed(answer):
        """As a hub would say it that checks in another order."""
        envelope = ErrorEnvelope.from_bytes(answer.body)
        changed = replace(envelope, detail={**(envelope.detail or {}), "detail_enum": "CLIENT_SEQ"})
        return replace(answer, body=changed.to_bytes())

    run(check())


def test_a_hub_that_takes_nothing_any_more_is_asked_whether_it_took_the_message_before(tmp_path):
    """D-162: a full disk refuses the retry of a message that was accepted; the client's own cursor tells."""
    full = ErrorEnvelope(code="E.UNAVAILABLE", message="too little disk space").to_bytes()

    class Full(HostileHub):
        async def call(self, operation, body=b"", **options):
            if operation == "v1/submit":
                return Answer(503, full, {})
            return await super().call(operation, body, **options)

    async def check():
        impatient = Retry(seconds=0.2, first_pause=0.01, longest_pause=0.05)
        async with connected(tmp_path, retry=impatient) as (_, wire, client):
            await client.send("orders", b"first")
            wire.lies.append(LosesOneThen(later=lambda answer: Answer(503, full, {})))
            sent = await client.send("orders", b"second")
            assert (sent.seq, "tooling/client_cursor" in operations(wire)) == (2, True)
            honest, wire.honest = wire.honest, Full(wire.honest)
            with pytest.raises(HubRefused):  # this one was never taken
                await client.send("orders", b"third")
            wire.honest = honest
            wire.lies.clear()
            assert [message.msg.client_seq for message in await client.recover("orders")] == [3]
            assert await bodies(client) == [b"first", b"second", b"third"]

    run(check())


@pytest.mark.req("CLNT-14")
@pytest.mark.parametrize("answers", [True, False], ids=["by its cursor", "by reading the log"])
def test_a_message_of_an_earlier_run_that_was_accepted_is_never_called_refused(tmp_path, answers):
    """The hub refuses the resend without a place, as an older hub would."""
    clock = Clock()
    unknown = ErrorEnvelope(code="E.NOT_FOUND", message="no such path").to_bytes()

    def placeless(operation, body, answer):
        if operation == "tooling/client_cursor" and not answers:
            return Answer(404, unknown, {})
        if operation != "v1/submit" or answer.ok:
            return answer
        envelope = ErrorEnvelope.from_bytes(answer.body)
        detail = {name: value for name, value in (envelope.detail or {}).items() if name != "stream_seq"}
        return replace(answer, body=replace(envelope, detail=detail).to_bytes())

    async def check():
        async with hub_at(tmp_path / "hub", clock=clock, settings=GATED) as hub:
            wire, who = HostileHub(InProcess(hub.api)), person("alice", int(clock()))
            token = token_for(who.client_id, ttl=600)
            wire.lies.append(LosesAnswers(10**6))
            where = (wire, pin_of(hub), who, tmp_path / "home")
            async with client_at(*where, retry=IMPATIENT, clock=clock) as client:
                with pytest.raises(Unreachable):
                    await client.send("orders", b"lost", capability=token)
            clock.now += 601
            wire.lies[:] = [placeless]
            wire.calls.clear()
            async with client_at(*where, clock=clock) as client:
                assert [(sent.seq, sent.msg.client_seq) for sent in await client.recover("orders")] == [(1, 1)]
            assert ("v1/stream" in operations(wire)) is not answers

    run(check())


def test_a_client_asks_for_its_own_cursor(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            assert await client.cursor("orders") == ClientCursorResponse(last_client_seq=0, last_prev_ack=0)
            sent = await client.send("orders", b"one")
            await client.send("orders", b"two")
            assert await client.cursor("orders", 1) == ClientCursorResponse(
                last_client_seq=2, last_prev_ack=1, stream_seq=1, leaf=sent.msg_id
            )

    run(check())


def test_what_got_no_answer_in_one_run_is_finished_by_the_next(tmp_path):
    """The bytes were written down before they left: a crash may lose the answer, not the message (D-09)."""

    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            wire, who = HostileHub(InProcess(hub.api)), person("alice")
            wire.lies.append(LosesAnswers(10**6))
            async with client_at(wire, pin_of(hub), who, tmp_path / "home", retry=IMPATIENT) as client:
                with pytest.raises(Unreachable):
                    await client.send("orders", b"lost")
            wire.lies.clear()
            async with client_at(wire, pin_of(hub), who, tmp_path / "home") as client:
                recovered = await client.recover("orders")
                assert [(sent.seq, sent.msg.client_seq) for sent in recovered] == [(1, 1)]
                assert await client.recover("orders") == []
                await client.send("orders", b"next")
                assert await bodies(client) == [b"lost", b"next"]

    run(check())


def test_a_message_that_never_reached_the_hub_is_sent_by_the_next_run(tmp_path):
    class Deaf(HostileHub):
        async def call(self, operation, body=b"", **options):
            if operation == "v1/submit":
                raise Unreachable("no way through")
            return await super().call(operation, body, **options)

    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            who = person("alice")
            async with client_at(
                Deaf(InProcess(hub.api)), pin_of(hub), who, tmp_path / "home", retry=IMPATIENT
            ) as client:
                with pytest.raises(Unreachable):
                    await client.send("orders", b"late")
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "home") as client:
                assert (await client.send("orders", b"later")).seq == 2
                assert [sent.seq for sent in await client.recover("orders")] == [1]
                assert await bodies(client) == [b"late", b"later"]

    run(check())


@MODES
@pytest.mark.req("CLNT-04", "RES-02", "MSG-07")
def test_lost_state_comes_back_from_the_log(tmp_path, mode):
    """client_seq, prev_ack and peaks are all in the log, the first two under our own signature."""

    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            who = person("alice")
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "one", mode=mode) as client:
                for number in range(7):
                    await client.send("orders", b"%d" % number)
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as other:
                await other.send("orders", b"bob")
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "two", mode=mode) as client:
                report = await client.resync("orders")
                assert (report.read, report.stream_seq, report.client_seq) == (8, 8, 7)
                sent = await client.send("orders", b"again")
                assert (sent.seq, sent.msg.client_seq, sent.msg.prev_ack) == (9, 8, 8)

    run(check())


@MODES
def test_a_client_that_does_not_know_it_lost_its_state_finds_out_by_itself(tmp_path, mode):
    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            who = person("alice")
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "one", mode=mode) as client:
                await client.send_many("orders", [b"%d" % number for number in range(5)])
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "two", mode=mode) as client:
                assert (await client.send("orders", b"five")).seq == 6
                assert await bodies(client) == [b"0", b"1", b"2", b"3", b"4", b"five"]

    run(check())


@MODES
@pytest.mark.req("RES-03", "MSG-08", "CLNT-04")
def test_after_a_divergence_the_state_is_rebuilt_from_the_checkpoint_and_the_log_before_it(tmp_path, mode):
    """The hub came back from an old backup. Nobody follows it unasked; asked to, a client begins anew and goes on."""

    async def check():
        who, home, hub = person("alice"), tmp_path / "home", tmp_path / "hub"
        async with visiting(hub, who, home, mode=mode) as client:
            await client.send_many("orders", [b"one", b"two", b"three"])
        backup = copy_of(hub, tmp_path / "backup")
        async with visiting(hub, who, home, mode=mode) as client:
            await client.send("orders", b"lost")
        async with hub_at(backup) as restored:
            wire = HostileHub(InProcess(restored.api))
            async with client_at(wire, pin_of(restored), who, home, mode=mode) as client:
                for _ in range(2):
                    with pytest.raises(Rewound):
                        await client.resync("orders")
                wire.calls.clear()
                report = await client.resync("orders", from_scratch=True)
                assert (report.read, report.stream_seq, report.client_seq) == (3, 3, 3)
                assert "tooling/checkpoint_latest" in {operation for operation, _ in wire.calls}
                sent = await client.send("orders", b"again")
                assert (sent.seq, sent.msg.client_seq, sent.msg.prev_ack) == (4, 4, 3)
                assert await bodies(client) == [b"one", b"two", b"three", b"again"]

    run(check())


@pytest.mark.req("RES-02")
@MODES
def test_resync_asks_for_what_follows_the_last_verified_entry(tmp_path, mode):
    async def check():
        async with connected(tmp_path, mode=mode) as (hub, wire, client):
            await client.send_many("orders", [b"one", b"two"])
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as other:
                await other.send_many("orders", [b"three", b"four", b"five"])
            wire.calls.clear()
            report = await client.resync("orders")
            assert (report.read, report.stream_seq, report.client_seq) == (3, 5, 2)
            asked = [StreamRequest.from_bytes(body) for operation, body in wire.calls if operation == "v1/stream"]
            assert [request.cursor or request.from_seq for request in asked] == [3]

    run(check())


def test_resync_of_an_untouched_label_finds_nothing(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            report = await client.resync("orders")
            assert (report.read, report.stream_seq, report.mmr_root, report.client_seq) == (0, 0, None, 0)

    run(check())


def test_one_identity_serves_one_process_at_a_time(tmp_path):
    """Two would give one client_seq to two messages."""

    async def check():
        async with connected(tmp_path) as (hub, _, _):
            with pytest.raises(IdentityInUse):
                async with client_at(InProcess(hub.api), pin_of(hub), person("alice"), tmp_path / "home"):
                    pass

    run(check())


# --- refusals ---------------------------------------------------------------------------------------------


def test_a_refusal_carries_the_hubs_words_and_takes_no_number(tmp_path):
    async def check():
        async with connected(tmp_path, settings=GATED) as (_, _, client):
            with pytest.raises(HubRefused) as refused:
                await client.send("orders", b"no capability")
            assert (refused.value.code, refused.value.stage, refused.value.detail_enum) == (
                "E.CAP",
                "auth",
                "CAP_MISSING",
            )
            grant = await client.authorize(token_for(client.client_id))
            assert grant.expires_at == grant.issued_at + 10**6
            assert (await client.cap_status(grant.auth_ref)) == grant
            sent = await client.send("orders", b"with one")
            assert (sent.msg.client_seq, sent.msg.auth_ref) == (1, grant.auth_ref)
            (entry,) = await all_of(client.read("orders"))
            assert entry.event is not None
            assert entry.event.hdr.cap_ref == grant.auth_ref

    run(check())


def test_a_token_past_its_time_is_not_even_tried(tmp_path):
    clock = Clock()

    async def check():
        async with connected(tmp_path, settings=GATED, clock=clock) as (_, _, client):
            token = token_for(client.client_id, ttl=60)
            await client.send("orders", b"in time", capability=token)
            clock.now += 61
            with pytest.raises(TokenExpired):
                await client.send("orders", b"late", capability=token)

    run(check())


@pytest.mark.req("CLNT-08")
def test_a_client_key_at_its_bounds_signs_no_more(tmp_path):
    clock = Clock()
    bounds = RotationBounds(max_client_id_lifetime_sec=3600, max_msgs_per_client_id_per_label=3)

    async def check():
        async with connected(tmp_path, clock=clock, bounds=bounds) as (_, _, client):
            await client.send_many("orders", [b"1", b"2"])
            with pytest.raises(RotationDue):
                await client.send_many("orders", [b"3", b"4"])
            await client.send("orders", b"3")
            with pytest.raises(RotationDue):
                await client.send("orders", b"4")
            clock.now += 3600
            with pytest.raises(RotationDue):
                await client.prepare("orders", [b"x"])

    run(check())


@pytest.mark.req("SH1-05")
def test_proof_of_work_is_paid_where_a_hub_asks_for_it(tmp_path):
    async def check():
        async with connected(tmp_path, settings={**OPEN, "admission.pow_difficulty": "6"}) as (_, _, client):
            await client.send("orders", b"one")
            outcomes = await client.send_many("orders", [b"two", b"three", b"four"])
            assert [outcome.seq for outcome in outcomes] == [2, 3, 4]

    run(check())


# --- epochs -----------------------------------------------------------------------------------------------

ROTATING = {**GATED, "admission.profiles": "rotating"}


@pytest.mark.req("CLNT-06", "CLNT-07", "RCPT-08")
def test_a_submit_outside_the_epoch_goes_to_the_one_the_hub_is_in(tmp_path):
    """The client's clock stands still while the hub's goes on: the refusal is answered with the hub's own time."""
    hub_clock, own_clock = Clock(1_800_000_000 - 1_800_000_000 % 3600 + 10), Clock(1_234)

    async def check():
        async with hub_at(tmp_path / "hub", clock=hub_clock, settings=ROTATING) as hub:
            who = person("alice", 0)
            async with client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / "home", clock=own_clock) as client:
                await client.authorize(token_for(client.client_id))
                first = await client.send("orders", b"first epoch")
                hub_clock.now += 2 * 3600
                second = await client.send("orders", b"second epoch")
                many = await client.send_many("orders", [b"a", b"b"])
                epoch = epoch_at(hub_clock.now, 3600)
                assert first.label == client.label("orders", epoch - 2)
                assert second.label == many[0].label == client.label("orders", epoch)
                assert [first.seq, second.seq, many[0].seq, many[1].seq] == [1, 1, 2, 3]
                assert second.msg.client_seq == 1
                assert await bodies(client) == [b"first epoch", b"second epoch", b"a", b"b"]

    run(check())


@pytest.mark.req("CLNT-07")
def test_a_batch_that_meets_an_epoch_change_goes_on_in_the_next(tmp_path):
    hub_clock, own_clock = Clock(1_800_000_000 - 1_800_000_000 % 3600 + 10), Clock(1_234)

    class Late(HostileHub):
        """The hour strikes while the second batch is on its way."""

        async def call(self, operation, body=b"", **options):
            if operation == "tooling/submit_batch" and len(self.calls) and self.batches == 1:
                hub_clock.now += 2 * 3600
            self.batches += operation == "tooling/submit_batch"
            return await super().call(operation, body, **options)

        batches = 0

    async def check():
        async with hub_at(tmp_path / "hub", clock=hub_clock, settings=ROTATING) as hub:
            wire = Late(InProcess(hub.api))
            async with client_at(wire, pin_of(hub), person("alice", 0), tmp_path / "home", clock=own_clock) as client:
                await client.authorize(token_for(client.client_id))
                outcomes = await client.send_many("orders", [b"%d" % number for number in range(6)], batch=3)
                assert [outcome.seq for outcome in outcomes] == [1, 2, 3, 1, 2, 3]
                assert await bodies(client) == [b"%d" % number for number in range(6)]

    run(check())


# --- what a message says ----------------------------------------------------------------------------------


def test_header_fields_arrive_as_they_were_given(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            first = await client.send("orders", b"one", schema="recorder.event.v1")
            await client.send("orders", b"two", schema=b"s" * 32, parent=first.msg_id, expires_at=99)
            entry, two = await all_of(client.read("orders"))
            assert entry.event is not None
            assert two.event is not None
            assert entry.event.hdr.schema == H(b"recorder.event.v1")
            assert (two.event.hdr.schema, two.event.hdr.parent_id, two.event.hdr.expires_at) == (
                b"s" * 32,
                first.msg_id,
                99,
            )

    run(check())


@pytest.mark.req("LIM-03", "LIM-08")
def test_a_body_of_exactly_the_limit_goes_through_and_one_byte_more_does_not(tmp_path):
    """max_msg_bytes binds before max_body_bytes where padding and header are counted (D-18)."""

    async def check():
        async with connected(tmp_path, settings={**OPEN, "admission.profiles": "bulk"}) as (_, _, client):
            low, high = 1_000_000, DEFAULT_LIMITS.max_body_bytes + 1
            while high - low > 1:  # the largest that the limits allow, by trying
                middle = (low + high) // 2
                try:
                    await client.prepare("orders", [bytes(middle)])
                    low = middle
                except LimitError:
                    high = middle
            body = bytes(range(256)) * (low // 256) + bytes(low % 256)
            sent = await client.send("orders", body)
            assert len(sent.raw) <= DEFAULT_LIMITS.max_msg_bytes
            with pytest.raises(LimitError):
                await client.send("orders", body + b"x")
            assert await bodies(client) == [body]

    run(check())


def test_nothing_of_a_message_shows_in_a_repr(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            sent = await client.send("orders", b"a secret body")
            (entry,) = await all_of(client.read("orders"))
            shown = repr((sent, entry, Draft(body=b"a secret body"), client.attachments))
            assert "secret" not in shown
            assert ORDERS.secret().hex() not in shown

    run(check())


def test_a_prepared_message_of_another_stream_is_refused(tmp_path):
    async def check():
        async with connected(tmp_path, ring=RING) as (_, _, client):
            prepared = await client.prepare("orders", [b"x"])
            with pytest.raises(LocalError):
                await client.submit_prepared(StreamKeys.create("other"), prepared)

    run(check())


def test_a_message_kept_as_bytes_can_be_sent_later(tmp_path):
    async def check():
        async with connected(tmp_path, retry=QUICK) as (_, _, client):
            (prepared,) = await client.prepare("orders", [b"kept"])
            again = Prepared.of(prepared.raw)
            assert again.leaf_hash == Msg.from_bytes(prepared.raw).leaf_hash()
            (outcome,) = await client.submit_prepared("orders", [again])
            assert isinstance(outcome, Sent)
            assert await bodies(client) == [b"kept"]

    run(check())
