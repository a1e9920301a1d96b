"""`veen disc` and `veen connect` with two hubs: a directory on one, a service on the other."""

import json
import os
import subprocess
import sys
import time

import pytest
from tests.cli import shapecheck
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV
from tests.cli.test_op_commands import Issuer
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.cli.shared.shapes import shapes

NAMES = ("disc.hubs.v1", "disc.overlays.v1", "disc.services.v1")


@pytest.fixture
def fabric(tmp_path):
    """A directory hub, a service hub that asks for tokens, an operator and a caller who knows the directory only."""
    root = tmp_path
    operator = Issuer(root / "operator")
    gated = ("--set", "admission.capability_gating=true", "--set", "admission.stream_scope=enforced",
             "--set", f"admission.trusted_issuers={operator.me['id_sign_pk']}")  # fmt: skip
    with running(root / "directory", *DEV) as directory, running(root / "service", *DEV, *gated) as service:
        operator.run("context", "add", "dir", "--hub", directory.url, "--pin", directory.about["hub_pk"], "--use")
        operator.run("context", "add", "svc", "--hub", service.url, "--pin", service.about["hub_pk"])
        operator.new_stream("app/calls")
        for name in NAMES:
            operator.new_stream(name)
        caller = Person(root / "caller", directory, "caller")
        for name in (*NAMES, "app/calls"):
            caller.join(operator, name)
        yield operator, caller, service


@pytest.mark.req("DISC-01", "DISC-05", "DISC-07", "CONN-07")
def test_descriptors_are_published_listed_asked_for_and_retired(fabric):
    operator, caller, _ = fabric
    crdt = operator.json("disc", "advertise", "overlay", "crdt", "--tag", "beta")
    assert crdt["counted"]
    hub = operator.json("disc", "advertise", "hub", "--region", "here")
    first = operator.json("disc", "advertise", "service", "clock", "--method", "now", "--stream", "app/calls")
    assert [row["id"] for row in caller.json("disc", "list")["listings"]] == [hub["id"], crdt["id"], first["id"]]
    matches = caller.json("disc", "query", "service", "--method", "now")["results"]
    assert [row["name"] for row in matches] == ["clock"]
    stolen = caller.json("disc", "advertise", "overlay", "crdt", code=Exit.POLICY)
    assert stolen["code"] == "DISC.PUBLISHER"
    assert caller.json("disc", "query", "overlay", "--method", "now", code=Exit.POLICY)["code"] == "DISC.FILTER"
    until(lambda: time.time() > first["hub_ts"] + 1)  # what is retired within the second was never there at its end
    for kind, made_id in (("service", first["id"]), ("hub", hub["id"]), ("overlay", crdt["id"])):
        operator.json("disc", "retire", kind, made_id, "--reason", "test is over")
    assert caller.json("disc", "list")["listings"] == []
    assert len(caller.json("disc", "list", "--all")["listings"]) == 3
    before = caller.json("disc", "list", "--as-of", f"@{first['hub_ts']}")  # history at any moment
    assert first["id"] in [row["id"] for row in before["listings"]]
    caller.run("disc", "list", "--all")


@pytest.mark.req("CONN-01", "CONN-02", "CONN-04", "CONN-05", "CONN-06")
def test_a_service_found_by_a_method_becomes_a_pinned_connection_that_works(fabric, tmp_path):
    operator, caller, service = fabric
    nothing = caller.json("connect", "apply", "calc", "--method", "add", code=Exit.POLICY)
    assert nothing["code"] == "CONNECT.NO_HUB"
    operator.json("disc", "advertise", "overlay", "rpc")
    operator.json("disc", "advertise", "hub", "--of", "svc", "--region", "north", "--overlay", "rpc")
    operator.json(
        "disc", "advertise", "service", "calc", "--method", "add", "--stream", "app/calls", "--region", "north",
        "--auth", "cap_token", "--needs", "write",
    )  # fmt: skip
    planned = caller.json("connect", "plan", "--method", "add", "--region", "north")
    assert [hub["url"] for hub in planned["hubs"]] == [service.url]
    assert planned["token_request"]["subject"] == caller.client_id
    caller.run("connect", "plan", "--method", "add")
    assert caller.json("connect", "apply", "calc", "--method", "sub", code=Exit.POLICY)["code"] == "CONNECT.NO_SERVICE"
    assert caller.json("connect", "apply", "calc", "--method", "add", code=Exit.POLICY)["code"] == "CONNECT.TOKEN"
    cap = tmp_path / "calc.cap"
    operator.run("cap", "issue", "--subject", caller.card, "--stream", "app/calls", "--ttl", "1h", "--out", cap)
    wanted = ("connect", "apply", "calc", "--method", "add", "--cap", cap)
    assert caller.json(*wanted, code=Exit.POLICY)["code"] == "CONNECT.PIN"
    other = f"ed25519:{'ab' * 32}"
    assert caller.json(*wanted, "--confirm", other, code=Exit.BAD_EVIDENCE)["code"] == "CONNECT.IDENTITY"
    bound = caller.json(*wanted, "--confirm", service.about["hub_pk"])
    assert (bound["url"], bound["name"], bool(bound["auth_ref"])) == (service.url, "calc", True)
    own = tmp_path / "own.cap"
    operator.run("cap", "issue", "--subject", operator.card, "--stream", "app/calls", "--ttl", "1h", "--out", own)
    command = ["rpc", "serve", "app/calls", "--exec", "add=/bin/echo 3", "--cap", str(own), "--context", "svc"]
    env = {**os.environ, **operator.env}
    server = subprocess.Popen([sys.executable, "-m", "veen", *command], env=env, stdout=subprocess.DEVNULL)
    try:
        answer = caller.json("rpc", "call", bound["requests"], "add", "[1, 2]", "--context", "calc", "--timeout", "90s")
    finally:
        server.kill()
        server.wait()
    assert answer["result"] == 3


