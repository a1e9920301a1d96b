"""A real cluster on loopback: a standalone master and two workers as processes, from the pip package.

Drivers are processes of their own as well: a Python process can have one SparkContext, and that of the tests is local.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

from veen.lake.spark.submit import spark_home

ROOT = Path(__file__).parents[2]
WORKERS = 2
_START_SECONDS = 120
_SMALL = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# What makes a driver or an executor quick to start and small.
CONFS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": _SMALL,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": _SMALL,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",  # no task before both executors are there
    "spark.locality.wait": "0",
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """Where it is, what it says about itself, and its processes."""

    def __init__(self, directory, master, web, processes):
        self.directory, self.url = directory, master
        self._web, self._processes = web, processes

    def state(self):
        """What the master tells: workers, applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=10) as answer:
            return json.loads(answer.read())

    def workers(self):
        """Process ids of the workers."""
        return [process.pid for process in self._processes[1:]]

    def log(self):
        return "".join(file.read_text(errors="replace")[-2000:] for file in sorted(self.directory.glob("*.log")))


def _environment(directory):
    """None of the JVMs may look at settings of this machine."""
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": _SMALL,
        "SPARK_CONF_DIR": str(directory),
        "SPARK_LOCAL_DIRS": str(directory),
    }


@contextmanager
def running_cluster(directory):
    """Master and workers, ready; everything they started is gone afterwards."""
    port, web = free_port(), free_port()
    url, spark_class = f"spark://127.0.0.1:{port}", str(spark_home() / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    commands = [
        [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web)],
        *(
            [
                f"{deploy}.worker.Worker",
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "-c",
                "1",
                "-m",
                "768M",
                "-d",
                place,
                url,
            ]
            for place in (str(directory / f"worker-{number}") for number in range(WORKERS))
        ),
    ]
    with ExitStack() as stack:
        processes = []
        for number, command in enumerate(commands):
            log = stack.enter_context((directory / f"{number}.log").open("w"))
            process = stack.enter_context(
                subprocess.Popen(
                    [spark_class, *command], stdout=log, stderr=subprocess.STDOUT, env=_environment(directory)
                )
            )
            stack.callback(_stop, process)
            processes.append(process)
        cluster = Cluster(directory, url, web, processes)
        _await(cluster, processes)
        yield cluster


def _await(cluster, processes):
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        assert all(process.poll() is None for process in processes), cluster.log()
        try:
            alive = [worker for worker in cluster.state()["workers"] if worker["state"] == "ALIVE"]
        except OSError:
            alive = []
        if len(alive) == WORKERS:
            return
        time.sleep(0.2)
    raise AssertionError(f"the cluster did not start: {cluster.log()}")


def _stop(process):
    """A worker ends its executors when it is asked to end."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)


def drive(cluster_url, script, *words, confs=None, env=None, timeout=400):
    """Run a Python file of these tests as a driver; the JSON that it prints last."""
    settings = {**CONFS, **(confs or {})}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        cwd=ROOT,
        env={
            **os.environ,
            "MASTER": cluster_url,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "VEEN_TEST_CONFS": json.dumps(settings),
            **(env or {}),
        },
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


def ancestors(pid):
    """The command lines of the processes above one, nearest first."""
    pids = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0])
        if pid:
            pids.append((pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return pids
