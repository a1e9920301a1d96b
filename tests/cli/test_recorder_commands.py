"""The commands of a minimal recorder (001 products §3.5), all against one recorder and its hub."""

import json
from typing import Any

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.talk import DEV
from tests.cli.test_recorder import admin, init

from veen.cli.shared.output import Exit

ADMIN_TOKEN = "an-administrator-token-of-this-test"
STREAM = "record/app/web"


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "home")


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "admin.token"
    path.write_text(ADMIN_TOKEN)
    path.chmod(0o600)
    return path


@pytest.mark.req("SDR-13")
def test_every_command_of_a_minimal_recorder_works_on_one_recorder(tmp_path, token, cli):
    with running(tmp_path / "hub", *DEV, "--set", f"auth.admin_token_files={token}") as hub:
        about = init(cli, hub)
        at = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        web, owner = ("--identity", "web", *at), ("--identity", "recorder-admin", *at)

        # Emission: `send` with the fixed schema of the recorder. The hub's receipt comes back.
        body = tmp_path / "event.cbor"
        body.write_bytes(event_of(about["producers"]["web"]["client_id"]))
        sent = [cli.json("send", STREAM, "--file", body, "--schema", "sdr.event.v1", *web) for _ in range(3)]
        assert [row["seq"] for row in sent] == [1, 2, 3]

        # Management of streams: classes with a retention hint.
        cli.json("label-class", "set", STREAM, "log", "--retention", "36500d", "--make-keys", *owner)
        (row,) = cli.json("label-class", "show", STREAM, *owner)["labels"]
        assert (row["class"], row["advice"]["retention_sec"]) == ("log", 36_500 * 86_400)
        listed = cli.json("label-class", "list", *owner)["labels"]
        assert {row["class"] for row in listed} == {"log"}  # `init` gave it to every stream
        assert sent[0]["label"] in [row["label"] for row in listed]

        # A checkpoint that the hub signs over that log, and an anchor outside of it.
        out = tmp_path / "checkpoints"
        cli.json("hub", "checkpoint", "--data-dir", tmp_path / "hub", "--label", sent[0]["label"], "--out", out)
        (signed,) = out.iterdir()
        checked = cli.json("verify", signed, "--hub-pk", hub.about["hub_pk"])
        assert checked["verdict"]["value"] == "good"
        chain = tmp_path / "worm"
        anchored = cli.json("hub", "anchor", STREAM, "--file", chain, "--token-file", token, *owner)
        assert (anchored["label"], anchored["upto_seq"], anchored["recorded"]) == (sent[0]["label"], 3, True)
        assert cli.json("anchor", "verify", STREAM, "--file", chain, *owner)["ok"]

        # Replay with proofs, up to the anchored root.
        lines = cli.run("stream", STREAM, "--with-proofs", "--ndjson", *owner).stdout.splitlines()
        rows = [json.loads(line) for line in lines]
        assert [row["seq"] for row in rows] == [1, 2, 3]
        assert all(row["proof"] for row in rows)
        assert rows[-1]["receipt"]["mmr_root"] == anchored["root"]
        assert admin(cli, hub, "checkpoint")["written"]
        assert admin(cli, hub, "verify")["findings"] == []

        # The recorder's own tests: of this hub, and of a recorder on a hub of its own.
        assert all(check["ok"] for check in cli.json("selftest", "core", *at)["checks"])
    own = cli.json("selftest", "recorder")
    assert own["checks"]
    assert all(check["ok"] for check in own["checks"])
    assert cli.invoke("send", STREAM, "x", *web, "--wait", "0").exit_code != Exit.OK  # no hub, no receipt


@pytest.mark.req("SDR-03")
def test_a_hub_refuses_what_is_larger_than_the_bound_that_its_operator_set(tmp_path, token, cli):
    """001 products §3.2.2, D-127: whatever the sender enforces itself."""
    with running(tmp_path / "hub", *DEV, "--set", f"auth.admin_token_files={token}") as hub:
        init(cli, hub)
        at = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        web, owner = ("--identity", "web", *at), ("--identity", "recorder-admin", *at, "--token-file", token)
        label = cli.json("send", STREAM, "x" * 4_000, *web)["label"]
        (row,) = cli.json("policy", "bound", f"label:{label}", "3KiB", *owner)["bounds"]
        assert (row["kind"], row["max_msg_bytes"], row["new"]) == ("label", 3_072, True)
        assert not cli.json("policy", "bound", f"label:{label}", "3KiB", *owner)["bounds"][0]["new"]
        refused = cli.json("send", STREAM, "y" * 4_000, *web, code=4)
        assert refused["code"] == "E.SIZE"
        cli.json("policy", "bound", "record/app/*", "0", *owner)
        assert cli.json("policy", "bound", f"label:{label}", "0", *owner)["bounds"][0]["new"]
        assert cli.json("send", STREAM, "z" * 4_000, *web)["seq"] == 2


def event_of(client_id):
    """Return the body of an event of the client."""
    from veen.overlays.recorder import events as sdr

    payload: dict[str, Any] = {
        "subject_id": "alice",
        "event_type": "login",
        "event_time": 1_800_000_000,
        "origin": "shop",
    }
    return sdr.event(principal_id=bytes.fromhex(client_id), **payload).body
