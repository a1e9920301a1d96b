"""`veen keygen`, `veen id`, `veen id keyring`: keys that stay where they belong."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest
from tests.cli.homes import PIN, Cli
from tests.cli.hubprocess import running
from tests.cli.terminal import in_terminal

from veen.cli.shared.output import Exit
from veen.client.home import Home
from veen.client.identity.card import IdentityCard
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import open_identity


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home")


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "passphrase"
    path.write_text("correct horse\nsecond line\n")
    path.chmod(0o600)
    return path


def test_keygen_makes_an_identity_under_a_passphrase(cli, secret):
    result = cli.json("keygen", "--name", "alice", "--passphrase-file", secret)
    assert result["keystore"] == "sealed"
    assert IdentityCard.from_text(result["card"]).client_id.hex() == result["client_id"]
    directory = cli.root / "identities" / "alice"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory / "keystore.enc").stat().st_mode) == 0o600
    keystore = open_identity(Home.at(cli.root), "alice", "correct horse")  # the first line, without its end
    assert keystore.identity.client_id.hex() == result["client_id"]
    assert cli.secret_free(keystore.identity.id_sign.seed, keystore.identity.dh_sk, b"correct horse")


def test_keygen_into_a_directory_of_its_own(cli, tmp_path, secret):
    """spec-4 §7: keygen --out /work/client, and --client /work/client afterwards."""
    out = tmp_path / "work" / "client"
    result = cli.json("keygen", "--out", out, "--passphrase-file", secret)
    assert result["name"] == "client"
    assert not (cli.root / "identities").exists()
    assert cli.json("id", "show", "--client", out)["client_id"] == result["client_id"]
    assert cli.json("id", "show", "--identity", "./work/client")["client_id"] == result["client_id"]
    assert cli.json("id", "show", out)["client_id"] == result["client_id"]


def test_new_is_keygen(cli):
    assert cli.json("id", "new", "--insecure-plain-keystore")["name"] == "default"


def test_an_identity_is_never_overwritten(cli):
    before = cli.keygen()
    assert cli.json("keygen", "--name", "alice", "--insecure-plain-keystore", code=5)["code"] == "E.LOCAL.EXISTS"
    assert cli.json("id", "show")["client_id"] == before["client_id"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 65, ".hidden", "a b"])
def test_names_that_would_be_paths_are_refused(cli, name):
    error = cli.json("keygen", f"--name={name}", "--insecure-plain-keystore", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.NAME"
    assert not cli.root.exists()


def test_without_a_terminal_a_passphrase_is_not_asked_for(cli):
    error = cli.json("keygen", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.INPUT"
    assert "--passphrase-file" in error["hint"]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\n", b"x" * 5000])
def test_a_file_without_a_passphrase_is_told(cli, tmp_path, content):
    (tmp_path / "empty").write_bytes(content)
    (tmp_path / "empty").chmod(0o600)
    assert cli.json("keygen", "--passphrase-file", tmp_path / "empty", code=5)["code"] == "E.LOCAL.INPUT"


@pytest.mark.slow
def test_a_person_types_the_passphrase_unseen(cli):
    answers = [("passphrase for alice", "correct horse"), ("Repeat", "correct horse")]
    code, screen = in_terminal("keygen", "--name", "alice", answers=answers, env=cli.env)
    assert code == Exit.OK, screen
    assert "correct horse" not in screen
    wrong = ("passphrase of alice:", "wrong horse")
    code, screen = in_terminal("id", "show", "--keys", answers=[wrong] * 3, env=cli.env)
    assert code == Exit.LOCAL
    assert "E.LOCAL.PASSPHRASE" in screen
    answers = [wrong, ("passphrase of alice:", "correct horse")]
    code, screen = in_terminal("id", "show", "--keys", answers=answers, env=cli.env)
    assert code == Exit.OK, screen
    code, screen = in_terminal("id", "keyring", "list", answers=[("passphrase of alice", "correct horse")], env=cli.env)
    assert code == Exit.OK


def test_only_a_terminal_on_both_sides_is_asked(cli, secret):
    """stdin a terminal and stderr a file: a prompt nobody sees would hang."""
    cli.run("keygen", "--name", "alice", "--passphrase-file", secret)
    program = (
        "import subprocess, sys; done = subprocess.run([sys.executable, '-m', 'veen', 'id', 'show', '--keys'],"
        " stderr=subprocess.PIPE); print(done.returncode, b'E.LOCAL.INPUT' in done.stderr)"
    )
    _, screen = in_terminal(program=[sys.executable, "-c", program], env=cli.env)
    assert "5 True" in screen


def test_the_variable_names_a_file_never_the_passphrase(cli, secret):
    cli.run("keygen", "--name", "alice", VEEN_PASSPHRASE_FILE=str(secret))
    assert cli.json("id", "show", "--keys", VEEN_PASSPHRASE_FILE=str(secret))["client_key_generation"] == 1
    assert cli.json("id", "show", "--keys", VEEN_PASSPHRASE="correct horse", code=5)["code"] == "E.LOCAL.INPUT"


def test_which_identity_is_said_or_the_only_one_or_asked_back(cli):
    assert cli.json("id", "show", code=5)["code"] == "E.LOCAL.IDENTITY"
    alice = cli.keygen("alice")
    assert cli.json("id", "show")["name"] == "alice"
    cli.keygen("bob")
    assert cli.json("id", "show")["name"] == "alice"  # the first one is the default
    cli.run("config", "set", "identity", "--unset")
    error = cli.json("id", "show", code=5)
    assert "alice, bob" in error["cause"]
    assert "veen config set identity alice" in error["hint"]
    cli.run("config", "set", "identity", "alice")
    assert cli.json("id", "show")["client_id"] == alice["client_id"]
    cli.run("context", "add", "dev", "--hub", "http://a", "--pin", PIN, "--identity", "bob")
    assert cli.json("id", "show")["name"] == "bob"
    assert cli.json("id", "show", "--identity", "alice")["name"] == "alice"
    assert cli.json("id", "show", "carol", code=5)["code"] == "E.LOCAL.IDENTITY"
    assert [identity["name"] for identity in cli.json("id", "list")["identities"]] == ["alice", "bob"]


def test_a_damaged_identity_is_listed_as_damaged(cli):
    cli.keygen()
    (cli.root / "identities" / "alice" / "keystore.enc").write_bytes(b"noise")
    (identity,) = cli.json("id", "list")["identities"]
    assert identity["keystore"].startswith("damaged")


def test_a_card_is_one_line_and_can_be_checked(cli):
    result = cli.keygen()
    text = cli.run("id", "card").stdout
    assert text == f"{result['card']}\n"
    assert cli.json("id", "card", "--check", text.strip())["client_id"] == result["client_id"]
    flipped = text.strip()[:-1] + ("q" if text.strip()[-1] != "q" else "p")
    assert cli.json("id", "card", "--check", flipped, code=5)["code"] == "E.LOCAL.CARD"


@pytest.mark.req("KEX0-04")
def test_rotation_gives_a_new_client_key_and_keeps_the_identity(cli):
    before = cli.keygen()
    rotated = cli.json("id", "rotate")
    after = cli.json("id", "show", "--keys")
    assert rotated["retired_client_id"] == before["client_id"]
    assert after["client_id"] == rotated["client_id"] != before["client_id"]
    assert after["card_id"] == before["card_id"]
    assert after["client_key_generation"] == 2
    assert after["retired_client_ids"] == [before["client_id"]]


def test_the_passphrase_can_be_changed_given_and_taken_away(cli, tmp_path, secret):
    cli.keygen()
    (tmp_path / "other").write_text("battery staple")
    (tmp_path / "other").chmod(0o600)
    assert cli.json("id", "passphrase", "--new-passphrase-file", secret)["keystore"] == "sealed"
    assert cli.json("id", "show", "--keys", code=5)["code"] == "E.LOCAL.INPUT"
    cli.run("id", "passphrase", "alice", "--passphrase-file", secret, "--new-passphrase-file", tmp_path / "other")
    assert cli.json("id", "show", "--keys", "--passphrase-file", secret, code=5)["code"] == "E.LOCAL.PASSPHRASE"
    cli.run("id", "passphrase", "--passphrase-file", tmp_path / "other", "--insecure-plain-keystore")
    assert cli.json("id", "show")["keystore"] == "plain"


@pytest.mark.req("CLNT-11")
def test_an_identity_moves_to_another_home(cli, tmp_path, secret):
    cli.run("keygen", "--name", "alice", "--passphrase-file", secret)
    options = ("--passphrase-file", secret)
    cli.run("id", "keyring", "new", "orders", *options)
    cli.run("id", "export", tmp_path / "set", *options)
    cli.run("id", "export", tmp_path / "set", *options, code=Exit.LOCAL)  # not over another one
    other = Cli(tmp_path / "other")
    assert other.json("id", "import", tmp_path / "set", *options)["name"] == "alice"
    assert [stream_row["stream"] for stream_row in other.json("id", "keyring", "list", *options)["streams"]] == [
        "orders"
    ]
    assert other.json("id", "import", tmp_path / "set", *options, code=5)["code"] == "E.LOCAL.EXISTS"
    third = Cli(tmp_path / "third")
    (tmp_path / "set" / "identity_card").write_text("veen1nonsense")
    assert third.json("id", "import", tmp_path / "set", *options, code=5)["code"] == "E.LOCAL.SET"


def test_an_identity_in_use_is_told_with_who_uses_it(cli):
    cli.keygen()
    program = (
        "import sys, signal; from pathlib import Path; from veen.client.home import Home\n"
        "with Home.at(Path(sys.argv[1])).lock('alice'):\n print('held', flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(cli.root)], stdout=subprocess.PIPE, env=os.environ
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        error = cli.json("id", "rotate", code=Exit.LOCAL)
        holder.send_signal(signal.SIGTERM)
    assert error["code"] == "E.LOCAL.IN_USE"
    assert f"process {holder.pid}" in error["cause"]
    cli.run("id", "rotate")


# --- keyring -----------------------------------------------------------------------------------------------------


def test_a_private_stream_has_a_random_id_and_no_name(cli, tmp_path):
    """D-169: the id of a named stream is the hash of its name, so whoever guesses the name finds its label."""
    cli.keygen()
    first, other = (cli.json("id", "keyring", "new", "--private") for _ in range(2))
    assert first["stream_id"] != other["stream_id"]
    assert first["stream"] == f"hex:{first['stream_id']}"
    assert first["rights"] == "read and write"
    key = tmp_path / "key"
    cli.run("id", "keyring", "share", first["stream"], "--read", "--out", key)
    shared = StreamKeys.from_text(key.read_text().strip())
    assert (shared.stream_id.hex(), shared.name) == (first["stream_id"], None)
    assert cli.json("id", "keyring", "show", first["stream"])["reader_pk"] == first["reader_pk"]
    cli.run("id", "keyring", "new", code=Exit.USAGE)
    cli.run("id", "keyring", "new", "orders", "--private", code=Exit.USAGE)


def test_a_stream_is_made_shared_and_read_by_another(cli, tmp_path):
    cli.keygen("alice")
    result = cli.json("id", "keyring", "new", "record/app")
    assert result["rights"] == "read and write"
    write_key = cli.run("id", "keyring", "share", "record/app").stdout.strip()
    assert not StreamKeys.from_text(write_key).can_read
    bob = Cli(tmp_path / "bob")
    bob.keygen("bob")
    assert bob.json("id", "keyring", "add", write_key)["rights"] == "write"
    assert bob.json("id", "keyring", "share", "record/app", "--read", code=5)["code"] == "E.LOCAL.READER"
    cli.run("id", "keyring", "share", "record/app", "--read", "--out", tmp_path / "read.key")
    assert stat.S_IMODE((tmp_path / "read.key").stat().st_mode) == 0o600
    cli.run("id", "keyring", "share", "record/app", "--read", "--out", tmp_path / "read.key", code=Exit.LOCAL)
    assert bob.json("id", "keyring", "add", f"@{tmp_path / 'read.key'}")["rights"] == "read and write"
    assert bob.json("id", "keyring", "show", "record/app")["reader_pk"] == result["reader_pk"]


def test_a_read_key_is_refused_as_an_argument(cli, tmp_path):
    """Arguments are seen by other processes and kept by shells."""
    cli.keygen("alice")
    cli.run("id", "keyring", "new", "s")
    read_key = cli.run("id", "keyring", "share", "s", "--read").stdout.strip()
    bob = Cli(tmp_path / "bob")
    bob.keygen("bob")
    refusal = bob.run("id", "keyring", "add", read_key, code=Exit.USAGE)
    assert "@FILE" in refusal.stderr
    assert read_key not in refusal.output
    assert bob.json("id", "keyring", "list")["streams"] == []
    assert bob.json("id", "keyring", "add", "-", stdin=read_key)["rights"] == "read and write"


def test_making_keys_of_a_stream_that_has_some_is_refused(cli):
    cli.keygen()
    first = cli.json("id", "keyring", "new", "s")["reader_pk"]
    error = cli.json("id", "keyring", "new", "s", code=5)
    assert error["code"] == "E.LOCAL.KEYS_EXIST"
    assert "veen keys rotate" in error["hint"]
    shown = cli.json("id", "keyring", "show", "s")
    assert (shown["reader_pk"], shown["older_keys"]) == (first, [])


def test_a_read_key_is_not_forgotten_by_accident(cli):
    cli.keygen()
    cli.run("id", "keyring", "new", "s")
    assert cli.json("id", "keyring", "remove", "s", code=5)["code"] == "E.LOCAL.INPUT"
    assert cli.json("id", "keyring", "remove", "s", "--yes") == {"removed": "s"}
    assert cli.json("id", "keyring", "show", "s", code=5)["code"] == "E.LOCAL.STREAM"


@pytest.mark.parametrize("text", ["nonsense", "veen-stream1", "@/no/such/file", "veen1qqqq"])
def test_what_is_no_key_is_told(cli, text):
    cli.keygen()
    assert cli.json("id", "keyring", "add", text, code=5)["code"] in ("E.LOCAL.TEXT", "E.LOCAL")


# --- the session that commands get -----------------------------------------------------------------------------------


SESSION = """
import json, sys
import click
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.output import Output

