"""The hub beside the limit of its signatures: in process, over HTTP one by one, over HTTP in batches.

    python -m benchmarks.hub            prints the table and writes it to docs/benchmarks.md

The crypto limit is cores / (verify + sign) of libsodium, measured on all cores at once between the runs.
Rounds are interleaved and medians reported. The load generator runs on the same cores; its own share of them is in
the table, and what it reports are receipts it has decoded.
"""

import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from benchmarks import load, peers, report

from veen import native
from veen.core.crypto import ed25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import hub_id_of, routing_key_of
from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.fs.local import OsFs
from veen.hub.admission.policy import Policy
from veen.hub.admission.resolver import Resolver
from veen.hub.sequencer.sequencer import Outcome, Sequencer
from veen.storage.label_files import LabelFiles
from veen.storage.store import Store

T = TypeVar("T")

CLIENTS: Final = 64
EACH: Final = 400
ROUNDS: Final = 5
IN_FLIGHT: Final = 256  # in process
LIMITS: Final = Limits(max_cap_rate_per_sec=10**6, max_cap_rate_burst=10**6)


# --- the limit -------------------------------------------------------------------------------------------


def _crypto_loop(seconds: float) -> int:
    key = SigningKey(H(b"limit"))
    digest = H(b"digest")
    signature = key.sign(digest)
    done, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for _ in range(50):
            ed25519.libsodium_verify(key.public, digest, signature)
            key.sign(digest)
        done += 50
    return done


def crypto_limit(seconds: float = 1.0) -> float:
    """Verifications and signatures a second on all cores at once."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        return sum(pool.map(_crypto_loop, [seconds] * (os.cpu_count() or 1))) / seconds


# --- in process ------------------------------------------------------------------------------------------


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """On the event loop that a hub runs on."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(scenario)
    result: T = uvloop.run(scenario)
    return result


class _Signer:
    def __init__(self, key: SigningKey) -> None:
        self._key = key

    def signing_key_at(self, hub_ts: int) -> SigningKey:
        return self._key


