"""The blocking twin: the same verbs, from a program without an event loop."""

import asyncio
import threading

import pytest
from tests.client.hubs import GATED, RING, hub_at, person, token_for

from veen.client.client import Client
from veen.client.errors import HubRefused, NotPinned, Unreachable
from veen.client.home import Home
from veen.client.sync import SyncClient
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
