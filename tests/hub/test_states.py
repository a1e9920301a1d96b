"""The states of an HTTP connection: the tables themselves, and the real connection under any order of events."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.examples import examples
from tests.hub import builders as w
from tests.hub.servers import LiveHub, post, split_answers

from veen.core.objects.envelopes import SubmitRequest
from veen.hub.http.connection import Connection
from veen.hub.http.server import HttpSettings
from veen.hub.http.states import (
    INPUT_TABLE,
    OUTPUT_TABLE,
    IllegalEventError,
    InputEvent,
    InputState,
    OutputEvent,
    OutputState,
    after_input,
    after_output,
    is_legal,
)

SIDES: dict[str, Any] = {
    "input": (InputState, InputEvent, INPUT_TABLE, after_input, InputState.IDLE, InputState.ENDED),
    "output": (OutputState, OutputEvent, OUTPUT_TABLE, after_output, OutputState.OPEN, OutputState.LOST),
}


# --- the tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", SIDES)
def test_the_table_decides_about_every_state_and_every_event(side):
    """A pair that the table does not have is refused by name; nothing is left open."""
    states, events, table, after, _, _ = SIDES[side]
    assert set(table) == set(states)
    for state in states:
        for event in events:
            if event in table[state]:
                assert after(state, event) is table[state][event]
            else:
                with pytest.raises(IllegalEventError, match=f"{event.name} is illegal in .*{state.name}"):
                    after(state, event)
    assert {event for row in table.values() for event in row} == set(events)


@pytest.mark.parametrize("side", SIDES)
def test_every_state_is_reached_from_the_first_and_reaches_the_last(side):
    states, _, table, _, first, last = SIDES[side]

    def reachable(start):
        reached, waiting = {start}, [start]
        while waiting:
            for state in table[waiting.pop()].values():
                if state not in reached:
                    reached.add(state)
                    waiting.append(state)
        return reached

    assert reachable(first) == set(states)
    assert all(last in reachable(state) for state in states)
    assert reachable(last) == {last}  # the end is the end


def test_a_connection_whose_output_ends_reads_no_request():
    assert [state for state in OutputState if is_legal(InputState.HEAD, state)] == [
        OutputState.OPEN,
        OutputState.STALLED,
    ]
    assert all(is_legal(InputState.ENDED, state) for state in OutputState)


# --- the real connection ----------------------------------------------------------------------------------

FORGED = SubmitRequest(msg=replace(w.msg(token=w.FREE_TOKEN, seq=1), sig=bytes(64))).to_bytes()
REQUESTS = {  # bytes, and whether the connection ends behind it
    "alone": (b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n", False),
    "no such path": (b"GET /nowhere HTTP/1.1\r\nHost: hub\r\n\r\n", False),
    "submit": (post("/v1/submit", FORGED), False),
    "chunked": (b"POST /x HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", False),
    "last": (b"GET /healthz HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n\r\n", True),
    "garbage": (b"\x00\x01\r\n\r\n", True),
    # A URL that is refused after the whole request was read; of a longer one the end is never looked for.
    "long URL": (b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: hub\r\n\r\n", False),
    "endless URL": (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: hub\r\n\r\n", True),
}
STATUS = {
    "alone": 200,
    "no such path": 404,
    "submit": 409,
    "chunked": 404,
    "last": 200,
    "garbage": 400,
    "long URL": 414,
    "endless URL": 414,
}


PATIENT = HttpSettings(header_sec=1e6, body_idle_sec=1e6, request_sec=1e6, keep_alive_sec=1e6, write_sec=1e6)


class Transport(asyncio.Transport):
    """A transport whose client reads, stalls and leaves when the test says so; it refuses what a real one forbids."""

    def __init__(self):
        super().__init__()
        self.written = bytearray()
        self.after_write: Callable[[], None] = lambda: None
        self.reading, self.ended, self.closing, self.lost = True, False, False, False

    def get_extra_info(self, name, default=None):
        return ("192.0.2.1", 4711) if name == "peername" else default

    def write(self, data):
        assert not self.ended, "written behind the end"
        assert not self.closing, "written to a closing transport"
        self.written += data
        self.after_write()

    def can_write_eof(self):
        return True

    def write_eof(self):
        assert not self.closing
        self.ended = True

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    abort = close

    def pause_reading(self):
        assert self.reading, "paused twice"
        self.reading = False

    def resume_reading(self):
        assert not self.reading, "resumed twice"
        self.reading = True


class ConnectionMachine(RuleBasedStateMachine):
    """Any order of what a transport, a client and the server can do to a connection. `hub` is set by the test.

    The event loop runs only within `on_loop`, in this thread: what happens depends on the rules alone.
    """

    hub: LiveHub

    @initialize()
    def connect(self):
        self.transport = Transport()
        self.connection = self.on_loop(Connection, self.hub.server)
        self.on_loop(self.connection.connection_made, self.transport)
        self.sent = []  # names of the requests that have arrived completely
        self.rest = b""  # of a request of which a part was sent
        self.name = ""
        self.stalled = self.peer_done = self.no_more = False

    def on_loop(self, function, *args):
        async def call():
            return function(*args)

        return self.hub.loop.run_until_complete(call())

    @rule()
    def tick(self):
        """Tasks and verdicts go on by a step."""
        self.on_loop(lambda: None)

    def is_open(self):
        return not self.transport.lost and not self.transport.closing

    def can_send(self):
        return self.is_open() and self.transport.reading and not self.peer_done

    @precondition(lambda self: self.can_send() and not self.rest)
    @rule(
        name=st.sampled_from(list(REQUESTS)), cut=st.none() | st.integers(1, 60), times=st.sampled_from((1, 1, 3, 70))
    )
    def send(self, name, cut, times):
        data, is_last = REQUESTS[name]
        times = 1 if is_last else times
        if self.no_more:  # whatever comes behind the end is dropped
            self.on_loop(self.connection.data_received, data)
            return
        if name == "garbage":
            cut = None  # its first byte is refused
        first = data if cut is None else data[:cut]
        self.sent += [name] * (times - 1)
        if cut is None or cut >= len(data):
            self.sent.append(name)
            self.no_more = is_last
        else:
            self.rest, self.name = data[cut:], name
        self.on_loop(self.connection.data_received, data * (times - 1) + first)

    @precondition(lambda self: self.can_send() and self.rest)
    @rule()
    def send_the_rest(self):
        data, self.rest = self.rest, b""
        if not self.no_more:
            self.sent.append(self.name)
            self.no_more = REQUESTS[self.name][1]
        self.on_loop(self.connection.data_received, data)

    @precondition(lambda self: self.is_open() and not self.peer_done)
    @rule()
    def client_closes_its_half(self):
        self.peer_done = self.no_more = True
        if not self.on_loop(self.connection.eof_received):
            self.transport.closing = True

    @precondition(lambda self: self.is_open() and not self.stalled and not self.transport.ended)
    @rule()
    def stall(self):
        self.stalled = True
        self.on_loop(self.connection.pause_writing)

    @precondition(lambda self: not self.transport.lost and self.stalled)
    @rule()
    def resume(self):
        self.stalled = False
        self.on_loop(self.connection.resume_writing)

    @precondition(lambda self: self.is_open())
    @rule(on_hold=st.booleans())
    def hold(self, on_hold):
        self.on_loop(self.connection.hold, on_hold)

    @precondition(lambda self: self.is_open())
    @rule()
    def drain(self):
        self.on_loop(self.connection.drain)
        self.no_more = self.no_more or self.connection._reader.state is InputState.ENDED

    @precondition(lambda self: self.is_open() and self.connection.output is not OutputState.OPEN)
    @rule()
    def pass_the_deadline(self):
        """In OPEN it may answer 408 or wait, which test_http.py shows; a client that does not read is let go."""
        lingers = self.connection.output is OutputState.LINGERING
        self.on_loop(self.connection.overdue)
        assert self.connection.output is OutputState.CLOSING, lingers

    @rule(method=st.sampled_from(("close", "abort", "dismiss")))
    def end(self, method):
        self.on_loop(getattr(self.connection, method))
        self.no_more = self.no_more or self.connection._reader.state is InputState.ENDED

    @precondition(lambda self: not self.transport.lost)
    @rule()
    def lose(self):
        self.transport.lost = self.transport.closing = True
        self.on_loop(self.connection.connection_lost, None)
        assert self.connection.output is OutputState.LOST

    @precondition(lambda self: self.is_open() and self.connection.output is OutputState.OPEN)
    @rule()
    def catch_up(self):
        """With a client that reads and a server that lets it go on, every request that arrived is answered."""
        self.on_loop(self.connection.hold, False)
        for _ in range(10_000):
            if self.transport.closing or not self.on_loop(self.connection._busy):
                break
        if self.is_open():
            assert self.statuses() == [STATUS[name] for name in self.sent]

    def statuses(self):
        return [status for status, _, _ in split_answers(bytes(self.transport.written))]

    @invariant()
    def fields_are_legal_together(self):
        if not hasattr(self, "connection"):
            return
        assert self.on_loop(self.faults) == []
        answered = self.statuses()
        assert answered == [STATUS[name] for name in self.sent][: len(answered)]  # in order, none twice

    def faults(self):
        """What the docstring of Connection rules out."""
        c = self.connection
        reading, memory = c._reader.state, c._memory
        over = c.output in (OutputState.FLUSHING, OutputState.LINGERING, OutputState.LOST)
        waits = not c._may_start() or bool(c._answers)
        return [
            fault
            for fault, holds in {
                "input and output": not is_legal(reading, c.output),
                "a task and other answers": c._task is not None and not over and len(c._answers) > 1,
                "a queue that nothing holds": bool(c._queue) and not waits and c.output is not OutputState.CLOSING,
                "unparsed input and reading": bool(c._unparsed) and c._reading and not c._peer_done,
                "the client is done and the input is not": c._peer_done
                and not c._unparsed
                and reading is not InputState.ENDED,
                "work behind the end": over and bool(c._queue or c._answers or c._unparsed),
                "a body behind the end": reading is InputState.ENDED and bool(c._reader._body),
                "reading and the transport": c._reading != self.transport.reading,
                "too many are due": c._due() > 128,
                "memory behind the end": c.output is OutputState.LOST
                and bool(memory.body_bytes or memory.unparsed_bytes or memory.unread_bytes),
            }.items()
            if holds
        ]

    def teardown(self):
        if not self.transport.lost:
            self.transport.lost = self.transport.closing = True
            self.on_loop(self.connection.connection_lost, None)
        assert (self.hub.server.bodies.in_use, self.hub.server.answers.in_use) == (0, 0)


def test_the_requests_of_the_machine_are_answered_as_it_expects(tmp_path):
    with LiveHub(tmp_path) as hub:
        for name, (data, _) in REQUESTS.items():
            assert [status for status, _, _ in split_answers(hub.raw(data, expect=1))] == [STATUS[name]], name


class StoppedClock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while `stopped_at` is set: no timer fires, however slow the machine is."""

    stopped_at: float | None = None

    def time(self):
        return super().time() if self.stopped_at is None else self.stopped_at


