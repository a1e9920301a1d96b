"""The command tree as a whole: every command speaks JSON, help is cheap, errors have three parts."""

import json
import subprocess
import sys

import click
import pytest

from veen.cli.app import cli
from veen.cli.output import Exit


def veen(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "veen", *args], input=stdin, capture_output=True, check=False)


def commands(group=cli, prefix=""):
    """Every command of the tree that does something, by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


ALL = list(commands())


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_every_command_takes_json(name, command):
    assert command is not None
    assert "--json" in {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize(("name", "command"), ALL, ids=[name for name, _ in ALL])
def test_the_listed_help_matches_the_command(name, command):
    """The table repeats the help so that listing imports nothing; the command itself must exist under its name."""
    assert command.name == name.split()[-1]
    assert command.help


def test_help_imports_no_crypto():
    code = (
        "import sys; from veen.cli import main; sys.argv = ['veen', '--help']\ntry:\n main()\nexcept SystemExit: pass\n"
    )
    code += "print([m for m in ('nacl', 'cbor2', 'asyncio', 'veen.core.msg') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == b"[]"


def test_a_usage_error_says_what_why_and_what_next():
    done = veen("verify")
    assert done.returncode == Exit.USAGE
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "hint"]
    assert "Missing argument" in lines[1]
    assert veen(*lines[2].removeprefix("hint:").split()[1:]).returncode == Exit.OK  # the hint is a command that works


def test_an_unknown_command_is_a_usage_error_in_json_too():
    done = veen("frobnicate", "--json")
    assert done.returncode == Exit.USAGE
    assert json.loads(done.stderr)["hint"]


def test_version_in_both_forms():
    assert json.loads(veen("version", "--json").stdout)["protocol"] == "v0.0.1"
    assert veen("version").stdout.splitlines()[0].startswith(b"veen\t")
    assert veen("--version").returncode == Exit.OK


def test_a_closed_pipe_ends_quietly():
    with subprocess.Popen(
        [sys.executable, "-m", "veen", "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
