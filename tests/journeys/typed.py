"""Commands as people type them: a page's lines, each person in a fresh home of her own.

A line is split as a shell does it and runs in this process, which saves the start of an interpreter; one that needs a
shell gets one, and so does every line of `People(processes=True)`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner
from tests import shell
from tests.cli.homes import CLEAN

from veen.cli.app import cli

VEEN = Path(sys.executable).with_name("veen")
PROMPT = re.compile(r"^([a-z]*)\$ ", re.MULTILINE)
NEEDS_SHELL = re.compile(r"[|>;`]|\$\(")


class People:
    """Homes by name, below one directory in which files are passed on; it is the working directory of all."""

    def __init__(self, root, hub, *, processes=False):
        self.root, self.hub, self.processes = root, hub, processes
        self.words = {"$URL": hub.url, "$PIN": hub.about["hub_pk"]}

    def types(self, who, command, status=0):
        """One line; what it prints on standard output, or on standard error if it is to fail."""
        line = f"{command} --insecure-plain-keystore" if command.startswith("veen keygen") else command
        for name, value in self.words.items():
            line = line.replace(name, value)
        env = {**CLEAN, "VEEN_HOME": str(self.root / f"home-{who}")}
        quoted = re.sub(r"'[^']*'|\"[^\"]*\"", "", line)
        run = self._in_shell if self.processes or NEEDS_SHELL.search(quoted) else _in_process
        code, stdout, stderr = run(line, env)
        assert "Traceback" not in stderr, stderr
        assert code == status, f"{who}$ {command}\n{stdout}{stderr}"
        if shown := re.search(r"^code\t(\S+)$", stdout, re.MULTILINE):
            (self.root / "code.txt").write_text(f"{shown[1]}\n")  # what a person would copy by hand
        return stdout if status == 0 else stderr

    def in_processes(self, who, command, status=0):
        """As `types`, for one line that needs a process of its own, such as the start of a hub."""
        before, self.processes = self.processes, True
        try:
            return self.types(who, command, status)
        finally:
            self.processes = before

    def both(self, who, command):
        """What a line prints on standard output and on standard error."""
        return self.in_processes(who, f"{command} 2>&1")

    def python(self, who, program):
        """A program of hers, in the environment in which `veen` is installed."""
        done = subprocess.run(
            [sys.executable, "-c", program.replace("VEEN", str(VEEN))],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, **CLEAN, "VEEN_HOME": str(self.root / f"home-{who}")},
            cwd=self.root,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _in_shell(self, line, env):
        done = shell.typed(line, shell.environment(env["VEEN_HOME"], **env), self.root)
        return done.returncode, done.stdout, done.stderr


def _in_process(line, env):
    program, *words = shlex.split(line)
    assert program == "veen"
    result = CliRunner().invoke(cli, words, env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def steps(page):
    """Who, what, and what is shown, in the order of the page."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        parts = PROMPT.split(block)[1:]
        for who, rest in zip(parts[::2], parts[1::2], strict=True):
            command, _, shown = rest.partition("\n")
            yield who, command, shown
