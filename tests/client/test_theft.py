"""After a theft of the keystore: against a thief who acts between any two steps, and crashes between them."""

import contextlib

import pytest
from tests.client.hubs import IMPATIENT, run
from tests.client.theft_builders import ACTS, Administration, world_at
from tests.examples import slow

from veen.client.errors import ClientError, Unreachable
from veen.client.generations.records import SHRED_SCHEMA, KeyShred, control_keys
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.theft import State, Step
from veen.client.send.sealing import Draft
from veen.client.transport.inprocess import InProcess
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.speaking import PRINCIPAL_NEXT_SCHEMA, PrincipalNext

# The steps as `secure` tells them, in order; the thief acts, or the process ends, just before each.
STEPS = (
    (Step.KEYS, ""),
    (Step.PLACE, "plans"),
    (Step.OWNER, "plans"),
    (Step.GENERATION, "plans"),
    (Step.PLACE, "deals"),
    (Step.REFUSAL, ""),
    (Step.END, ""),
)


class Killed(Exception):
    pass


def rows(report):
    return {row.stream: row for row in report.streams}


def test_the_steps_come_in_this_order_and_a_second_run_writes_nothing(tmp_path):
    async def story():
        steps = []

        async def progress(step, stream):
            steps.append((step, stream))

        async with world_at(tmp_path) as world:
            report = await world.secure(progress)
            assert tuple(steps) == STEPS
            assert report.is_settled
            assert report.refuses, report.cause
            assert {row.state for row in report.streams} == {State.DONE}
            size = [len(await world.log(stream)) for stream in ("plans", "deals")]
            again = await world.secure()
            assert [len(await world.log(stream)) for stream in ("plans", "deals")] == size
            assert {name: row.position for name, row in rows(again).items()} == {
                name: row.position for name, row in rows(report).items()
            }
            assert rows(again)["deals"].old_card_reads

    run(story())


def acts_at_steps():
    """Each act before each step; `make test` runs two of each act, which reach each step and each branch."""
    rows = [(at, act) for act in ACTS for at in range(len(STEPS))]
    places = {act: (place % 3, 3 + (place + 2) % 4) for place, act in enumerate(ACTS)}
    return [(at, act) if at in places[act] else slow((at, act)) for at, act in rows]


@pytest.mark.parametrize(("at", "act"), acts_at_steps())
def test_a_thief_who_acts_between_two_steps_gains_nothing_later(tmp_path, at, act):
    async def story():
        async with world_at(tmp_path) as world:

            async def progress(step, stream):
                if (step, stream) == STEPS[at]:
                    # Before the batch of the owner nothing can stop the thief.
                    with contextlib.suppress(*([ClientError] if at > STEPS.index((Step.PLACE, "plans")) else [])):
                        await getattr(world, act)()

            report = await world.secure(progress, since=world.since)
            new, plans, deals = world.keystore.identity, rows(report)["plans"], rows(report)["deals"]
            size = len(await world.log("plans"))
            again = rows(await world.secure(since=world.since))["plans"]
            assert (again.state, again.position, again.successor) == (plans.state, plans.position, plans.successor)
            assert len(await world.log("plans")) == size
            in_plans, in_deals = await world.bindings("plans"), await world.bindings("deals")
            first_in_plans = act == "same" and at <= STEPS.index((Step.PLACE, "plans"))
            first_in_deals = act == "same" and at <= STEPS.index((Step.PLACE, "deals"))
            for row, bindings, is_first in (
                (plans, in_plans, first_in_plans),
                (deals, in_deals, first_in_deals),
            ):
                successor = bindings.successors[row.stream_id, world.old.id_sign_pk].successor_pk
                assert successor == row.successor == (world.mallory if is_first else new).id_sign_pk
            if first_in_plans:
                assert plans.state is State.THIEF_FIRST
                assert new.client_id not in {entry.msg.client_id for entry in await world.log("plans")}
                assert plans.foreign_keys == (world.mallory.client_id,)
                return
            # No key that the thief can have speaks for the old principal, or for itself where it was the owner's.
            live = {key for (_, key), row in in_plans.keys.items() if not row.is_ended}
            assert live == {new.client_id}
            assert (world.plans.stream_id, world.old.client_id) in in_plans.keys
            if act == "own" and at <= STEPS.index((Step.OWNER, "plans")):
                assert plans.state is State.THIEF_FIRST
                assert world.mallory.id_sign_pk.hex() in plans.cause
                return
            assert plans.state is State.DONE
            assert not await world.overhears()
            assert {card.id_sign_pk for card in plans.readers} == {world.bob.id_sign_pk}
            async with world.client("alice", new) as alice:
                assert (await alice.key_state("plans")).owner == new.id_sign_pk
                sent = await alice.send("plans", b"by the owner")
            assert [entry.body for entry in await world.log("plans") if entry.seq == sent.seq] == [b"by the owner"]

    run(story())


