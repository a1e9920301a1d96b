"""`veen doctor`: each thing that can be wrong is found, named, and comes with what mends it."""

import shlex
import subprocess
import time
from types import SimpleNamespace

import pytest
from tests.cli.homes import OTHER, PIN, Cli
from tests.cli.hubprocess import running
from tests.cli.tree import check_line

from veen import native
from veen.cli.setup.diagnosis import Severity, check_contexts, check_native, check_spark
from veen.cli.shared.output import Exit
from veen.client.config.file import ConfigFile


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
    for finding in report["findings"]:
        assert finding["fix"] or finding["level"] == "ok"  # whatever is wrong comes with a fix
        if finding["fix"] and finding["fix"].startswith("veen "):
            check_line(shlex.split(finding["fix"])[1:])
    return [
        (finding["level"], finding["about"], finding["what"], finding["fix"])
        for finding in report["findings"]
        if finding["level"] != "ok"
    ]


def test_a_home_in_order_is_said_to_be(cli, hub, tmp_path):
    (tmp_path / "passphrase").write_text("correct horse\n")
    (tmp_path / "passphrase").chmod(0o600)
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
    faults = [(what, fix) for level, _, what, fix in findings(cli, Exit.LOCAL) if level == "bad"]
    assert len(faults) == 2
    for _, fix in faults:
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
    report = findings(cli, Exit.LOCAL)
    assert {about for _, about, _, _ in report} == {"config", "identity alice"}


def test_a_configuration_that_others_can_change_is_bad(cli):
    cli.run("context", "add", "a", "--hub", "http://127.0.0.1:1", "--pin", PIN)
    (cli.root / "config.toml").chmod(0o666)
    assert any("pins included" in what for _, _, what, _ in findings(cli, Exit.LOCAL, "--offline"))


def test_another_key_than_the_pinned_one_is_bad_evidence(cli, hub):
    cli.run("context", "add", "dev", "--hub", hub.url, "--pin", OTHER)
    report = findings(cli, Exit.BAD_EVIDENCE)
    assert any("another key answers" in what and hub.about["hub_pk"] in what for _, _, what, _ in report)


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
    diagnoses = list(check_contexts(user, ConfigFile(tmp_path / "veen.toml"), online=False))
    assert [(diagnosis.about, diagnosis.level) for diagnosis in diagnoses] == [
        ("context no-pin", Severity.WARN),
        ("context no-hub", Severity.BAD),
        ("context files", Severity.BAD),
        ("context files", Severity.BAD),
    ]
    assert "secret" not in str(diagnoses)


def test_clocks_that_differ_are_told(hub, tmp_path, monkeypatch):
    contexts = {"dev": {"hub": hub.url, "hub_pk": hub.about["hub_pk"]}}
    user = ConfigFile(tmp_path / "config.toml", {}, contexts)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    diagnoses = list(check_contexts(user, ConfigFile(tmp_path / "veen.toml"), online=True))
    assert any(
        "-3600 s" in diagnosis.what or "-3601 s" in diagnosis.what
        for diagnosis in diagnoses
        if diagnosis.level is Severity.WARN
    )


def test_the_code_behind_signatures_is_named_and_only_a_module_that_does_not_fit_is_a_warning():
    (diagnosis,) = check_native()
    assert (diagnosis.level, diagnosis.what) == (Severity.OK, native.LOADED.what)
    (diagnosis,) = check_native(native.load({"VEEN_NATIVE": "0"}))
    assert (diagnosis.level, diagnosis.about) == (Severity.OK, "signatures")
    (diagnosis,) = check_native(native.load({}, lambda _: SimpleNamespace(__version__="9")))
    assert diagnosis.level is Severity.WARN
    assert "its version is 9" in diagnosis.what
    assert "make native" in diagnosis.fix


def test_spark_without_java_is_told():
    (diagnosis,) = check_spark()
    assert diagnosis.level in (Severity.OK, Severity.BAD)
    assert diagnosis.fix or diagnosis.level is Severity.OK
