"""A hub under all load attacks at once: what is left for an honest writer?

    python -m benchmarks.hostile                prints the table and writes it to docs/benchmarks.md

The attacks are those of tests/hub/hostile, from a process of their own at the lowest priority (strangers bring their
own processors; here they share two with the hub). The writer sends a message, waits for its receipt and sends the next,
in turns without and with the attacks, so that a busy machine changes both. Memory is the most that the hub process
had. Everything stays on 127.0.0.1 and ends after `--seconds` of each turn.
"""

import argparse
import asyncio
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import hub, report
from tests.hub.hostile import attacks

TURNS: Final = 3
LARGE_ENTRIES: Final = 40
LARGE_BYTES: Final = 100_000
ANSWER_BYTES: Final = 64 << 20
SETTINGS: Final = (
    "admission.capability_gating=false",
    "admission.stream_scope=open",
    f"admission.pow_difficulty={attacks.POW_BITS}",
    f"listen.max_answer_bytes={ANSWER_BYTES}",
    "listen.max_event_stream_seconds=5",
    "log.level=error",
)


def attack(port: int, names: list[str], seconds: float, results: "multiprocessing.Queue[dict[str, int]]") -> None:
    """In a process of its own."""
    os.nice(19)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def fight() -> None:
        battle = attacks.Battle(port)
        fighters = [asyncio.ensure_future(attacks.ATTACKS[name](battle)) for name in names]
        await asyncio.sleep(seconds)
        battle.over.set()
        for fighter in fighters:
            fighter.cancel()
        await asyncio.gather(*fighters, return_exceptions=True)
        results.put(dict(battle.counts))

    asyncio.run(fight())


def write_for(writer: attacks.Writer, seconds: float, pid: int) -> tuple[list[float], int]:
    """The latencies of a turn, and the most memory the hub had."""
    begin, until, memory = len(writer.seconds), time.monotonic() + seconds, 0
    while time.monotonic() < until:
        time.sleep(0.05)
        memory = max(memory, resident(pid))
    return sorted(writer.seconds[begin:]), memory


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def figures(latencies: list[float], seconds: float, memory: int) -> dict[str, float]:
    return {
        "per_second": len(latencies) / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
        "memory_mib": memory / (1 << 20),
    }


def measure(names: list[str], seconds: float) -> tuple[dict[str, float], dict[str, float], Counter[int]]:
    """Medians of some turns without and with the attacks, and what the writer was answered."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="veen-hostile-") as directory:
        data_dir = Path(directory) / "data"
        with hub.running_hub(data_dir, *SETTINGS) as (port, _):
            pid = int((data_dir / "lock").read_text("ascii").split()[1])
            attacks.fill(port, "large", LARGE_ENTRIES, LARGE_BYTES)
            writer = attacks.Writer(port)
            writer.start()
            time.sleep(1.0)
            alone, attacked = [], []
            for _ in range(TURNS):
                alone.append(figures(*_timed(writer, seconds, pid)))
                results: Any = context.Queue()
                fighters = context.Process(target=attack, args=(port, names, seconds + 2.0, results))
                fighters.start()
                time.sleep(2.0)  # until they are all there
                attacked.append(figures(*_timed(writer, seconds, pid)))
                results.get(timeout=60)
                fighters.join(timeout=60)
            writer.stop()
            if writer.failure:
                raise SystemExit(f"the honest writer failed: {writer.failure}")
            return _medians(alone), _medians(attacked), writer.statuses


def _timed(writer: attacks.Writer, seconds: float, pid: int) -> tuple[list[float], float, int]:
    latencies, memory = write_for(writer, seconds, pid)
    return latencies, seconds, memory


def _medians(turns: list[dict[str, float]]) -> dict[str, float]:
    return {name: median(turn[name] for turn in turns) for name in turns[0]}


def row(name: str, alone: dict[str, float], attacked: dict[str, float]) -> str:
    share = attacked["per_second"] / alone["per_second"]
    return (
        f"| {name} | {alone['per_second']:.0f} | {attacked['per_second']:.0f} | {share:.0%} | {alone['p99_ms']:.1f} "
        f"| {attacked['p50_ms']:.1f} | {attacked['p99_ms']:.1f} | {attacked['memory_mib']:.0f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn")
    parser.add_argument("--each", action="store_true", help="also every attack alone")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    groups = {name: [name] for name in attacks.ATTACKS} if options.each else {}
    groups["all at once"] = list(attacks.ATTACKS)
    lines = [
        "| attack | alone, msg/s | attacked, msg/s | share | alone, p99 ms | attacked, p50 ms | p99 ms | hub, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for name, names in groups.items():
        alone, attacked, statuses = measure(names, options.seconds)
        lines.append(row(name, alone, attacked))
        print(lines[-1], dict(statuses), flush=True)
    if not options.no_write:
        text = (
            "## Under attack\n\nOne honest writer, one message at a time, without and with load attacks: "
            f"{attacks.IDLE:,} idle connections, {attacks.SLOW_HEADS} slow heads, {attacks.UNREAD} × "
            f"{attacks.PIPELINED} pipelined reads that nobody reads, bodies in two-byte chunks, {attacks.STREAMS} "
            "event streams, floods of refused requests and of replays, and expensive requests. Medians of "
            f"{TURNS} turns of {options.seconds:g} s. `python -m benchmarks.hostile --each`\n\n"
        )
        report.write_section("hostile", f"{text}{chr(10).join(lines)}\n\n{report.machine()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
