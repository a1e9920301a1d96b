"""`veen policy` with two hubs: records in the log of one, enforced by both."""

import json
import shutil
import subprocess
import sys
import time

import pytest
from tests.cli import shapecheck
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.overlays.federation.realm import admin_streams

ENFORCING = ("--set", "admission.kex1_plus=true", "--set", "admission.auth1=true", "--set", "admission.streams=orders")
ADMIN = "an-administrator-token-of-this-test"


@pytest.fixture
def world(tmp_path):
    token = tmp_path / "admin.token"
    token.write_text(ADMIN)
    token.chmod(0o600)
    options = (*DEV, *ENFORCING, "--set", f"auth.admin_token_files={token}")
    with running(tmp_path / "a", *options) as first, running(tmp_path / "b", *options) as second:
        admin = Person(tmp_path / "admin", first, "admin")
        for name, hub in (("a", first), ("b", second)):
            about = ("--hub", hub.url, "--pin", hub.about["hub_pk"], "--token-file", token)
            admin.run("context", "add", name, *about)
        bob = Person(tmp_path / "bob", first, "bob")
        bob.run("context", "add", "b", "--hub", second.url, "--pin", second.about["hub_pk"])
        bob.join(admin, admin.new_stream("orders"))
        yield admin, bob, first, second


def why(person, *args):
    """The refusal of a hub, None if the message was admitted."""
    result = person.invoke(*args, "--json")
    return None if result.exit_code == 0 else result.stderr + result.stdout


@pytest.mark.req("KEX1-08", "AUTH-03", "FED-06")
def test_revocations_and_primaries_go_from_the_log_to_both_hubs(world):
    admin, bob, first, _ = world
    bob.json("send", "orders", "one")
    revoked = admin.json("policy", "revoke", "client-id", bob.client_id, "--make-keys", "--context", "a")
    assert revoked["counted"]
    hub_id = first.about["hub_id"]
    admin.json("policy", "assign", "orders", "--primary", hub_id, "--make-keys", "--context", "a")
    shown = admin.json("policy", "show", "--context", "a", "--to", "a", "--to", "b")
    assert [hub["missing"] for hub in shown["hubs"]] == [2, 2]
    pushed = admin.json("policy", "push", "--context", "a", "--to", "a", "--to", "b")
    assert [(hub["revocations"], hub["authorities"]) for hub in pushed["hubs"]] == [(1, 1), (1, 1)]
    again = admin.json("policy", "push", "--context", "a", "--to", "a", "--to", "b")
    assert [(hub["revocations"], hub["authorities"]) for hub in again["hubs"]] == [(0, 0), (0, 0)]
    assert [hub["missing"] for hub in admin.json("policy", "show", "--context", "a", "--to", "b")["hubs"]] == [0]
    until(lambda: "the client key was revoked" in (why(bob, "send", "orders", "two") or ""))
    until(lambda: "primary" in (why(admin, "send", "orders", "three", "--context", "b") or ""))
    assert why(admin, "send", "orders", "three", "--context", "a") is None
    admin.run("policy", "show", "--context", "a")
    dropped = bob.json("policy", "drop", code=Exit.LOCAL)  # he has no key of the stream of revocations
    assert dropped["code"] == "E.LOCAL.STREAM"
    bob.join(admin, revoked["stream"])
    dropped = bob.json("policy", "drop")
    assert dropped["client_keys"] == [bob.client_id]
    assert why(bob, "send", "orders", "two") is None


def test_a_reader_of_the_revocation_stream_does_not_revoke_its_owner(world):
    """Without named emitters the records of the owner count, and nobody else's."""
    admin, bob, *_ = world
    ours = admin.json("policy", "revoke", "client-id", "ab" * 32, "--make-keys", "--context", "a")
    bob.join(admin, ours["stream"])
    attack = bob.json("policy", "revoke", "client-id", admin.client_id, code=Exit.POLICY)
    assert attack["code"] == "REALM.EMITTER"
    shown = admin.json("policy", "show", "--context", "a")
    assert [hub["missing"] for hub in shown["hubs"]] == [1]
    everybody = admin.json("policy", "show", "--context", "a", "--any-emitter")
    assert [hub["missing"] for hub in everybody["hubs"]] == [2]
    named = admin.json("policy", "show", "--context", "a", "--emitter", bob.client_id)
    assert [hub["missing"] for hub in named["hubs"]] == [1]
    admin.run("policy", "show", "--context", "a", "--any-emitter", "--emitter", bob.client_id, code=Exit.USAGE)