@pytest.fixture
def connection_hub(tmp_path):
    """A hub whose event loop runs only when the test says so, and for which no time passes."""
    hub = LiveHub(tmp_path, workers=0, settings=PATIENT, new_loop=StoppedClock)
    hub.loop.run_until_complete(hub._start())
    hub.loop.stopped_at = hub.loop.time()
    yield hub
    hub.loop.stopped_at = None
    hub.loop.run_until_complete(hub._stop())
    hub.loop.close()


def test_the_connection_keeps_to_the_tables_in_any_order_of_events(connection_hub):
    machine = type("Machine", (ConnectionMachine,), {"hub": connection_hub})
    bounds = examples(100, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=bounds)


# Histories that the machine found.


def play(hub, *steps):
    """Run one history of the machine, with its invariants behind each step."""
    machine = type("Machine", (ConnectionMachine,), {"hub": hub})()
    machine.connect()
    try:
        for step in steps:
            step(machine)
            machine.fields_are_legal_together()
    finally:
        machine.teardown()


def test_a_request_behind_a_url_that_is_too_long_is_answered(connection_hub):
    """The whole request was read, so the connection goes on (RFC 9112, section 9.3)."""
    play(
        connection_hub,
        lambda machine: machine.send(name="long URL", cut=None, times=1),
        lambda machine: machine.send(name="alone", cut=None, times=1),
        lambda machine: machine.catch_up(),
    )


