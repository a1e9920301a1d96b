"""Spark Connect: source, audit, query and fold give the bytes of one process, through a real server."""

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.lake.cluster import free_port
from tests.lake.connectdriver import answers
from tests.lake.query_builders import KEYS, STREAMS, filled
from tests.waiting import until

from veen.client.errors import ExtraMissing
from veen.lake.log.errors import ConnectUnsupported, SparkFailed
from veen.lake.log.keys import write_keys
from veen.lake.spark import session as sessions
from veen.lake.spark.connect import is_connect, parallelism, tag_of
from veen.lake.spark.submit import spark_home
from veen.overlays import kv

ROOT = Path(__file__).parents[2]


def remote(**settings):
    """As much of a session of Spark Connect as says how many tasks it runs."""
    conf = SimpleNamespace(get=lambda name, default=None: settings.get(name.replace(".", "_"), default))
    return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": conf})()


def test_the_number_of_tasks_comes_from_the_settings_of_the_server():
    assert is_connect(remote())
    assert parallelism(remote()) == 8
    assert parallelism(remote(spark_master="local[3]")) == 3
    assert parallelism(remote(spark_master="local[*]")) == 8
    assert parallelism(remote(spark_master="local[3]", spark_default_parallelism="5")) == 5
    assert parallelism(remote(spark_executor_instances="4")) == 4
    assert parallelism(remote(spark_executor_instances="4", spark_executor_cores="2")) == 8
    assert parallelism(remote(spark_default_parallelism="0")) == 1
    assert tag_of("audit, pass 2") == "audit; pass 2"


def test_an_environment_that_names_no_server_is_refused(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    with pytest.raises(ConnectUnsupported, match="names no server"):
        sessions.spark_session()


def test_a_server_that_cannot_be_had_is_named(monkeypatch):
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    def fail(error):
        def get(self):
            raise error

        monkeypatch.setattr(SparkSession.Builder, "getOrCreate", get)

    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    fail(PySparkException("cannot connect\nand much more"))
    with pytest.raises(SparkFailed, match=r"sc://127\.0\.0\.1:1: cannot connect$"):
        sessions.spark_session()
    fail(ImportError("grpcio"))
    with pytest.raises(ExtraMissing, match="connect"):
        sessions.spark_session()


@contextmanager
def server(directory):
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
    }
    words = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environ = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=directory, env=environ)

    def listens():
        assert process.poll() is None, (directory / "server.log").read_text()[-2000:]
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.slow
@pytest.mark.xdist_group("jvm")
def test_over_connect_everything_is_what_one_process_says(tmp_path):
    world = filled(tmp_path / "hub", 60, 4)
    for number in range(20):
        draft = kv.put(f"key/{number % 7}", {"n": number})
        world.emit(STREAMS[0], schema=draft.schema, body=draft.body)
    path = world.done()
    (tmp_path / "keys").mkdir()
    keys = write_keys(tmp_path / "keys", KEYS.values())
    alone = json.loads(json.dumps(answers(path, keys)))
    words = [sys.executable, "-m", "tests.lake.connectdriver", path, keys.path]
    with server(tmp_path) as url:
        environ = {**os.environ, "SPARK_REMOTE": url}
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts["several"] == alone
    assert (facts["connect"], facts["parallelism"]) == (True, 2)
    assert facts["entries"] == facts["receipts"] == 80
    assert 0 < facts["opened"] < 80
    assert facts["body"] == "1"
    assert facts["phases"] == ["begun"]
    assert "one by one" in facts["refused"]
    assert "OPERATION_CANCELED" in facts["ended_by"]
    assert facts["entries_afterwards"] == 80
