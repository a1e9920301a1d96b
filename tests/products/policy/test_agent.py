"""The policy agent against hubs behind real sockets: from a record in the realm's log to what a hub enforces."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from tests.hub import builders as w
from tests.hub.servers import ADMIN, LiveHub
from tests.hub.test_policies import AUTH1, ELSEWHERE
from tests.hub.test_tooling import message
from tests.waiting import eventually

from veen.client.errors import BadAnswer, ForeignKey
from veen.client.session import PinnedHub
from veen.client.transport.calls import NO_RETRY
from veen.client.verify.pin import HubPin
from veen.core.hashing import H
from veen.core.objects.envelopes import SubmitRequest
from veen.core.objects.policies import MAX_POLICY_ITEMS, Revocation
from veen.core.objects.tooling import PolicyRecordsResponse
from veen.hub.admission.policy import Kex1
from veen.hub.api.access import Access
from veen.overlays.federation import realm
from veen.overlays.federation.policy import RealmPolicy
from veen.overlays.federation.realm import AdminStreams, RealmFold, admin_streams
from veen.products.policy.agent import (
    HubReport,
    PolicyAgent,
    PolicyFolds,
    PolicyNotEnforced,
    PolicyPace,
    PushedPolicy,
    policy_link,
)
from veen.testing.links import FakeHub

NAMES = ("admin", "revocation")
STREAMS = AdminStreams(H(b"admin"), H(b"revocation"), *admin_streams()[2:])
FOLDS = PolicyFolds(realm=RealmFold(streams=STREAMS, any_emitter=True))
QUICK = PolicyPace(first_pause=0.01, longest_pause=0.05)
BOB = Revocation(kind="client-id", target=w.BOB.public, ts=w.NOW)


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(ADMIN)
    path.chmod(0o600)
    return path


@pytest.fixture
def live(tmp_path, token_file):
    """Starts hubs, and says how an agent reaches them."""
    with contextlib.ExitStack() as hubs:

        def start(name, **changes):
            knobs = {"kex1": Kex1(), "auth1": AUTH1, "preloaded": {w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN}, **changes}
            directory = tmp_path / name
            directory.mkdir(exist_ok=True)
            access = Access.of(admin_tokens=[ADMIN])
            hub = hubs.enter_context(LiveHub(directory, policy=w.policy(**knobs), access=access))
            return hub, target(name, hub)

        def target(name, hub, pin=w.HUB.public):
            url = f"http://127.0.0.1:{hub.port}"
            return PinnedHub(name=name, url=url, pin=HubPin.of_key(pin), token_file=token_file)

        start.target = target  # type: ignore[attr-defined]  # for hubs that are not there
        yield start


def opened(*hubs):
    return {hub.name: lambda hub=hub: policy_link(hub, NO_RETRY) for hub in hubs}


def agent(hubs, report=lambda report: None):
    return PolicyAgent(FOLDS, NAMES, opened(*hubs), pace=QUICK, clock=lambda: w.NOW, report=report)


def revoke(number):
    return realm.revoke("client-id", H(b"client %d" % number), ts=w.NOW)


async def say(source, draft, stream="revocation", client="admin"):
    return await source.append(draft, stream, client)


async def report_of(target):
    async with policy_link(target, NO_RETRY) as link:
        return await link.report()


@pytest.mark.req("KEX1-08", "FED-06")
def test_what_the_log_says_is_told_once_and_again_changes_nothing(live):
    _, target = live("a")

    async def scenario():
        source = FakeHub()
        for number in range(3):
            await say(source, revoke(number))
        await say(source, realm.assign(ELSEWHERE), "admin")
        await say(source, revoke(9), "admin")  # on the wrong stream
        worker = agent([target])
        policy = await worker.read(source.link("agent"))
        assert [len(policy.revocations), len(policy.authorities)] == [3, 1]
        assert [issue.code for issue in worker.issues()] == ["REALM.STREAM"]
        (first,) = await worker.push()
        (second,) = await worker.push()
        assert (first.pushed, second.pushed) == (PushedPolicy(3, 1), PushedPolicy())
        reported = await report_of(target)
        assert (reported.kex1_plus, reported.auth1, reported.records) == (True, True, 2)
        assert reported.missing(policy, w.NOW) == RealmPolicy((), ())
        at, stream_id = ELSEWHERE.until - 1, ELSEWHERE.stream_id
        assert reported.view.authority(ELSEWHERE.realm_id, stream_id, at) == ELSEWHERE
        assert reported.view.authority(H(b"another realm"), stream_id, at) is None  # unspecified
        assert reported.view.authority(ELSEWHERE.realm_id, H(b"another stream"), at) is None

    asyncio.run(scenario())


@pytest.mark.req("KEX1-08")
def test_a_record_reaches_every_hub_while_the_agent_follows(live):
    """Also a hub that joins later, and one that was away."""
    (first, a), (_, b) = live("a"), live("b")
    reports: list[HubReport] = []

    async def scenario():
        source = FakeHub()
        await say(source, revoke(1))
        running = asyncio.create_task(agent([a, b], reports.append).run(source.link("agent")))
        try:
            await eventually(lambda: {report.hub for report in reports} == {"a", "b"})
            await say(source, realm.revoke("client-id", w.ALICE.public, ts=w.NOW))
            await eventually(lambda: sum(report.pushed.revocations for report in reports) == 4)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    first.clock = lambda: w.NOW + 1
    assert b"CLIENT_REVOKED" in first.call("/v1/submit", SubmitRequest(msg=message(1)), status=403)
    assert all(report.trouble is None for report in reports)


class Shelf:
    """States that are kept, in memory."""

    def __init__(self):
        self.snapshots, self.saves = None, 0

    def load(self):
        return self.snapshots

    def save(self, snapshots):
        self.snapshots, self.saves = snapshots, self.saves + 1

    def forget(self):
        self.snapshots = None


def reader_of(folds, kept=None):
    return PolicyAgent(folds, NAMES, {}, clock=lambda: w.NOW, kept=kept)


@pytest.mark.req("KEX1-08")
def test_a_record_that_cannot_be_opened_makes_the_policy_incomplete_if_its_author_counts():
    """A revocation may be in it. What a client wrote whose records do not count changes nothing, and is no gap."""

    async def scenario():
        source = FakeHub()
        await say(source, revoke(1))
        await say(source, revoke(2))
        await say(source, revoke(3), client="mallory")
        await say(source, revoke(4))
        source.sealed = {
            ("revocation", 2): "E.OPEN: no read key for this stream",
            ("revocation", 3): "E.OPEN: no read key for this stream",
            ("revocation", 4): "OVL.STALE_KEY: sealed to generation 0 after its time",
        }
        by_admin = PolicyFolds(realm=RealmFold(streams=STREAMS, emitters=[H(b"admin")]))
        worker = reader_of(by_admin, shelf := Shelf())
        policy = await worker.read(source.link("agent"))
        assert [item.target for item in policy.revocations] == [H(b"client 1")]
        assert [(gap.stream, gap.first, gap.last, gap.why[:6]) for gap in worker.gaps()] == [
            ("revocation", 2, 2, "E.OPEN")
        ]
        assert [issue.code for issue in worker.issues()] == ["OVL.STALE_KEY"]
        assert shelf.saves == 0  # the state of a part is not gone on from
        everybody = reader_of(FOLDS)
        await everybody.read(source.link("agent"))
        assert [gap.first for gap in everybody.gaps()] == [2, 3]
        source.sealed.clear()  # the keys came
        assert len((await worker.read(source.link("agent"))).revocations) == 3
        assert (worker.gaps(), shelf.saves) == ((), 1)

    asyncio.run(scenario())


def test_hubs_are_told_what_can_be_read_and_the_report_says_that_it_is_not_all(live):
    _, target = live("a")
    reports: list[HubReport] = []

    async def scenario():
        source = FakeHub()
        source.sealed = {("revocation", 1): "E.OPEN: no read key for this stream"}
        await say(source, revoke(1))
        await say(source, revoke(2))
        running = asyncio.create_task(agent([target], reports.append).run(source.link("agent")))
        try:
            await eventually(lambda: reports)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    assert (reports[0].pushed.revocations, reports[0].gaps) == (1, 1)


@pytest.mark.parametrize("erased", [0, 30, 40])
def test_an_agent_goes_on_from_the_state_that_was_kept_and_behind_what_was_erased(erased):
    """With the state the policy is whole, whatever was erased since; without it, the gap is named."""

    async def scenario():
        source, shelf = FakeHub(), Shelf()
        for number in range(40):
            await say(source, revoke(number))
        first = reader_of(FOLDS, shelf)
        await first.read(source.link("agent"))
        source.erased["revocation"] = erased
        for number in range(40, 45):
            await say(source, revoke(number))
        source.served = 0
        later = reader_of(FOLDS, shelf)
        assert len((await later.read(source.link("agent"))).revocations) == 45
        assert (later.gaps(), source.served, shelf.saves) == ((), 5, 2)
        bare = reader_of(FOLDS)
        assert len((await bare.read(source.link("agent"))).revocations) == 45 - erased
        assert [(gap.first, gap.last) for gap in bare.gaps()] == ([(1, erased)] if erased else [])

    asyncio.run(scenario())


@pytest.mark.parametrize("change", ["settings", "roots", "damage"])
def test_a_state_of_other_rules_or_another_log_is_not_gone_on_from(change):
    async def scenario():
        source, shelf = FakeHub(), Shelf()
        await say(source, revoke(1))
        await reader_of(FOLDS, shelf).read(source.link("agent"))
        folds = FOLDS
        if change == "settings":
            folds = PolicyFolds(realm=RealmFold(streams=STREAMS, emitters=[H(b"nobody")]))
        elif change == "roots":
            source = FakeHub()
            await say(source, revoke(7))
        else:
            shelf.snapshots = {
                name: replace(snapshot, state_hash=bytes(32)) for name, snapshot in (shelf.load() or {}).items()
            }
        worker = reader_of(folds, shelf)
        expected = await reader_of(folds).read(source.link("agent"))
        assert await worker.read(source.link("agent")) == expected
        assert source.served == 2 + (0 if change == "roots" else 1)

    asyncio.run(scenario())


def test_a_hub_that_fails_delays_no_other_and_is_tried_again(live, tmp_path):
    _, up = live("up")
    down = live.target("down", type("Nobody", (), {"port": 9})())  # nothing listens there
    reports: list[HubReport] = []

    async def scenario():
        source = FakeHub()
        await say(source, revoke(1))
        running = asyncio.create_task(agent([down, up], reports.append).run(source.link("agent")))
        try:
            await eventually(lambda: [report for report in reports if report.hub == "up"])
            await eventually(lambda: len([report for report in reports if report.hub == "down"]) > 2)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
    assert {report.hub for report in reports if report.trouble} == {"down"}


def test_an_agent_that_is_killed_and_started_again_loses_and_doubles_nothing(live):
    _, target = live("a")

    async def scenario():
        source = FakeHub()
        for number in range(40):
            await say(source, revoke(number))
            running = asyncio.create_task(agent([target]).run(source.link("agent")))
            await asyncio.sleep(0.003 * (number % 7))  # anywhere between reading and the hub's answer
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await (last := agent([target])).read(source.link("agent"))
        await last.push()
        reported = await report_of(target)
        targets = [entry[1] for entry in reported.view.in_force(w.NOW)]
        assert sorted(targets) == sorted(H(b"client %d" % number) for number in range(40))
        return reported.records

    records = asyncio.run(scenario())
    assert 1 <= records <= 40


def test_more_than_one_record_holds_is_told_in_several(live):
    _, target = live("a")
    count = 2 * MAX_POLICY_ITEMS + 3
    items = tuple(replace(BOB, target=H(b"%d" % number)) for number in range(count))

    async def scenario():
        async with policy_link(target, NO_RETRY) as link:
            assert await link.push(RealmPolicy((), items)) == PushedPolicy(count, 0)
            reported = await link.report()
        assert (reported.records, reported.view.counts(w.NOW + 100)[0]) == (3, count)

    asyncio.run(scenario())


def test_a_hub_that_does_not_enforce_a_view_is_named_and_told_the_other(live):
    _, target = live("a", auth1=None)

    async def scenario():
        async with policy_link(target, NO_RETRY) as link:
            with pytest.raises(PolicyNotEnforced, match=r"admission\.auth1"):
                await link.push(RealmPolicy((ELSEWHERE,), (BOB,)))
            reported = await link.report()
            assert (reported.kex1_plus, reported.auth1, reported.records) == (True, False, 1)
            assert reported.missing(RealmPolicy((ELSEWHERE,), (BOB,)), w.NOW) == RealmPolicy((ELSEWHERE,), ())

    asyncio.run(scenario())


def test_a_hub_with_another_key_than_the_pinned_one_is_told_nothing(live):
    hub, _ = live("a")
    stranger = live.target("a", hub, pin=w.BOB.public)

    async def scenario():
        with pytest.raises(ForeignKey):
            async with policy_link(stranger, NO_RETRY) as link:
                await link.push(RealmPolicy((), (BOB,)))

    asyncio.run(scenario())


def test_an_answer_about_something_else_is_not_taken_for_done(live, monkeypatch):
    """A hub, or something before it, that answers with a record of its journal that is another one."""
    _, target = live("a")

    async def scenario():
        async with policy_link(target, NO_RETRY) as link:
            await link.push(RealmPolicy((), (BOB,)))
            calls = link._session.calls
            answer = await calls.ask("tooling/policy?after=0", None, PolicyRecordsResponse)
            ask = calls.ask

            async def replay(operation, request, response, **more):
                if operation == "tooling/policy":
                    return response(records=answer.records)
                return await ask(operation, request, response, **more)

            monkeypatch.setattr(calls, "ask", replay)
            with pytest.raises(BadAnswer):
                await link.push(RealmPolicy((), (replace(BOB, target=w.ALICE.public),)))

    asyncio.run(scenario())
