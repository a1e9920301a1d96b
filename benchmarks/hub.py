"""The hub beside the limit of its signatures: in process, over HTTP one by one, over HTTP in batches, over TLS.

    python -m benchmarks.hub                     print the table and write it to docs/benchmarks.md
    python -m benchmarks.hub --quick             one short round without other systems; nothing is written
    python -m benchmarks.hub --baseline DIR      beside the hub of another checkout, which has a virtual environment

The crypto limit is cores / (verify + sign) of libsodium, measured on all cores at once between the runs.
Rounds are interleaved and medians reported. The load generator runs on the same cores; its own share of them is in
the table, and what it reports are receipts it has decoded.
"""

import argparse
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
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

from benchmarks import load, peers, report
from benchmarks.baseline import HERE, Installation, interval
from benchmarks.certificates import certificate

from veen import native
from veen.core.crypto import ed25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import hub_id_of, routing_key_of
from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.hub.admission.decide import Resolver
from veen.hub.admission.policy import Policy
from veen.hub.sequencer.sequencer import Outcome, Sequencer
from veen.io.local import OsFs
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


async def _in_process_here(messages: list[bytes], key: SigningKey, module: native.Module | None) -> dict[str, Any]:
    root = Path(tempfile.mkdtemp(prefix="veen-bench-"))
    try:
        return await in_process(messages, key, root, module)
    finally:
        shutil.rmtree(root, ignore_errors=True)


_BASELINE: Final = """
import json, pickle, sys, tempfile
from pathlib import Path
from benchmarks import hub
lists = pickle.loads(Path(sys.argv[1]).read_bytes())
messages = [raw for turn in zip(*lists, strict=True) for raw in turn]
with tempfile.TemporaryDirectory(prefix="veen-bench-") as root:
    print(json.dumps(hub.run(hub.in_process(messages, hub.SigningKey(hub.H(b"bench hub")), Path(root)))))
"""


def _in_process_there(prepared: Path, installation: "Installation") -> dict[str, Any]:
    """By the code of another checkout."""
    command = [installation.python, "-c", _BASELINE, str(prepared)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=installation.directory)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# --- over HTTP -------------------------------------------------------------------------------------------


PURE: Final = Installation(environment=((native.VARIABLE, "0"),))


@contextlib.contextmanager
def hub_process(root: Path, *settings: str, installation: Installation = HERE) -> Iterator[dict[str, Any]]:
    """A hub process as users start it; yields what it says of itself, its `pid`, and later how long it took to stop."""
    command = [installation.python, "-m", "veen", "hub", "start", "--data-dir", str(root), "--port", "0", "--json"]
    for setting in ("log.level=warning", *settings):
        command += ["--set", setting]
    root.parent.mkdir(parents=True, exist_ok=True)
    log_file = root.parent / f"{root.name}.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=installation.directory,
            env={**os.environ, **dict(installation.environment)},
        )
    about: dict[str, Any] = {}
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the hub did not start: {text}{log_file.read_text('utf-8', 'replace')}")
            text += line
        about |= {**json.loads(text), "pid": process.pid}
        yield about
    finally:
        began = time.perf_counter()
        process.terminate()
        process.wait(timeout=600)
        about["stop_seconds"] = time.perf_counter() - began


GATED: Final = (
    f"admission.trusted_issuers={load.ISSUER.public.hex()}",
    "limits.max_cap_rate_per_sec=1000000",
    "limits.max_cap_rate_burst=1000000",
)
OPEN: Final = ("admission.capability_gating=false", "admission.stream_scope=open")


@contextlib.contextmanager
def running_hub(root: Path, *settings: str) -> Iterator[tuple[int, bytes]]:
    """A hub that takes the messages of the load generator; yields its port and its key."""
    with hub_process(root, *GATED, *settings) as about:
        yield place_of(about)


def place_of(about: dict[str, Any]) -> tuple[int, bytes]:
    """Port and key of a hub."""
    return int(about["url"].rsplit(":", 1)[1]), bytes.fromhex(about["hub_pk"].removeprefix("ed25519:"))