@pytest.mark.parametrize("at", range(len(STEPS)))
def test_a_crash_between_two_steps_is_mended_by_a_second_run(tmp_path, at):
    async def story():
        async with world_at(tmp_path) as world:

            async def progress(step, stream):
                if (step, stream) == STEPS[at]:
                    raise Killed

            with pytest.raises(Killed):
                await world.secure(progress)
            assert len(world.keystore.identity.former) == min(at, 1)
            report = await world.secure()
            assert len(world.keystore.identity.former) == 1
            assert report.refuses
            assert {row.state for row in report.streams} == {State.DONE}
            assert not await world.overhears()

    run(story())


class Lossy(InProcess):
    """A hub whose answers to some submits are lost, or that is not there for them at all."""

    def __init__(self, handler, *, first, last, arrives):
        super().__init__(handler)
        self._first, self._last, self._arrives, self._submits = first, last, arrives, 0

    async def call(self, operation, *args, **options):
        if "submit" not in operation:
            return await super().call(operation, *args, **options)
        self._submits += 1
        is_lost = self._first <= self._submits <= self._last
        if is_lost and not self._arrives:
            raise Unreachable("lost on its way")
        answer = await super().call(operation, *args, **options)
        if is_lost:
            raise Unreachable("lost on its way back")
        return answer


async def successions(world, stream):
    return [entry for entry in await world.log(stream) if entry.event.hdr.schema == PRINCIPAL_NEXT_SCHEMA]


@pytest.mark.parametrize("arrives", [False, True])
def test_a_hub_that_stops_answering_leaves_its_streams_open_and_nothing_is_written_twice(tmp_path, arrives):
    async def story():
        async with world_at(tmp_path) as world:
            api, world.retry = Administration(world.hub.api), IMPATIENT
            report = await world.secure(transport=Lossy(api, first=1, last=99, arrives=arrives))
            assert {row.state for row in report.streams} == {State.OPEN}
            assert not report.refuses  # a hub that refused the old tokens now would keep the owner out
            assert "lost" in rows(report)["plans"].cause
            report = await world.secure()
            assert {row.state for row in report.streams} == {State.DONE}
            assert report.refuses
            for stream in ("plans", "deals"):
                assert len(await successions(world, stream)) == 1
            assert not await world.overhears()

    run(story())


def test_a_second_theft_is_answered_by_the_same_command(tmp_path):
    async def story():
        async with world_at(tmp_path) as world:
            await world.secure()
            once = world.keystore.identity
            report = await world.secure(again=True)
            twice = world.keystore.identity
            assert twice.principals == (world.old.id_sign_pk, once.id_sign_pk, twice.id_sign_pk)
            assert {row.state for row in report.streams} == {State.DONE}
            bindings = await world.bindings("plans")
            assert bindings.successors[world.plans.stream_id, once.id_sign_pk].successor_pk == twice.id_sign_pk
            live = {key for (_, key), row in bindings.keys.items() if not row.is_ended}
            assert live == {twice.client_id}
            assert not await world.overhears(once)

    run(story())


def test_two_thefts_in_a_row_before_a_stream_was_reached_end_in_one_batch(tmp_path):
    async def story():
        async with world_at(tmp_path) as world:
            with world.home.lock("alice"):
                once = world.keystore.replace_keys(world.clock.now)
            report = await world.secure(again=True)
            assert {row.state for row in report.streams} == {State.DONE}
            successors = (await world.bindings("plans")).successors
            twice = world.keystore.identity.id_sign_pk
            for principal in (world.old.id_sign_pk, once.id_sign_pk):
                assert successors[world.plans.stream_id, principal].successor_pk == twice

    run(story())


