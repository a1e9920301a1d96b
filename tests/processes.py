"""Processes of `veen` that begin with its modules loaded, which is most of the CPU time of a short command.

A server that has loaded them forks for each process. What runs there is the whole program in a process of its own: its
arguments, environment, directory, output, signals and exit code. How the program itself starts is shown by
`tests/cli/test_app.py`, and by lines of documentation that need a shell.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing.reduction import DupFd
from pathlib import Path

# What a hub loads, and a command that talks to one. Nothing that starts threads: they would not be in the fork.
MODULES = (
    "uvloop",
    "veen.cli.app",
    "veen.cli.hub.data",
    "veen.cli.hub.run",
    "veen.cli.hub.run",
    "veen.cli.shared.command",
    "veen.client.sync",
    "veen.hub.process.forking",
    "veen.hub.process.process",
    "veen.verify.directory",
)
AT_START = ("VEEN_NATIVE", "COVERAGE_PROCESS_START")  # read while modules are loaded

# Also for functions of tests that run in a process of their own.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(list(MODULES))


def start_veen(arguments, *, stderr, env, cwd=None, own_group=False):
    """`veen ARGUMENTS` as a process that has nothing to read; `stdout` is a pipe, `stderr` a file."""
    arguments = [str(argument) for argument in arguments]
    if any(name in env for name in AT_START):
        return subprocess.Popen(
            [sys.executable, "-m", "veen", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=stderr, env=env, cwd=cwd, start_new_session=own_group,
        )  # fmt: skip
    return VeenProcess(arguments, stderr, dict(env), cwd or Path.cwd(), own_group)


def run_veen(arguments, *, env, cwd=None, timeout=120):
    """`veen ARGUMENTS` until it ends, as `subprocess.run` does it."""
    with tempfile.TemporaryFile() as stderr:
        process = start_veen(arguments, stderr=stderr, env=env, cwd=cwd)
        with process.stdout:
            stdout = process.stdout.read()
        code = process.wait(timeout)
        stderr.seek(0)
        return subprocess.CompletedProcess(["veen", *arguments], code, stdout, stderr.read())


class VeenProcess:
    """The part of `subprocess.Popen` that tests use, for a process that the server forks."""

    def __init__(self, arguments, stderr, env, cwd, own_group):
        ours, its = os.pipe()
        self.stdout = os.fdopen(ours, "rb")
        files = (_Inherited(its), _Inherited(stderr.fileno()))
        self._process = FORKED.Process(target=_run, args=(arguments, env, cwd, files, own_group))
        self._process.start()
        os.close(its)
        self.pid: int = self._process.pid or 0  # 0 only before it is started

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("veen", timeout)
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


class _Inherited:
    """A file descriptor that the new process gets as well."""

    def __init__(self, number):
        self._number = number

    def __reduce__(self):
        return _detached, (DupFd(self._number),)


def _detached(handle):
    return handle.detach()


def _run(arguments, env, directory, files, own_group):
    from veen.cli import main

    if own_group:
        os.setsid()
    for number, file in enumerate(files, start=1):
        os.dup2(file, number)
        os.close(file)
    # Those of the server belong to other files.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    os.chdir(directory)
    sys.argv[:] = ["veen", *arguments]
    main()
