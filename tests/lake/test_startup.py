"""How Spark starts: the class-data archive, the compiler, the engine `auto`, and work that is too small to divide."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lake.audit_builders import dump, log, run, tables
from tests.lake.query_builders import KEYS, descriptor, filled

from veen.cli.shared.bulk import LogPlace
from veen.lake.log.keys import write_keys
from veen.lake.query import api
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import plan_query
from veen.lake.query.on_spark import SparkSource
from veen.lake.spark import engines
from veen.lake.spark.audit import SparkEngine
from veen.lake.spark.engines import AUTO_BYTES, choose_engine, log_bytes
from veen.lake.spark.startup import ARCHIVE_VARIABLE, C1_BYTES, class_archive, start_options
from veen.products.demo import spark as demo

WHOLE = b"\xa8\xba\x0b\xf0" + b"classes"


@pytest.fixture
def jars(tmp_path):
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "core.jar").write_bytes(b"1")
    return tmp_path / "spark"


@pytest.fixture
def archive(tmp_path, jars):
    return class_archive("java 17", jars, {ARCHIVE_VARIABLE: str(tmp_path / "archives")})


def test_an_archive_belongs_to_one_java_and_one_set_of_jars(tmp_path, jars):
    environ = {ARCHIVE_VARIABLE: str(tmp_path / "archives")}
    first = class_archive("java 17", jars, environ)
    assert first == class_archive("java 17", jars, environ)
    assert first != class_archive("java 21", jars, environ)
    (jars / "jars" / "core.jar").write_bytes(b"22")
    assert first != class_archive("java 17", jars, environ)


def test_archives_are_in_the_cache_of_the_user_or_switched_off(tmp_path, jars):
    archive = class_archive("java 17", jars, {"VEEN_HOME": str(tmp_path)})
    assert archive is not None
    assert archive.path.parent == tmp_path / "cache" / "spark"
    assert class_archive("java 17", jars, {ARCHIVE_VARIABLE: "off"}) is None
    assert start_options(None, log_bytes=None) == ""


def test_the_first_jvm_writes_an_archive_and_later_ones_use_it(archive):
    first = start_options(archive, log_bytes=None)
    assert f"-XX:ArchiveClassesAtExit={archive.temporary}" in first
    assert "SharedArchiveFile" not in first
    archive.temporary.write_bytes(WHOLE)
    assert f"-XX:SharedArchiveFile={archive.path}" in start_options(archive, log_bytes=None)
    assert archive.is_ready
    assert not archive.temporary.exists()


def test_half_an_archive_is_never_used_and_removed_when_it_is_old(archive):
    """HotSpot writes the header last: a JVM that was killed leaves zeros there."""
    archive.temporary.parent.mkdir(parents=True)
    archive.temporary.write_bytes(bytes(4096))
    assert not archive.adopt()
    assert archive.temporary.exists()  # its JVM may be writing now
    old = time.time() - 7200
    os.utime(archive.temporary, (old, old))
    assert not archive.adopt()
    assert not archive.temporary.exists()


def test_of_two_first_runs_one_archive_stays(archive):
    archive.path.parent.mkdir(parents=True)
    for number in (1, 2):
        archive.path.with_name(f"{archive.path.stem}.{number}.new").write_bytes(WHOLE)
    assert archive.adopt()
    assert [path.name for path in archive.path.parent.iterdir()] == [archive.path.name]


def test_an_archive_that_cannot_be_written_changes_nothing(tmp_path, jars):
    (tmp_path / "file").write_bytes(b"")
    archive = class_archive("java 17", jars, {ARCHIVE_VARIABLE: str(tmp_path / "file" / "below")})
    assert start_options(archive, log_bytes=1) == "-XX:TieredStopAtLevel=1"


def test_only_a_small_log_does_without_the_optimising_compiler(archive):
    assert "TieredStopAtLevel=1" in start_options(archive, log_bytes=C1_BYTES)
    assert "TieredStopAtLevel" not in start_options(archive, log_bytes=C1_BYTES + 1)
    assert "TieredStopAtLevel" not in start_options(archive, log_bytes=None)


# --- engine auto -------------------------------------------------------------------------------------------------


def test_auto_takes_one_process_for_a_small_log_and_spark_for_a_large_one(monkeypatch):
    assert choose_engine(AUTO_BYTES - 1).engine == "python"
    assert "one process, 32.0 MiB of log" in choose_engine(AUTO_BYTES - 1).reason
    assert choose_engine(AUTO_BYTES).engine == "spark"
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert choose_engine(0).engine == "spark"


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ({}, "python"),
        ({"master": "spark://head:7077"}, "spark"),
        ({"partitions": 2}, "spark"),
        ({"plan": "native"}, "spark"),
        ({"jobs": 4}, "python"),
        ({"jobs": 4, "partitions": 2}, "spark"),
    ],
)
def test_an_option_that_only_one_engine_obeys_decides(given, engine):
    """It would be ignored without a word otherwise."""
    notes: list[str] = []
    output: Any = SimpleNamespace(note=notes.append)
    place = LogPlace(**{"engine": "auto", "master": None, **given})
    assert place.choose_engine(output, size=0).engine == engine
    assert len(notes) == 1
    large = LogPlace(engine="auto", master=None, jobs=4).choose_engine(output, size=AUTO_BYTES)
    assert large.engine == "python"
    assert "--jobs" in notes[-1]


def test_auto_does_without_spark_where_there_is_none_and_says_so(monkeypatch):
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    choice = choose_engine(AUTO_BYTES)
    assert choice.engine == "python"
    assert "not installed" in choice.reason


def test_the_size_of_a_log_is_that_of_its_files(tmp_path):
    world = filled(tmp_path, 30)
    world.done()
    assert log_bytes(str(tmp_path)) > 30 * 300
    assert demo.EVENTS * 1000 < AUTO_BYTES  # what the demo shows would need no Spark


# --- small work ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_a_small_query_is_one_task_with_the_bytes_of_many(spark, tmp_path):
    world = filled(tmp_path / "hub", 60)
    path = world.done()
    (tmp_path / "keys").mkdir()
    keys = write_keys(tmp_path / "keys", KEYS.values())
    question, _ = normalise(descriptor(evidence={"mode": "full"}))
    prefix = plan_query(path, question)
    assert len(SparkSource(spark, prefix, question, keys)._tasks) == 1
    alone = api.run(path, question.to_json(), keys=keys, result_id="r-" + "0" * 32)
    small = api.run(path, question.to_json(), keys=keys, result_id="r-" + "0" * 32, engine="spark", spark=spark)
    spark.conf.set("spark.veen.openBytes", "2000")
    try:
        assert len(SparkSource(spark, prefix, question, keys)._tasks) > 3
        many = api.run(path, question.to_json(), keys=keys, result_id="r-" + "0" * 32, engine="spark", spark=spark)
    finally:
        spark.conf.unset("spark.veen.openBytes")
    for other in (small, many):
        assert list(other.rows()) == list(alone.rows())
        for name in ("rows_hash", "evidence_hash", "coverage_hash"):
            assert getattr(other.digest, name) == getattr(alone.digest, name)


@pytest.mark.xdist_group("spark")
def test_a_small_audit_is_one_task(spark, tmp_path):
    path = dump(log(25), tmp_path)
    engine = SparkEngine(spark)
    assert engine._parts(1000, 7) == 1
    assert engine._parts(100 << 20, 7) > 1
    assert tables(run(path, engine=engine)) == tables(run(path))


@pytest.mark.slow
def test_a_prepared_spark_maps_its_archive(tmp_path):
    """A JVM refuses an archive that does not fit, and -Xshare:on would end it: so this one fits."""
    code = "from veen.lake.spark.startup import prepare; print(prepare().path)"
    environ = {**os.environ, ARCHIVE_VARIABLE: str(tmp_path)}
    del environ["SPARK_SUBMIT_OPTS"]  # tests/conftest.py names an archive there, and a JVM has one
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout.strip().endswith(".jsa")
    code = (
        "from veen.lake.spark import startup\n"
        "startup._QUIET += ' -Xshare:on'\n"
        "from veen.lake.spark.session import spark_session\n"
        "spark = spark_session(log_bytes=0, register=False)\n"
        "print(spark.range(3).mapInArrow(lambda batches: batches, 'id long').count())\n"
        "spark.stop()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ)
    assert (done.stdout, done.stderr) == ("3\n", "")
