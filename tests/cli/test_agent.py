"""`veen agent`: a passphrase is typed once."""

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import veen
from tests.cli.terminal import in_terminal

from veen.cli.shared.output import Exit

PHRASE = "correct horse battery"


@pytest.fixture
def cli(tmp_path):
    cli = Cli(tmp_path / "home")
    (tmp_path / "phrase").write_text(f"{PHRASE}\n")
    (tmp_path / "phrase").chmod(0o600)
    cli.run("keygen", "--name", "alice", "--passphrase-file", tmp_path / "phrase")
    yield cli
    cli.run("agent", "stop")


def test_the_first_command_asks_and_the_others_do_not(cli):
    assert cli.json("agent", "status") == {"running": False}
    error = cli.json("id", "keyring", "list", code=Exit.LOCAL)
    assert "veen agent start" in error["hint"]
    started = veen("agent", "start", "--for", "10m", "--json", env=cli.env)  # a process: it outlives the command
    assert started.returncode == 0, started.stderr
    code, screen = in_terminal("id", "keyring", "list", answers=[("passphrase of alice:", PHRASE)], env=cli.env)
    assert code == Exit.OK, screen
    assert cli.json("id", "keyring", "list") == {"streams": []}
    cli.run("id", "keyring", "new", "orders")  # also what writes the keystore
    status = cli.json("agent", "status")
    assert (status["seconds"], [row["name"] for row in status["keys"]]) == (600, ["alice"])
    assert cli.json("agent", "start")["pid"] == status["pid"]  # one is enough
    assert cli.json("agent", "lock") == {"running": True, "forgotten": 1}
    assert cli.json("id", "keyring", "list", code=Exit.LOCAL)["code"] == "E.LOCAL.INPUT"
    assert cli.json("agent", "stop") == {"stopped": True}
    assert cli.json("agent", "stop") == {"stopped": False}
    assert cli.json("agent", "lock") == {"running": False, "forgotten": 0}


def test_a_wrong_passphrase_is_not_handed_to_it(cli):
    assert veen("agent", "start", env=cli.env).returncode == 0
    wrong = [("passphrase of alice:", "wrong horse")] * 3
    assert in_terminal("id", "keyring", "list", answers=wrong, env=cli.env)[0] == Exit.LOCAL
    assert cli.json("agent", "status")["keys"] == []


@pytest.mark.parametrize("command", ["stream", "tail"])
def test_other_arguments_are_checked_before_a_passphrase_is_asked_for(cli, command):
    code, screen = in_terminal(command, "orders", "--format", "{nonsense}", env=cli.env)
    assert (code, "passphrase" in screen) == (Exit.USAGE, False)


@pytest.mark.parametrize("span", ["0", "8d", "soon"])
def test_a_span_that_makes_no_sense_is_refused(cli, span):
    cli.run("agent", "start", "--for", span, code=Exit.USAGE)
