"""What a test process that crashed leaves behind: `python -m pytest -p tests.workers -n 2`.

A process that a signal ends loses its captured output with it. Here the captured standard error of each process of
xdist is a file with a name, faulthandler writes the stacks of all threads beside it, and the limit of core files is
lifted. Files of processes that ended well are removed; those of a crash are printed at the end of the run, and stay in
`build/crashes`.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import pytest

DIRECTORY: Final = Path("build/crashes")
_SHOWN_LINES: Final = 60
_CORE_PATTERN: Final = Path("/proc/sys/kernel/core_pattern")


@pytest.hookimpl(trylast=True)  # behind pytest's own faulthandler
def pytest_configure(config: pytest.Config) -> None:
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        config.pluginmanager.register(Worker(config, Path(workerinput["crashes"]), workerinput["workerid"]))
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Controller(config))


class Worker:
    """Names the files of this process while it runs."""

    def __init__(self, config: pytest.Config, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._stderr = directory / f"{name}.stderr"
        self._stacks: IO[str] = (directory / f"{name}.stacks").open("w")
        faulthandler.enable(file=self._stacks)
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
        keep_captured_stderr(config, self._stderr)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self._stderr.unlink(missing_ok=True)  # the stacks stay: the process may still crash while it exits


def keep_captured_stderr(config: pytest.Config, path: Path) -> None:
    """Have pytest capture standard error in `path`, which holds what was written since the last test ended."""
    manager = config.pluginmanager.getplugin("capturemanager")
    capture: Any = getattr(getattr(manager, "_global_capturing", None), "err", None)
    if not hasattr(capture, "targetfd"):  # -s, or --capture=sys: nothing is lost
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with suppress(OSError):
        os.dup2(descriptor, capture.tmpfile.fileno(), inheritable=False)
        os.dup2(descriptor, capture.targetfd)
    os.close(descriptor)


class Controller:
    """Gives each run a directory, and prints what is left in it."""

    def __init__(self, config: pytest.Config) -> None:
        self._directory = config.rootpath / DIRECTORY / str(os.getpid())
        self._crashed: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["crashes"] = str(self._directory)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error is not None:
            self._crashed.append(node.gateway.id)

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        stacks = [path for path in sorted(self._directory.glob("*.stacks")) if path.stat().st_size]
        self._crashed += [path.stem for path in stacks if path.stem not in self._crashed]
        if not self._crashed:
            return
        terminalreporter.section("crashed processes", red=True)
        for name in self._crashed:
            for path in (self._directory / f"{name}.stderr", self._directory / f"{name}.stacks"):
                with suppress(OSError):
                    terminalreporter.write_line(f"--- {path}")
                    lines = path.read_text("utf-8", "replace").splitlines()
                    terminalreporter.write_line("\n".join(lines[-_SHOWN_LINES:]))
        terminalreporter.write_line(core_files())

    def pytest_unconfigure(self) -> None:
        if not self._crashed:
            shutil.rmtree(self._directory, ignore_errors=True)


def core_files() -> str:
    """Say where core files are: in a directory, or with the program that the kernel hands them to."""
    try:
        pattern = _CORE_PATTERN.read_text().strip()
    except OSError:
        return "core files: this system does not say where they are"
    cores = ", ".join(map(str, sorted(Path().glob("core*")))) or "none here"
    return f"core files: {cores}; the kernel's pattern is {pattern!r}, relative to the directory of the process"
