"""The audit on Spark equals the single-process one, byte for byte."""

import random
from collections import Counter

import pytest
from tests.examples import spread
from tests.lake.audit_builders import ShuffledEngine, chunks, dump, log, run, tables
from tests.lake.randomlogs import damaged

from veen.lake.spark.audit import SparkEngine
from veen.verify.audit.report import document

pytestmark = pytest.mark.xdist_group("spark")  # one JVM is enough


@pytest.mark.parametrize("partitions", spread([1, 2, 7], 1))
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


class Counted(SparkEngine):
    """Counts the chunks that each pass checks."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.chunks: Counter[str] = Counter()

    def map(self, step, context, tasks, *, weight, what):
        self.chunks[what] += len(tasks)
        return super().map(step, context, tasks, weight=weight, what=what)


def test_a_log_without_damage_is_read_once_and_a_damaged_chunk_twice(spark, tmp_path):
    path = dump(log(25), tmp_path)
    engine = Counted(spark, 3)
    result = run(path, engine=engine)
    assert +engine.chunks == {"pass 1": result.counts["chunks"]}
    data = bytearray(chunks(path)[1].read_bytes())
    data[300] ^= 1
    chunks(path)[1].write_bytes(data)
    engine = Counted(spark, 3)
    assert tables(run(path, engine=engine)) == tables(run(path))
    assert engine.chunks == {"pass 1": result.counts["chunks"], "pass 2": 1}


def test_spark_decides_by_itself_how_to_cut_and_an_empty_log_is_no_job(spark, tmp_path):
    path = dump(log(20), tmp_path)
    assert tables(run(path, engine=SparkEngine(spark))) == tables(run(path))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert [finding.code for finding in run(empty, engine=SparkEngine(spark)).findings] == ["missing"]