def test_a_thief_who_used_up_the_numbers_of_the_owner_is_told(tmp_path):
    """Nobody can change owner or keys of such a stream any more, so it has to be left."""

    async def story():
        async with world_at(tmp_path) as world:
            async with world.thief() as client:
                record = KeyShred.issue(world.old.id_sign, world.plans.stream_id, 7, number=2**64 - 1)
                place = control_keys(world.plans.stream_id, world.old.id_sign_pk)
                await client.send(place, record.to_bytes(), schema=SHRED_SCHEMA)
            row = rows(await world.secure())["plans"]
            assert row.state is State.THIEF_FIRST
            assert "new stream" in row.cause
            assert row.successor == world.keystore.identity.id_sign_pk  # what it says is the owner's all the same

    run(story())


def test_a_succession_without_effect_is_no_success(tmp_path):
    """A principal takes the place of at most 64 others: the thief can use these up with keys of his own."""

    async def story():
        async with world_at(tmp_path) as world:
            async with world.thief() as client:
                drafts = []
                for number in range(64):
                    other = SigningKey(bytes([number + 1]) * 32)
                    statement = PrincipalNext.issue(other, world.old.id_sign, stream_id=world.deals.stream_id)
                    drafts.append(Draft(body=statement.to_bytes(), schema=PRINCIPAL_NEXT_SCHEMA))
                place = control_keys(world.deals.stream_id, world.bob.id_sign_pk)
                await client.send_many(place, drafts)
            report = await world.secure()
            assert rows(report)["deals"].state is State.OPEN
            assert "no effect" in rows(report)["deals"].cause
            assert rows(report)["plans"].state is State.DONE

    run(story())


def test_a_hub_that_is_not_ours_to_administer_is_told_by_its_administrator(tmp_path):
    async def story():
        async with world_at(tmp_path) as world:
            report = await world.secure(transport=InProcess(world.hub.api))
            assert report.is_settled
            assert not report.refuses
            targets = {row.target for row in report.revocations}
            assert targets >= {world.old.id_sign_pk, world.old.client_id}
            assert world.keystore.identity.client_id not in targets

    run(story())


def test_at_a_gated_hub_the_token_of_the_old_principal_serves_until_the_hub_refuses_it(tmp_path):
    async def story():
        async with world_at(tmp_path, gated=True) as world:
            report = await world.secure()
            assert {row.state for row in report.streams} == {State.DONE}
            assert (report.refuses, report.asks_for_tokens) == (True, True)
            world.clock.now += 2
            with pytest.raises(ClientError):
                await world.operation()

    run(story())


def test_a_stream_without_a_known_owner_and_one_that_can_only_be_written_to(tmp_path):
    async def story():
        async with world_at(tmp_path) as world:
            world.rings["alice"] = Keyring.of([world.plans, world.deals.for_writers()])
            open_one, sealed = StreamKeys.create("open"), StreamKeys.create("sealed")
            world.rings["bob"] = world.rings["bob"].with_keys(open_one).with_keys(sealed)
            world.rings["alice"] = world.rings["alice"].with_keys(open_one).with_keys(sealed.for_writers())
            async with world.client("bob", world.bob) as bob:
                await bob.send("open", b"first")
                await bob.send("sealed", b"first")
            report = rows(await world.secure())
            assert report["open"].state is report["sealed"].state is State.DONE, report["sealed"].cause
            assert report["open"].position is not None
            assert report["deals"].position is not None
            assert report["sealed"].position is None  # who was first can be read by others alone
            for stream, keys in (("open", open_one), ("sealed", sealed)):
                row = (await world.bindings(stream)).successors[keys.stream_id, world.old.id_sign_pk]
                assert row.successor_pk == world.keystore.identity.id_sign_pk

    run(story())


@pytest.mark.parametrize("act", ACTS)
def test_a_thief_who_writes_between_our_look_and_our_batch_is_noticed(tmp_path, act):
    """No step is told here: the thief acts when the batch is on its way to the hub."""

    async def story():
        async with world_at(tmp_path) as world:

            class Race(InProcess):
                is_over = False

                async def call(self, operation, *args, **options):
                    if "submit" in operation and not self.is_over:
                        self.is_over = True
                        await getattr(world, act)()
                    return await super().call(operation, *args, **options)

            report = rows(await world.secure(transport=Race(Administration(world.hub.api)), since=world.since))["plans"]
            first = world.mallory if act == "same" else world.keystore.identity
            successors = (await world.bindings("plans")).successors
            assert successors[world.plans.stream_id, world.old.id_sign_pk].successor_pk == first.id_sign_pk
            assert report.successor == first.id_sign_pk
            assert (report.state is State.THIEF_FIRST) == (act in ("same", "own"))
            if report.state is State.DONE:
                assert not await world.overhears()

    run(story())
