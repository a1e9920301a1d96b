"""Distributed for real: a standalone master and two workers, and the results of one process."""

import json
import os
import subprocess
import sys

import pytest
from tests.lake.audit_builders import run
from tests.lake.cluster import CONFS, ROOT, WORKERS, drive, running_cluster
from tests.lake.drivers import KILLS, hooked, in_one_process, prepare

from veen.cli.shared.output import Exit
from veen.verify.audit.report import document

pytestmark = pytest.mark.xdist_group("jvm")

SETTINGS = [word for name, value in CONFS.items() for word in ("--conf", f"{name}={value}")]
DRIVER = ROOT / "tests" / "pipeline" / "drivers.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def expected(prepared):
    return in_one_process(prepared)


def event_log(directory):
    """A driver told not to compress, roll or hide it."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": directory.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
    }


def executors_by_step(directory):
    """From Spark's own record: which executors ran tasks of which job."""
    (file,) = directory.iterdir()
    steps: dict[int, str] = {}
    used: dict[str, set[str]] = {}
    for line in file.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            about = (event.get("Properties") or {}).get("spark.job.description", "")
            for stage in event["Stage IDs"]:
                steps[stage] = about
        elif event["Event"] == "SparkListenerTaskEnd":
            used.setdefault(steps[event["Stage ID"]], set()).add(event["Task Info"]["Executor ID"])
    return used


@pytest.mark.slow
@pytest.mark.req("GEN-04", "SNAP-02")
def test_every_step_on_two_workers_gives_the_results_of_one_process(cluster, prepared, expected, tmp_path):
    (tmp_path / "events").mkdir()
    faults = hooked(tmp_path / "faults")
    confs = event_log(tmp_path / "events") | {  # and a process of an executor dies in each step
        "spark.executorEnv.PYTHONPATH": f"{faults}:{ROOT}",
        "spark.executorEnv.VEEN_TEST_FAULTS": str(faults),
        "spark.veen.openBytes": "4096",  # a log so small would be the work of one task
    }
    result = drive(cluster.url, DRIVER, prepared, faults, "all", confs=confs)
    assert result["found"] == expected
    assert result["struck"] == {name: times for name, (_, times) in KILLS["all"].items()}
    # Python workers come from the executors of both workers, and from nowhere else.
    assert all(any("CoarseGrainedExecutorBackend" in line for _, line in above) for above in result["above"])
    assert {pid for above in result["above"] for pid, _ in above} >= set(cluster.workers())
    ran = executors_by_step(tmp_path / "events")
    for about in (
        "test: source",
        "audit, pass 1",
        "audit, pass 2",
        "query: survey times",
        "query: open, filter and sort",
    ):
        used = {executor for name, them in ran.items() if name.startswith(about) for executor in them}
        assert used, (about, ran)
        assert "driver" not in used
    assert (
        len({executor for them in ran.values() for executor in them}) == WORKERS + 2
    )  # two came in place of those that were killed


# --- a Python that has nothing -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python for executors, without a single package."""
    place = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    return place / "bin" / "python"


def veen(*words, **env):
    return subprocess.run(
        [sys.executable, "-m", "veen", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **env},
    )


@pytest.mark.slow
def test_executors_that_lack_something_are_named_before_they_get_work(cluster, bare, tmp_path):
    unfit = veen("spark", "check", "--master", cluster.url, *SETTINGS, "--json", PYSPARK_PYTHON=str(bare))
    assert unfit.returncode == Exit.LOCAL, unfit.stderr
    assert len(json.loads(unfit.stdout)["executors"]) == WORKERS
    assert "cannot import veen (ModuleNotFoundError)" in json.loads(unfit.stderr.splitlines()[-1])["cause"]
    fit = veen("spark", "check", "--master", cluster.url, *SETTINGS, "--json")
    assert fit.returncode == Exit.OK, fit.stderr
    assert [executor["lacking"] for executor in json.loads(fit.stdout)["executors"]] == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("ship", ["all", "code"])
def test_what_is_needed_travels_to_executors(cluster, bare, prepared, tmp_path, ship):
    """With `all`, to a Python without packages; with `code`, to one that has the native ones."""
    python = {"all": ["--python", bare], "code": []}[ship]
    path = prepared / "log"
    words = ["spark", "submit", "--master", cluster.url, "--ship", ship, *python, *SETTINGS]
    result = veen(*words, "audit", "run", path, "--out", tmp_path / "out", "--json")
    assert result.returncode == Exit.BAD_EVIDENCE, result.stderr[-3000:]
    assert json.loads(result.stdout) == document(run(path))
