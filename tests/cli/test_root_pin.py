"""The root of an ephemeral hub, pinned by a context: all commands follow it from hub to hub (D-121)."""

import json
import shutil
import time
from types import SimpleNamespace

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk

from veen.cli.shared.output import Exit
from veen.core.crypto.ed25519 import SigningKey
from veen.storage.keys.identity import write_private_key

OTHER = f"root:ed25519:{'b' * 64}"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where a disposable hub runs: its root is made by the command that the documents name."""
    monkeypatch.chdir(tmp_path)
    keys, data = tmp_path / "root", tmp_path / "hub"
    root = SigningKey(b"\x07" * 32)
    write_private_key(keys, root)
    options = (*DEV, "--keys-dir", keys, "--set", "identity=ephemeral")
    pin = f"root:ed25519:{root.public.hex()}"
    return SimpleNamespace(data=data, pin=pin, run=lambda: running(data, *options))


class Person(Talk):
    """Pins what the hub says that its clients pin."""

    def point_at(self, hub, name="dev"):
        self.run("context", "add", name, "--hub", hub.url, "--pin", hub.about["pin"], "--use", "--replace")


def test_a_context_with_a_root_goes_on_with_the_next_hub(tmp_path, place):
    with place.run() as hub:
        assert hub.about["pin"] == place.pin
        talk = Person(tmp_path / "home", hub)
        assert talk.json("context", "show", "dev")["hub_pk"] == place.pin
        stream = talk.new_stream("root/pinned")
        old_id, old_pk = hub.about["hub_id"], hub.about["hub_pk"]
        talk.say(stream, "a", "b")
        talk.run("receipt", "get", stream, "2", "--out", "receipt.cbor")
        assert "hub_id" not in talk.json("context", "show", "dev")  # a root leaves it open
        assert talk.json("label", "derive", stream)["hub_id"] == old_id
        ok = [finding["what"] for finding in talk.json("doctor")["findings"] if finding["about"] == "context dev"]
        assert any(f"hub {old_id}, which the pinned root signed" in what for what in ok)
        shown = talk.json("hub", "key", "show", "--data-dir", place.data)
        assert (shown["hub_id"], shown["root_pin"]) == (old_id, place.pin)
    shutil.copytree(place.data, tmp_path / "archive", ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(place.data)
    with place.run() as hub:
        talk.run("config", "set", "context.dev.hub", hub.url)
        new_id = hub.about["hub_id"]
        done = talk.invoke("stream", stream, "--ndjson")
        assert (done.exit_code, done.stdout) == (0, "")
        assert f"a new hub answers at {hub.url}: its hub_id is {new_id}" in done.stderr
        assert json.loads(done.stderr)["replaced_hubs"] == [old_id]
        talk.say(stream, "c")
        again = talk.invoke("stream", stream, "--ndjson")
        assert "a new hub answers" not in again.stderr
        assert [entry["seq"] for entry in talk.entries(stream)] == [1]
        assert talk.json("label", "derive", stream)["hub_id"] == new_id
        hub_ids = {row["hub_id"] for row in talk.json("verify-state")["labels"]}
        assert hub_ids == {old_id, new_id}
    # What the old hub signed still verifies, offline and by the context alone.
    assert talk.json("receipt", "verify", "receipt.cbor")["ok"]
    assert talk.json("receipt", "verify", "receipt.cbor", "--hub-pk", old_pk)["ok"]
    refused = talk.json("receipt", "verify", "receipt.cbor", "--hub-pk", hub.about["hub_pk"], code=Exit.BAD_EVIDENCE)
    assert refused["code"] == "E.VERIFY"
    for command in (["hub", "verify-data", "archive"], ["verify", "archive"]):
        report = talk.json(*command)
        assert (report["keys"], report["pin"]) == ("pinned", place.pin), command
    report = talk.json("hub", "verify-data", "archive", "--pin", f"{place.pin}:{old_id}")
    assert report["pin"] == f"{place.pin}:{old_id}"
    for pin in (OTHER, f"{place.pin}:{new_id}"):
        done = talk.run("hub", "verify-data", "archive", "--pin", pin, "--json", code=Exit.BAD_EVIDENCE)
        assert '"pin"' in done.stdout
        assert "E.VERIFY.PIN" in done.stderr


def test_a_hub_that_the_root_did_not_sign_is_refused_by_every_command(tmp_path, place):
    with place.run() as hub, running(tmp_path / "durable", *DEV) as durable:
        talk = Person(tmp_path / "home", hub)
        stream = talk.new_stream("root/strange")
        for url, pin in ((durable.url, place.pin), (hub.url, OTHER), (hub.url, place.pin.replace("root:", ""))):
            talk.run("context", "add", "dev", "--hub", url, "--pin", pin, "--replace")
            for command in (["stream", stream], ["send", stream, "a"], ["resync", stream]):
                assert talk.json(*command, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.FOREIGN_KEY", command
            talk.json("doctor", code=Exit.BAD_EVIDENCE)
        talk.run("context", "add", "dev", "--hub", hub.url, "--pin", place.pin, "--hub-id", "c" * 64, "--replace")
        assert talk.json("stream", stream, code=Exit.BAD_EVIDENCE)["code"] == "E.DIVERGED.HUB_ID"
        report = talk.json("doctor", code=Exit.BAD_EVIDENCE)
        assert any("another hub_id" in str(finding) for finding in report["findings"])


def test_an_older_hub_of_the_root_is_named_and_explained(tmp_path, place):
    with place.run() as hub:
        talk = Person(tmp_path / "home", hub)
        stream = talk.new_stream("root/older")
        talk.say(stream, "a")
        old_id = hub.about["hub_id"]
    shutil.copytree(place.data, tmp_path / "kept", ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(place.data)
    began = json.loads((tmp_path / "kept" / "hub-identity.json").read_text())["hub_keys"][0]["valid_from"]
    while int(time.time()) <= began:  # hubs that began in the same second may take each other's place
        time.sleep(0.05)
    with place.run() as hub:
        talk.run("config", "set", "context.dev.hub", hub.url)
        notes = talk.run("stream", stream, "--quiet").stderr
        assert f"kept: {old_id}" in notes
    shutil.rmtree(place.data)
    shutil.copytree(tmp_path / "kept", place.data, ignore=shutil.ignore_patterns("*.sock"))
    with place.run() as hub:
        talk.run("config", "set", "context.dev.hub", hub.url)
        notes = talk.json("stream", stream, code=Exit.BAD_EVIDENCE)
        assert notes["code"] == "E.DIVERGED.OLDER_HUB"
        assert "--hub-id" in notes["hint"]
        talk.run("context", "add", "dev", "--hub", hub.url, "--pin", place.pin, "--hub-id", old_id, "--replace")
        assert [entry["seq"] for entry in talk.entries(stream)] == [1]
    assert "pin the hub_id as well" in talk.run("explain", "E.DIVERGED.OLDER_HUB").stdout


def test_the_command_that_makes_a_root_says_how_it_is_pinned(tmp_path, place):
    with place.run() as hub:
        talk = Person(tmp_path / "home", hub)
    result = talk.json("hub", "key", "create", "--keys-dir", tmp_path / "another")
    assert result["root_pin"] == f"root:{result['hub_pk']}"
    assert talk.json("context", "pin", "dev", result["root_pin"], "--replace")["hub_pk"] == result["root_pin"]
    for wrong in ("root:", "root:ed25519:00", f"top:ed25519:{'a' * 64}"):
        assert "expected ed25519:" in talk.run("context", "pin", "dev", wrong, "--replace", code=Exit.USAGE).stderr