def test_an_emitter_is_an_identity_whatever_its_client_key_is(world, tmp_path):
    """A rotation changes no right, and the end of a binding takes it from the key at its place in the stream."""
    admin, bob, *_ = world
    stream = admin.json("policy", "revoke", "client-id", "ab" * 32, "--make-keys", "--context", "a")["stream"]
    bob.join(admin, stream)
    admin.run("contacts", "add", "bob", bob.card)

    def missing():
        return [hub["missing"] for hub in admin.json("policy", "show", "--context", "a", "--emitter", "bob")["hubs"]]

    for number, targets in enumerate(("cd" * 32, "ef" * 32), start=1):
        bob.json("policy", "revoke", "client-id", targets, "--emitter", "me")
        assert missing() == [number]
        bob.run("id", "rotate")
    thief = Person.__new__(Person)
    thief.root, thief.env = tmp_path / "thief", {**bob.env, "VEEN_HOME": str(tmp_path / "thief")}
    bob.json("policy", "revoke", "client-id", "01" * 32, "--emitter", "me")
    shutil.copytree(bob.root, thief.root, dirs_exist_ok=True)
    old = bob.json("id", "show")["client_id"]
    bob.run("id", "rotate")
    bob.run("id", "revoke-key", old, "--stream", stream)
    refused = thief.json("policy", "revoke", "client-id", "23" * 32, "--emitter", "me", code=Exit.POLICY)
    assert refused["code"] == "REALM.EMITTER"
    assert missing() == [3]


@pytest.mark.slow
@pytest.mark.req("KEX1-08")
def test_the_agent_runs_is_killed_and_runs_again(world, tmp_path):
    """From revoke to refusal: the agent hears of it at once, and the hub refuses from the next second on."""
    admin, bob, *_ = world
    admin.run("policy", "revoke", "auth-ref", "ab" * 32, "--make-keys", "--context", "a")
    env = {**admin.env, "PATH": "/usr/bin:/bin"}
    agent = Person.__new__(Person)
    agent.root, agent.env = tmp_path / "agent", {**admin.env, "VEEN_HOME": str(tmp_path / "agent")}
    agent.keygen("agent")
    for name in ("a", "b"):
        context = admin.json("context", "show", name)
        agent.run(
            "context", "add", name, "--hub", context["hub"], "--pin", context["hub_pk"],
            "--token-file", context["token_file"],
        )  # fmt: skip
    agent.join(admin, f"hex:{admin_streams().revocation.hex()}")
    command = [sys.executable, "-m", "veen", "policy", "run", "--context", "a", "--to", "a", "--to", "b", "--ndjson"]

    def start():
        return subprocess.Popen(
            command, env={**env, **agent.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    first = start()
    try:
        assert first.stdout is not None
        assert first.stderr is not None
        assert shapecheck.check_start(["policy", "run"], first.stderr.readline())["hubs"] == ["a", "b"]
        assert json.loads(first.stdout.readline())["revocations"] == 1
    finally:
        first.kill()
        first.communicate()
    second = start()
    try:
        bob.json("send", "orders", "one")
        admin.run("policy", "revoke", "client-id", bob.client_id, "--context", "a")
        began = time.monotonic()
        until(lambda: "the client key was revoked" in (why(bob, "send", "orders", "two") or ""))
        print(f"from revoke to refusal: {time.monotonic() - began:.2f} s")  # a figure, not a check
        until(lambda: admin.json("policy", "show", "--context", "a")["hubs"][0]["missing"] == 0)
    finally:
        second.kill()
        output = second.communicate()[0]
    assert {json.loads(line)["hub"] for line in output.splitlines()} <= {"a", "b"}
    shapecheck.check(["policy", "run", "--ndjson"], 0, output, "")
    assert agent.json("policy", "run", "--context", "a", "--to", "a", "--for", "1s").keys() == {"pushes"}
    (shown,) = admin.json("policy", "show", "--context", "a")["hubs"]
    assert shown["records"] <= 2  # each revocation once, whichever agent told it; two at once are one record


@pytest.mark.req("CAP-14")
def test_a_link_of_a_token_can_be_revoked_by_its_file(world, tmp_path):
    admin, bob, *_ = world
    path = tmp_path / "bob.cap"
    admin.run("cap", "issue", "--subject", bob.card, "--stream", "orders", "--ttl", "1h", "--out", path)
    by_link = admin.json("revoke", "publish", "cap-token", path, "--link", 1, "--make-keys", "--context", "a")
    by_bytes = admin.json("policy", "revoke", "cap-token", path, "--context", "a")
    assert by_link["target"] != by_bytes["target"]
    admin.run("policy", "revoke", "cap-token", path, "--link", 2, "--context", "a", code=Exit.USAGE)
    admin.run("policy", "revoke", "auth-ref", path, "--link", 1, "--context", "a", code=Exit.USAGE)
    admin.run("policy", "revoke", "auth-ref", "short", "--context", "a", code=Exit.USAGE)


def test_a_hub_that_takes_nothing_is_named(world):
    admin, _, first, _ = world
    admin.run("policy", "revoke", "client-id", "ab" * 32, "--make-keys", "--context", "a")
    admin.run("context", "add", "open", "--hub", first.url, "--pin", first.about["hub_pk"])  # without the token
    error = admin.json("policy", "push", "--context", "a", "--to", "open", "--to", "b", code=Exit.POLICY)
    assert [hub["revocations"] for hub in error["hubs"]] == [0, 1]
    assert error["hubs"][0]["trouble"]
    admin.run("policy", "push", "--context", "a", "--access", "orders", code=Exit.USAGE)
