"""Signals to a hub and all its processes, at any moment and under load: a clean stop, exit code 0, nothing lost."""

import asyncio
import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.cli.hubprocess import HubProcess
from tests.hub import builders as w
from tests.hub.servers import LiveHub
from tests.waiting import until

from veen import native
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.envelopes import SubmitResponse
from veen.hub.http.states import InputState
from veen.io.local import OsFs
from veen.verify.directory import verify_data

OPTIONS = ("--dev", "--set", "engine.workers=2", "--set", "log.submits=off", "--set", "log.format=json")
WRITERS = 4
STOPS = (signal.SIGINT, signal.SIGTERM)


class Writer(threading.Thread):
    """Sends one message after the other until the hub stops; counts the receipts."""

    def __init__(self, url):
        super().__init__(daemon=True)
        self._address = urlsplit(url).netloc
        self._key = SigningKey(os.urandom(32))  # a new one for each start: a hub keeps its port, and its log
        self.receipts = []
        self.refused = []

    def run(self):
        connection = http.client.HTTPConnection(self._address, timeout=30)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            for seq in range(1, 1_000_000):
                body = b"\xa2\x01\x01\x02" + w.msg(self._key, seq=seq, token=None).to_bytes()
                connection.request("POST", "/v1/submit", body, {"Content-Type": "application/cbor"})
                answer = connection.getresponse()
                data = answer.read()
                if answer.status != 200:
                    self.refused.append((answer.status, data))
                    return
                self.receipts.append(SubmitResponse.from_bytes(data).receipt)


def signal_group(process, number):
    """To the hub and its verifiers; the group is gone once all of them are."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def stopped_by_the_group(hub, rng):
    """Load, then a few signals close together, some of which only ask for a reload or a summary; the exit code."""
    writers = [Writer(hub.url) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    time.sleep(rng.uniform(0, 0.4))
    for _ in range(rng.randrange(3)):
        signal_group(hub.process, rng.choice((signal.SIGHUP, signal.SIGUSR1)))
    for _ in range(rng.randrange(1, 6)):
        signal_group(hub.process, rng.choice(STOPS))
        time.sleep(rng.choice((0, 0.001, 0.02, 0.2)))
    try:
        code = hub.process.wait(timeout=60)
    finally:
        hub.stdout.close()
    for writer in writers:
        writer.join(timeout=60)
    assert {status for writer in writers for status, _ in writer.refused} <= {503}
    return code, [receipt for writer in writers for receipt in writer.receipts]


def rounds(data_dir, count, seed):
    rng = random.Random(seed)
    receipts = []
    for number in range(count):
        hub = HubProcess(data_dir, *OPTIONS, own_group=True)
        code, released = stopped_by_the_group(hub, rng)
        said = hub.log.read_text()
        assert code == 0, (number, code, said)
        receipts += released
        assert "Traceback" not in said, said
        assert not [line for line in hub.lines() if line["level"] == "error"], said
        assert hub.lines()[-1]["message"] == "stopped"
        assert not list(living(hub.process.pid))
    report = verify_data(OsFs(data_dir))
    assert report.ok, [str(finding) for finding in report.findings]
    assert report.labels[w.LABEL].size >= len(receipts)
    return receipts


def living(group):
    """Processes of a group, as the kernel lists them."""
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = (path / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] != "Z":
                    yield int(path.name)


def test_a_signal_to_the_whole_group_stops_the_hub_cleanly(tmp_path):
    """Ctrl-C in a terminal, `systemctl stop`: the verifiers get it as well and must outlive the hub's last message."""
    assert rounds(tmp_path / "hub", 6, 1)


@pytest.mark.slow
def test_a_signal_to_the_whole_group_stops_the_hub_cleanly_a_hundred_times(tmp_path):
    assert rounds(tmp_path / "hub", 100, 2)


@pytest.mark.slow
def test_a_signal_while_the_hub_starts_leaves_it_stopped_and_whole(tmp_path):
    """Before the program listens to signals it dies of them and has touched nothing; after that it stops."""
    rng = random.Random(3)
    data_dir, log = tmp_path / "hub", tmp_path / "stderr"
    for _ in range(6):
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "veen", "hub", "start", "--data-dir", str(data_dir), *OPTIONS],
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        time.sleep(rng.uniform(0.1, 1.0))
        for number in (signal.SIGTERM, signal.SIGTERM):
            signal_group(process, number)
        assert process.wait(timeout=60) in (0, -signal.SIGTERM), log.read_text()
        assert "Traceback" not in log.read_text()
    hub = HubProcess(data_dir, *OPTIONS, own_group=True)
    assert hub.submit(seq=1).stream_seq == 1
    assert hub.stop() == 0


def test_verifiers_end_with_a_hub_that_was_killed(tmp_path):
    hub = HubProcess(tmp_path / "hub", *OPTIONS, own_group=True)
    verifiers = 2 if native.LOADED.module is None else 0  # threads of the module end with their process
    assert len(list(living(hub.process.pid))) == 1 + verifiers
    hub.process.kill()
    hub.process.wait(timeout=60)
    hub.stdout.close()
    until(lambda: not list(living(hub.process.pid)))


def test_a_second_request_to_stop_waits_for_no_client(tmp_path):
    """The first one would wait for an hour here, as a client is in the middle of its request."""
    with LiveHub(tmp_path) as hub, socket.create_connection((hub.host, hub.port), timeout=30) as client:
        client.sendall(b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\nhalf")
        deadline = time.monotonic() + 30
        while not hub.on_loop(lambda: any(each._reader.state is InputState.BODY for each in hub.server._connections)):
            assert time.monotonic() < deadline
        stopping = asyncio.run_coroutine_threadsafe(hub.server.stop(3600), hub.loop)
        assert hub.on_loop(lambda: hub.server.draining)
        assert not stopping.done()
        hub.on_loop(hub.server.hurry)
        stopping.result(60)
