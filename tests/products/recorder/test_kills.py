"""Numbered events through a real agent and a real hub, both ended by SIGKILL at random: each once, and in order.

goals_core_pipeline of the product specification: emit, admit, checkpoint, verify, replay with proofs.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import HubProcess

WEB = "record/app/web"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Recorder:
    """A hub and a producer's agent as processes."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.cli = Cli(root / "home")
        self.hub = self.start_hub()
        self.at = ("--hub", self.hub.url, "--pin", self.hub.about["hub_pk"])
        self.cli.run("recorder", "init", "--producer", f"web={WEB}", "--insecure-plain-keystore", *self.at)
        self.log = root / "app.log"
        self.log.touch()

    def start_hub(self):
        return HubProcess(self.root / "hub", "--dev", "--set", "engine.workers=0", "--port", str(self.port))

    def kill_hub(self):
        self.hub.stop(signal.SIGKILL)
        self.hub = self.start_hub()

    def agent(self, *options):
        command = [sys.executable, "-m", "veen", "recorder", "agent", "--identity", "web", "--source",
                   f"file:{self.log}", "--stream", WEB, "--json", *self.at, *options]  # fmt: skip
        return subprocess.Popen(
            command, env={**os.environ, **self.cli.env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def finish(self):
        """Let agents record the rest. One that ends while records wait (6), as on a busy machine, starts again."""
        for attempt in range(20):
            process = self.agent("--once")
            _, errors = process.communicate(timeout=240)
            if process.returncode != 6 or attempt == 19:
                assert process.returncode == 0, errors.decode()
                return

    def admin(self, *words, code=0):
        return self.cli.json("recorder", *words, "--identity", "recorder-admin", *self.at, code=code)

    def numbers(self):
        rows = self.admin("replay", "--stream", WEB, "--since", "0")["rows"]
        assert "trailer" in rows[-1]
        return [row["payload"]["n"] for row in rows[:-1]]

    def close(self):
        if self.hub.process.poll() is None:
            self.hub.stop(signal.SIGKILL)
        self.hub.stdout.close()


@pytest.fixture
def recorder(tmp_path):
    world = Recorder(tmp_path)
    yield world
    world.close()


def write_lines(path, count, stop):
    """A service that logs without pause until it has said everything."""
    with path.open("a") as file:
        for n in range(1, count + 1):
            file.write(json.dumps({"n": n, "user": "u", "event": "tick"}) + "\n")
            if n % 50 == 0:
                file.flush()
                stop.wait(0.02)


def survive(recorder, count, kills, seed):
    rng, stop = random.Random(seed), threading.Event()
    writer = threading.Thread(target=write_lines, args=(recorder.log, count, stop))
    writer.start()
    try:
        for number in range(kills):
            process = recorder.agent()
            assert process.stderr is not None
            process.stderr.readline()  # it records now
            time.sleep(rng.uniform(0.0, 0.6))
            if number % 3 == 2:
                recorder.kill_hub()
                time.sleep(rng.uniform(0.0, 0.6))
            process.kill()
            process.communicate()
    finally:
        stop.set()
        writer.join()
    recorder.finish()
    assert recorder.numbers() == list(range(1, count + 1))
    recorder.admin("checkpoint")
    report = recorder.admin("verify")
    assert report["ok"], report
    assert {period["state"] for stream in report["streams"] for period in stream["periods"]} == {"valid"}


@pytest.mark.req("SDR-12", "SDR-14", "AGB-18")
def test_goals_core_pipeline_survives_kills_of_agent_and_hub(recorder):
    survive(recorder, 600, kills=4, seed=1)


@pytest.mark.slow
@pytest.mark.req("SDR-12")
def test_ten_thousand_numbered_events_with_kills_are_there_once_and_in_order(recorder):
    survive(recorder, 10_000, kills=24, seed=2)


@pytest.mark.req("SDR-12")
def test_a_line_that_is_changed_in_the_hub_s_files_is_named(recorder):
    """I2: an entry up to a checkpoint verifies, or verification fails."""
    with recorder.log.open("a") as file:
        for n in range(1, 41):
            file.write(json.dumps({"n": n}) + "\n")
    recorder.finish()
    recorder.admin("checkpoint")
    row = recorder.admin("replay", "--stream", WEB, "--from", "20", "--to", "20")["rows"][0]
    recorder.hub.stop(signal.SIGTERM)
    leaf = bytes.fromhex(row["msg_id"])
    files = [path for path in (recorder.root / "hub").rglob("*") if path.is_file() and leaf in path.read_bytes()]
    assert files
    for path in files:  # the receipt follows its message: a byte before it is one of the message
        content = bytearray(path.read_bytes())
        content[content.index(leaf) - 200] ^= 1
        path.write_bytes(bytes(content))
    recorder.hub = recorder.start_hub()
    result = recorder.cli.invoke("recorder", "verify", "--identity", "recorder-admin", *recorder.at, "--json")
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    bad = [period for stream in report["streams"] for period in stream["periods"] if period["state"] != "valid"]
    assert [(period["from_seq"], period["to_seq"]) for period in bad] == [(1, 40)]
    assert bad[0]["why"]
