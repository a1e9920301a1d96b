"""`veen id stolen` against a real hub, with a thief who has a copy of the home."""

import shutil
import time
from datetime import UTC, datetime

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.overlay_people import world
from tests.cli.talk import DEV

from veen.cli.shared.output import Exit

STREAM = "deals"


@pytest.fixture
def people(tmp_path):
    token = tmp_path / "admin.token"
    token.write_text("a" * 64)
    token.chmod(0o600)
    options = (*DEV, "--set", "admission.kex1_plus=true", "--set", f"auth.admin_token_files={token}")
    with world(tmp_path, "alice", "bob", options=options) as (hub, alice, bob):
        alice.run("contacts", "add", "bob", bob.card)
        bob.run("contacts", "add", "alice", alice.card)
        alice.new_stream(STREAM)
        alice.run("send", STREAM, "before the theft")
        alice.run("invite", STREAM, "--for", "bob", "--out", tmp_path / "bob.invite")
        bob.run("join", tmp_path / "bob.invite", "--no-use")
        shutil.copytree(alice.root, tmp_path / "mallory")
        token_file = ("--token-file", token)
        alice.run("context", "add", "dev", "--hub", hub.url, "--pin", hub.about["hub_pk"], *token_file, "--replace")
        joined = time.time()
        while int(time.time()) <= joined:  # bob was a reader in a second before the theft
            time.sleep(0.01)
        yield hub, alice, bob, Cli(tmp_path / "mallory")


def states(report):
    return {row["stream"]: row["state"] for row in report["streams"]}


def test_one_command_takes_the_identity_back(people):
    _, alice, bob, mallory = people
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    mallory.run("send", STREAM, "by the thief")
    refused = alice.json("id", "stolen", code=Exit.LOCAL)
    assert "--yes" in str(refused)
    done = alice.json("id", "stolen", "--yes", "--since", since)
    assert states(done) == {STREAM: "done"}
    assert done["hubs"][0]["refuses"]
    assert done["remaining"] == []
    assert [row["seq"] for row in done["streams"][0]["disputed"]] == [done["streams"][0]["position"] - 2]
    assert [row["who"] for row in done["others"]] == ["bob"]
    assert alice.json("id", "show")["card_id"] == done["card_id"]
    again = alice.json("id", "stolen")
    assert [(row["position"], row["generation"]) for row in again["streams"]] == [
        (row["position"], row["generation"]) for row in done["streams"]
    ]
    alice.run("send", STREAM, "by the owner")
    assert bob.entries(STREAM, "--last", 1)[0]["body"] == "by the owner"
    assert "no read key" in mallory.run("stream", STREAM, "--last", 1, "--format", "{error}").stdout
    late = mallory.json("id", "stolen", "--yes", code=Exit.POLICY)
    assert states(late) == {STREAM: "thief_first"}
    shown = alice.run("id", "stolen", VEEN_FORCE_TTY="1").stdout
    assert "refuses the old keys" in shown


def test_where_the_thief_was_first_nothing_is_written_and_it_is_said(people):
    _, alice, bob, mallory = people
    first = mallory.json("id", "stolen", "--yes")
    assert [row["who"] for row in first["others"] if "administrator" in row["who"]]
    size = len(bob.entries(STREAM))
    late = alice.json("id", "stolen", "--yes", "--since", "-1h", code=Exit.POLICY)
    (row,) = late["streams"]
    assert row["state"] == "thief_first"
    assert row["position"] == first["streams"][0]["position"]
    assert row["successor"] == first["streams"][0]["successor"]
    assert row["disputed"]
    assert len(bob.entries(STREAM)) == size
    assert late["hubs"][0]["refuses"]
    assert "successor" in alice.run("id", "stolen", code=Exit.POLICY, VEEN_FORCE_TTY="1").stdout


def test_a_hub_that_does_not_answer_stays_on_the_list_and_the_others_go_on(people, tmp_path):
    _, alice, *_ = people
    with running(tmp_path / "other", *DEV) as other:
        alice.point_at(other, "away")
    report = alice.json("id", "stolen", "--yes", "--wait", "0", code=Exit.POLICY)
    rows = {row["hub"]: row for row in report["hubs"]}
    assert (rows["away"]["reached"], rows["dev"]["refuses"]) == (False, True)
    assert states(report) == {STREAM: "done"}
    with running(tmp_path / "other", *DEV) as other:
        alice.run("context", "add", "away", "--hub", other.url, "--pin", other.about["hub_pk"], "--replace")
        report = alice.json("id", "stolen")
    assert report["remaining"] == []
    assert {row["reached"] for row in report["hubs"]} == {True}
