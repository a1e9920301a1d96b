"""`veen context` and `veen config`; first contact with a hub."""

import json
import stat

import pytest
from tests.cli.homes import OTHER, PIN, Cli
from tests.cli.hubprocess import running
from tests.cli.terminal import in_terminal

from veen.cli.shared.output import Exit


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hub") / "data") as hub:
        yield hub


def test_a_context_names_a_hub_and_pins_its_key(cli):
    added = cli.json("context", "add", "acme", "--hub", "https://acme.example/", "--pin", PIN, "--identity", "alice")
    assert added == {
        "context": "acme",
        "hub": "https://acme.example",
        "hub_pk": PIN,
        "identity": "alice",
        "current": True,
        "pin_check": "not checked",
    }
    cli.run("context", "add", "dev", "--hub", "http://127.0.0.1:1", "--pin", PIN.removeprefix("ed25519:"))
    listed = cli.json("context", "list")["contexts"]
    assert [(row["context"], row["current"], row["hub_pk"]) for row in listed] == [
        ("acme", True, PIN),
        ("dev", False, PIN),
    ]
    assert cli.json("context", "use", "dev")["context"] == "dev"
    assert cli.json("context", "show")["hub"]["value"] == "http://127.0.0.1:1"
    assert cli.json("context", "show", "acme")["identity"] == "alice"
    assert cli.json("context", "remove", "dev") == {"removed": "dev"}
    assert cli.json("context", "show").get("hub") is None
    assert stat.S_IMODE((cli.root / "config.toml").stat().st_mode) == 0o600


def test_use_may_be_asked_for_or_not(cli):
    cli.run("context", "add", "a", "--hub", "http://a", "--pin", PIN, "--no-use")
    assert "context" not in cli.json("context", "show")
    cli.run("context", "add", "b", "--hub", "http://b", "--pin", PIN)
    cli.run("context", "add", "c", "--hub", "http://c", "--pin", PIN, "--use")
    assert cli.json("context", "show")["context"]["value"] == "c"


def test_an_existing_context_is_not_changed_by_accident(cli):
    cli.run("context", "add", "a", "--hub", "http://a", "--pin", PIN)
    assert cli.json("context", "add", "a", "--hub", "http://b", "--pin", OTHER, code=5)["code"] == "E.LOCAL.CONTEXT"
    cli.run("context", "add", "a", "--hub", "http://b", "--pin", OTHER, "--replace")
    assert cli.json("context", "show", "a") == {"context": "a", "hub": "http://b", "hub_pk": OTHER}


def test_another_pin_needs_to_be_confirmed(cli):
    cli.run("context", "add", "a", "--hub", "http://a", "--pin", PIN)
    cli.run("context", "pin", "a", PIN)
    assert cli.json("context", "pin", "a", OTHER, code=5)["code"] == "E.LOCAL.PIN"
    assert cli.json("context", "pin", "a", OTHER, "--replace")["replaced"] == PIN


@pytest.mark.parametrize(
    "line",
    [
        ["add", "x y", "--hub", "http://a", "--pin", PIN],
        ["add", "x", "--hub", "nonsense", "--pin", PIN],
        ["add", "x", "--hub", "http://a", "--pin", "abc"],
        ["add", "x", "--hub", "http://user:pw@a", "--pin", PIN],
    ],
)
def test_what_cannot_be_a_context_is_a_usage_error(cli, line):
    cli.run("context", *line, code=Exit.USAGE)
    assert not (cli.root / "config.toml").exists()


