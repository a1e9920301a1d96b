"""Contexts that ask for witnesses: commands refuse or warn where a hub lacks the cosignatures of the policy."""

import json

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import DEV, running
from tests.waiting import until

from veen.api.blocking import connect
from veen.cli.shared.output import Exit
from veen.client.home import Home
from veen.core.tlog.tree import QuorumError

OUTER = (*DEV, "--port", "0", "--set", "outer.origin=hub.example/veen", "--set", "outer.every=1")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hub") / "data", *OUTER) as process:
        yield process


@pytest.fixture
def alice(tmp_path, hub):
    cli = Cli(tmp_path / "home")
    cli.keygen()
    cli.run("context", "add", "dev", "--hub", hub.url, "--pin", hub.about["hub_pk"], "--identity", "alice", "--use")
    cli.run("id", "keyring", "new", "orders")
    until(lambda: cli.invoke("witness", "show", "--json").exit_code == 0)
    return cli


def policy(tmp_path, alice, *lines):
    path = tmp_path / "hub.policy"
    log = alice.json("witness", "show", "--line")["line"]
    path.write_text("\n".join([log, *lines]) + "\n")
    return path


def witness_line(alice, tmp_path):
    return alice.json("witness", "key", tmp_path / "w", "--name", "w.example")["line"].replace("w.example ", "w ", 1)


def ask_for(alice, hub, path, *options):
    pin = ("--hub", hub.url, "--pin", hub.about["hub_pk"], "--identity", "alice")
    alice.run("context", "add", "dev", *pin, "--witness-policy", path, *options, "--replace")


def test_a_hub_with_the_cosignatures_of_the_policy_is_used(alice, hub, tmp_path):
    ask_for(alice, hub, policy(tmp_path, alice, "quorum none"))
    assert alice.json("send", "orders", "hello")["seq"] >= 1


def test_a_hub_without_them_is_refused_and_nothing_is_sent(alice, hub, tmp_path):
    path = policy(tmp_path, alice, witness_line(alice, tmp_path), "quorum w")
    ask_for(alice, hub, path)
    refused = alice.json("send", "orders", "hello", code=Exit.BAD_EVIDENCE)
    assert refused["code"] == "E.TLOG.QUORUM"
    assert alice.json("pending", "list")["messages"] == []
    with pytest.raises(QuorumError), connect("dev", home=Home.at(alice.root)):
        pass


def test_or_used_with_a_warning_if_the_context_says_so(alice, hub, tmp_path):
    path = policy(tmp_path, alice, witness_line(alice, tmp_path), "quorum w")
    ask_for(alice, hub, path, "--witnesses", "warn")
    done = alice.run("send", "orders", "hello", "--json")
    assert json.loads(done.stdout)["seq"] >= 1
    assert json.loads(done.stderr.splitlines()[0])["witnesses"] == "insufficient"
    quiet = alice.run("send", "orders", "hello again", "--json", VEEN_WITNESSES="off")
    assert quiet.stderr == ""
    with connect("dev", home=Home.at(alice.root)) as connection:
        assert connection.stream("orders").send(b"from a program").seq >= 1


def test_a_policy_that_lists_another_log_or_is_none_is_refused(alice, hub, tmp_path):
    path = tmp_path / "other.policy"
    path.write_text("quorum none\n")
    ask_for(alice, hub, path)
    assert alice.json("send", "orders", "hello", code=Exit.BAD_EVIDENCE)["code"] == "E.TLOG.QUORUM"
    path.write_text("nonsense\n")
    assert alice.json("send", "orders", "hello", code=Exit.LOCAL)["code"] == "E.TLOG.POLICY"
    path.unlink()
    assert alice.json("send", "orders", "hello", code=Exit.LOCAL)["code"].startswith("E.LOCAL")


def test_a_hub_without_an_outer_log_has_no_cosignatures(tmp_path):
    with running(tmp_path / "plain", *DEV, "--port", "0") as plain:
        cli = Cli(tmp_path / "home")
        cli.keygen()
        path = tmp_path / "hub.policy"
        path.write_text("quorum none\n")
        pin = ("--hub", plain.url, "--pin", plain.about["hub_pk"], "--identity", "alice")
        cli.run("context", "add", "dev", *pin, "--witness-policy", path, "--use")
        cli.run("id", "keyring", "new", "orders")
        assert cli.json("send", "orders", "hello", code=Exit.BAD_EVIDENCE)["code"] == "E.TLOG.QUORUM"
