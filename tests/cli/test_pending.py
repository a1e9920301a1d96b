"""Nothing behind one's back: what got no answer is kept, said, listed, sent once, or dropped."""

import json

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk
from tests.examples import spread

from veen.cli.shared.output import Exit
from veen.client.home import Home
from veen.client.state import StateStore

FULL = ("--set", "engine.min_free_bytes=9000000000000000")  # no disk has as much: the hub takes nothing


class Hubs:
    """One hub that is stopped and started again on its port, and somebody who writes to it."""

    def __init__(self, root):
        self.root = root
        self.port = None
        self.talk = None

    def start(self, *options):
        port = ("--port", self.port) if self.port else ()
        return running(self.root / "hub", *DEV, *port, *options)

    def meet(self, hub):
        self.port = hub.url.rpartition(":")[2]
        self.talk = Talk(self.root / "home", hub)
        return self.talk


@pytest.fixture
def hubs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Hubs(tmp_path)


def bodies(talk, stream):
    return [entry["body"] for entry in talk.entries(stream)]


def refused_once(hubs, stream, body):
    """A hub that is full: the message is sealed, refused for now, and kept."""
    with hubs.start(*FULL):
        return hubs.talk.json("send", stream, body, "--wait", 0, code=Exit.REFUSED)


@pytest.mark.req("CLNT-14")
def test_a_hub_that_is_full_keeps_the_message_and_the_retry_does_not_double_it(hubs):
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        stream = talk.new_stream("pending/payment")
        talk.json("send", stream, "first")
    error = refused_once(hubs, stream, "pay 40")
    assert error["code"] == "E.UNAVAILABLE"
    assert error["pending"] == 1
    again = refused_once(hubs, stream, "pay 40")
    assert again["pending"] == 1  # the same message, and no second one
    (message,) = talk.json("pending", "list")["messages"]
    assert (message["client_seq"], message["sealed"] is not None) == (2, True)
    with hubs.start():
        sent = talk.run("send", stream, "pay 40", "--json")
        assert json.loads(sent.stdout)["late"] is True
        assert json.loads(sent.stdout)["msg_id"] == message["msg_id"]
        assert "sent once" in json.loads(sent.stderr)["notice"]
        assert bodies(talk, stream) == ["first", "pay 40"]
        assert talk.json("pending", "list") == {"messages": []}
        assert talk.json("send", stream, "pay 40")["late"] is False  # another payment, now that nothing waits
        assert bodies(talk, stream) == ["first", "pay 40", "pay 40"]


def test_what_waits_is_listed_while_another_command_of_the_identity_runs(hubs):
    """walk A13."""
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        assert talk.json("pending", "list") == {"messages": []}
        stream = talk.new_stream("pending/busy")
        talk.json("send", stream, "first")
    refused_once(hubs, stream, "second")
    with Home.at(talk.root).lock("alice"):  # as a `tail` holds it
        (message,) = talk.json("pending", "list")["messages"]
    assert (message["client_seq"], message["sealed"] is not None) == (2, True)
    with StateStore.open(Home.at(talk.root), "alice") as store:  # with the file open, as a `tail` has it
        assert store.states_with_pending()
        assert talk.json("pending", "list")["messages"] == [message]


def test_what_the_error_says_to_people(hubs):
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        stream = talk.new_stream("pending/words")
        talk.json("send", stream, "first")
    down = talk.run("send", stream, "second", "--wait", 0, code=Exit.NETWORK).stderr
    assert "note:  no message is kept\n" in down
    with hubs.start(*FULL):
        full = talk.run("send", stream, "second", "--wait", 0, code=Exit.REFUSED).stderr
    assert "note:  the message is kept, and is sent once, by the next veen send to this stream" in full
    assert "veen pending list" in full


def test_a_late_delivery_is_announced_by_the_command_that_makes_it(hubs):
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        stream = talk.new_stream("pending/late")
        talk.json("send", stream, "first")
    refused_once(hubs, stream, "second")
    with hubs.start():
        sent = talk.run("send", stream, "third", "--json")
        notice = json.loads(sent.stderr)
        assert notice["delivered_late"]["seq"] == 2
        assert json.loads(sent.stdout)["seq"] == 3
        assert bodies(talk, stream) == ["first", "second", "third"]
        assert talk.run("send", stream, "fourth").stderr == ""  # told once


def test_again_sends_a_second_one_on_purpose(hubs):
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        stream = talk.new_stream("pending/again")
    refused_once(hubs, stream, "tick")
    with hubs.start():
        assert talk.json("send", stream, "tick", "--again")["late"] is False
        assert bodies(talk, stream) == ["tick", "tick"]


def test_pending_messages_are_sent_by_their_own_command(hubs):
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        streams = [talk.new_stream("pending/a"), talk.new_stream("pending/b")]
    for stream in streams:
        refused_once(hubs, stream, f"to {stream}")
    with hubs.start():
        result = talk.json("pending", "send", streams[0])
        assert (result["delivered"], result["not_delivered"]) == (1, 0)
        assert talk.json("pending", "send")["delivered"] == 1
        assert talk.json("pending", "send")["delivered"] == 0
        assert [bodies(talk, stream) for stream in streams] == [["to pending/a"], ["to pending/b"]]


@pytest.mark.parametrize("offline", spread([False, True], 1))
def test_a_dropped_message_is_never_sent_and_its_number_is_free_again(hubs, offline):
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        stream = talk.new_stream("pending/drop")
        talk.json("send", stream, "first")
    refused_once(hubs, stream, "second")
    if offline:
        label = talk.json("pending", "list")["messages"][0]["label"]
        assert talk.json("pending", "drop", stream, "--offline", code=Exit.USAGE)["code"] == "E.USAGE"
        assert talk.json("pending", "drop", f"label:{label}", "--offline")["dropped"] == 1
    with hubs.start():
        if not offline:
            assert talk.json("pending", "drop", stream) == {"dropped": 1, "in_log": 0, "hub_asked": True}
        assert talk.json("send", stream, "third")["client_seq"] == 2
        assert bodies(talk, stream) == ["first", "third"]
    talk.run("pending", "drop", code=Exit.USAGE)


def test_the_state_tells_nothing_of_a_message_that_waits(hubs):
    with hubs.start() as hub:
        talk = hubs.meet(hub)
        stream = talk.new_stream("pending/secret")
    refused_once(hubs, stream, "confidential body")
    state = b"".join(path.read_bytes() for path in (talk.root / "state").rglob("*") if path.is_file())
    assert b"confidential body" not in state
