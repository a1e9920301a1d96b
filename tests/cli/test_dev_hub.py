"""`veen hub start --dev`: the same place tomorrow, and a first message without any other command."""

import json
import shutil
import socket
from urllib.parse import urlsplit

import pytest
from tests.cli.homes import PIN, Cli
from tests.cli.hubprocess import report, running, veen
from tests.cli.terminal import in_terminal

from veen.cli.shared.output import Exit
from veen.client.config.file import read

QUIET = ("--set", "engine.workers=0", "--set", "log.level=error")


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home")


def started(cli, *options):
    """As a person starts it: no directory, no context, no keys."""
    return report("hub", "start", "--dev", "--detach", *QUIET, *options, env=cli.env)


def stopped(cli):
    assert report("hub", "stop", env=cli.env)["stopped"]


def test_two_commands_lead_to_the_first_verified_receipt(cli):
    about = started(cli)
    try:
        assert about["context"] == "dev"
        done = veen("send", "orders", "hello", env=cli.env)
        assert done.returncode == 0, done.stderr
        assert b"verified\tyes" in done.stdout
        said = done.stderr.decode()
        assert "made the identity 'dev'" in said
        assert str(cli.root / "dev.passphrase") in said
        assert "made the keys of 'orders'" in said
        again = veen("send", "orders", "again", env=cli.env)
        assert (again.returncode, again.stderr) == (0, b"")
        assert [row["body"] for row in cli.json("stream", "orders")["entries"]] == ["hello", "again"]
        cli.run("kv", "put", "settings", "colour", "blue")
        cli.run("recorder", "emit", "record/app", "--type", "login", "--subject", "alice", '{"n": 1}')
        assert cli.json("context", "show", "dev")["hub_pk"] == about["pin"]
        assert (cli.root / "dev.passphrase").stat().st_mode & 0o777 == 0o600
        assert cli.json("id", "show")["keystore"] == "sealed"
    finally:
        stopped(cli)


def test_the_same_hub_is_at_the_same_place_tomorrow(cli):
    first = started(cli)
    cli.run("send", "orders", "today")
    stopped(cli)
    second = started(cli)
    try:
        assert (second["url"], second["pin"], second["data_dir"]) == (first["url"], first["pin"], first["data_dir"])
        cli.run("send", "orders", "tomorrow")
        assert [row["body"] for row in cli.json("stream", "orders")["entries"]] == ["today", "tomorrow"]
    finally:
        stopped(cli)


def test_a_port_that_is_taken_is_told_and_the_context_follows(cli):
    first = started(cli)
    stopped(cli)
    with socket.create_server(("127.0.0.1", urlsplit(first["url"]).port)):
        done = veen("hub", "start", "--dev", "--detach", *QUIET, env=cli.env)
        try:
            assert done.returncode == 0, done.stderr
            assert b"is taken by another program" in done.stderr
            cli.run("send", "orders", "hello")
        finally:
            stopped(cli)


def test_a_hub_in_a_directory_of_its_own_is_registered_on_demand(cli, tmp_path):
    with running(tmp_path / "hub", "--dev", *QUIET, env=cli.env) as hub:
        assert "context" not in hub.about
    assert not (cli.root / "config.toml").exists()
    with running(tmp_path / "hub", "--dev", "--context", "try", *QUIET, env=cli.env) as hub:
        assert hub.about["context"] == "try"
        cli.run("send", "orders", "hello")
        assert cli.json("id", "show")["name"] == "try"
    cli.run("hub", "start", "--context", "x", "--data-dir", tmp_path / "hub", code=Exit.USAGE)
    cli.run("hub", "start", "--dev", "--context", "a b", code=Exit.USAGE)


def test_a_context_that_somebody_made_for_another_hub_stays(cli):
    cli.run("context", "add", "dev", "--hub", "https://hub.example", "--pin", PIN)
    done = veen("hub", "start", "--dev", "--detach", *QUIET, env=cli.env)
    try:
        assert done.returncode == 0
        assert b"names another hub" in done.stderr
        assert read(cli.root / "config.toml").contexts["dev"]["hub_pk"] == PIN
    finally:
        stopped(cli)


def test_a_context_in_use_stays_in_use(cli):
    cli.run("context", "add", "prod", "--hub", "https://hub.example", "--pin", PIN)
    done = veen("hub", "start", "--dev", "--detach", *QUIET, env=cli.env)
    try:
        assert b"veen context use dev" in done.stderr
        file = read(cli.root / "config.toml")
        assert (file.top["current_context"], set(file.contexts)) == ("prod", {"dev", "prod"})
    finally:
        stopped(cli)


