"""Tasks that die in the middle of their work change nothing: digests, state hashes and findings stay the same.

Python workers are killed, really, when they open a chunk: some in each step, fewer than make Spark give up.
"""

import pytest
from tests.lake.cluster import ROOT, drive
from tests.lake.drivers import KILLS, hooked, in_one_process, prepare

pytestmark = [pytest.mark.xdist_group("jvm"), pytest.mark.slow]  # test_cluster.py has the short form


@pytest.mark.req("GEN-04", "SNAP-02")
def test_killed_workers_change_no_result(tmp_path):
    prepared, faults = prepare(tmp_path / "data"), hooked(tmp_path / "faults")
    result = drive(
        "local[2,4]",
        ROOT / "tests" / "pipeline" / "drivers.py",
        prepared,
        faults,
        "workers",
        env={"PYTHONPATH": f"{faults}:{ROOT}", "VEEN_TEST_FAULTS": str(faults)},
    )
    expected = in_one_process(prepared)
    assert result["found"] == expected
    assert result["struck"] == {name: times for name, (_, times) in KILLS["workers"].items()}
