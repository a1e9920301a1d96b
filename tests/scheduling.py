"""Which process runs which tests, and in which order they begin.

The tests of a file run in one process, one after another, so that what they share (a hub, a log, a parsed source) is
made once and not once in each process; tests with the mark `xdist_group` run in the process of their group. What takes
longest begins first, so that no process is left alone with it at the end.
"""

from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling

__all__ = ["LONGEST_FIRST", "FileScheduling", "begins_before"]

# By the CPU time of a run (`-p tests.costs`), the longest first. The others take less than eight seconds each.
LONGEST_FIRST: Final = (
    "spark",
    "jvm",
    "tests/storage/test_crash.py",
    "tests/cli/test_docs_site.py",
    "tests/overlays/test_wallet_laws.py",
    "tests/cli/test_hub.py",
    "tests/selftest/test_selftest.py",
    "tests/products/airgap/test_walk.py",
    "tests/products/airgap/test_link.py",
    "tests/pipeline/test_query_cuts.py",
    "tests/hub/hostile/test_hostile.py",
    "tests/cli/test_app.py",
    "tests/products/recorder/test_loss_threads.py",
    "tests/pipeline/test_tables_lake.py",
    "tests/hub/test_rotation.py",
    "tests/storage/test_fsck.py",
    "tests/storage/test_policies.py",
    "tests/storage/test_bitflips.py",
    "tests/selftest/test_jobs.py",
    "tests/hub/test_openapi.py",
    "tests/products/airgap/test_crashes.py",
    "tests/cli/test_replication_docs.py",
    "tests/hub/test_signals.py",
    "tests/cli/test_bridge_copy.py",
    "tests/pipeline/test_query_tables.py",
    "tests/cli/test_replica.py",
    "tests/cli/test_audit_policy.py",
    "tests/storage/test_rebuild.py",
)
MIN_TESTS: Final = 3  # of a process that works: so many does xdist keep there
_PLACES: Final = {scope: place for place, scope in enumerate(LONGEST_FIRST)}


def begins_before(item: pytest.Item) -> int:
    """The key of the order in which tests begin; tests of the same key stay in the order that they have."""
    group = item.get_closest_marker("xdist_group")
    scope = group.args[0] if group is not None else item.nodeid.partition("::")[0]
    return _PLACES.get(scope, len(_PLACES))


class FileScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist loadgroup`, where the tests of a file that are in no group are a group as well.

    Without that each test is a unit of work of its own: the controller counts all units that a process ever had after
    each test, which takes longer than many of the tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope

    def _reschedule(self, node: Any) -> None:
        """Give a process units until it has three tests to run, or there are no more units.

        xdist gives it one unit, when a test of its ends. After a crash that can be for ever: the units of the crashed
        process come back, most of them with no test left to run, and a process keeps its last test until it knows the
        next. A process that has not collected its tests yet gets none.
        """
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < MIN_TESTS:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()  # when it has run its tests
