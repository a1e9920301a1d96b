"""What every test run shares: how Hypothesis searches, which `req` marks are real, the order, the limits of time."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import traceability

SLOW_TIMEOUT_SEC = 4 * 3600

# Each of the JVMs that tests start would leave 160 MB behind, in a home of its own.
os.environ.setdefault("VEEN_SPARK_ARCHIVE", "off")


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    traceability.pytest_collection_modifyitems(session, config, items)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SEC))
    # A group runs in one process and takes minutes: it begins first, whatever the order.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The seed of the order, which pytest-randomly names in a header that `-q` leaves out."""
    if isinstance(seed := config.getoption("randomly_seed", None), int):
        terminalreporter.write_line(f"order of the tests: --randomly-seed={seed}, or make test SEED={seed}")


# No deadline: a busy machine is not a bug. On a build server the same commit must give the same verdict.
# There half of the examples are drawn: always the same ones, after people have drawn others many times.
CI = "CI" in os.environ
settings.register_profile("default", deadline=None, derandomize=CI, max_examples=50 if CI else 100)
settings.register_profile("quick", deadline=None, derandomize="CI" in os.environ, max_examples=15)  # make check
settings.register_profile("thorough", deadline=None, max_examples=2000)
# mutmut runs the tests several times in one process, on new instances of the test classes, and needs stable verdicts.
settings.register_profile(
    "mutation", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)
# Hypothesis picks its own profile when it sees CI; ours holds unless --hypothesis-profile says otherwise.
settings.load_profile("default")
