"""What every test run shares: how Hypothesis searches, and that `req` marks name real requirements."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# pytest finds the hook by its name in this module.
from traceability import pytest_collection_modifyitems

__all__ = ["pytest_collection_modifyitems"]

# No deadline: a busy machine is not a bug. On a build server the same commit must give the same verdict.
settings.register_profile("default", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("thorough", deadline=None, max_examples=2000)
# mutmut runs the tests several times in one process, on new instances of the test classes, and needs stable verdicts.
settings.register_profile(
    "mutation", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.differing_executors]
)
# Hypothesis picks its own profile when it sees CI; ours holds unless --hypothesis-profile says otherwise.
settings.load_profile("default")
