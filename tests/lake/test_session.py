"""The session: found, made, described, watched; and what is said where it cannot be."""

import gc
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.examples import spread
from tests.lake.audit_builders import dump, log, run, tables

from veen.lake.log.errors import ConnectUnsupported, ExecutorUnfit, JavaMissing, OptionError
from veen.lake.spark.audit import SparkEngine
from veen.lake.spark.executor_check import Executor, ask_executors, check, find_faults
from veen.lake.spark.progress import format_line, watch_tasks
from veen.lake.spark.session import current_work, describe, spark_session, using_session
from veen.lake.spark.settings import SETTINGS, SparkSettings, reader

pytestmark = pytest.mark.xdist_group("spark")

PAGE = (Path(__file__).parents[2] / "docs" / "spark-cluster.md").read_text("utf-8")


# --- Java --------------------------------------------------------------------------------------------------------


def java_of(env):
    """What a process with this environment says about Java."""
    code = "from veen.lake.spark.session import find_java\n"
    code += "try: print(find_java())\nexcept Exception as exc: print(repr(exc))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **env}
    ).stdout


def fake_java(directory, version):
    (directory / "bin").mkdir(parents=True)
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)
    return {"JAVA_HOME": str(directory)}


def test_java_is_looked_for_where_spark_does(tmp_path):
    assert "there is no Java" in java_of({"JAVA_HOME": "", "PATH": str(tmp_path)})
    assert "JAVA_HOME has no Java" in java_of({"JAVA_HOME": str(tmp_path / "gone")})
    assert "has version 8; Spark needs 17" in java_of(fake_java(tmp_path / "8", "1.8.0_292"))
    assert "has version 11; Spark needs 17" in java_of(fake_java(tmp_path / "11", "11.0.2"))
    assert "has version unknown" in java_of(fake_java(tmp_path / "odd", "?"))
    assert java_of(fake_java(tmp_path / "21", "21")).strip() == str(tmp_path / "21" / "bin" / "java")
    broken = tmp_path / "broken"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "java").write_text("not a program")
    assert "JavaMissing" in java_of({"JAVA_HOME": str(broken)})
    assert "17" in JavaMissing.hint


@pytest.mark.parametrize(
    "command",
    spread([["audit", "run", ".", "--engine", "spark"], ["spark", "check"], ["spark", "shell", "--execute", "0"]], 1),
)
def test_a_command_without_java_says_what_to_do(tmp_path, command):
    words = [sys.executable, "-m", "veen", *command]
    env = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 5
    assert "JAVA_HOME has no Java" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr
    assert "Traceback" not in done.stderr


# --- sessions ----------------------------------------------------------------------------------------------------


def test_a_session_that_runs_is_used_and_neither_stopped_nor_changed(spark):
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        with using_session(app="another", master="local[7]") as session:
            assert session.sparkContext.applicationId == spark.sparkContext.applicationId
        with using_session(spark) as session:
            assert session is spark
        lines = []
        thread = threading.Thread(target=lambda: lines.append(spark_session("from a thread", master="local[7]")))
        thread.start()
        thread.join()
        assert lines[0].sparkContext.applicationId == spark.sparkContext.applicationId
        assert spark.sparkContext.appName == "veen tests"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
        assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"  # or Spark refuses our source
        assert spark.range(3).count() == 3
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "4")


@pytest.mark.parametrize("name", ["SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE"])
def test_spark_connect_without_a_server_is_refused_by_name(monkeypatch, name):
    monkeypatch.setenv(name, "connect")
    with pytest.raises(ConnectUnsupported):
        spark_session()
    assert "--engine python" in ConnectUnsupported.hint


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.fixture
def settings(spark):
    yield spark.conf.set
    for name in SETTINGS:
        spark.conf.unset(name)


def test_settings_say_how_work_is_cut_and_change_no_result(spark, settings, tmp_path):
    path = dump(log(25), tmp_path)
    expected, whole = tables(run(path)), reader(spark).load(str(path)).rdd.getNumPartitions()
    settings("spark.veen.partitionBytes", "3000")
    settings("spark.veen.openBytes", "77")
    assert SparkSettings.of(spark) == SparkSettings(partition_bytes=3000, open_bytes=77)
    assert reader(spark).load(str(path)).rdd.getNumPartitions() > whole
    assert tables(run(path, engine=SparkEngine(spark))) == expected
    settings("spark.veen.verify", "nonsense")
    with pytest.raises(Exception, match="verify is 'nonsense'"):
        reader(spark).load(str(path)).count()
    assert reader(spark).option("verify", "none").load(str(path)).count() == 25


