"""Core files of programs that hold private keys."""

import os
import subprocess
import sys

import pytest
from tests.cli.hubprocess import running

from veen.io.core_files import SWITCH

PROGRAM = """
import sys, resource, ctypes
from veen.cli import app
app.run_line = lambda line: print(resource.getrlimit(resource.RLIMIT_CORE)[0], ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
app.main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is a call of Linux")
def test_a_command_leaves_no_core_file_unless_a_developer_wants_one():
    for switch, expected in ((None, "0 0"), ("1", None)):
        environment = {name: value for name, value in os.environ.items() if name != SWITCH}
        environment |= {} if switch is None else {SWITCH: switch}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True, text=True
        )
        if expected is None:
            assert done.stdout.split()[1] == "1"
        else:
            assert done.stdout.strip() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
def test_a_running_hub_leaves_no_core_file(tmp_path):
    with running(tmp_path / "hub") as hub:
        with open(f"/proc/{hub.process.pid}/limits") as limits:  # noqa: PTH123 - a file of the kernel
            (line,) = [line for line in limits if line.startswith("Max core file size")]
        assert line.split()[4] == "0"
        assert hub.client.connect()  # it answers all the same
        hub.stop()
