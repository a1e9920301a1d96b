"""Who answers at the address of a context: the command line believes nobody but the pinned key about hub_id (D-174)."""

import asyncio
import contextlib
import shutil
import threading
import time
from types import SimpleNamespace

from tests.cli.hubprocess import report, running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV, Talk
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.client.transport.http import HttpTransport
from veen.core.crypto.ed25519 import SigningKey
from veen.io.local import OsFs
from veen.storage.keys import identity as identities
from veen.testing.hostile import HostileHub, InventsFirstKey, serve

FOREIGN = SigningKey(b"\x66" * 32)
TOKEN = "an-administrator-token-0123456789"


@contextlib.contextmanager
def wire_to(hub):
    """A hostile wire in front of a hub, in a thread of its own: `url`, and `lies` that tests change."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    wire, closing = HostileHub(HttpTransport(hub.url)), contextlib.AsyncExitStack()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    try:
        url = run(closing.enter_async_context(serve(wire)))
        yield SimpleNamespace(url=url, about=hub.about, lies=wire.lies)
    finally:
        run(closing.aclose())
        run(wire.aclose())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def hub_key(hub):
    return next(iter(identities.load(OsFs(hub.data_dir)).private.values()))


def test_the_context_learns_the_hub_id_once_and_holds_the_hub_to_it(tmp_path, monkeypatch, hub):
    """`veen stream`, `veen resync`, `veen send`: an invented older first key is refused, whoever signs it."""
    monkeypatch.chdir(tmp_path)
    with wire_to(hub) as wire:
        talk = Talk(tmp_path / "home", wire)
        stream = talk.new_stream("identity/learned")
        assert "hub_id" not in talk.json("context", "show", "dev")
        talk.say(stream, "a", "b")
        hub_id = talk.json("context", "show", "dev")["hub_id"]
        assert hub_id == hub.about["hub_id"]
        for signer in (None, hub_key(hub)):
            wire.lies[:] = [InventsFirstKey(FOREIGN, signer)]
            for command in (
                ["stream", stream],
                ["resync", stream],
                ["resync", stream, "--from-scratch"],
                ["send", stream, "c"],
            ):
                assert talk.json(*command, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.HUB_ID", command
        shutil.rmtree(talk.root / "state")  # the context alone remembers as well
        assert talk.json("resync", stream, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.HUB_ID"
        wire.lies.clear()
        assert [entry["seq"] for entry in talk.entries(stream)] == [1, 2]
        assert talk.json("label", "derive", stream)["hub_id"] == hub_id


def test_a_stranger_is_refused_at_first_contact_too(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    with wire_to(hub) as wire:
        talk = Talk(tmp_path / "home", wire)
        stream = talk.new_stream("identity/first")
        wire.lies.append(InventsFirstKey(FOREIGN))
        assert talk.json("stream", stream, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.FOREIGN_KEY"
        assert "hub_id" not in talk.json("context", "show", "dev")


def test_the_hub_id_goes_with_its_key(tmp_path, monkeypatch, hub):
    """Another pin forgets it; --pin without a context does not use it."""
    monkeypatch.chdir(tmp_path)
    talk = Talk(tmp_path / "home", hub)
    stream = talk.new_stream("identity/moves")
    talk.say(stream, "a")
    other = f"ed25519:{'b' * 64}"
    assert talk.json("context", "show")["hub_id"]["value"] == hub.about["hub_id"]
    assert "hub_id" not in talk.json("context", "show", VEEN_PIN=other)
    for change in (
        ["context", "pin", "dev", other, "--replace"],
        ["config", "set", "context.dev.hub_pk", other],
        ["context", "add", "dev", "--hub", hub.url, "--pin", other, "--replace"],
    ):
        talk.run("config", "set", "context.dev.hub_pk", hub.about["hub_pk"])
        talk.run("config", "set", "context.dev.hub_id", hub.about["hub_id"])
        talk.run(*change)
        assert "hub_id" not in talk.json("context", "show", "dev"), change
    talk.run("context", "add", "dev", "--hub", hub.url, "--pin", hub.about["hub_pk"], "--hub-id", "c" * 64, "--replace")
    assert talk.json("stream", stream, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.HUB_ID"
    report = talk.json("doctor", code=Exit.BAD_EVIDENCE)
    assert any("another hub_id" in str(finding) for finding in report["findings"])


def test_a_token_does_not_leave_for_another_machine_in_the_clear(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    talk = Talk(tmp_path / "home", hub)
    stream = talk.new_stream("identity/token")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    there = ["--hub", "http://hub.invalid", "--token-file", token]
    commands = (["stream", stream, *there, "--pin", hub.about["hub_pk"], "--wait", "0"], ["hub", "status", *there])
    for command in commands:
        error = talk.json(*command, code=Exit.LOCAL)
        assert error["code"] == "E.LOCAL.PLAIN_HTTP"
        assert "--insecure-http" in error["hint"]
        assert talk.json(*command, "--insecure-http", code=Exit.NETWORK)["code"] == "E.NET.UNREACHABLE"
        assert talk.json(*command, code=Exit.NETWORK, VEEN_INSECURE_HTTP="true")["code"] == "E.NET.UNREACHABLE"
    token.chmod(0o644)
    for command in (["stream", stream, "--token-file", token], ["hub", "status", "--token-file", token]):
        assert talk.json(*command, code=Exit.LOCAL)["code"] == "E.LOCAL.PERMISSIONS"


def test_keys_that_others_may_read_are_not_used(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    talk = Talk(tmp_path / "home", hub)
    (keystore,) = talk.root.rglob("keystore.enc")
    keystore.chmod(0o644)
    error = talk.json("send", "identity/keys", "a", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.PERMISSIONS"
    assert "chmod 600" in error["hint"]
    with running(tmp_path / "own", *DEV):
        pass
    (key,) = (tmp_path / "own" / "keys").glob("*.key")
    key.chmod(0o640)
    error = talk.json("hub", "key", "rotate", "--data-dir", tmp_path / "own", code=Exit.LOCAL)
    assert "mode 0640" in str(error)


def test_everybody_prints_the_first_key_as_the_pin_and_a_newcomer_verifies_everything_with_it(tmp_path):
    """Before and after a rotation, by the start of the hub, by its directory and by its address."""
    data = tmp_path / "hub"
    with running(data, *DEV) as hub:
        alice = Person(tmp_path / "alice", hub, "alice")
        alice.say(alice.new_stream("orders"), "before")
        first = hub.about["hub_pk"]
        assert hub.about["pin"] == first
        hub.stop()
    rotated = report("hub", "key", "rotate", data, "--overlap", "0s")["hub_pk"]
    until(lambda: time.time() > identities.read_identity(OsFs(data)).current.valid_from)
    with running(data, *DEV) as hub:
        assert hub.about["hub_pk"] == rotated != first
        assert hub.about["pin"] == first
        assert report("hub", "key", "show", data, "--only-pin") == {"pin": first}
        assert report("hub", "key", "show", "--hub", hub.url, "--only-pin") == {"pin": first}
        assert alice.json("send", "orders", "after", "--hub", hub.url, "--pin", first)["verified"]
        newcomer = Person(tmp_path / "newcomer", hub, "newcomer")
        newcomer.join(alice, "orders")
        with_pin = ("--hub", hub.url, "--pin", hub.about["pin"])
        assert [entry["body"] for entry in newcomer.entries("orders", *with_pin)] == ["before", "after"]
        later = Person(tmp_path / "later", hub, "later")  # what the newest key alone would give her
        later.join(alice, "orders")
        refused = later.run("stream", "orders", "--hub", hub.url, "--pin", rotated, code=Exit.BAD_EVIDENCE)
        assert "E.DIVERGED" in refused.stderr