def test_a_request_behind_a_url_without_end_is_dropped(connection_hub):
    play(
        connection_hub,
        lambda machine: machine.send(name="endless URL", cut=20, times=1),
        lambda machine: machine.send_the_rest(),
        lambda machine: machine.send(name="alone", cut=None, times=1),
        lambda machine: machine.tick(),
    )


def test_a_client_that_reads_slowly_gets_the_whole_last_answer(tmp_path):
    """The time to linger begins when the last answer has left the hub, not when it was written."""
    with LiveHub(tmp_path) as hub:

        def last_answer():
            transport = Transport()
            connection = Connection(hub.server)
            connection.connection_made(transport)
            connection.data_received(b"GET /x HTTP/1.1\r\nHost: hub\r\n")
            transport.after_write = connection.pause_writing
            connection.data_received(b"Connection: close\r\n\r\n")
            states = [(connection.output, connection.deadline - hub.server.now)]
            connection.resume_writing()
            states.append((connection.output, connection.deadline - hub.server.now))
            connection.on_overdue()
            states.append((connection.output, connection.deadline - hub.server.now))
            connection.connection_lost(None)
            return states

        write_sec = hub.server.settings.write_sec
        assert [(state, round(wait, 3)) for state, wait in hub.on_loop(last_answer)] == [
            (OutputState.FLUSHING, write_sec),
            (OutputState.LINGERING, 1.0),
            (OutputState.CLOSING, write_sec),
        ]