@pytest.mark.parametrize("command", ["show", "use", "remove", "pin"])
def test_a_context_that_does_not_exist_is_named_with_a_way_on(cli, command):
    error = cli.json("context", command, "nowhere", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.CONTEXT"
    assert "veen context add nowhere" in error["hint"]


def test_a_script_never_trusts_by_itself(cli, hub):
    error = cli.json("context", "add", "dev", "--hub", hub.url, code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.PIN"
    assert f"veen context add NAME --hub {hub.url} --pin" in error["hint"]
    assert hub.about["hub_pk"] not in json.dumps(error)  # or scripts would copy what whoever answers says


def test_a_person_is_shown_the_key_and_decides(cli, hub):
    line = ("context", "add", "dev", "--hub", hub.url)
    code, screen = in_terminal(*line, answers=[("Is this the hub?", "n")], env=cli.env)
    assert code == Exit.LOCAL
    assert hub.about["hub_pk"] in screen
    assert not (cli.root / "config.toml").exists()
    code, screen = in_terminal(*line, answers=[("Is this the hub?", "y")], env=cli.env)
    assert code == Exit.OK, screen
    assert cli.json("context", "show", "dev")["hub_pk"] == hub.about["hub_pk"]


def test_no_input_means_no_question_also_on_a_terminal(cli, hub):
    code, screen = in_terminal("context", "add", "dev", "--hub", hub.url, "--no-input", env=cli.env)
    assert code == Exit.LOCAL
    assert "Is this the hub?" not in screen


def test_commands_find_the_hub_of_the_context(cli, hub):
    cli.run("context", "add", "dev", "--hub", hub.url, "--pin", hub.about["hub_pk"])
    assert cli.json("hub", "status")["url"] == hub.url
    assert cli.json("hub", "health", "--context", "dev")["healthz"]["ok"]
    assert cli.json("pow", "request")["difficulty"] == 0
    assert cli.json("hub", "status", VEEN_HUB="http://127.0.0.1:1", code=Exit.NETWORK)["code"] == "E.NET.UNREACHABLE"
    cli.run("context", "remove", "dev")
    cli.run("hub", "status", code=Exit.USAGE)


# --- config ----------------------------------------------------------------------------------------------------


def test_show_tells_where_each_value_comes_from(cli, tmp_path):
    cli.run("context", "add", "acme", "--hub", "http://a", "--pin", PIN)
    (tmp_path / "veen.toml").write_text('mode = "light"\n')
    cli.run("config", "trust", "--yes")
    shown = cli.json("config", "show", "--origin", "--identity", "dave", VEEN_PIN=OTHER)
    assert shown["identity"] == {"value": "dave", "origin": "--identity"}
    assert shown["hub_pk"] == {"value": OTHER, "origin": "VEEN_PIN"}
    assert shown["mode"] == {"value": "light", "origin": "./veen.toml"}
    assert shown["hub"] == {"value": "http://a", "origin": f"{cli.root / 'config.toml'} [context.acme]"}
    assert shown["remember_streams"]["origin"] == "default"
    assert cli.json("config", "show")["mode"] == "light"


def test_set_and_unset(cli, tmp_path):
    assert cli.json("config", "set", "identity", "alice")["value"] == "alice"
    (tmp_path / "ca.pem").touch()
    cli.run("config", "set", "context.acme.ca_file", "ca.pem")
    assert cli.json("config", "show")["identity"] == "alice"
    assert cli.json("context", "show", "acme")["ca_file"] == str(tmp_path / "ca.pem")
    assert cli.json("config", "set", "identity", "--unset")["value"] is None
    assert cli.json("config", "show")["identity"] is None
    for line in (["nonsense", "1"], ["mode", "fast"], ["mode"], ["mode", "full", "--unset"]):
        cli.run("config", "set", *line, code=Exit.USAGE)


def test_path_tells_where_things_are(cli, tmp_path):
    result = cli.json("config", "path")
    assert result["config"] == {"path": str(cli.root / "config.toml"), "exists": False}
    assert result["project"]["path"] == str(tmp_path / "veen.toml")


def test_a_broken_file_is_an_error_that_names_it_not_a_traceback(cli):
    cli.root.mkdir()
    (cli.root / "config.toml").write_text("mode = ")
    error = cli.json("config", "show", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.CONFIG"
    assert "config.toml" in error["message"]
