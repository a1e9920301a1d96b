"""A failed test is run once more, alone, at the end of the run: `python -m pytest -p tests.reruns`.

"Alone" is a process of its own that runs nothing else. If the test passes there, the run passes, and prints
`flaky: NAME` with both outputs. If it fails again, the run fails. A test whose process crashed counts as failed, and is
run again like the others: the crash may come from an earlier test of that process, and what it left behind is named
(`tests/workers.py`). A run stays failed without a second look if a file could not be collected, if a test was not run
at all, or if more than `MAX_RERUNS` tests failed: those have one cause, and it is not chance.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import pytest

MAX_RERUNS: Final = 20
TIMEOUT_SEC: Final = 900  # for one test; pytest-timeout ends it earlier, under its own name
_OF_A_RUN: Final = ("PYTEST_CURRENT_TEST", "PYTEST_XDIST_")
_PASSED: Final = re.compile(r"^(?:=+ )?1 passed", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # processes of xdist report to this one
        config.pluginmanager.register(Reruns(config))


def plain_nodeid(nodeid: str) -> str:
    """Return the name of a test without the `@group` that xdist appends."""
    return nodeid[: nodeid.rfind("@")] if nodeid.rfind("@") > max(nodeid.rfind("]"), nodeid.rfind("::")) else nodeid


class Reruns:
    """The failed tests of a run, and what became of them alone."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed: dict[str, list[pytest.TestReport]] = {}
        self._reported: set[str] = set()  # tests with any report
        self._collected: set[str] = set()
        self._is_complete = True  # every file was collected
        self._outputs: dict[str, tuple[bool, str]] = {}  # of the second run: whether it passed, and what it printed
        self._remarks: list[str] = []

    # --- what happened ---------------------------------------------------------------------------------------

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._is_complete = self._is_complete and not report.failed

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._collected.update(map(plain_nodeid, ids))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)  # there are none where xdist is used

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        nodeid = plain_nodeid(report.nodeid)
        self._reported.add(nodeid)
        if report.failed:
            self._failed.setdefault(nodeid, []).append(report)

    # --- the second look -------------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self._failed:
            return
        if not self._is_complete or len(self._failed) > MAX_RERUNS:
            self._remarks.append(f"no test is run again: {self._reason()}")
            return
        for nodeid in self._failed:
            self._outputs[nodeid] = self._run_alone(nodeid)
        flaky = [nodeid for nodeid, (passed, _) in self._outputs.items() if passed]
        self._move_to_flaky(flaky)
        if missing := self._collected - self._reported:
            self._remarks.append(f"{len(missing)} tests were not run, such as {min(missing)}")
        elif len(flaky) == len(self._failed):
            session.exitstatus = pytest.ExitCode.OK

    def _reason(self) -> str:
        return f"{len(self._failed)} failed" if self._is_complete else "not every file could be collected"

    def _run_alone(self, nodeid: str) -> tuple[bool, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_RUN)}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *self._options(), nodeid]
        try:
            run = subprocess.run(
                command, cwd=self._config.invocation_params.dir, env=env, timeout=TIMEOUT_SEC,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            return False, f"{(exc.output or b'').decode(errors='replace')}\nended after {TIMEOUT_SEC} s"
        output = run.stdout.decode(errors="replace")
        return run.returncode == 0 and _PASSED.search(output) is not None, output

    def _options(self) -> list[str]:
        """Return the options of this run that a test can notice."""
        config, options = self._config, []
        if hasattr(config.option, "numprocesses"):
            options += ["-n", "0"]
        if getattr(config.option, "benchmark_disable", False):
            options.append("--benchmark-disable")
        for name in ("randomly_seed", "hypothesis_profile"):
            if (value := config.getoption(name, None)) not in (None, "default"):
                options.append(f"--{name.replace('_', '-')}={value}")
        return options

    def _move_to_flaky(self, flaky: Sequence[str]) -> None:
        """Count these tests as `flaky`, not as failed, in the summary of pytest."""
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is None:
            return
        for category in ("failed", "error"):
            reports = reporter.stats.get(category, [])
            reporter.stats[category] = [each for each in reports if plain_nodeid(each.nodeid) not in flaky]
            if not reporter.stats[category]:
                del reporter.stats[category]
        if flaky:
            reporter.stats["flaky"] = [self._failed[nodeid][0] for nodeid in flaky]

    # --- what is printed -------------------------------------------------------------------------------------

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for nodeid, (passed, output) in self._outputs.items():
            if not passed:
                terminalreporter.write_line(f"fails alone, too: {nodeid}", red=True)
                continue
            terminalreporter.section(f"flaky: {nodeid}", yellow=True)
            terminalreporter.write_line("--- in the run, where it failed")
            for report in self._failed[nodeid]:
                terminalreporter.write_line(report.longreprtext)
                for title, text in report.sections:
                    terminalreporter.write_line(f"--- {title}\n{text}")
            terminalreporter.write_line("--- alone, where it passed")
            terminalreporter.write_line(output.rstrip())
        for nodeid, (passed, _) in self._outputs.items():
            if passed:
                terminalreporter.write_line(f"flaky: {nodeid}", yellow=True)
        for remark in self._remarks:
            terminalreporter.write_line(remark, red=True)
