"""Ctrl-C at any moment: exit status 130, a message, and a home that the next command can use."""

import json
import os
import subprocess
import sys

import pytest

from veen.cli.app import run_line
from veen.cli.shared.output import Exit

# Runs a command once, and once more for each of N moments, in processes that fork from one with all modules loaded. At
# its moment, which is a call of a function of veen or asyncio, KeyboardInterrupt is raised there. Prints a line of JSON
# for each run: [moment, exit status, standard error].
DRIVER = """
import asyncio, json, os, sys, tempfile
from pathlib import Path
import veen
from veen.cli import main

PLACES = (str(Path(veen.__file__).parent), str(Path(asyncio.__file__).parent))

class CallTrace:
    def __init__(self, interrupt_at):
        self.calls, self.interrupt_at = 0, interrupt_at
    def __call__(self, frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(PLACES) and frame.f_code is not main.__code__:
            self.calls += 1
            if self.calls == self.interrupt_at:
                raise KeyboardInterrupt

def run(moment):
    errors, output = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        trace, code = CallTrace(moment), 99
        sys.settrace(trace)
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.settrace(None)
            sys.stderr.flush()
            os.write(writing, str(trace.calls).encode())
            os._exit(code)
    os.close(writing)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    calls = int(os.read(reading, 20) or 0)
    os.close(reading)
    errors.seek(0)
    return calls, [moment, code, errors.read().decode()]

moments = int(sys.argv.pop(1))
stdout = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
try:
    main()  # loads the modules
except SystemExit:
    os.dup2(stdout, 1)
calls, whole = run(None)
print(json.dumps(whole))
for moment in range(1, calls, max(calls // moments, 1)):
    print(json.dumps(run(moment)[1]), flush=True)
"""


@pytest.mark.parametrize("moments", [6, pytest.param(25, marks=pytest.mark.slow)])
def test_an_interrupt_at_any_moment_ends_with_130(talk, moments):
    name = talk.new_stream("interrupted")
    talk.say(name, "one", "two")
    line = ["tail", name, "--from", "1", "--to", "2", "--ndjson"]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(moments), *line],
        env={**os.environ, **talk.env},
        capture_output=True,
        text=True,
        check=True,
    )
    (_, code, errors), *interrupted = map(json.loads, done.stdout.splitlines())
    assert code == Exit.OK, errors
    assert len(interrupted) >= moments
    for moment, code, errors in interrupted:
        assert code == Exit.INTERRUPTED, (moment, errors)
        assert [json.loads(text)["exit"] for text in errors.splitlines() if text] in ([], [Exit.INTERRUPTED]), moment
    assert len(talk.entries(name)) == 2


def test_an_error_that_an_interrupt_leads_to_is_the_interrupt(monkeypatch, capsys):
    """What the interrupt left half done may fail when it is closed: that is no defect to report."""

    def interrupted(**_):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("already running")

    monkeypatch.setattr("veen.cli.app.cli.main", interrupted)
    assert run_line(["version", "--json"]) == Exit.INTERRUPTED
    assert json.loads(capsys.readouterr().err)["exit"] == Exit.INTERRUPTED
