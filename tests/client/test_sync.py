"""The blocking twin: the same verbs, from a program without an event loop."""

import asyncio
import itertools
import subprocess
import sys
import threading

import pytest
from tests.client.hubs import GATED, RING, hub_at, person, token_for

from veen.client import sync
from veen.client.client import Client
from veen.client.errors import HubRefused, NotPinned, Unreachable
from veen.client.home import Home
from veen.client.sync import LoopThread, SyncClient
from veen.client.transport.calls import Retry
from veen.client.verify.pin import HubPin


@pytest.fixture
def hub(tmp_path):
    """A hub in a thread, as another program would run it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    context = hub_at(tmp_path / "hub", settings=GATED)
    yield run(context.__aenter__())
    run(context.__aexit__(None, None, None))
    run(loop.shutdown_default_executor())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def open_client(hub, tmp_path, name="alice"):
    pin = HubPin.of_key(hub.identity.current_pk)
    return SyncClient.connect(
        hub.url, pin=pin, identity=person(name), keyring=RING, home=Home.at(tmp_path / f"home-{name}")
    )


def test_every_verb_works_without_an_event_loop(hub, tmp_path):
    with open_client(hub, tmp_path) as client:
        grant = client.authorize(token_for(person("alice").client_id))
        assert client.cap_status(grant.auth_ref) == grant
        sent = client.send("orders", b"hello", attachments=[b"a file"])
        assert sent.receipt.stream_seq == 1
        assert [outcome.seq for outcome in client.send_many("orders", [b"1", b"2"])] == [2, 3]
        prepared = client.prepare("orders", [b"3"])
        assert [outcome.seq for outcome in client.submit_prepared("orders", prepared)] == [4]
        entries = list(client.read("orders"))
        assert [entry.body for entry in entries] == [b"hello", b"1", b"2", b"3"]
        assert client.attachment(entries[0], 0) == b"a file"
        assert client.receipt("orders", 1) == sent.receipt
        assert client.proof("orders", 1, tree_size=4).tree_size == 4
        assert client.consistency("orders", 1, 4).to_size == 4
        assert client.checkpoint("orders").upto_seq == 4
        assert client.resync("orders").client_seq == 4
        assert client.cursor("orders", 2).leaf == entries[1].msg.leaf_hash()
        assert client.recover("orders") == []
        assert client.status().hub_id == client.identity().hub_id == client.pin.hub_id
        assert client.label("orders") == sent.label


def test_a_live_tail_is_a_generator_that_may_be_left(hub, tmp_path):
    with open_client(hub, tmp_path) as writer, open_client(hub, tmp_path, "bob") as reader:
        writer.authorize(token_for(person("alice").client_id))
        tail = reader.follow("orders", from_seq=1)
        writer.send("orders", b"one")
        assert next(tail).body == b"one"
        writer.send("orders", b"two")
        assert next(tail).body == b"two"
        tail.close()
        assert [entry.seq for entry in reader.read("orders", from_seq=2)] == [2]


def test_errors_are_those_of_the_client(hub, tmp_path):
    with open_client(hub, tmp_path) as client, pytest.raises(HubRefused):
        client.send("orders", b"no capability")
    with pytest.raises(NotPinned):
        SyncClient.connect(hub.url, pin=None, identity=person("eve"), home=Home.at(tmp_path / "eve"))

    def nobody_there():
        pin, home = HubPin.of_key(b"k" * 32), Home.at(tmp_path / "eve")
        retry = Retry(seconds=0.0)
        return Client.connect("http://127.0.0.1:1", pin=pin, identity=person("eve"), home=home, retry=retry)

    with pytest.raises(Unreachable):
        SyncClient(nobody_there)


# --- interrupts -------------------------------------------------------------------------------------------


class InterruptAt:
    """Raise KeyboardInterrupt before the n-th instruction of this thread in sync.py, threading.py or asyncio.
    Ctrl-C does the same, at a moment that nobody chooses."""

    FILES = (sync.__file__, threading.__file__, asyncio.base_events.__file__, asyncio.selector_events.__file__)

    def __init__(self, instruction):
        self.left, self.reached = instruction, False

    def __enter__(self):
        sys.settrace(self._trace)

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, event, _arg):
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.left -= 1
            if self.left < 0 and not self.reached:
                self.reached = True
                raise KeyboardInterrupt
        return self._trace


def read_two(loop):
    """Read two values and wait for a third; the generator ends slowly, as one that says goodbye to a hub."""
    events = []

    async def values():
        try:
            for value in (1, 2):
                await asyncio.sleep(0)
                yield value
        finally:
            await asyncio.sleep(0.001)
            events.append("ended")

    list(sync._each(loop, values()))
    return events


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # the interrupt came before it could be
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_at_any_moment_is_all_that_the_caller_sees():
    """An interrupt between two instructions ended in RuntimeError, which is exit 5 instead of 130."""
    loop = LoopThread()
    moments = 0
    try:
        for instruction in itertools.count():
            interrupt = InterruptAt(instruction)
            try:
                with interrupt:
                    read_two(loop)
            except KeyboardInterrupt:
                moments += 1
            assert loop.run(asyncio.sleep(0, "goes on")) == "goes on"
            if not interrupt.reached:
                break
    finally:
        loop.close()
    assert moments > 100


UNCLOSED = """
import atexit, threading
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))  # runs last
from veen.client.sync import LoopThread
import asyncio
LoopThread().run(asyncio.sleep(0))
"""


def test_a_client_that_nobody_closed_leaves_no_thread_behind_at_exit():
    """REVIEW, the segmentation fault: a daemon thread goes on while the interpreter is torn down."""
    done = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, check=True)
    assert done.stdout == "['MainThread']\n"
