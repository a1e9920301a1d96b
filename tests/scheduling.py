"""Which process runs which tests, and in which order they begin.

The tests of a file run in one process, one after another, so that what they share (a hub, a log, a parsed source) is
made once and not once in each process; tests with the mark `xdist_group` run in the process of their group. What takes
longest begins first, so that no process is left alone with it at the end.
"""

from pathlib import Path
from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling

__all__ = ["LONGEST_FIRST", "FileScheduling", "begins_before", "depth"]

# By the CPU time of a run (`-p tests.costs`), the longest first. The others take less than five seconds each.
LONGEST_FIRST: Final = (
    "spark",
    "jvm",
    "tests/lake/test_tables.py",
    "tests/cli/test_printed_examples.py",
    "tests/products/idgateway/test_gateway.py",
    "tests/cli/test_hub.py",
    "tests/products/selftest/test_probes.py",
    "tests/client/test_theft.py",
    "tests/lake/test_query_tables.py",
    "architecture",
    "tests/lake/test_query_engine.py",
    "tests/cli/test_hostile_hub.py",
    "tests/products/recorder/test_agent.py",
    "tests/products/bridge/test_crossing.py",
    "tests/cli/test_docs_site.py",
    "tests/cli/test_connect.py",
    "tests/products/kube/test_commands.py",
    "tests/cli/test_docs.py",
    "tests/lake/test_tables_lake.py",
    "tests/products/recorder/test_kills.py",
    "tests/products/bridge/test_crashes.py",
    "tests/hub/test_openapi.py",
    "tests/fuzz/test_fuzz_targets.py",
    "tests/hub/test_sequencer.py",
    "tests/lake/test_query_cuts.py",
    "tests/products/bridge/test_walk.py",
    "tests/cli/test_bridge_copy.py",
    "tests/products/queryservice/test_http.py",
    "tests/products/bridge/test_reconciling.py",
    "tests/test_standalone_verifier.py",
    "tests/overlays/test_speaking.py",
)
MIN_TESTS: Final = 3  # how many tests a process has before it, as in xdist's own scheduling
_PLACES: Final = {scope: place for place, scope in enumerate(LONGEST_FIRST)}


def begins_before(item: pytest.Item) -> int:
    """The key of the order in which tests begin; tests of the same key stay in the order that they have."""
    group = item.get_closest_marker("xdist_group")
    scope = group.args[0] if group is not None else item.nodeid.partition("::")[0]
    return _PLACES.get(scope, len(_PLACES))


def depth(argument: str) -> int:
    """The key of the order in which what the command line names is collected.

    For each file that it names, pytest 9.1 collects the folder of the file once more, and the folders below get new
    nodes; their conftest.py keeps to the old ones. So `tests/cli/test_a.py tests/test_b.py tests/cli/test_c.py` would
    leave the last of them without its fixtures.
    """
    return len(Path(argument.partition("::")[0]).absolute().parts)


class FileScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist loadgroup`, where the tests of a file that are in no group are a group as well.

    Without that each test is a unit of work of its own: the controller counts all units that a process ever had after
    each test, which takes longer than many of the tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope

    def _reschedule(self, node: Any) -> None:
        """Assign units to a process until it has MIN_TESTS tests to run, or no unit is left.

        xdist assigns one unit each time that a test ends. After a crash this stops the whole run: all units of the
        crashed process come back, also those whose tests have been run, and a process that gets such a unit has no test
        that could end. Besides, a process runs its last test only when it knows the next one or that there is none.
        A process that has not collected the tests yet gets no unit.
        """
        if node.shutting_down or node not in self.registered_collections:
            return
        while self.workqueue and self._pending_of(self.assigned_work[node]) < MIN_TESTS:
            try:
                self._assign_work_unit(node)
            except OSError:  # the process is gone; its units come back when xdist has noticed
                return
        if not self.workqueue:
            node.shutdown()  # when it has run its tests
