"""The walk of docs/witnesses.md runs as it stands there."""

import json
import re
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path

import pytest
from tests import shell
from tests.cli.tree import check_line, command_lines, exists
from tests.waiting import until

PAGE = (Path(__file__).parents[2] / "docs" / "witnesses.md").read_text("utf-8")
SERVERS = ("veen hub start", "veen witness run")
# What becomes true with one of the next notes of the hub.
EVENTUALLY = ("veen witness show", "(veen witness show", "veen evidence export", "veen monitor")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_every_line_of_the_walk_works(tmp_path):
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    hub_port, witness_port = free_port(), free_port()
    env = shell.environment(
        tmp_path / "home",
        HUB_PORT=str(hub_port),
        WITNESS_PORT=str(witness_port),
        URL=f"http://127.0.0.1:{hub_port}",
        WITNESS=f"http://127.0.0.1:{witness_port}",
    )
    servers = []
    try:
        for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            if command.startswith(SERVERS):
                servers.append(serving(command, env, tmp_path))
                if command.startswith("veen hub start"):
                    env["PIN"] = about(servers[0])["hub_pk"]
                else:
                    servers[-1].stderr.readline()
                continue
            again = command.startswith(EVENTUALLY)
            until(partial(worked, command, env, tmp_path, again))
    finally:
        for server in servers:
            server.send_signal(signal.SIGTERM)
        for server in servers:
            server.communicate(timeout=60)


def serving(command, env, tmp_path):
    return subprocess.Popen(
        ["bash", "-c", f"exec {command} --json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path
    )


def about(server):
    """What a hub says when it listens."""
    lines = b""
    while not lines.endswith(b"}\n"):
        lines += server.stdout.readline()
    return json.loads(lines)


def worked(command, env, tmp_path, again):
    done = shell.typed(command, env, tmp_path)
    assert again or done.returncode == 0, f"{command}\n{done.stderr}"
    return done.returncode == 0


def test_every_command_that_is_named_parses():
    for line in command_lines(PAGE):
        if not exists(" ".join(line)):
            check_line(line)
