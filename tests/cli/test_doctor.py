"""`veen doctor`: each thing that can be wrong is found, named, and comes with what mends it."""

import shlex
import subprocess
import time

import pytest
from tests.cli.homes import OTHER, PIN, Cli
from tests.cli.hubprocess import running
from tests.cli.tree import check_line

from veen.cli.checkup import Level, check_contexts, check_spark
from veen.cli.configfile import ConfigFile
from veen.cli.output import Exit


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hub") / "data") as hub:
        yield hub


def findings(cli, code=0, *options):
    report = cli.json("doctor", *options, code=code)
    assert report["ok"] == (code == Exit.OK)
    for one in report["findings"]:
        assert one["fix"] or one["level"] == "ok"  # whatever is wrong comes with a fix
        if one["fix"] and one["fix"].startswith("veen "):
            check_line(shlex.split(one["fix"])[1:])
    return [(one["level"], one["about"], one["what"], one["fix"]) for one in report["findings"] if one["level"] != "ok"]


def test_a_home_in_order_is_said_to_be(cli, hub, tmp_path):
    (tmp_path / "passphrase").write_text("correct horse\n")
    cli.run("keygen", "--name", "alice", "--passphrase-file", tmp_path / "passphrase")
    cli.run("context", "add", "dev", "--hub", hub.url, "--pin", hub.about["hub_pk"])
    assert findings(cli) == []
    text = cli.run("doctor").stdout
    assert "answers and claims the pinned key" in text
    assert "the clocks agree" in text


def test_an_empty_home_says_how_to_begin(cli):
    assert [(level, fix) for level, _, _, fix in findings(cli)] == [("warn", "veen keygen --name NAME")]


def test_keys_that_others_could_read_are_found_and_the_fix_fixes_it(cli):
    cli.keygen()
    keystore = cli.root / "identities" / "alice" / "keystore.enc"
    keystore.chmod(0o644)
    keystore.parent.chmod(0o755)
    found = [(what, fix) for level, _, what, fix in findings(cli, Exit.LOCAL) if level == "bad"]
    assert len(found) == 2
    for _, fix in found:
        subprocess.run(["sh", "-c", fix], check=True)
    assert not [level for level, *_ in findings(cli) if level == "bad"]


def test_a_plain_keystore_is_a_warning(cli):
    cli.keygen()
    ((level, about, what, fix),) = findings(cli)
    assert (level, about, fix) == ("warn", "identity alice", "veen id passphrase alice")
    assert "no passphrase" in what


def test_a_damaged_keystore_is_found(cli):
    cli.keygen()
    keystore = cli.root / "identities" / "alice" / "keystore.enc"
    data = bytearray(keystore.read_bytes())
    data[len(data) // 2] ^= 1
    keystore.write_bytes(data)
    ((level, _, what, _),) = findings(cli, Exit.LOCAL)
    assert level == "bad"
    assert "keystore.enc" in what


def test_a_broken_configuration_is_found_and_the_rest_still_checked(cli):
    cli.keygen()
    (cli.root / "config.toml").write_text("mode = ")
    found = findings(cli, Exit.LOCAL)
    assert {about for _, about, _, _ in found} == {"config", "identity alice"}


def test_a_configuration_that_others_can_change_is_bad(cli):
    cli.run("context", "add", "a", "--hub", "http://127.0.0.1:1", "--pin", PIN)
    (cli.root / "config.toml").chmod(0o666)
    assert any("pins included" in what for _, _, what, _ in findings(cli, Exit.LOCAL, "--offline"))


def test_another_key_than_the_pinned_one_is_bad_evidence(cli, hub):
    cli.run("context", "add", "dev", "--hub", hub.url, "--pin", OTHER)
    found = findings(cli, Exit.BAD_EVIDENCE)
    assert any("another key answers" in what and hub.about["hub_pk"] in what for _, _, what, _ in found)


def test_a_hub_that_is_not_there_is_told_unless_offline(cli):
    cli.run("context", "add", "gone", "--hub", "http://127.0.0.1:1", "--pin", PIN)
    assert any(level == "bad" and about == "context gone" for level, about, _, _ in findings(cli, Exit.NETWORK))
    assert not any(about == "context gone" for _, about, _, _ in findings(cli, Exit.OK, "--offline"))


def test_files_and_pins_of_contexts_are_checked(cli, tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    token.chmod(0o644)
    contexts = {
        "no-pin": {"hub": "http://a"},
        "no-hub": {"hub_pk": PIN},
        "files": {"hub": "http://a", "hub_pk": PIN, "ca_file": "/no/such/file", "token_file": str(token)},
    }
    user = ConfigFile(tmp_path / "config.toml", {}, contexts)
    found = list(check_contexts(user, ConfigFile(tmp_path / "veen.toml"), online=False))
    assert [(one.about, one.level) for one in found] == [
        ("context no-pin", Level.WARN),
        ("context no-hub", Level.BAD),
        ("context files", Level.BAD),
        ("context files", Level.BAD),
    ]
    assert "secret" not in str(found)


def test_clocks_that_differ_are_told(hub, tmp_path, monkeypatch):
    contexts = {"dev": {"hub": hub.url, "hub_pk": hub.about["hub_pk"]}}
    user = ConfigFile(tmp_path / "config.toml", {}, contexts)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    found = list(check_contexts(user, ConfigFile(tmp_path / "veen.toml"), online=True))
    assert any("-3600 s" in one.what or "-3601 s" in one.what for one in found if one.level is Level.WARN)


def test_spark_without_java_is_told():
    (found,) = check_spark()
    assert found.level in (Level.OK, Level.BAD)
    assert found.fix or found.level is Level.OK