@click.command()
@client_options
def status(output: Output, session: CliSession) -> None:
    client = session.client()
    data = {"hub_pk": client.status().hub_pk.hex(), "name": session.identity_name}
    output.result(data, lambda: output.fields(data.items()))

status(standalone_mode=False)
"""


def session(cli, *args):
    done = subprocess.run(
        [sys.executable, "-c", SESSION, *args, "--json"],
        capture_output=True,
        check=False,
        env={**os.environ, **cli.env},
    )
    assert b"Traceback" not in done.stderr or b"click.exceptions.Exit" in done.stderr, done.stderr.decode()
    return json.loads(done.stdout or done.stderr.splitlines()[0])


def test_a_command_gets_a_client_that_is_pinned_and_unlocked(cli, tmp_path, secret):
    cli.run("keygen", "--name", "alice", "--passphrase-file", secret)
    cli.env["VEEN_PASSPHRASE_FILE"] = str(secret)
    with running(tmp_path / "hub") as hub:
        assert session(cli)["code"] == "E.LOCAL.CONTEXT"
        assert session(cli, "--hub", hub.url)["code"] == "E.LOCAL.PIN"
        assert session(cli, "--hub", hub.url, "--pin", PIN)["code"] == "E.DIVERGED.FOREIGN_KEY"
        cli.run("context", "add", "dev", "--hub", hub.url, "--pin", hub.about["hub_pk"])
        assert session(cli) == {"hub_pk": hub.about["hub_pk"].removeprefix("ed25519:"), "name": "alice"}
    assert session(cli, "--wait", "0")["code"] == "E.NET.UNREACHABLE"
