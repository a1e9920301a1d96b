"""A real hub process, and a client that submits to it."""

import contextlib
import json
import os
import signal
import subprocess
import sys

from tests.hub import hubworld as w

from veen.cli.hubclient import HubClient
from veen.core.envelopes import SubmitResponse
from veen.core.receipt import Receipt

DEV = ("--dev", "--set", "engine.workers=0")


def veen(*args, env=None):
    done = subprocess.run(
        [sys.executable, "-m", "veen", *map(str, args)],
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, **(env or {})},
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def report(*args, code=0, env=None):
    """What a command says as JSON."""
    done = veen(*args, "--json", env=env)
    assert done.returncode == code, done.stderr.decode()
    return json.loads(done.stdout or done.stderr)


class HubProcess:
    """`veen hub start` in the foreground."""

    def __init__(self, data_dir, *options, command=("hub", "start"), program=None, env=None):
        self.data_dir = data_dir
        self.log = data_dir.with_name(f"{data_dir.name}.stderr")
        program = program or [sys.executable, "-m", "veen", *command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*program, "--data-dir", str(data_dir), "--json", *map(str, options)],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(env or {})},
            )
        assert self.process.stdout is not None
        self.stdout = self.process.stdout
        said = b""
        while not said.endswith(b"}\n"):
            line = self.stdout.readline()
            assert line, self.log.read_text()
            said += line
        self.about = json.loads(said)
        self.url = self.about["url"]
        self.client = HubClient(self.url)

    def submit(self, **options):
        """The receipt of one message, or the answer of a hub that refuses."""
        body = b"\xa2\x01\x01\x02" + w.msg(**{"token": None, **options}).to_bytes()
        connection = self.client._connect()
        try:
            connection.request("POST", "/v1/submit", body, {"Content-Type": "application/cbor"})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, data
        return SubmitResponse.from_bytes(data).receipt

    def receipt(self, seq, label=w.LABEL):
        found = self.client.post("/v1/receipt", {"ver": 1, "label": label.hex(), "stream_seq": seq})
        return Receipt.from_json(found["receipt"])

    def lines(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        self.stdout.close()
        return code


@contextlib.contextmanager
def running(data_dir, *options, **more):
    hub = HubProcess(data_dir, *(options or DEV), **more)
    try:
        yield hub
    finally:
        if hub.process.poll() is None:
            hub.stop(signal.SIGKILL)
        hub.stdout.close()
