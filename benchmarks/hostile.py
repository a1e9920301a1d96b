"""A hub under all load attacks at once: what is left for an honest writer?

    python -m benchmarks.hostile                prints the table and writes it to docs/benchmarks.md

The attacks are those of tests/hub/hostile, from a process of their own. The writer sends a message, waits for its
receipt and sends the next. Real attackers bring their own machines; here they share one with the hub and the writer, so
what they take by being there is told apart from what they take of the hub, by three comparisons:

    alone           the writer without and with attackers on the same cores, at the lowest priority
    drain           the same attackers, but in the control they attack a drain, a process that reads and answers 403
    drain, apart    the same, with hub and writer on one core and the attackers and the drain on another

Control and attack take turns, so that other work on the machine changes both; `kept` is the median of the ratios of
neighbouring turns. Memory is the most that the hub process had. A directory in memory is the worst case: nobody waits
for a disk, and all that the hub does counts. Everything stays on 127.0.0.1.
"""

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import hub, report
from tests.hub.hostile import attacks

TURNS: Final = 5
LARGE_ENTRIES: Final = 40
LARGE_BYTES: Final = 100_000
ANSWER_BYTES: Final = 64 << 20
ARRIVE_SEC: Final = 2.0  # until all attackers are there
MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a file system in memory, where there is one
SETTINGS: Final = (
    "admission.capability_gating=false",
    "admission.stream_scope=open",
    f"admission.pow_difficulty={attacks.POW_BITS}",
    f"listen.max_answer_bytes={ANSWER_BYTES}",
    "listen.max_event_stream_seconds=5",
    "log.level=error",
)
EARLIER: Final = (
    "Until the hub told writers whose head and body come in two packets from clients that send tiny chunks, and let no "
    "timer fire early, the first comparison on a disk gave 20 % (1,183 and 241 messages/s, p99 30 ms, 155 MiB)."
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What the writer and the hub did for some seconds."""

    per_second: float
    p50_ms: float
    p99_ms: float
    memory_mib: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Turns of a control and of an attack, the n-th of each beside each other."""

    name: str
    control: list[Turn]
    attacked: list[Turn]

    def row(self, title: str) -> str:
        share = median(
            attacked.per_second / control.per_second
            for control, attacked in zip(self.control, self.attacked, strict=True)
        )

        def middle(turns: list[Turn], field: str) -> float:
            return median(float(getattr(turn, field)) for turn in turns)

        return (
            f"| {title} | {self.name} | {middle(self.control, 'per_second'):.0f} "
            f"| {middle(self.attacked, 'per_second'):.0f} | {share:.0%} | {middle(self.control, 'p99_ms'):.1f} "
            f"| {middle(self.attacked, 'p50_ms'):.1f} | {middle(self.attacked, 'p99_ms'):.1f} "
            f"| {max(turn.memory_mib for turn in self.attacked):.0f} |"
        )


HEAD: Final = (
    "| where | control | control, msg/s | attacked, msg/s | kept | control, p99 ms | attacked, p50 ms | p99 ms "
    "| hub, MiB |\n|---|---|---|---|---|---|---|---|---|"
)


def attack(
    port: int, names: list[str], core: int | None, seconds: float, results: "multiprocessing.Queue[int]"
) -> None:
    """In a process of its own: on a core of its own, or at the lowest priority."""
    if core is None:
        os.nice(19)
    else:
        os.sched_setaffinity(0, {core})
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def fight() -> None:
        battle = attacks.Battle(port)
        fighters = [asyncio.ensure_future(attacks.ATTACKS[name](battle)) for name in names]
        await asyncio.sleep(seconds)
        battle.over.set()
        for fighter in fighters:
            fighter.cancel()
        await asyncio.gather(*fighters, return_exceptions=True)
        results.put(sum(battle.counts.values()))

    asyncio.run(fight())


def drain(core: int | None, results: "multiprocessing.Queue[int]") -> None:
    """In a process of its own: read and discard, answer each request with 403, about as slowly as a busy hub."""
    if core is None:
        os.nice(19)
    else:
        os.sched_setaffinity(0, {core})
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n" * data.count(b"\r\n\r\n"))
                await asyncio.sleep(0.2)

    async def listen() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
        results.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(listen())


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Field:
    """A hub, a writer and, in turns, attackers."""

    def __init__(self, port: int, pid: int, seconds: float, names: list[str], core: int | None) -> None:
        self._port, self._pid, self._seconds, self._names, self._core = port, pid, seconds, names, core
        self._context = multiprocessing.get_context("spawn")
        self.writer = attacks.Writer(port)

    def alone(self) -> Turn:
        """The writer, and nobody else."""
        writer = self.writer
        begin, began, memory = len(writer.seconds), time.monotonic(), 0
        while time.monotonic() < began + self._seconds:
            time.sleep(0.05)
            memory = max(memory, resident(self._pid))
        seconds, latencies = time.monotonic() - began, sorted(writer.seconds[begin:])
        if writer.failure or not latencies:
            raise SystemExit(f"the honest writer failed: {writer.failure or 'no message was answered'}")
        return Turn(
            len(latencies) / seconds,
            latencies[len(latencies) // 2] * 1000,
            latencies[len(latencies) * 99 // 100] * 1000,
            memory / (1 << 20),
        )

    def attacked(self, port: int | None = None) -> Turn:
        """The writer while the hub, or whoever has `port`, is attacked."""
        results: Any = self._context.Queue()
        arguments = (port or self._port, self._names, self._core, self._seconds + 2 * ARRIVE_SEC, results)
        fighters = self._context.Process(target=attack, args=arguments)
        fighters.start()
        time.sleep(ARRIVE_SEC)
        turn = self.alone()
        steps = results.get(timeout=120)
        fighters.join(timeout=120)
        if not steps:
            raise SystemExit("the attackers did nothing")
        time.sleep(0.5)  # until the hub has closed their connections
        return turn

    def drained(self) -> Turn:
        """The writer while a drain is attacked."""
        results: Any = self._context.Queue()
        server = self._context.Process(target=drain, args=(self._core, results))
        server.start()
        try:
            return self.attacked(results.get(timeout=120))
        finally:
            server.terminate()
            server.join(timeout=120)


@contextlib.contextmanager
def battlefield(
    directory: Path | None, names: list[str], seconds: float, cores: tuple[int, int] | None
) -> Iterator[tuple[Field, Counter[int]]]:
    """A hub with entries to read and a writer; with `cores`, both on the first, and attackers on the second."""
    everywhere = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory(prefix="veen-hostile-", dir=directory) as name:
        data_dir = Path(name) / "data"
        try:
            if cores is not None:
                os.sched_setaffinity(0, {cores[0]})  # children inherit it
            with hub.running_hub(data_dir, *SETTINGS) as (port, _):
                pid = int((data_dir / "lock").read_text("ascii").split()[1])
                attacks.fill(port, "large", LARGE_ENTRIES, LARGE_BYTES)
                field = Field(port, pid, seconds, names, None if cores is None else cores[1])
                field.writer.start()
                time.sleep(1.0)
                yield field, field.writer.statuses
                field.writer.stop()
        finally:
            os.sched_setaffinity(0, everywhere)


def measure(directory: Path | None, names: list[str], seconds: float) -> list[Comparison]:
    """The three comparisons; two where there is one core."""
    alone, drained, attacked = list[Turn](), list[Turn](), list[Turn]()
    with battlefield(directory, names, seconds, None) as (field, statuses):
        for _ in range(TURNS):
            alone.append(field.alone())
            attacked.append(field.attacked())
            drained.append(field.drained())
    _check(statuses)
    comparisons = [Comparison("alone", alone, attacked), Comparison("drain", drained, attacked)]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        drained, attacked = [], []
        with battlefield(directory, names, seconds, (cores[0], cores[-1])) as (field, statuses):
            for _ in range(TURNS):
                drained.append(field.drained())
                attacked.append(field.attacked())
        _check(statuses)
        comparisons.append(Comparison("drain, apart", drained, attacked))
    return comparisons


def _check(statuses: Counter[int]) -> None:
    if set(statuses) != {200}:
        raise SystemExit(f"messages of the honest writer were refused: {dict(statuses)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="of each turn")
    parser.add_argument("--each", action="store_true", help="also every attack alone, in memory")
    parser.add_argument("--note", default="", help="a sentence for the page about how it was measured")
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmarks.md as it is")
    options = parser.parse_args()
    every = list(attacks.ATTACKS)
    runs: list[tuple[str, Path | None, list[str]]] = [("disk", None, every)]
    if MEMORY.is_dir():
        runs.append(("memory", MEMORY, every))
        runs += [(name, MEMORY, [name]) for name in every if options.each]
    lines = [HEAD]
    print(HEAD, flush=True)
    for title, directory, names in runs:
        for comparison in measure(directory, names, options.seconds):
            lines.append(comparison.row(title))
            print(lines[-1], flush=True)
    if not options.no_write:
        text = (
            "## Under attack\n\nOne honest writer, one message at a time, without and with load attacks on its hub: "
            f"{attacks.IDLE:,} idle connections, {attacks.SLOW_HEADS} slow heads, {attacks.UNREAD} × "
            f"{attacks.PIPELINED} pipelined reads that nobody reads, bodies in two-byte chunks, {attacks.STREAMS} "
            "event streams, floods of refused requests and of replays, and expensive requests, all at once.\n\n"
            "Attackers have their own machines; here they share one with the hub and the writer. So there are three "
            "controls: *alone*, the writer without any attacker; *drain*, the same attackers beside it, but busy with "
            "another process that answers 403; *drain, apart*, the same with hub and writer on one core and the "
            "attackers and the drain on another, in the control as under attack. *kept* is the median of the ratios "
            f"of {TURNS} pairs of neighbouring turns of {options.seconds:g} s, so that other work on this machine "
            "changes both, and above 100 % is its noise; "
            "the other figures are medians of the turns, the hub's memory is the most it had. With the "
            "data directory on a disk the writer waits for the sync of each message; in memory, the worst case, it "
            f"waits for the hub alone. {EARLIER} {options.note}".rstrip()
            + " `python -m benchmarks.hostile`\n\n"
        )
        report.write_section("hostile", f"{text}{chr(10).join(lines)}\n\n{report.machine()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