def test_a_new_hub_in_place_of_a_deleted_one_takes_over_the_context(cli):
    first = started(cli)
    cli.run("send", "orders", "hello")
    stopped(cli)
    shutil.rmtree(first["data_dir"])
    done = veen("hub", "start", "--dev", "--detach", *QUIET, env=cli.env)
    try:
        assert b"now names this hub" in done.stderr
        cli.run("send", "orders", "hello")
    finally:
        stopped(cli)


def test_a_stream_that_is_in_use_gets_no_new_keys(cli, tmp_path):
    """A second home, which has the context but not the keys."""
    started(cli)
    try:
        cli.run("send", "orders", "hello")
        other = Cli(tmp_path / "other")
        other.root.mkdir(mode=0o700)
        text = (cli.root / "config.toml").read_text().replace(str(cli.root), str(other.root))
        (other.root / "config.toml").write_text(text)
        done = other.run("send", "orders", "mine", "--json", code=Exit.LOCAL)
    finally:
        stopped(cli)
    notice, error = map(json.loads, done.stderr.splitlines())
    assert notice["identity"] == "dev"
    assert error["code"] == "E.LOCAL.STREAM_IN_USE"
    assert "keyring add" in error["hint"]


def test_nobody_is_asked_for_the_random_passphrase_of_another_context(cli, tmp_path):
    """The identity of the context dev is the only one: elsewhere a person is told to make one of her own."""
    about = started(cli)
    try:
        cli.run("send", "orders", "hello")
        cli.run("send", "orders", "hello", "--identity", "dev")  # the same, said once more
        cli.run("context", "add", "prod", "--hub", about["url"], "--pin", about["pin"], "--use")
        error = cli.json("send", "orders", "hello", code=Exit.LOCAL)
        assert (error["code"], "veen keygen --name NAME" in error["hint"]) == ("E.LOCAL.INPUT", True)
        code, screen = in_terminal("send", "orders", "hello", env=cli.env)
        assert (code, "passphrase of dev" in screen) == (Exit.LOCAL, False)
        file = error["hint"].rpartition("--passphrase-file ")[2]
        assert cli.json("send", "orders", "hello", "--identity", "dev", "--passphrase-file", file)["verified"]
        cli.keygen("alice")
        assert cli.json("send", "orders", "hello", "--identity", "alice", code=Exit.LOCAL)["code"] == "E.LOCAL.STREAM"
    finally:
        stopped(cli)


def test_the_pin_of_a_dev_hub_stays_when_its_key_is_rotated(cli):
    about = started(cli)
    cli.run("send", "orders", "before")
    stopped(cli)
    report("hub", "key", "rotate", about["data_dir"], "--overlap", "0s", env=cli.env)
    done = veen("hub", "start", "--dev", "--detach", *QUIET, "--json", env=cli.env)
    try:
        assert done.stderr == b"", "the context is as it was"
        assert json.loads(done.stdout)["pin"] == about["pin"]
        assert [row["body"] for row in cli.json("stream", "orders")["entries"]] == ["before"]
    finally:
        stopped(cli)


def test_a_passphrase_of_ones_own_replaces_the_file(cli, tmp_path):
    started(cli)
    try:
        cli.run("send", "orders", "hello")
        own = tmp_path / "own"
        own.write_text("correct horse battery\n")
        own.chmod(0o600)
        done = cli.run("id", "passphrase", "dev", "--new-passphrase-file", own)
        assert "no longer names" in done.stderr
        assert cli.json("send", "orders", "x", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
        cli.run("send", "orders", "x", "--passphrase-file", own)
    finally:
        stopped(cli)


def test_the_identity_of_a_context_is_not_the_default_elsewhere(cli, tmp_path):
    started(cli)
    stopped(cli)
    cli.run("hub", "start", "--dev", "--help")
    own = tmp_path / "own"
    own.write_text("correct horse battery\n")
    own.chmod(0o600)
    error = cli.json("keygen", "--name", "alice", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.INPUT"  # the passphrase of `dev` is not that of another identity
    cli.run("keygen", "--name", "alice", "--passphrase-file", own)
    cli.run("keygen", "--name", "bob", "--passphrase-file", own)
    cli.run("context", "add", "prod", "--hub", "https://hub.example", "--pin", PIN, "--use")
    assert cli.json("id", "show")["name"] == "alice"


def test_a_command_beside_another_process_of_the_identity_works(cli):
    """As a service and somebody at the command line."""
    from veen.client.home import Home

    started(cli)
    try:
        cli.run("send", "orders", "hello")
        with Home.at(cli.root).lock("dev"):
            done = cli.run("send", "orders", "beside")
            assert "a client key of its own" in done.stderr
            assert (
                cli.json("send", "other", "x", code=Exit.LOCAL)["code"] == "E.LOCAL.IN_USE"
            )  # keys cannot be made now
            entries = cli.json("stream", "orders")["entries"]
    finally:
        stopped(cli)
    assert [row["body"] for row in entries] == ["hello", "beside"]
    assert len({row["client_id"] for row in entries}) == 2
