"""The service file: understood by every systemd from 247 to 257."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "veen-hub.service"
OLDEST = 247  # Debian 11

# The first version whose entry in the NEWS file of systemd names a directive or value; it may be older. 1: never named,
# as it was there from the beginning. Later versions keep what they once understood.
SINCE = {
    "Unit": {"Description": 1, "After": 1, "Wants": 1},
    "Service": {
        "Type": 1,
        "ExecStart": 1,
        "ExecReload": 195,
        "Restart": 1,
        "RestartSec": 1,
        "WatchdogSec": 207,
        "KillMode": 209,
        "TimeoutStopSec": 188,
        "LimitNOFILE": 1,
        "DynamicUser": 232,
        "StateDirectory": 235,
        "StateDirectoryMode": 235,
        "UMask": 1,
        "NoNewPrivileges": 227,
        "ProtectSystem": 214,
        "ProtectHome": 214,
        "PrivateTmp": 183,
        "PrivateDevices": 209,
        "ProtectKernelTunables": 232,
        "ProtectKernelModules": 232,
        "ProtectControlGroups": 232,
        "RestrictAddressFamilies": 211,
        "RestrictNamespaces": 233,
        "LockPersonality": 235,
        "CapabilityBoundingSet": 183,
        "SystemCallFilter": 209,
    },
    "Install": {"WantedBy": 1},
}
# Values that are younger than their directives.
VALUES_SINCE = {
    ("Type", "notify"): 1,
    ("Type", "notify-reload"): 253,
    ("Type", "exec"): 240,
    ("KillMode", "mixed"): 209,
    ("ProtectSystem", "strict"): 232,
    ("SystemCallFilter", "@system-service"): 241,
}
NEEDS_A_VERSION = {name for name, _ in VALUES_SINCE}


def directives():
    section = ""
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif line and not line.startswith(("#", ";")):
            name, _, value = line.partition("=")
            yield section, name, value


def test_every_directive_and_value_is_as_old_as_the_oldest_systemd():
    for section, name, value in directives():
        assert SINCE[section][name] <= OLDEST, name
        if name in NEEDS_A_VERSION:
            assert VALUES_SINCE[name, value] <= OLDEST, f"{name}={value}"
    assert {name for _, name, _ in directives()} == {name for names in SINCE.values() for name in names}


def test_specifiers_and_commands_are_what_they_should_be():
    values = {name: value for _, name, value in directives()}
    assert set(re.findall(r"%(.)", UNIT.read_text())) == {"S"}  # the state directory, since 236
    assert values["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert values["ExecStart"].startswith("/usr/bin/env veen-hub ")
    assert values["RestrictAddressFamilies"].split() == ["AF_INET", "AF_INET6", "AF_UNIX"]  # the last for sd_notify


@pytest.mark.system
@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (package systemd)"
)
def test_the_systemd_of_this_machine_has_nothing_to_say_about_it(tmp_path):
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    about_it = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert (done.returncode, about_it) == (0, []), done.stderr
