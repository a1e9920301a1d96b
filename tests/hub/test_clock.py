"""The time a hub gives out when its clock is wrong (D-28, D-167). No test waits: wall clock and ticks are set."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hub import builders as w
from tests.hub.test_policies import ALICE, push, refusal
from tests.hub.test_policies import clock as clock
from tests.hub.test_policies import enforcing as enforcing
from tests.hub.test_runtime import configured, fs_of, get, run, submit
from tests.hub.test_tooling import message
from tests.hub.test_tooling import submit as send

from veen.core.errors import Refusal
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.control import CapAuthorize
from veen.core.objects.receipt import Receipt
from veen.hub.api.rotation import rotate_at_rest
from veen.hub.process.forking import fork
from veen.hub.process.runtime import Hub
from veen.hub.sequencer.clock import ClockStepError, HubClock, read_clock
from veen.hub.sequencer.sequencer import Sequencer
from veen.io.local import OsFs
from veen.storage.store import Store

HOUR = 3_600


class Time:
    """A wall clock that may be wrong, and how much time has really passed."""

    def __init__(self):
        self.wall, self.ticks = float(w.NOW), 50.0

    def passes(self, seconds):
        self.wall += seconds
        self.ticks += seconds

    def clock(self, max_step=HOUR):
        return HubClock(lambda: self.wall, lambda: self.ticks, max_step=max_step)


def begun(time, hub_ts=w.NOW, **options):
    clock = time.clock(**options)
    clock.begin(hub_ts)
    return clock


def test_a_clock_that_is_set_back_goes_on_with_the_time_that_passes():
    time = Time()
    clock = begun(time)
    time.passes(10)
    assert clock() == w.NOW + 10
    time.wall -= 5 * HOUR
    assert clock() == w.NOW + 10
    time.passes(90)
    assert clock() == w.NOW + 100
    assert clock.step == 0


def test_a_hub_that_starts_with_a_clock_behind_its_log_goes_on_from_the_log():
    time = Time()
    clock = begun(time, hub_ts=w.NOW + HOUR)
    assert clock() == w.NOW + HOUR
    time.passes(7)
    assert clock() == w.NOW + HOUR + 7


def test_a_clock_that_comes_back_is_followed_again():
    time = Time()
    clock = begun(time)
    time.wall -= HOUR
    time.passes(10)
    assert clock() == w.NOW + 10
    time.wall += HOUR + 5
    assert clock() == w.NOW + 15


def test_a_forward_jump_is_not_believed_until_the_clock_is_back():
    time = Time()
    clock = begun(time)
    time.passes(10)
    clock()
    time.wall += 2 * HOUR
    assert (clock(), clock.step) == (w.NOW + 10, 2 * HOUR)
    time.passes(20)
    assert (clock(), clock.step) == (w.NOW + 30, 2 * HOUR)
    time.wall -= 2 * HOUR
    assert (clock(), clock.step) == (w.NOW + 30, 0)


def test_a_step_that_is_allowed_is_followed():
    time = Time()
    clock = begun(time)
    time.wall += HOUR
    assert (clock(), clock.step) == (w.NOW + HOUR, 0)


def test_a_long_pause_of_a_running_hub_is_no_jump():
    time = Time()
    clock = begun(time)
    time.passes(50 * HOUR)
    assert (clock(), clock.step) == (w.NOW + 50 * HOUR, 0)


@given(st.lists(st.tuples(st.integers(0, 5 * HOUR), st.integers(-10 * HOUR, 10 * HOUR)), max_size=30))
def test_whatever_the_wall_clock_does_time_goes_neither_back_nor_too_far(changes):
    time = Time()
    clock = begun(time)
    before = int(clock())
    for passed, shift in changes:
        time.passes(passed)
        time.wall += shift
        now = int(clock())
        assert before <= now <= before + passed + HOUR + 1
        if not clock.step and shift <= 0 and time.wall < before:
            assert now >= before + passed - 1  # it does not stand still either
        before = now


def test_a_start_with_a_clock_far_ahead_needs_an_operators_word():
    time = Time()
    with pytest.raises(ClockStepError) as refused:
        time.clock().begin(w.NOW - HOUR - 1)
    assert "engine.max_clock_step" in str(refused.value)
    assert "--accept-clock" in refused.value.hint
    for accepted in (
        lambda: time.clock().begin(w.NOW - HOUR),
        lambda: time.clock().begin(w.NOW - HOUR - 1, accept=True),
        lambda: time.clock().begin(w.NOW - HOUR - 1, w.NOW - HOUR),  # quiet, but it was alive then
        lambda: time.clock(max_step=0).begin(1),
        lambda: time.clock().begin(0),  # a new directory
    ):
        accepted()


# --- in a hub ------------------------------------------------------------------------------------------------


def test_buckets_fill_while_the_clock_is_behind(tmp_path):
    token = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=10**9, rate=Rate(per_sec=1, burst=2))
    time = Time()

    async def scenario():
        store = Store.open(OsFs(tmp_path), DEFAULT_LIMITS, w.seal)
        line = Sequencer(store, w.Signer(), w.policy(), w.resolver(), workers=w.WORKERS, clock=time.clock())
        await line.control(lambda _: CapAuthorize.of(token))

        async def answer(seq):
            return await line.submit(w.msg(token=token, seq=seq).to_bytes())

        assert [type(await answer(seq)) for seq in (1, 2)] == [bytes, bytes]
        time.wall -= 10 * HOUR
        refused = await answer(3)
        assert refused.refusal is Refusal.CAP_RATE
        time.passes(1)
        receipt = Receipt.from_bytes(await answer(3))
        assert receipt.hub_ts == w.NOW + 1
        await line.close()

    run(scenario())


@pytest.mark.req("KEX1-08")
def test_a_revocation_counts_for_the_next_message_even_if_the_clock_stands_still(enforcing, clock):
    with enforcing() as hub:
        send(hub, message(1))
        push(hub, revocations=(ALICE,))
        assert refusal(hub, message(2)) == "CLIENT_REVOKED"
        clock.now = w.NOW - 500
        assert refusal(hub, message(2)) == "CLIENT_REVOKED"
    with enforcing() as hub:  # nor does a restart within the second undo it
        assert refusal(hub, message(2)) == "CLIENT_REVOKED"


def hub_at(tmp_path, time, **options):
    return Hub.serve(configured(tmp_path), clock=lambda: time.wall, ticks=lambda: time.ticks, **options)


def test_a_running_hub_admits_nothing_after_a_forward_jump_and_goes_on_when_it_is_over(tmp_path):
    time = Time()

    async def scenario():
        async with hub_at(tmp_path, time) as hub:
            await submit(hub, 1)
            time.wall += 5 * HOUR

            async def post():
                return await hub.api.call("submit", b"\xa2\x01\x01\x02" + w.msg(seq=2, token=None).to_bytes())

            reply = await post()
            assert reply.status == 503
            refused = await hub.api.call(
                "submit", b"\xa2\x01\x01\x02" + w.msg(seq=2, token=None).to_bytes(), answer="json"
            )
            envelope = json.loads(refused.body)
            assert (envelope["code"], envelope["detail"]["reason"]) == ("E.UNAVAILABLE", "CLOCK_STEP")
            assert (await get(hub, "/readyz"))[0] == 503
            assert hub.gauges()["veen_clock_step_seconds"] == 5 * HOUR
            assert hub.sequencer.now() == w.NOW  # what is under way gets a good time
            time.wall -= 5 * HOUR
            assert (await post()).status == 200
            assert hub.gauges()["veen_clock_step_seconds"] == 0
            assert (await get(hub, "/readyz"))[0] == 200

    run(scenario())


def test_a_hub_starts_far_ahead_of_its_log_only_with_an_operators_word(tmp_path):
    time = Time()

    async def once(**options):
        async with hub_at(tmp_path, time, **options) as hub:
            (receipt,) = await submit(hub, 1, first=hub.sequencer.store.entry_count + 1)
            return Receipt.from_bytes(receipt).hub_ts

    assert run(once()) <= w.NOW + 1
    assert read_clock(fs_of(tmp_path)) == w.NOW
    time.wall += 2 * HOUR
    before = fs_of(tmp_path).list("log")
    with pytest.raises(ClockStepError):
        run(once())
    assert fs_of(tmp_path).list("log") == before
    assert run(once(accept_clock=True)) >= w.NOW + 2 * HOUR
    time.wall += HOUR
    assert run(once()) >= w.NOW + 3 * HOUR  # once was enough


@pytest.mark.parametrize("change", ["rotate", "fork"])
def test_a_stopped_hub_is_changed_far_ahead_of_its_log_only_with_an_operators_word(tmp_path, change):
    """D-167: a control record that is written at rest has a time that can never be taken back, too."""
    time, data = Time(), tmp_path / "hub"

    async def once():
        async with hub_at(tmp_path, time) as hub:
            await submit(hub, 1)

    run(once())
    fs = fs_of(tmp_path)
    (tmp_path / "fork").mkdir()

    def changed(**options):
        if change == "rotate":
            return rotate_at_rest(fs, int(time.wall), 0, **options).current.valid_from
        return fork(fs, OsFs(tmp_path / "fork"), int(time.wall), **options).forked_at

    time.wall += 2 * HOUR
    before = {path.relative_to(data): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    with pytest.raises(ClockStepError):
        changed()
    after = {path.relative_to(data): path.read_bytes() for path in data.rglob("*") if path.is_file()}
    evidence = [path for path in before if path.parts[0] in ("log", "labels", "keys") or "identity" in path.name]
    assert evidence
    assert all(after[path] == before[path] for path in evidence)
    assert not (tmp_path / "fork" / "hub-identity.json").exists()
    assert changed(accept_clock=True) >= w.NOW + 2 * HOUR


def test_a_quiet_hub_starts_again_without_a_question(tmp_path):
    time = Time()

    async def once(pause):
        async with hub_at(tmp_path, time) as hub:
            if not hub.sequencer.store.entry_count:
                await submit(hub, 1)
            time.passes(pause)

    run(once(7 * HOUR))
    run(once(0))