async def in_process(
    messages: list[bytes], key: SigningKey, root: Path, module: native.Module | None = native.LOADED.module
) -> dict[str, Any]:
    """The sequencer alone: everything but HTTP, on a real disk."""

    def seal(files: LabelFiles, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        return Checkpoint.issue(
            key, label_prev=files.label, label_curr=files.label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=0
        )

    tokens = {token.auth_ref(): token for token in map(load.token, range(CLIENTS))}
    policy = Policy(trust_any_issuer=True, preloaded=tokens)
    resolver = Resolver(routing_key_of(hub_id_of(key.public)), 0, 60)
    cores = os.cpu_count() or 2
    workers = max(1, cores - 1) if module is None else cores  # as `engine.workers` does it by itself
    store = Store.open(OsFs(root), LIMITS, seal)
    sequencer = Sequencer(store, _Signer(key), policy, resolver, workers=workers, module=module)
    await asyncio.sleep(0.5)  # verifier processes start
    receipts = 0
    room = asyncio.Event()

    def done(outcome: Outcome | None) -> None:
        nonlocal receipts
        receipts += type(outcome) is bytes
        room.set()

    began = time.perf_counter()
    for raw in messages:
        while sequencer.depth >= IN_FLIGHT:
            room.clear()
            await room.wait()
        refused = sequencer.admit(raw, done)
        assert refused is None, refused
    await sequencer.drain()
    seconds = time.perf_counter() - began
    await sequencer.close()
    return {"receipts": receipts, "refused": len(messages) - receipts, "per_second": receipts / seconds}


# --- over HTTP -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def hub_process(root: Path, *settings: str) -> Iterator[dict[str, Any]]:
    """A hub process as users start it; yields what it says of itself."""
    command = [sys.executable, "-m", "veen", "hub", "start", "--data-dir", str(root), "--port", "0", "--json"]
    for setting in ("log.level=warning", *settings):
        command += ["--set", setting]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the hub did not start: {text}")
            text += line
        yield json.loads(text)
    finally:
        process.terminate()
        process.wait(timeout=60)


@contextlib.contextmanager
def running_hub(root: Path, *settings: str) -> Iterator[tuple[int, bytes]]:
    """A hub that takes the messages of the load generator; yields its port and its key."""
    trusted = f"admission.trusted_issuers={load.ISSUER.public.hex()}"
    rates = ("limits.max_cap_rate_per_sec=1000000", "limits.max_cap_rate_burst=1000000")
    with hub_process(root, trusted, *rates, *settings) as about:
        yield int(about["url"].rsplit(":", 1)[1]), bytes.fromhex(about["hub_pk"].removeprefix("ed25519:"))


def authorize(port: int, clients: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for number in range(clients):
        connection.request(
            "POST", "/tooling/authorize", load.token(number).to_bytes(), {"Content-Type": "application/cbor"}
        )
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"authorize: {answer.status} {body!r}")
    connection.close()


def over_http(batch: int, connections: int, each: int, *settings: str) -> dict[str, Any]:
    root = Path(tempfile.mkdtemp(prefix="veen-bench-"))
    try:
        with running_hub(root / "data", *settings) as (port, hub_pk):
            authorize(port, connections)
            load.prepare(hub_pk, connections, each, root / "messages")
            command = [sys.executable, "-m", "benchmarks.load", str(port), str(root / "messages")]
            command += ["--connections", str(connections), "--batch", str(batch)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            result: dict[str, Any] = json.loads(done.stdout)
            return result
    finally:
        shutil.rmtree(root, ignore_errors=True)


# --- the table -------------------------------------------------------------------------------------------


def round_of_all(messages: list[bytes], key: SigningKey) -> dict[str, dict[str, Any]]:
    limit = crypto_limit()
    root = Path(tempfile.mkdtemp(prefix="veen-bench-"))
    try:
        results = {"in process": run(in_process(messages, key, root))}
    finally:
        shutil.rmtree(root, ignore_errors=True)
    results["HTTP, one message a request, 64 connections"] = over_http(1, 64, EACH)
    results["HTTP, 64 messages a request, 8 connections"] = over_http(64, 8, EACH * 8)
    results["HTTP, one message a request, 1 connection"] = over_http(1, 1, 1500)
    for name, measure in peers.PEERS.items():
        if (peer := measure(EACH)) is not None:
            results[name] = {"refused": 0, **peer}
    limit = (limit + crypto_limit()) / 2
    for result in results.values():
        if result["refused"]:
            raise RuntimeError(f"messages were refused: {result}")
        result["ratio"] = result["per_second"] / limit
        result["limit"] = limit
    return results


TARGETS: Final = {
    "in process": 0.70,
    "HTTP, one message a request, 64 connections": 0.50,
    "HTTP, 64 messages a request, 8 connections": 0.60,
}


def main() -> None:
    key = SigningKey(H(b"bench hub"))
    prepared = Path(tempfile.mkdtemp(prefix="veen-bench-")) / "messages"
    load.prepare(key.public, CLIENTS, EACH, prepared)
    lists = pickle.loads(prepared.read_bytes())  # noqa: S301 - our own file
    messages = [raw for turn in zip(*lists, strict=True) for raw in turn]
    rounds = []
    for number in range(ROUNDS):
        rounds.append(round_of_all(messages, key))
        for name, result in rounds[-1].items():
            print(number + 1, name, json.dumps(result), flush=True)
    shutil.rmtree(prepared.parent)
    report.write_section("hub", table(rounds))


def table(rounds: list[dict[str, dict[str, Any]]]) -> str:
    def middle(name: str, key: str) -> float | None:
        values = [result[name][key] for result in rounds if key in result[name]]
        return median(values) if values else None

    limit = median(result["limit"] for measured in rounds for result in measured.values())
    lines = [
        "## Hub",
        "",
        report.machine(),
        "",
        f"Crypto limit, {os.cpu_count()} cores / (verify + sign), measured between the runs: {limit:.0f} messages a "
        f"second. Medians of {len(rounds)} interleaved rounds; durable, one `fdatasync` per group before its answers; "
        "a run is long enough for one retirement of the journal. "
        "The load generator runs on the same cores.",
        "",
        "| what | messages/s | ratio to the limit | target | met | p50 ms | p99 ms | generator, cores |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    for name in rounds[0]:
        if name in peers.PEERS:
            continue
        ratio = middle(name, "ratio") or 0.0
        target = TARGETS.get(name)
        cells = [
            name,
            f"{middle(name, 'per_second'):.0f}",
            f"{ratio:.2f}",
            "–" if target is None else f"≥ {target:.2f}",
            "–" if target is None else "yes" if ratio >= target else "no",
            *(("–" if (value := middle(name, key)) is None else f"{value:.2f}") for key in ("p50_ms", "p99_ms")),
            "–" if (share := middle(name, "own_cpu_share")) is None else f"{share:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"Beside it in the same rounds, the same 690 bytes from {peers.CONNECTIONS} connections, synced before each "
        "answer. None of these checks an author's signature, signs a receipt or proves inclusion. The last column is "
        "how much of a core the load generator took; as long as that is well below one, it is not what limits them.",
        "",
        "| system | messages/s | VEEN single / it | VEEN batched / it | p50 ms | p99 ms | generator, cores |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    single, batched = (middle(name, "per_second") or 0.0 for name in list(TARGETS)[1:])
    for name in peers.PEERS:
        if name not in rounds[0]:
            lines.append(f"| {name} | not installed | – | – | – | – | – |")
            continue
        rate = middle(name, "per_second") or 0.0
        rest = " | ".join(f"{middle(name, key):.2f}" for key in ("p50_ms", "p99_ms", "own_cpu_share"))
        lines.append(f"| {name} | {rate:.0f} | {single / rate:.2f} | {batched / rate:.2f} | {rest} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
