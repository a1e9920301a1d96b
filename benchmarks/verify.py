"""`hub verify-data` and `audit` beside bare Ed25519 verification by libsodium, with the native module and without.

    python -m benchmarks.verify                      at 200 thousand entries; writes docs/benchmarks.md
    python -m benchmarks.verify --entries 20000      a first look; only prints
    python -m benchmarks.verify --baseline DIR       beside another checkout with .venv; only prints

What counts is CPU time for a signature: each run stands between two runs of libsodium's loop in the same process, and
the ratio is to their mean. Every way to run is a process of its own, as the module is loaded once; they take turns.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import baseline, report
from benchmarks.sparkbench import cpu_seconds
from benchmarks.sparklog import built
from nacl.bindings import crypto_sign_open

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H, u64be
from veen.io.local import OsFs
from veen.native import LOADED, VARIABLE
from veen.verify.audit import AuditOptions, audit
from veen.verify.audit.engine import ProcessesEngine
from veen.verify.directory import verify_data

ENTRIES: Final = 200_000
ROUNDS: Final = 5
LOOP_SECONDS: Final = 1.0
KEY: Final = SigningKey(H(b"bare"))
TARGETS: Final = {True: 1.3, False: 0.9}  # with the module, and without


def loop() -> float:
    """Signatures that libsodium verifies in a second of CPU time. Of many: a processor learns the branches of one."""
    digests = [H(u64be(number)) for number in range(500)]
    signed = [KEY.sign(digest) + digest for digest in digests]
    count, began = 0, time.process_time()
    while (seconds := time.process_time() - began) < LOOP_SECONDS:
        for signature in signed:
            crypto_sign_open(signature, KEY.public)
        count += len(signed)
    return count / seconds


def _verify_data(path: str, cores: int) -> int:
    verdict = verify_data(OsFs(Path(path)), jobs=cores)
    if verdict.findings:
        raise RuntimeError(f"the log must be clean, found {verdict.findings[0]}")
    return verdict.counts["signatures"]


def _audit(path: str, cores: int) -> int:
    result = audit(path, AuditOptions(), engine=ProcessesEngine(cores))
    if result.findings:
        raise RuntimeError(f"the log must be clean, found {result.findings[0]}")
    return result.counts["signatures"]


WAYS: Final[dict[str, Callable[[str, int], int]]] = {"verify-data": _verify_data, "audit": _audit}


def measure(path: str) -> dict[str, dict[str, float]]:
    """Microseconds and ratio of each way, on one core and on all; for a process that has the module or has it not."""
    figures = {}
    for name, way in WAYS.items():
        for cores in sorted({1, os.cpu_count() or 1}):
            before, cpu, began = loop(), cpu_seconds(), time.perf_counter()
            signatures = way(path, cores)
            cpu, wall = cpu_seconds() - cpu, time.perf_counter() - began
            limit = (before + loop()) / 2
            figures[f"{name}, {cores}"] = {
                "us": cpu / signatures * 1e6,
                "ratio": signatures / cpu / limit,
                "wall": signatures / wall,
            }
    return figures


def table(rounds: dict[bool, list[dict[str, dict[str, float]]]], entries: int, module: str) -> str:
    lines = [
        "## Verification in bulk",
        "",
        report.machine(),
        "",
        f"Native module: {module}. A log of {entries:,} entries with two signatures each; medians of "
        f"{len(rounds[True])} rounds. CPU time of all processes and threads for a signature, all checks of the entries "
        "included, and its ratio to libsodium's loop over bare signatures on one core in the same round.",
        "",
        "| what | cores | module | CPU µs for a signature | ratio to the loop | target | met | signatures/s |",
        "|---|---:|---|---:|---:|---:|---|---:|",
    ]
    for name in rounds[True][0]:
        for native, measured in rounds.items():
            what, cores = name.split(", ")
            us, ratio, wall = (median(figures[name][key] for figures in measured) for key in ("us", "ratio", "wall"))
            goal = TARGETS[native]
            lines.append(
                f"| {what} | {cores} | {'yes' if native else 'no'} | {us:.1f} | {ratio:.2f} | ≥ {goal} "
                f"| {'yes' if ratio >= goal else 'NO'} | {wall:,.0f} |"
            )
    return "\n".join(lines)


def _in_process(
    path: str, native: bool, installation: baseline.Installation = baseline.HERE
) -> dict[str, dict[str, float]]:
    setting = {VARIABLE: "1" if native else "0"}
    figures: dict[str, dict[str, float]] = baseline.run_module(
        installation, "benchmarks.verify", "--path", path, **setting
    )
    print(f"module: {native}", {name: round(figure["ratio"], 2) for name, figure in figures.items()}, file=sys.stderr)
    return figures


def rates(path: str, installation: baseline.Installation) -> dict[str, float]:
    """Return signatures for a second of CPU time, with the native module and without."""
    return {
        f"{name} cores, {'with' if native else 'without'} the native module": 1e6 / figure["us"]
        for native in (True, False)
        for name, figure in _in_process(path, native, installation).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--entries", type=int, help=f"of the log; default: {ENTRIES:,}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()), help="where logs are kept")
    parser.add_argument("--path", help=argparse.SUPPRESS)
    baseline.add_options(parser)
    options = parser.parse_args()
    if options.path:
        print(json.dumps(measure(options.path)))
        return
    if LOADED.module is None:
        sys.exit(f"benchmarks.verify compares with the native module, which is not in use: {LOADED.what}")
    entries = options.entries or ENTRIES
    path = built(entries, options.cache).path
    if options.baseline is not None:
        print(baseline.comparison(partial(rates, path), options.baseline, options.baseline_rounds))
        return
    rounds: dict[bool, list[dict[str, dict[str, float]]]] = {True: [], False: []}
    for _ in range(options.rounds):
        for native, measured in rounds.items():
            measured.append(_in_process(path, native))
    text = table(rounds, entries, LOADED.what)
    print(text)
    if options.entries is None:
        report.write_section("verify", text)


if __name__ == "__main__":
    main()
