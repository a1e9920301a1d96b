"""What every test run shares: how Hypothesis searches, which `req` marks are real, the order, the limits of time."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

import traceability
from tests import scheduling
from tests.examples import QUICK
from veen.client.identity.passphrases import Kdf

SLOW_TIMEOUT_SEC = 4 * 3600
MAX_ID_CHARS = 100

# Each of the JVMs that tests start would leave 160 MB behind, in a home of its own.
os.environ.setdefault("VEEN_SPARK_ARCHIVE", "off")


def jvm_options(prefix: Path) -> str:
    """For JVMs that end after seconds: the quick compiler alone, and the classes that `make` put into an archive."""
    archives = [f"-XX:SharedArchiveFile={path}" for path in (prefix / "spark-classes").glob("classes-*.jsa")]
    quiet = ["-Xlog:disable", "-Xlog:all=error:stderr"]  # an archive that does not fit is left out without a word
    return " ".join(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *archives[:1], *quiet])


os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options(Path(sys.prefix)))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")


# argon2id as it is, at a cost that tests can pay; that of users is shown by tests/client/test_keystore.py.
(Kdf.__init__.__kwdefaults__ or {}).update(memory_kib=Kdf.MIN_MEMORY_KIB, passes=1)


def pytest_collection(session: pytest.Session) -> None:
    """Collecting seventeen thousand tests makes no garbage, and looking for some took a third of the time."""
    gc.disable()
    session.config.args.sort(key=scheduling.depth)


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # tests and modules stay: later collections need not look at them
    gc.enable()


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    traceability.pytest_collection_modifyitems(session, config, items)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_SEC))
    items.sort(key=scheduling.begins_before)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """A megabyte of input would be the name of its test, in the list of each process and in each of its reports."""
    return f"{argname} of {len(val)}" if isinstance(val, (str, bytes)) and len(val) > MAX_ID_CHARS else None


@pytest.hookimpl(optionalhook=True)  # make check and mutmut run without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.FileScheduling | None:
    return scheduling.FileScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


# No deadline: a busy machine is not a bug. The same commit gives the same verdict everywhere: always the same examples.
# `make explore` draws others, and more of them; what it finds becomes a fixed example of its test.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=QUICK)  # make check
settings.register_profile("explore", deadline=None, derandomize=False, max_examples=100, print_blob=True)
settings.register_profile("thorough", deadline=None, derandomize=False, max_examples=2000)
# tests/mutants: a failure is all that is asked for, not the smallest example of it.
settings.register_profile(
    "unshrunk", deadline=None, derandomize=True, max_examples=25, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
# mutmut runs the tests several times in one process, on new instances of the test classes, and needs stable verdicts.
settings.register_profile(
    "mutation", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)
# Hypothesis picks its own profile when it sees CI; ours holds unless --hypothesis-profile says otherwise.
settings.load_profile("default")
