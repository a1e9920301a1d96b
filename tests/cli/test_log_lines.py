"""What containers write: lines of JSON on both streams, from the first on (001 spec-4 §10.3)."""

import io
import json
import os
import signal
import subprocess
import sys

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.waiting import until

from veen.cli.shared.log_lines import LogLines, common_fields
from veen.cli.shared.output import Exit

TOLD = {"VEEN_LOG_FORMAT": "json", "VEEN_TENANT_ID": "acme"}
PROGRAMS = {
    "veen-hub": "from veen.cli.hub.group import veen_hub_main as run",
    "veen-bridge": "from veen.products.bridge.commands.group import veen_bridge_main as run",
    "veen-selftest": "from veen.products.selftest.commands import veen_selftest_main as run",
    "veen-cli": "from veen.cli import main as run",
}


def words(program, *arguments):
    return [sys.executable, "-c", f"{PROGRAMS[program]}; run()", *map(str, arguments)]


def run(home, program, *arguments, **environ):
    env = {**os.environ, **Cli(home).env, **TOLD, **environ}
    return subprocess.run(words(program, *arguments), capture_output=True, check=False, env=env)


def lines_of(data, component, role):
    """All lines, each of which must have the fields that every line has."""
    lines = [json.loads(line) for line in data.splitlines()]
    for line in lines:
        assert (line["component"], line["role"], line["tenant_id"]) == (component, role, "acme"), line
        assert line["level"] in ("info", "warn", "error"), line
        assert line["ts"].endswith("Z")
        assert line["operation"]
    return lines


@pytest.mark.req("K8S-21")
def test_a_hub_writes_lines_from_the_first_on(tmp_path):
    env = {**os.environ, **Cli(tmp_path / "home").env, **TOLD, "VEEN_ROLE": "tenant"}
    command = words("veen-hub", "--profile=tenant", f"--data-dir={tmp_path / 'hub'}", "--set", "listen.port=0")
    output, errors = tmp_path / "out", tmp_path / "err"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=err)
        until(lambda: b"hub_pk" in output.read_bytes())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    first, *_ = lines_of(output.read_bytes(), "hub", "tenant")
    assert first["operation"] == "hub start"
    assert first["record"]["hub_id"]
    assert "ready" in [line["message"] for line in lines_of(errors.read_bytes(), "hub", "tenant")]


@pytest.mark.req("K8S-21")
def test_a_hub_that_cannot_start_says_so_in_a_line(tmp_path):
    done = run(tmp_path, "veen-hub", "--profile=authority", f"--data-dir={tmp_path / 'hub'}")
    (line,) = lines_of(done.stderr, "hub", "authority")
    assert (line["level"], line["exit"], line["message"]) == ("error", Exit.LOCAL, "the hub cannot start")
    assert done.stdout == b""


@pytest.mark.req("K8S-14", "K8S-21")
def test_a_self_test_writes_a_line_for_each_check(tmp_path):
    done = run(tmp_path, "veen-selftest", "core", VEEN_ROLE="selftest")  # without --hub it starts one: no selftest
    lines = lines_of(done.stdout, "selftest", "selftest")
    lines_of(done.stderr, "selftest", "selftest")
    assert done.returncode == Exit.OK, done.stderr
    assert {line["record"]["result"] for line in lines[:-1]} <= {"ok", "not checked"}
    assert (lines[-1]["of"], lines[-1]["summary"]["failed"]) == ("checks", 0)


@pytest.mark.req("K8S-21")
def test_commands_and_their_errors_are_lines(tmp_path):
    keygen = run(tmp_path, "veen-cli", "keygen", "--name", "a", "--insecure-plain-keystore", VEEN_ROLE="cli")
    (line,) = lines_of(keygen.stdout, "cli", "cli")
    assert line["operation"] == "keygen"
    assert line["record"]["name"] == "a"
    lines_of(keygen.stderr, "cli", "cli")
    refused = run(tmp_path, "veen-cli", "stream", "a-secret-name", VEEN_ROLE="cli")
    assert {line["operation"] for line in lines_of(refused.stderr, "cli", "cli")} == {"stream"}
    for program, component, arguments in (
        ("veen-cli", "cli", ("no-such-command",)),
        ("veen-cli", "cli", ("send", "orders", "text", "--hub", "http://127.0.0.1:1", "--wait", "0")),
        ("veen-bridge", "bridge", ("--source-url=http://127.0.0.1:1",)),
        ("veen-selftest", "selftest", ("core", "--hub", "http://127.0.0.1:1", "--no-such-option")),
    ):
        done = run(tmp_path, program, *arguments, VEEN_ROLE=component)
        *_, last = lines_of(done.stderr, component, component)
        assert (last["level"], last["exit"]) == ("error", done.returncode), arguments
        assert lines_of(done.stdout, component, component) == []


def test_a_form_that_the_command_line_names_is_kept(tmp_path):
    done = run(tmp_path, "veen-cli", "version", "--json")
    assert set(json.loads(done.stdout)) >= {"veen", "protocol"}
    with running(tmp_path / "hub") as hub:  # as the tests of this directory read it
        assert hub.about["url"]


@pytest.mark.req("K8S-21")
def test_any_text_becomes_lines_and_lines_of_a_log_stay():
    below = io.StringIO()
    stream = LogLines(below, "warn", {"component": "cli", "role": "cli", "operation": "x"})
    stream.write("half a ")
    assert below.getvalue() == ""
    stream.write('line\n\n[1]\n{"a": 1}\n{"ts": "then", "level": "info", "component": "query", "message": "m"}\nrest')
    stream.finish()
    rows = [json.loads(line) for line in below.getvalue().splitlines()]
    assert [row.get("message") for row in rows] == ["half a line", "[1]", None, "m", "rest"]
    assert rows[2]["record"] == {"a": 1}
    assert (rows[3]["ts"], rows[3]["component"], rows[3]["role"]) == ("then", "query", "cli")
    with pytest.raises(TypeError):
        stream.write(b"bytes")  # type: ignore[arg-type]  # what a program may do by mistake


@pytest.mark.parametrize(
    ("arguments", "operation", "role", "expected"),
    [
        (["--profile=authority"], "hub start", "tenant", ("hub", "authority", "hub start")),
        (["--role", "authority"], "hub start", "", ("hub", "authority", "hub start")),
        ([], "hub start", "", ("hub", "tenant", "hub start")),
        ([], "hub status", "cli", ("cli", "cli", "hub status")),
        ([], "selftest core", "", ("selftest", "selftest", "selftest core")),
        ([], "send", "", ("cli", "cli", "send")),
        ([], "", "bridge", ("bridge", "bridge", "bridge")),
    ],
)
def test_component_role_and_operation(arguments, operation, role, expected):
    assert tuple(common_fields(arguments, operation, {"VEEN_ROLE": role}).values()) == expected