@pytest.mark.parametrize("value", ["0", "-1", "64m", ""])
def test_a_setting_that_is_no_number_of_bytes_is_named(spark, settings, value):
    settings("spark.veen.partitionBytes", value)
    with pytest.raises(OptionError, match=r"spark\.veen\.partitionBytes"):
        SparkSettings.of(spark)


def test_the_settings_are_the_documented_ones():
    for name in SETTINGS:
        assert f"| `{name}` |" in PAGE


@pytest.mark.slow
def test_what_the_jvm_says_stands_in_a_file_and_not_between_our_lines(tmp_path):
    log = tmp_path / "spark.log"
    code = (
        "from veen.lake.spark.session import spark_session\n"
        f"spark = spark_session(master='local[1]', settings={{'spark.veen.log': {str(log)!r}}})\n"
        "print(spark.range(3).mapInArrow(lambda batches: batches, 'id long').count())\n"
        "spark.stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("3\n", "")
    assert "incubator" in log.read_text()  # what every Spark of this version begins with


# --- progress ----------------------------------------------------------------------------------------------------


@dataclass
class OneStage:
    numTasks: int = 40  # noqa: N815 - Spark's names
    numActiveTasks: int = 2  # noqa: N815
    numCompletedTasks: int = 12  # noqa: N815
    numFailedTasks: int = 0  # noqa: N815


@dataclass
class Told:
    """A tracker that knows some stages and has forgotten another."""

    stages: dict[int, OneStage]

    def getActiveStageIds(self):  # noqa: N802 - Spark's names
        return [*self.stages, 99]

    def getStageInfo(self, number):  # noqa: N802
        return self.stages.get(number)

    def getExecutorInfos(self):  # noqa: N802
        return ["driver"]


def test_the_line_names_the_phase_and_counts_tasks():
    assert format_line(Told({}), "pass 1") == "pass 1"
    assert format_line(Told({1: OneStage()}), "pass 1") == "pass 1: 12 of 40 tasks, 2 running"
    waiting = OneStage(numActiveTasks=0, numCompletedTasks=0)
    assert format_line(Told({1: waiting}), "pass 1") == "pass 1: 0 of 40 tasks"
    assert format_line(Told({1: waiting}), "pass 1", on_cluster=True) == "pass 1: 0 of 40 tasks wait for an executor"
    failed = OneStage(numFailedTasks=1)
    assert format_line(Told({1: failed, 2: OneStage()}), "") == "24 of 80 tasks, 4 running, 1 failed and tried again"


def test_work_is_described_and_watched(spark, tmp_path):
    messages: list[str] = []
    reported = tmp_path / "reported"

    def report(text):
        messages.append(text)
        if text.startswith("test: slowly: 0 of 2 tasks"):
            reported.touch()

    def wait_for_the_report(_):
        """Runs in an executor, which does not know the modules of the tests."""
        for _ in range(6000):
            if reported.exists():
                return
            time.sleep(0.01)

    with watch_tasks(spark, report, every=0.02) as phase, describe(spark, "test: slowly"):
        assert current_work() == "test: slowly"
        with describe(spark, "test: inside"):
            assert current_work() == "test: inside"
        assert spark.sparkContext.getLocalProperty("spark.job.description") == current_work() == "test: slowly"
        spark.sparkContext.parallelize(range(2), 2).map(wait_for_the_report).collect()
        phase("another phase")
    gc.collect()  # other tests leave work unfinished, which ends with its iterator
    assert current_work() == ""
    assert any(text.startswith("test: slowly: 0 of 2 tasks") for text in messages)
    assert "another phase" in messages
    assert not [thread for thread in threading.enumerate() if thread.name == "spark-progress"]


# --- executors ---------------------------------------------------------------------------------------------------


def test_executors_say_whether_they_can_do_the_work(spark, tmp_path):
    (executor,) = check(spark)
    assert (executor.lacking, executor.key_file) == ((), None)
    with pytest.raises(ExecutorUnfit, match="cannot read the key file: No such file"):
        check(spark, key_file=str(tmp_path / "gone"))
    assert ask_executors(spark, key_file=__file__)[0].key_file is None


def test_an_executor_that_differs_is_named():
    fit = Executor("h", 1, "3.11.1", "0.0", (), None)
    assert any("veen 0.0" in text for text in find_faults(fit))
    assert any("Python 3.9.2" in text for text in find_faults(Executor("h", 1, "3.9.2", None, ("veen (X)",), None)))
    assert any(
        "cannot import cbor2 (X)" in text for text in find_faults(Executor("h", 1, "3.9.2", None, ("cbor2 (X)",), None))
    )
