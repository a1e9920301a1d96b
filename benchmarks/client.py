"""The client library beside the bare load generator: the same hub, the same batches, messages prepared in advance.

    python -m benchmarks.client

The generator sends bytes and looks at no answer until the clock has stopped. The library does its whole work: it reads
every receipt, checks leaf, place and root of each, the hub's signature for each batch, and writes its state down. Both
run as processes of their own on the cores of the hub. What sealing costs is told apart, as it can be done ahead.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import load, report
from benchmarks.hub import authorize, over_http, running_hub

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import ClientKey, Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.writing import Sent
from veen.client.state import StateStore
from veen.client.transport.http import HttpTransport
from veen.client.verify.pin import HubPin
from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H

CLIENTS: Final = 8
EACH: Final = 3_200
ROUNDS: Final = 5
BATCHES: Final = (64, 256)
BODY: Final = bytes(336)  # seals to the 480 bytes of the load generator's ciphertexts
TARGET: Final = 0.80


# --- the library, as a process of its own ------------------------------------------------------------------


def _identity(number: int) -> Identity:
    key = ClientKey(key=load.client_key(number), created_at=int(time.time()), generation=1)
    return Identity(name=f"bench-{number}", id_sign=SigningKey(H(b"id")), dh_sk=H(b"dh"), client_keys=(key,))


def _keys(number: int) -> StreamKeys:
    secret = H(b"reader %d" % number)
    stream_id = load.STREAMS[number % len(load.STREAMS)]
    return StreamKeys(stream_id=stream_id, reader_pk=x25519.public_key(secret), reader_sk=secret)


async def drive(port: int, hub_pk: bytes, clients: int, each: int, batch: int, root: Path) -> dict[str, float]:
    """`clients` writers, each on a label of its own, as the connections of the load generator are."""
    async with contextlib.AsyncExitStack() as stack:
        writers = []
        for number in range(clients):
            who, keys = _identity(number), _keys(number)
            state = stack.enter_context(StateStore.open(Home.at(root), who.name))
            transport = HttpTransport(f"http://127.0.0.1:{port}")
            client = Client(transport, HubPin.of_key(hub_pk), who, Keyring().with_keys(keys), state, bounds=None)
            await (await stack.enter_async_context(client)).open()
            client.grants.remember(await client.cap_status(load.token(number).auth_ref()))
            writers.append((client, keys))
        cpu = time.process_time()
        prepared = [await client.prepare(keys, [BODY] * each) for client, keys in writers]
        sealing = (time.process_time() - cpu) / (clients * each)
        began, cpu = time.perf_counter(), time.process_time()
        outcomes = await asyncio.gather(
            *(
                client.submit_prepared(keys, messages, batch=batch)
                for (client, keys), messages in zip(writers, prepared, strict=True)
            )
        )
        seconds, own_cpu = time.perf_counter() - began, time.process_time() - cpu
    sent = sum(isinstance(outcome, Sent) for results in outcomes for outcome in results)
    return {
        "receipts": sent,
        "refused": clients * each - sent,
        "per_second": sent / seconds,
        "own_cpu_us": own_cpu / max(sent, 1) * 1e6,
        "own_cpu_share": own_cpu / seconds,
        "seal_us": sealing * 1e6,
    }


def over_library(batch: int, clients: int, each: int) -> dict[str, Any]:
    root = Path(tempfile.mkdtemp(prefix="veen-bench-"))
    try:
        with running_hub(root / "data") as (port, hub_pk):
            authorize(port, clients)
            command = [
                sys.executable,
                "-m",
                "benchmarks.client",
                "--worker",
                str(port),
                hub_pk.hex(),
                str(root / "home"),
            ]
            command += ["--clients", str(clients), "--each", str(each), "--batch", str(batch)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            result: dict[str, Any] = json.loads(done.stdout)
            return result
    finally:
        shutil.rmtree(root, ignore_errors=True)


# --- the table ---------------------------------------------------------------------------------------------


def round_of_all(clients: int, each: int) -> dict[int, dict[str, dict[str, Any]]]:
    results = {}
    for batch in BATCHES:
        bare, library = over_http(batch, clients, each), over_library(batch, clients, each)
        for result in (bare, library):
            if result["refused"]:
                raise RuntimeError(f"messages were refused: {result}")
        results[batch] = {"bare": bare, "library": library}
    return results


def table(rounds: list[dict[int, dict[str, dict[str, Any]]]], clients: int) -> str:
    def middle(batch: int, who: str, key: str) -> float:
        return median(float(measured[batch][who][key]) for measured in rounds)

    seal_us = median(measured[batch]["library"]["seal_us"] for measured in rounds for batch in measured)
    lines = [
        "## Client",
        "",
        report.machine(),
        "",
        f"{clients} writers, each with a label and a connection of its own, messages sealed in advance; hub, generator "
        f"and library share the cores. Medians of {len(rounds)} interleaved rounds. The generator checks nothing while "
        "the clock runs; the library checks every receipt's leaf, place and root and one signature for each batch, and "
        "keeps durable state.",
        "",
        "| batch | generator, messages/s | library, messages/s | ratio | target | met | library, µs of CPU a message |",
        "|---:|---:|---:|---:|---:|---|---:|",
    ]
    for batch in BATCHES:
        bare, library = middle(batch, "bare", "per_second"), middle(batch, "library", "per_second")
        # Rounds are compared with themselves: what slows the machine slows both sides of a ratio.
        ratio = median(
            measured[batch]["library"]["per_second"] / measured[batch]["bare"]["per_second"] for measured in rounds
        )
        met = "yes" if ratio >= TARGET else "no"
        cells = [str(batch), f"{bare:.0f}", f"{library:.0f}", f"{ratio:.2f}", f"≥ {TARGET:.2f}", met]
        lines.append(f"| {' | '.join(cells)} | {middle(batch, 'library', 'own_cpu_us'):.1f} |")
    lines += [
        "",
        f"Sealing, apart from sending: {seal_us:.0f} µs a message of {len(BODY)} bytes "
        f"({1e6 / seal_us:.0f} a second on one core): HPKE, XChaCha20-Poly1305, signature, leaf.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--each", type=int, default=EACH)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--batch", type=int, default=BATCHES[0], help="of a worker")
    parser.add_argument("--worker", nargs=3, metavar=("PORT", "HUB_PK", "HOME"), help="be the library's process")
    parser.add_argument("--dry", action="store_true", help="print the section instead of writing it")
    options = parser.parse_args()
    if options.worker:
        port, hub_pk, home = options.worker
        work = drive(int(port), bytes.fromhex(hub_pk), options.clients, options.each, options.batch, Path(home))
        try:
            import uvloop
        except ImportError:
            result = asyncio.run(work)
        else:
            result = uvloop.run(work)
        print(json.dumps(result))
        return
    rounds = []
    for number in range(options.rounds):
        rounds.append(round_of_all(options.clients, options.each))
        for batch, results in rounds[-1].items():
            for who, result in results.items():
                print(number + 1, batch, who, json.dumps(result), flush=True)
    section = table(rounds, options.clients)
    if options.dry:
        print(section)
    else:
        report.write_section("client", section)


if __name__ == "__main__":
    main()
