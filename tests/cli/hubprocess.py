"""A real hub process, and a client that submits to it."""

import contextlib
import http.client
import json
import os
import signal
import subprocess
from urllib.parse import urlsplit

from click.testing import CliRunner
from tests.cli import shapecheck
from tests.hub import builders as w
from tests.processes import run_veen, start_veen

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.core.objects.envelopes import SubmitResponse
from veen.core.objects.receipt import Receipt

DEV = ("--dev", "--set", "engine.workers=0")


def veen(*args, env=None):
    done = run_veen(args, env={**os.environ, **(env or {})})
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    shapecheck.check(args, done.returncode, done.stdout.decode(), done.stderr.decode())
    return done


LASTING = (("hub", "start"), ("replica", "run"))  # they stay, or leave a process behind


def report(*args, code=0, env=None):
    """What a command says as JSON; in a process of its own what is `LASTING`, and wrong calls, which `main` answers."""
    if args[:2] in LASTING or code == Exit.USAGE:
        done = veen(*args, "--json", env=env)
        status, stdout, stderr = done.returncode, done.stdout.decode(), done.stderr.decode()
    else:
        result = CliRunner().invoke(cli, [*map(str, args), "--json"], env=env)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        status, stdout, stderr = result.exit_code, result.stdout, result.stderr
    assert status == code, stderr
    return json.loads(stdout or stderr)


class HubClient:
    """A hub's JSON form, with nothing but the standard library between."""

    def __init__(self, url):
        self.url = url

    def connect(self):
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)

    def get(self, path):
        return self._json("GET", path)

    def post(self, path, body):
        return self._json("POST", path, json.dumps(body).encode())

    def _json(self, method, path, body=None):
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, {"Accept": "application/json", "Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
        assert answer.status == 200, data
        return json.loads(data)


class HubProcess:
    """`veen hub start` in the foreground; with `own_group` as a terminal starts it, in a process group of its own."""

    def __init__(self, data_dir, *options, command=("hub", "start"), program=None, env=None, own_group=False):
        self.data_dir = data_dir
        self.log = data_dir.with_name(f"{data_dir.name}.stderr")
        words = ["--data-dir", str(data_dir), "--json", *map(str, options)]
        env = {**os.environ, **(env or {})}
        with self.log.open("ab") as log:
            if program is None:
                self.process = start_veen([*command, *words], stderr=log, env=env, own_group=own_group)
            else:
                self.process = subprocess.Popen([*program, *words], stdout=subprocess.PIPE, stderr=log, env=env)
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
        connection = self.client.connect()
        try:
            connection.request("POST", "/v1/submit", body, {"Content-Type": "application/cbor"})
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, data
        return SubmitResponse.from_bytes(data).receipt

    def receipt(self, seq, label=w.LABEL):
        answer = self.client.post("/v1/receipt", {"ver": 1, "label": label.hex(), "stream_seq": seq})
        return Receipt.from_json(answer["receipt"])

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
