"""The calling and the serving end of RPC0, talking over streams."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from veen.core.hashing import H
from veen.overlays.framework.link import send
from veen.overlays.framework.schema import Draft
from veen.overlays.rpc import ends as rpc_server
from veen.overlays.rpc import messages as rpc
from veen.overlays.rpc.ends import Backoff, CallContext, Caller, Handler, NoAnswer, RpcFailed, Server
from veen.testing.links import FakeHub

PATIENT = 30.0  # seconds that no passing test ever waits


class World:
    """A hub, a server that counts what it carries out, and what it reported."""

    def __init__(self) -> None:
        self.hub = FakeHub()
        self.done: list[Any] = []
        self.reports: list[str] = []
        self.now = 0.0

    def handlers(self) -> dict[str, Handler]:
        async def add(args: Any, context: CallContext) -> int:
            self.done.append(args)
            return sum(args)

        async def whoami(args: Any, context: CallContext) -> bytes:
            return context.client_id

        async def refuse(args: Any, context: CallContext) -> None:
            raise RpcFailed("TEST.NO", "not today")

        async def crash(args: Any, context: CallContext) -> None:
            raise RuntimeError("secret")

        async def sleep(args: Any, context: CallContext) -> None:
            await asyncio.Event().wait()

        async def odd(args: Any, context: CallContext) -> float:
            return 1.5

        return {"add": add, "whoami": whoami, "refuse": refuse, "crash": crash, "sleep": sleep, "odd": odd}

    @contextlib.asynccontextmanager
    async def serving(self, **kwargs: Any):
        server = Server(
            self.hub.link("server"),
            "calls",
            self.handlers(),
            report=lambda what, exc: self.reports.append(what),
            **kwargs,
        )
        task = asyncio.create_task(server.run())
        try:
            yield server
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def replies(self, stream: str = "calls") -> list[rpc.RpcReply]:
        return [
            rpc.RpcReply.from_bytes(event.body)
            for event in self.hub.log.all()
            if event.hdr.schema == rpc.REPLY.id and event.stream_id == H(stream.encode())
        ]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENT):
            await self.hub.wait_for(condition)


def run(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(World())

    asyncio.run(main())


@pytest.mark.req("RPC-02")
def test_a_call_gets_its_own_answer_among_many():
    async def scenario(world: World) -> None:
        async with (
            world.serving(),
            Caller(world.hub.link("alice"), "calls") as alice,
            Caller(world.hub.link("bob"), "calls") as bob,
        ):
            results = await asyncio.gather(*(c.call("add", [n, 1]) for n in range(20) for c in (alice, bob)))
            assert results == [n + 1 for n in range(20) for _ in range(2)]
            assert await bob.call("whoami") == H(b"bob")

    run(scenario)


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("refuse", "TEST.NO"),
        ("crash", "RPC.INTERNAL"),
        ("nothing", "RPC.METHOD"),
        ("odd", "RPC.RESULT"),
    ],
)
def test_what_goes_wrong_at_the_server_reaches_the_caller_as_a_code(method, code):
    async def scenario(world: World) -> None:
        async with world.serving(), Caller(world.hub.link("alice"), "calls") as caller:
            with pytest.raises(RpcFailed) as caught:
                await caller.call(method)
            assert caught.value.code == code
            assert "secret" not in str(caught.value)
            assert await caller.call("add", [1]) == 1  # the server goes on

    run(scenario)


@pytest.mark.req("RPC-06")
def test_a_call_that_nobody_answers_fails_with_a_clear_code():
    async def scenario(world: World) -> None:
        async with Caller(world.hub.link("alice"), "calls") as caller:
            with pytest.raises(NoAnswer, match=r"RPC\.NO_ANSWER: no answer to add") as caught:
                await caller.call("add", [1], timeout=0.01)
            (call,) = world.hub.log.all()
            assert caught.value.msg_id == call.msg_id
            assert caught.value.code == "RPC.NO_ANSWER"

    run(scenario)


@pytest.mark.req("RPC-05", "RPC-06")
def test_calling_again_with_backoff_is_carried_out_once():
    async def scenario(world: World) -> None:
        async with Caller(world.hub.link("alice"), "calls") as caller:
            backoff = Backoff(first=0.001, factor=2)
            task = asyncio.create_task(caller.call("add", [2, 3], timeout=PATIENT, idem=7, backoff=backoff))
            await world.until(lambda: len(world.hub.log.all()) >= 3)
            async with world.serving():
                assert await task == 5
        assert world.done == [[2, 3]]
        calls = [event for event in world.hub.log.all() if event.hdr.schema == rpc.CALL.id]
        assert len({event.body for event in calls}) == 1

    run(scenario)


@pytest.mark.req("RPC-06")
def test_the_pause_between_calls_doubles_up_to_a_bound():
    backoff = Backoff(first=0.5, factor=2, longest=3)
    assert [backoff.wait(n) for n in range(5)] == [0.5, 1.0, 2.0, 3, 3]
    assert backoff.wait(10_000) == 3


def test_calling_again_without_an_idem_is_refused():
    async def scenario(world: World) -> None:
        async with Caller(world.hub.link("alice"), "calls") as caller:
            with pytest.raises(ValueError, match="carried out twice"):
                await caller.call("add", [1], backoff=Backoff())
        assert world.hub.log.all() == []

    run(scenario)


@pytest.mark.req("RPC-05")
def test_a_server_that_starts_again_carries_out_what_is_open_and_nothing_twice():
    async def scenario(world: World) -> None:
        alice = world.hub.link("alice")
        async with world.serving(), Caller(alice, "calls") as caller:
            assert await caller.call("add", [1], idem=1) == 1
        await send(alice, "calls", rpc.call("add", [1], idem=1))
        await send(alice, "calls", rpc.call("add", [4]))
        async with world.serving():
            await world.until(lambda: len(world.replies()) == 3)
        assert world.done == [[1], [4]]
        assert [reply.result for reply in world.replies()] == [1, 1, 4]

    run(scenario)


@pytest.mark.req("RPC-01", "RPC-05")
def test_answers_may_go_to_a_stream_of_their_own_and_count_after_a_restart():
    async def scenario(world: World) -> None:
        answers = H(world.hub.name_of("answers").encode())
        async with world.serving(), Caller(world.hub.link("alice"), "calls", reply_to=answers) as caller:
            assert await caller.call("add", [1, 2]) == 3
        async with world.serving(), Caller(world.hub.link("bob"), "calls") as caller:
            assert await caller.call("add", [9]) == 9
        assert world.done == [[1, 2], [9]]
        assert (len(world.replies()), len(world.replies("answers"))) == (1, 1)

    run(scenario)


def test_a_caller_who_names_a_stream_that_cannot_be_written_harms_nobody():
    async def scenario(world: World) -> None:
        await send(world.hub.link("mallory"), "calls", rpc.call("add", [6], reply_to=bytes(32)))
        async with world.serving(), Caller(world.hub.link("alice"), "calls") as caller:
            assert await caller.call("add", [1]) == 1
        assert "an answer could not be sent" in world.reports

    run(scenario)


def test_a_request_that_cannot_be_read_is_answered():
    async def scenario(world: World) -> None:
        await send(world.hub.link("alice"), "calls", Draft(schema=rpc.CALL.id, body=b"\xff"))
        async with world.serving():
            await world.until(lambda: len(world.replies()) == 1)
            await send(world.hub.link("alice"), "calls", Draft(schema=rpc.CALL.id, body=b"\xa0"))
            await world.until(lambda: len(world.replies()) == 2)
        assert {reply.error.code for reply in world.replies() if reply.error} == {"RPC.BODY"}

    run(scenario)


def test_a_handler_that_takes_too_long_is_stopped():
    async def scenario(world: World) -> None:
        alice = world.hub.link("alice")
        await send(alice, "calls", rpc.call("sleep", None, timeout_ms=1))
        async with world.serving():
            await world.until(lambda: len(world.replies()) == 1)
        assert [reply.error.code for reply in world.replies() if reply.error] == ["RPC.TIMEOUT"]

    run(scenario)


def test_an_old_call_is_not_carried_out_but_may_come_again():
    async def scenario(world: World) -> None:
        alice = world.hub.link("alice")
        world.hub.log.now = 1_000
        await send(alice, "calls", rpc.call("add", [1], timeout_ms=5_000, idem=1))
        async with world.serving(clock=lambda: 1_006):
            await world.until(lambda: len(world.replies()) == 1)
            world.hub.log.now = 1_006
            await send(alice, "calls", rpc.call("add", [1], timeout_ms=5_000, idem=1))
            await world.until(lambda: len(world.replies()) == 2)
        expired, answered = world.replies()
        assert expired.error == rpc.RpcFault(code="RPC.EXPIRED")
        assert answered.result == 1
        assert world.done == [[1]]

    run(scenario)


def test_strangers_can_neither_answer_nor_make_a_server_believe_that_a_call_was_answered():
    async def scenario(world: World) -> None:
        servers = [H(b"server")]
        alice, mallory = world.hub.link("alice"), world.hub.link("mallory")
        call = await send(alice, "calls", rpc.call("add", [1]))
        await send(mallory, "calls", rpc.answer(call.msg_id, "lie"))
        async with world.serving(servers=servers), Caller(alice, "calls", servers=servers) as caller:
            await world.until(lambda: world.done == [[1]])
            assert await caller.call("add", [2]) == 2

    run(scenario)


@pytest.mark.req("RPC-05")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_call_is_carried_out_once_however_many_came_since_and_memory_is_bounded(restarted):
    """RPC0.3: the same (method, client_id, idem) gets the same answer, also beyond what is in memory."""

    async def scenario(world: World) -> None:
        async with world.serving(remember=2) as server, Caller(world.hub.link("alice"), "calls") as caller:
            for idem in range(8):
                assert await caller.call("add", [idem], idem=idem) == idem
            assert len(server._answers._newest) <= 2
            if not restarted:
                assert [await caller.call("add", [idem], idem=idem) for idem in range(8)] == list(range(8))
        if restarted:
            async with world.serving(remember=2), Caller(world.hub.link("alice"), "calls") as caller:
                assert [await caller.call("add", [idem], idem=idem) for idem in range(8)] == list(range(8))
        assert world.done == [[idem] for idem in range(8)]

    run(scenario)


def test_a_server_that_cannot_write_down_what_it_answered_ends(monkeypatch):
    """To forget and go on would carry a call out twice."""
    answers = rpc_server._Answers(1)
    monkeypatch.setattr(rpc_server, "_TABLE", "no statement")
    reply = rpc.RpcReply(ok=True, result=1)
    answers.keep(("add", bytes(32), 1), reply)
    with pytest.raises(sqlite3.OperationalError):
        answers.keep(("add", bytes(32), 2), reply)
    assert answers.get(("add", bytes(32), 1)) == reply