def authorize(port: int, clients: int, ca: Path | None = None) -> None:
    tls = load.tls_of(ca)
    host = "127.0.0.1"
    connection = (
        http.client.HTTPConnection(host, port) if tls is None else http.client.HTTPSConnection(host, port, context=tls)
    )
    for number in range(clients):
        connection.request(
            "POST", "/tooling/authorize", load.token(number).to_bytes(), {"Content-Type": "application/cbor"}
        )
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"authorize: {answer.status} {body!r}")
    connection.close()


def over_http(
    batch: int,
    connections: int,
    each: int,
    *settings: str,
    tls: bool = False,
    fresh: bool = False,
    labels: int = len(load.STREAMS),
    size: int = load.CIPHERTEXT_BYTES,
    changing: bool = False,
    handshakes: int = 0,
    installation: Installation = HERE,
) -> dict[str, Any]:
    """What the load generator says, and the CPU that the hub took. With `fresh`, each message is of another client,
    over `labels` labels, and needs no capability."""
    root = Path(tempfile.mkdtemp(prefix="veen-bench-"))
    try:
        ca, key = certificate(root / "tls") if tls else (None, None)
        settings = (*settings, f"tls.cert={ca}", f"tls.key={key}") if tls else settings
        rules = OPEN if fresh else GATED
        with hub_process(root / "data", *rules, *settings, installation=installation) as about:
            port, hub_pk = place_of(about)
            if fresh:
                load.prepare_fresh(hub_pk, connections, each, root / "messages", labels=labels, size=size)
            else:
                authorize(port, connections, ca)
                load.prepare(hub_pk, connections, each, root / "messages", size=size)
            command = [sys.executable, "-m", "benchmarks.load", str(port)]
            command += ["--handshakes", str(handshakes)] if handshakes else [str(root / "messages")]
            command += ["--connections", str(connections), "--batch", str(batch), "--hub", str(about["pid"])]
            command += [*(["--ca", str(ca)] if tls else []), *(["--changing"] if changing else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            result: dict[str, Any] = json.loads(done.stdout)
        return {**result, "stop_seconds": about["stop_seconds"]}
    finally:
        shutil.rmtree(root, ignore_errors=True)


# --- the table -------------------------------------------------------------------------------------------

IN_PROCESS: Final = "in process"
SINGLE: Final = "HTTP, one message a request, 64 connections"
BATCHED: Final = "HTTP, 64 messages a request, 8 connections"
WITHOUT: Final = ", without the native module"
TLS: Final = ", TLS"
BEFORE: Final = ", baseline"
HANDSHAKES: Final = "a handshake of TLS"
TARGETS: Final = {IN_PROCESS: 0.90, SINGLE: 0.57, BATCHED: 0.95}
PURE_TARGETS: Final = {IN_PROCESS + WITHOUT: 0.60, SINGLE + WITHOUT: 0.43, BATCHED + WITHOUT: 0.59}
FASTER: Final = {IN_PROCESS: 1.5, SINGLE: 1.35, BATCHED: 1.6}  # than the commit before the native module
MOST_TLS: Final = 1.2  # CPU of the hub over TLS / without


def cases(
    messages: list[bytes], prepared: Path, key: SigningKey, each: int, baseline: Installation | None
) -> dict[str, Callable[[], dict[str, Any]]]:
    """What is measured in each round, by its name in the table."""
    module = native.LOADED.module
    table: dict[str, Callable[[], dict[str, Any]]] = {
        IN_PROCESS: lambda: run(_in_process_here(messages, key, module)),
        SINGLE: lambda: over_http(1, 64, each),
        SINGLE + TLS: lambda: over_http(1, 64, each, tls=True),
        BATCHED: lambda: over_http(64, 8, each * 8),
        BATCHED + TLS: lambda: over_http(64, 8, each * 8, tls=True),
        "HTTP, one message a request, 1 connection": lambda: over_http(1, 1, each * 4),
        f"{SINGLE}, with the default log": lambda: over_http(1, 64, each, "log.level=info"),
        f"{SINGLE}, one message of each client": lambda: over_http(1, 64, each, fresh=True),
        f"{SINGLE}, a changing header": lambda: over_http(1, 64, each, changing=True),
        HANDSHAKES: lambda: over_http(1, 1, 1, tls=True, handshakes=each),
    }
    if module is not None:
        table |= {
            IN_PROCESS + WITHOUT: lambda: run(_in_process_here(messages, key, None)),
            SINGLE + WITHOUT: lambda: over_http(1, 64, each, installation=PURE),
            BATCHED + WITHOUT: lambda: over_http(64, 8, each * 8, installation=PURE),
        }
    if baseline is not None:
        table |= {
            IN_PROCESS + BEFORE: lambda: _in_process_there(prepared, baseline),
            SINGLE + BEFORE: lambda: over_http(1, 64, each, installation=baseline),
            BATCHED + BEFORE: lambda: over_http(64, 8, each * 8, installation=baseline),
        }
    return table


Results = dict[str, dict[str, Any]]


def round_of_all(table: dict[str, Callable[[], dict[str, Any]]], each: int, *, with_peers: bool) -> Results:
    limit = crypto_limit()
    cores = os.cpu_count() or 1
    results = {name: measure() for name, measure in table.items()}
    if with_peers:
        for name, peer in peers.PEERS.items():
            if (answer := peer.measure(each)) is not None:
                results[name] = answer
    limit = (limit + crypto_limit()) / 2
    for result in results.values():
        if result.get("refused"):
            raise RuntimeError(f"messages were refused: {result}")
        result["limit"] = limit
        result["ratio"] = result["per_second"] / limit
        result["own_ratio"] = result["ratio"] * cores / (cores - result.get("own_cpu_share", 0.0))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--each", type=int, default=EACH, help="messages of each of 64 clients")
    parser.add_argument("--baseline", type=Path, help="another checkout with .venv, measured in the same rounds")
    parser.add_argument("--only", default="", help="rows whose name contains this; nothing is written")
    parser.add_argument("--no-peers", action="store_true", help="no other systems")
    parser.add_argument(
        "--quick", action="store_true", help="one short round without other systems; nothing is written"
    )
    parser.add_argument("--dry", action="store_true", help="print the section instead of writing it")
    options = parser.parse_args()
    rounds_wanted, each = (1, min(options.each, 64)) if options.quick else (options.rounds, options.each)
    key = SigningKey(H(b"bench hub"))
    baseline = None if options.baseline is None else Installation.at(options.baseline)
    with tempfile.TemporaryDirectory(prefix="veen-bench-") as directory:
        prepared = Path(directory) / "messages"
        load.prepare(key.public, CLIENTS, each, prepared)
        lists = pickle.loads(prepared.read_bytes())  # noqa: S301 - our own file
        messages = [raw for turn in zip(*lists, strict=True) for raw in turn]
        measured = cases(messages, prepared, key, each, baseline)
        measured = {name: measure for name, measure in measured.items() if options.only in name}
        with_peers = not (options.quick or options.no_peers or options.only)
        rounds: list[Results] = []
        for number in range(rounds_wanted):
            rounds.append(round_of_all(measured, each, with_peers=with_peers))
            for name, result in rounds[-1].items():
                print(number + 1, name, json.dumps(result), flush=True)
    text = table(rounds)
    if options.quick or options.dry or options.only:
        print(text)
    else:
        report.write_section("hub", text)


def table(rounds: list[Results]) -> str:
    def middle(name: str, key: str) -> float | None:
        values = [measured[name][key] for measured in rounds if key in measured.get(name, {})]
        return median(values) if values else None

    def cell(value: float | None, digits: int = 2) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    def ratios(name: str, other: str, key: str) -> list[float]:
        """The ratios within the rounds."""
        pairs = [(measured[name].get(key), measured[other].get(key)) for measured in rounds if other in measured]
        return [ours / theirs for ours, theirs in pairs if ours and theirs]

    def against(name: str, other: str, key: str) -> float | None:
        """The median of the ratios within the rounds."""
        values = ratios(name, other, key)
        return median(values) if values else None

    limit = median(result["limit"] for measured in rounds for result in measured.values())
    goals = TARGETS | PURE_TARGETS if native.LOADED.module is not None else {}
    lines = [
        "## Hub",
        "",
        report.machine(),
        "",
        f"Native module: {native.LOADED.what}. Crypto limit, {os.cpu_count()} cores / (verify + sign) of libsodium, "
        f"measured between the runs: {limit:.0f} messages a second. Medians of {len(rounds)} interleaved rounds; "
        "durable, one `fdatasync` per group before its answers; a run of 400 messages a client is long enough for one "
        "retirement of the journal. The load generator runs on the same cores; *without generator* is the ratio to the "
        "limit of what it left of them. TLS is on connections that are kept.",
        "",
        "| what | messages/s | ratio to the limit | without generator | target | met | p50 ms | p99 ms "
        "| generator, cores | hub, CPU µs | of the ordering thread |",
        "|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    ours = [name for name in rounds[0] if name not in peers.PEERS and name != HANDSHAKES]
    for name in ours:
        ratio, target = middle(name, "ratio") or 0.0, goals.get(name)
        cells = [
            name,
            cell(middle(name, "per_second"), 0),
            cell(ratio),
            cell(middle(name, "own_ratio")),
            "–" if target is None else f"≥ {target:.2f}",
            "–" if target is None else "yes" if ratio >= target else "no",
            *(cell(middle(name, key)) for key in ("p50_ms", "p99_ms", "own_cpu_share")),
            *(cell(middle(name, key), 0) for key in ("hub_cpu_us", "ordering_cpu_us")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for name in (SINGLE, BATCHED):
        if name in ours and (cost := against(name + TLS, name, "hub_cpu_us")) is not None:
            rate = against(name + TLS, name, "per_second") or 0.0
            verdict = "met" if cost <= MOST_TLS else "missed"
            lines += [
                "",
                f"{name}: with TLS {cost:.2f} times the hub's CPU (at most {MOST_TLS}: {verdict}) and {rate:.2f} of "
                "the messages a second, of which the generator's own encryption takes a part.",
            ]
    if HANDSHAKES in rounds[0]:
        lines += [
            "",
            f"A handshake of TLS 1.3, ECDSA on P-256, and the end of its connection take "
            f"{cell(middle(HANDSHAKES, 'hub_cpu_us'), 0)} µs of the hub and "
            f"{cell(middle(HANDSHAKES, 'own_cpu_us'), 0)} µs of the client.",
        ]
    if any(name + BEFORE in rounds[0] for name in FASTER):
        lines += [
            "",
            "The baseline in the same rounds, with the generator of this commit:",
            "",
            "| what | messages/s before | now / before | interval at 95 % | target | met |",
            "|---|---:|---:|---|---:|---|",
        ]
        for name, least in FASTER.items():
            if (times := against(name, name + BEFORE, "per_second")) is not None:
                low, high = interval(ratios(name, name + BEFORE, "per_second"))
                messages = cell(middle(name + BEFORE, "per_second"), 0)
                row = f"{messages} | {times:.2f} | {low:.2f} to {high:.2f} | ≥ {least} "
                lines.append(f"| {name} | {row}| {'yes' if times >= least else 'no'} |")
    if any(name in rounds[0] for name in peers.PEERS):
        lines += ["", *_beside_others(cell, middle, against, rounds)]
    return "\n".join(lines)


def _beside_others(
    cell: Callable[..., str],
    middle: Callable[[str, str], float | None],
    against: Callable[[str, str, str], float | None],
    rounds: list[Results],
) -> list[str]:
    lines = [
        "Beside it in the same rounds, the same 690 bytes, synced before each answer: one message a request from "
        f"{peers.CONNECTIONS} connections, and {peers.BATCH} messages a request from {peers.BATCH_CONNECTIONS}. None "
        "of these checks an author's signature, signs a receipt or proves inclusion. The last column is how much of a "
        "core the load generator took; as long as that is well below one, it is not what limits them.",
        "",
        "| system | messages/s | VEEN, alike / it | target | p50 ms | p99 ms | generator, cores |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, peer in peers.PEERS.items():
        if name not in rounds[0]:
            lines.append(f"| {name} | not installed | – | – | – | – | – |")
            continue
        times = against(BATCHED if peer.batch > 1 else SINGLE, name, "per_second")
        rest = " | ".join(cell(middle(name, key)) for key in ("p50_ms", "p99_ms", "own_cpu_share"))
        target = "–" if peer.target is None else f"≥ {peer.target}"
        lines.append(f"| {name} | {cell(middle(name, 'per_second'), 0)} | {cell(times)} | {target} | {rest} |")
    return lines


if __name__ == "__main__":
    main()
