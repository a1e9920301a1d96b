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


def environment(home, **more):
    """That of a reader: a home of her own, nothing that says how to reach a hub, and `veen` installed."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
    return env | {"VEEN_HOME": str(home), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}", **more}


def typed(line, env, cwd, timeout=120):
    """What a line did, as `subprocess.run` tells it. A line that needs no shell is split as a shell splits it."""
    if (words := veen_words(line, env)) is None:
        return subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=False, timeout=timeout, env=env, cwd=cwd,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    done = run_veen(words, env=env, cwd=cwd, timeout=timeout)
    return subprocess.CompletedProcess(line, done.returncode, done.stdout.decode(), done.stderr.decode())


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
