"""The configuration of deploy/nginx, run by Debian's nginx in front of a hub: sending, proofs, following a stream."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.cli.hubprocess import running
from tests.client.hubs import RING, person
from tests.hub.test_http import certificate
from tests.waiting import until

from veen.client import Client
from veen.client.home import Home

CONF = Path(__file__).parents[2] / "deploy" / "nginx" / "veen-hub.conf"
PROGRAM = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(PROGRAM is None, reason="nginx is not installed: Debian package nginx-light"),
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def proxied(hub, directory):
    """nginx with the shipped file, its names replaced by those of this machine."""
    cert, key, _ = certificate(directory, "localhost")
    port = free_port()
    text = CONF.read_text("utf-8")
    for old, new in (
        ("127.0.0.1:8080", hub.url.removeprefix("http://")),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("server_name hub.example.org", "server_name localhost"),
        ("/etc/ssl/hub.example.org.pem", str(cert)),
        ("/etc/ssl/private/hub.example.org.key", str(key)),
    ):
        assert old in text, old
        text = text.replace(old, new)
    (directory / "site.conf").write_text(text)
    places = "".join(
        f"{name}_temp_path {directory}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (directory / "nginx.conf").write_text(
        f"daemon off; pid {directory}/pid; error_log stderr warn; worker_processes 1;\n"
        "events { worker_connections 64; }\n"
        f"http {{ access_log off; {places} include {directory}/site.conf; }}\n"
    )
    assert PROGRAM is not None
    command = [PROGRAM, "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", str(directory / "errors")]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def answers():
        assert process.poll() is None, (directory / "output").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers)
        yield f"https://localhost:{port}", cert
    finally:
        process.terminate()
        process.wait(30)


def test_a_hub_behind_nginx_takes_messages_proves_them_and_tells_who_follows(tmp_path):
    directory = tmp_path / "nginx"
    directory.mkdir()
    with (
        running(tmp_path / "hub", "--dev", "--set", "engine.workers=0", "--set", "listen.address_percent=100") as hub,
        proxied(hub, directory) as (url, cert),
    ):

        async def scenario():
            home = Home.at(tmp_path / "home")
            async with await Client.connect(
                url, pin=hub.about["hub_pk"], identity=person("alice"), keyring=RING, home=home, ca_file=cert
            ) as client:
                sent = await client.send("orders", b"through the proxy")
                await client.send_many("orders", [bytes(400_000)] * 5)  # a batch beyond nginx's default of 1 MB
                proof = await client.proof("orders", sent.seq)
                followed = []
                async with asyncio.timeout(60):
                    async for entry in client.follow("orders", from_seq=1):
                        followed.append(entry.seq)
                        if len(followed) == 6:
                            break
                return sent.seq, followed, proof.root

        seq, followed, root = asyncio.run(scenario())
    assert (seq, followed) == (1, [1, 2, 3, 4, 5, 6])
    assert len(root) == 32