@pytest.mark.req("CONN-03")
def test_a_token_is_asked_of_the_issuer_once_and_its_expiry_is_remembered(fabric, tmp_path):
    """001 spec-5 §7.3: an RPC of an admin service; authorised at the chosen hub; auth_ref and expiry are kept."""
    operator, caller, service = fabric
    caller.join(operator, operator.new_stream("admin/tokens"))
    policy = tmp_path / "tokens.toml"
    policy.write_text(f'[[grant]]\nstreams = ["app/calls"]\nclients = ["{caller.client_id}"]\nttl_sec = 3600\n')
    operator.json("disc", "advertise", "overlay", "rpc")
    operator.json("disc", "advertise", "hub", "--of", "svc", "--overlay", "rpc")
    operator.json(
        "disc", "advertise", "service", "calc", "--method", "add", "--stream", "app/calls", "--auth", "cap_token",
        "--issuer", "admin/tokens", "--issuer-id", operator.client_id,
    )  # fmt: skip
    wanted = ("connect", "apply", "calc", "--method", "add", "--confirm", service.about["hub_pk"])
    alone = caller.json(*wanted, "--timeout", "1s", code=Exit.POLICY)  # nobody serves yet; the request stays in the log
    assert alone["code"] == "CONNECT.TOKEN"
    env = {**os.environ, **operator.env}
    command = [sys.executable, "-m", "veen", "cap", "serve", "admin/tokens", "--policy", str(policy), "--ndjson"]
    with (tmp_path / "served").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log)
    try:
        bound = caller.json(*wanted, "--timeout", "90s")
        assert bound["auth_ref"]
        assert abs(bound["expires_at"] - time.time() - 3600) < 120
        kept = json.loads((caller.root / "state" / "connect" / "calc.json").read_text())
        assert (kept["auth_ref"], kept["expires_at"]) == (bound["auth_ref"], bound["expires_at"])
        assert (kept["url"], kept["requests"]) == (service.url, bound["requests"])
        assert caller.json("send", bound["requests"], "x", "--context", "calc")["seq"] == 1  # the hub admits it
        asked = len(caller.json("rpc", "trace", "admin/tokens")["calls"])
        again = caller.json(*wanted)
        assert again["auth_ref"] == bound["auth_ref"]  # held, and not asked for again
        assert len(caller.json("rpc", "trace", "admin/tokens")["calls"]) == asked
        stranger = Person(tmp_path / "stranger", caller.hub, "stranger")
        for name in (*NAMES, "app/calls", "admin/tokens"):
            stranger.join(operator, name)
        denied = stranger.json(*wanted, "--timeout", "90s", code=Exit.POLICY)
        assert (denied["code"], "ISSUE.DENIED" in denied["cause"]) == ("CONNECT.TOKEN", True)
    finally:
        server.kill()
        server.wait()


@pytest.mark.req("CONN-05")
def test_a_hub_that_is_not_the_advertised_one_is_not_used(fabric):
    operator, caller, _ = fabric
    here = operator.json("context", "show", "dir")
    operator.json("disc", "advertise", "overlay", "rpc")
    operator.json("disc", "advertise", "hub", "--of", "svc", "--url", here["hub"])  # the address of another hub
    operator.json("disc", "advertise", "service", "calc", "--method", "add", "--stream", "app/calls")
    error = caller.json("connect", "apply", "calc", "--method", "add", code=Exit.BAD_EVIDENCE)
    assert error["code"] == "CONNECT.IDENTITY"


@pytest.mark.req("CONN-07", "DISC-08")
def test_a_server_answers_what_a_local_fold_answers(fabric):
    operator, caller, _ = fabric
    caller.join(operator, operator.new_stream("questions"))
    operator.json("disc", "advertise", "overlay", "kv", "--tag", "rpc-test")
    env = {**os.environ, **operator.env}
    command = [sys.executable, "-m", "veen", "disc", "serve", "questions", "--ndjson"]
    server = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    try:
        asked = caller.json("disc", "query", "overlay", "--tag", "rpc-test", "--at", "questions", "--timeout", "90s")
        assert server.stdout is not None
        line = server.stdout.readline()
        assert json.loads(line)["ok"]
        shapecheck.check(["disc", "serve", "--ndjson"], 0, line, "")
    finally:
        server.kill()
        server.communicate()
    assert operator.json("disc", "serve", "questions", "--for", "1s").keys() == {"questions"}
    assert asked == caller.json("disc", "query", "overlay", "--tag", "rpc-test")


def test_a_watcher_sees_what_is_published_as_docs_json_describes_it(fabric, tmp_path):
    operator, caller, _ = fabric
    lines = tmp_path / "records.ndjson"
    command = [sys.executable, "-m", "veen", "disc", "watch", "--ndjson"]
    with lines.open("w") as stdout:
        watcher = subprocess.Popen(command, env={**os.environ, **caller.env}, stdout=stdout)
    try:

        def is_seen():
            """Nobody says when the watcher has begun: publish until it sees something."""
            operator.json("disc", "advertise", "overlay", "crdt", "--tag", "beta")
            return "\n" in lines.read_text()

        until(is_seen)
    finally:
        watcher.kill()
        watcher.communicate()
    first = lines.read_text().splitlines()[0]
    shapecheck.check(["disc", "watch", "--ndjson"], 0, first, "")
    record = json.loads(first)
    (listing,) = caller.json("disc", "list")["listings"]
    assert (record["id"], record["publisher"]) == (listing["id"], listing["publisher"])
    element = shapes()["disc watch"]["schema"]["properties"]["records"]["items"]
    assert set(record) == set(element["properties"]) == set(element["required"])
