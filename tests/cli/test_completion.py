"""Completion: scripts that shells accept, names from the home, and nothing that makes TAB wait."""

import os
import shutil
import subprocess
import sys

import pytest
from tests.cli.homes import PIN, Cli

from veen.cli.shared.names import remember_stream, roots
from veen.client.home import Home


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home")


def complete(cli, line):
    """What TAB offers after `line`."""
    words = line.split(" ")
    env = {**os.environ, **cli.env, "_VEEN_COMPLETE": "bash_complete"}
    env |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run([sys.executable, "-m", "veen"], capture_output=True, check=True, text=True, env=env)
    assert done.stderr == ""
    return [result.partition(",")[2] for result in done.stdout.splitlines() if result]


def test_commands_options_and_values_complete(cli):
    assert complete(cli, "veen con") == ["config", "connect", "console", "contacts", "context"]
    assert complete(cli, "veen hub key r") == ["repair", "rotate"]
    assert "--data-dir" in complete(cli, "veen hub start --d")
    assert complete(cli, "veen version -o nd") == ["ndjson"]
    assert complete(cli, "veen explain E.LOCAL.KEYST") == ["E.LOCAL.KEYSTORE"]
    assert {"E.LOCAL.PASSPHRASE", "E.LOCAL.PIN"} <= set(complete(cli, "veen explain E.LOCAL.P"))
    assert complete(cli, "veen help ex") == ["exit-codes", "explain"]


def test_names_come_from_the_home(cli, tmp_path):
    cli.keygen("alice")
    cli.run("context", "add", "acme", "--hub", "http://a", "--pin", PIN)
    (tmp_path / "veen.toml").write_text('[context.project]\nhub = "http://p"\n')
    cli.run("config", "trust", "--yes")
    cli.run("id", "keyring", "new", "record/app/http")
    assert complete(cli, "veen context use ") == ["project", "acme"]
    assert complete(cli, "veen hub status --context a") == ["acme"]
    assert complete(cli, "veen id show ") == ["alice"]
    assert complete(cli, "veen label derive rec") == ["record/app/http"]


def test_a_broken_home_completes_to_nothing(cli):
    cli.root.mkdir()
    (cli.root / "config.toml").write_bytes(b"\xff\xfe")
    (cli.root / "identities").write_text("a file")
    assert complete(cli, "veen context use ") == []
    assert complete(cli, "veen id show ") == []
    assert complete(cli, "veen label derive ") == []


def test_what_is_no_file_does_not_stop_the_shell(cli, tmp_path):
    """TAB in a cloned directory: a named pipe, or a link to a file without an end."""
    os.mkfifo(tmp_path / "veen.toml")
    assert complete(cli, "veen context use ") == []
    (tmp_path / "veen.toml").unlink()
    (tmp_path / "veen.toml").symlink_to("/dev/zero")
    assert complete(cli, "veen context use ") == []


def test_the_paths_of_completion_are_those_of_the_home(monkeypatch, tmp_path):
    """Written twice, as the client's own would make TAB wait for cryptography."""
    for environ in ({"VEEN_HOME": "~/veen"}, {"VEEN_HOME": str(tmp_path)}, {"VEEN_HOME": "", "XDG_CONFIG_HOME": "/x"}):
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        home = Home.default()
        assert roots() == (home.config, home.data, home.cache)
        assert home.identity_dir("alice").parent == roots()[1] / "identities"


def test_stream_names_are_remembered_newest_first_bounded_and_private(tmp_path):
    for number in range(250):
        remember_stream(tmp_path, f"s{number}")
    remember_stream(tmp_path, "s240")
    for unwanted in ("hex:" + "0" * 64, "two\nlines", "label:" + "0" * 64):
        remember_stream(tmp_path, unwanted)
    names = (tmp_path / "streams").read_text().splitlines()
    assert names[:2] == ["s240", "s249"]
    assert len(names) == len(set(names)) == 200
    assert (tmp_path / "streams").stat().st_mode & 0o777 == 0o600
    remember_stream(tmp_path / "streams", "x")  # not a directory: a convenience fails silently


def test_names_can_be_kept_out_of_files(cli):
    cli.keygen()
    cli.run("id", "keyring", "new", "secret/project", VEEN_REMEMBER_STREAMS="false")
    assert not (cli.root / "cache" / "streams").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(cli, shell):
    script = cli.run("completion", shell).stdout
    assert "_VEEN_COMPLETE" in script
    assert "veen-cli" in script
    assert cli.json("completion", shell)["script"] == script


@pytest.mark.system
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(cli, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (package {shell})")
    script = cli.run("completion", shell).stdout
    subprocess.run([shell, "-n"], input=script.encode(), check=True, capture_output=True)


def test_bash_completes_with_the_script(cli, tmp_path):
    """The whole way: the shell's function calls the program and fills its answers in."""
    (tmp_path / "veen").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m veen "$@"\n')
    (tmp_path / "veen").chmod(0o755)
    program = f"""
    {cli.run("completion", "bash").stdout}
    COMP_WORDS=(veen context us); COMP_CWORD=2
    _veen_completion veen us context
    echo "${{COMPREPLY[@]}}"
    """
    env = {**os.environ, **cli.env, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", program], capture_output=True, check=False, text=True, env=env)
    assert done.stdout.split() == ["use"], done.stderr
