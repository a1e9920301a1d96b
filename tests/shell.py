"""Lines as people type them into a shell."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.processes import run_veen

QUOTED = re.compile(r"'[^'$]*'|\"[^\"`\\]*\"")
SHELL = re.compile(r"[|&;<>()`*?\[\]{}~#!'\"\\\n]")
VARIABLE = re.compile(r"\$([A-Za-z_]\w*)?")
PLAIN = re.compile(r"[\w./:@%+=,-]+")
INNER = re.compile(r"(?P<quote>\"?)\$\((veen [^()\"]+)\)(?P=quote)")
OTHERWISE = ' || echo "exit code $?"'
REDIRECTED = re.compile(r"([^<>]*[^<>&0-9]) > ([\w./-]+)")


def environment(home, **more):
    """That of a reader: a home of her own, nothing that says how to reach a hub, and `veen` installed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
    return env | {"VEEN_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}", **more}


def typed(line, env, cwd, timeout=120):
    """What a line did, as `subprocess.run` tells it. A line that needs no shell is split as a shell splits it."""
    file, words = plain_command(line, env, cwd)
    if words is None:
        return subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=timeout, env=env, cwd=cwd,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    done = run_veen(words, env=env, cwd=cwd, timeout=timeout)
    code, stdout = done.returncode, done.stdout.decode()
    if file:
        (Path(cwd) / file).write_text(stdout)
        stdout = ""
    if code and line.endswith(OTHERWISE):
        code, stdout = 0, f"{stdout}exit code {code}\n"
    return subprocess.CompletedProcess(line, code, stdout, done.stderr.decode())


def plain_command(line, env, cwd):
    """The file for the output of a line, and the arguments of its `veen`: None if the line needs a shell.

    Of what a shell does with a line, this does what most lines of the pages ask for: what another `veen` prints is an
    argument, the output is a file, and a failure is told. Starting a shell is quick, but not a `veen` inside of it.
    """
    command, _, rest = line.partition(OTHERWISE)
    redirected = REDIRECTED.fullmatch(command)
    command, file = redirected.groups() if redirected else (command, None)
    inners = list(INNER.finditer(command))
    if rest or (inners and "'" in command) or veen_words(INNER.sub("X", command), env) is None:
        return None, None
    for inner in inners:
        words = veen_words(inner[2], env)
        done = run_veen(words, env=env, cwd=cwd) if words is not None else None
        output = done.stdout.decode().rstrip("\n") if done is not None and done.returncode == 0 else ""
        if not PLAIN.fullmatch(output):
            return None, None
        command = command.replace(inner[0], output)
    return file, veen_words(command, env)


def works(line, env, cwd):
    """What a line prints that must succeed."""
    done = typed(line, env, cwd)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def veen_words(line, env):
    """The arguments of a line that runs `veen` and asks nothing else of the shell; None for any other."""
    if SHELL.search(QUOTED.sub("", line)):
        return None
    if not all(PLAIN.fullmatch(env.get(name, "")) for name in VARIABLE.findall(line)):
        return None
    program, *words = shlex.split(VARIABLE.sub(lambda match: env[match[1]], line))
    return words if program == "veen" else None
