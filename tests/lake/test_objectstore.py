"""Chunks in a bucket, behind a real S3 API on loopback."""

import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner
from pyarrow import fs
from tests.lake.audit_builders import chunks, dump, log, run, tables
from tests.lake.query_builders import KEYRING, descriptor, filled

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.io.errors import PlaceMissing
from veen.io.places import ArrowFs, open_place
from veen.lake.query import api
from veen.lake.spark.audit import SparkEngine
from veen.lake.spark.session import spark_session
from veen.lake.spark.source import EntrySource
from veen.storage.pinned import pin

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("s3")]  # a process of their own: make test

SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


class Store:
    """An object store as a process, and how its clients find it: by nothing but their environment."""

    def __init__(self, port, requests):
        self._requests = requests
        self.environment = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }

    def put(self, directory, place):
        system, root = fs.FileSystem.from_uri(f"s3://{place}?allow_bucket_creation=true")
        system.create_dir(root.partition("/")[0])
        fs.copy_files(str(directory), root, source_filesystem=fs.LocalFileSystem(), destination_filesystem=system)
        return f"s3://{place}"

    def requests(self):
        """What was asked since the last time, as `HEAD /bucket/key`."""
        text = self._requests.read_text()
        self._requests.write_text("")
        return re.findall(r"((?:GET|HEAD|PUT|POST) /\S*) HTTP", text)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    requests = tmp_path_factory.mktemp("s3") / "requests"
    with (
        requests.open("a") as output,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        lines = iter(server.stdout.readline, b"")
        port = int(next(line for line in lines if line.strip().isdigit()))
        bucket_store = Store(port, requests)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in bucket_store.environment.items():
                patch.setenv(name, value)
            yield bucket_store
        server.stdin.close()
        server.wait(30)


@pytest.fixture
def spark_there(spark, store):
    """Python workers inherit the environment of a JVM that started before the store did; so they are told.

    So are those that look at a source that was registered, but not those of one that Spark found by itself.
    """
    environment = spark.sparkContext.environment
    environment.update(store.environment)
    session = spark_session().newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(EntrySource)
    yield session
    for name in store.environment:
        del environment[name]


def test_an_audit_of_a_bucket_is_that_of_the_directory(spark_there, store, tmp_path):
    path = dump(log(25), tmp_path)
    place = store.put(path, "bucket/good")
    expected = run(path)
    assert tables(run(place)) == tables(run(place, engine=SparkEngine(spark_there, 3))) == tables(expected)
    data = bytearray(chunks(path)[0].read_bytes())
    data[400] ^= 1
    chunks(path)[0].write_bytes(data)
    place = store.put(path, "bucket/bad")
    report = run(place, engine=SparkEngine(spark_there, 3))
    assert not report.ok
    assert tables(report) == tables(run(path))


def test_source_and_queries_read_a_bucket(spark_there, store, tmp_path):
    path = filled(tmp_path, 40).done()
    place = store.put(path, "bucket/events")
    rows = spark_there.read.format("veen").option("verify", "full").load(place.replace("s3://", "s3a://"))
    assert sorted(map(tuple, rows.select("label", "stream_seq", "ok").collect())) == sorted(
        map(tuple, spark_there.read.format("veen").load(path).select("label", "stream_seq", "ok").collect())
    )
    asked = descriptor(query_id="q-1", evidence={"mode": "full"})
    expected = api.run(path, asked, keys=KEYRING, result_id="r-1", now=lambda: 7)
    result = api.run(place, asked, keys=KEYRING, result_id="r-1", now=lambda: 7, engine="spark", spark=spark_there)
    assert (result.digest, list(result.rows())) == (expected.digest, list(expected.rows()))


def test_a_bucket_that_is_not_there_is_no_empty_log(store, tmp_path):
    store.put(dump(log(3), tmp_path), "bucket/some")
    for place in ("s3://nobody-has-this/hub", "s3://bucket/elsewhere"):
        with pytest.raises(PlaceMissing, match="the directory or bucket does not exist"):
            run(place)
        result = CliRunner().invoke(cli, ["audit", "run", place, "--engine", "python"])
        assert result.exit_code == Exit.LOCAL, result.output
        assert place in result.stderr
    with pytest.raises(PlaceMissing, match="Unrecognized filesystem"):
        open_place("wasb://account/container")


def test_a_listing_is_enough_to_know_sizes(store, tmp_path):
    """A request per chunk before the first byte is read would take minutes for a large log."""
    path = dump(log(40), tmp_path)
    place = store.put(path, "bucket/listed")
    store.requests()
    pinned = pin(place)
    asked = store.requests()
    sealed = [ref for ref in pinned.chunks() if ref.kind == "sealed"]
    assert len(sealed) > 3
    assert sum("list-type=2" in line and "log/" in line for line in asked) == 1
    assert not [line for line in asked if any(ref.path in line for ref in sealed)]


def test_the_pipeline_never_writes_into_a_bucket(store, tmp_path):
    place = store.put(dump(log(3), tmp_path), "bucket/kept")
    store.requests()
    run(place)
    assert {line.split()[0] for line in store.requests()} <= {"GET", "HEAD"}
    bucket = ArrowFs(place)
    for act in (lambda: bucket.remove("log"), lambda: bucket.open("x", create=True), lambda: bucket.make_dir("x")):
        with pytest.raises(Exception, match="does not write"):
            act()
    assert "AWS_SECRET_ACCESS_KEY" in os.environ  # and nowhere in the URLs above
