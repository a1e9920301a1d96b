"""The audit on Spark equals the single-process one, byte for byte."""

import random

import pytest
from tests.pipeline.audit_builders import ShuffledEngine, dump, log, run, tables
from tests.pipeline.randomlogs import damaged

from veen.spark.audit import SparkEngine
from veen.verify.audit.report import document

pytestmark = pytest.mark.xdist_group("spark")  # one JVM is enough


@pytest.mark.parametrize("partitions", [1, 2, 7])
def test_findings_and_commitments_are_those_of_one_process(spark, tmp_path, partitions):
    for number in range(3):
        files = log(25, number).fs.files()
        if number:
            files = damaged(files, random.Random(number))
        path = tmp_path / str(number)
        path.mkdir()
        dump(files, path)
        expected = run(path)
        assert bool(expected.findings) == bool(number)
        result = run(path, engine=SparkEngine(spark, partitions))
        assert tables(result) == tables(expected) == tables(run(path, engine=ShuffledEngine(64)))
        assert document(result) == document(expected)


def test_spark_decides_by_itself_how_to_cut_and_an_empty_log_is_no_job(spark, tmp_path):
    path = dump(log(20), tmp_path)
    assert tables(run(path, engine=SparkEngine(spark))) == tables(run(path))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert [finding.code for finding in run(empty, engine=SparkEngine(spark)).findings] == ["identity"]
