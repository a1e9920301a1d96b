"""A hub under steady load for a long time: does anything grow, fail or slow down?

    python -m benchmarks.soak --minutes 30 --share 0.7      also writes docs/benchmarks.md, if it is that long

First the maximum of this machine is measured: how many messages hub and generator get through together if all of them
are due at once. Then a fresh hub process gets a share of it in an open loop: messages are due at fixed times whatever
the hub does, and latency counts from when a message was due, so a pause of the hub, or of the machine, shows in full.
As with any client, so many of a connection are on their way and no more; what is due meanwhile is sent later. Messages
are made and signed as they are needed, by the generator and on the same cores. (The maximum of messages that were made
before is no measure for this: at 70 % of it the two cores were busy to 93 %, and hub and generator fell behind.) Once a
minute memory, open files, errors and latencies are noted; at the end the hub is stopped and its whole directory
verified.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from benchmarks import hub, load, report

from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.findings import Level
from veen.verify.directory import Report, verify_data

CONNECTIONS: Final = 64
WINDOW: Final = 60  # unanswered messages of a connection; all of them fit into a hub's queue
TICK_SECONDS: Final = 0.001
PATIENCE_SECONDS: Final = 60.0  # for the last answers
WRITTEN_MINUTES: Final = 20
MOST_RATE: Final = 1e6  # messages a second: more than any hub takes
MOST_SECONDS: Final = 30
DISK_BYTES: Final = 2_500  # that a message may take on the disk, journal and index included
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Tally:
    """What happened since the last line of the table. Latencies are counted by tenths of a millisecond: sorting half a
    million of them each minute was the longest pause there was."""

    latencies: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)  # by HTTP status; after a 503 a writer's next ones are 409

    def percentile_ms(self, share: float) -> float:
        left = self.latencies.total() * share
        for tenths in sorted(self.latencies):
            left -= self.latencies[tenths]
            if left <= 0:
                return tenths / 10
        return 0.0


class Connection(asyncio.Protocol):
    """Sends what is due without waiting for answers; those come in the same order."""

    def __init__(self, writer: load.Writer, tally: Tally) -> None:
        self._writer, self.tally = writer, tally
        self._due: deque[float] = deque()
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not say that it is one

    def send(self, due: float) -> None:
        assert self._transport is not None
        self._due.append(due)
        self._transport.write(load.submit(self._writer.next()))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (answer := load.next_answer(self._buffer)) is not None:
            status, _, used = answer
            self._buffer = self._buffer[used:]
            self.tally.latencies[int((time.perf_counter() - self._due.popleft()) * 1e4)] += 1
            if status != b"200":
                self.tally.faults[status.decode()] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    @property
    def waiting(self) -> int:
        return len(self._due)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of the table."""

    minute: float
    per_second: float
    faults: Counter[str]
    p50_ms: float
    p99_ms: float
    worst_ms: float
    rss_mb: float
    children_mb: float
    open_files: int
    waiting: int


HEAD: Final = (
    "| minute | answers/s | errors | p50 ms | p99 ms | worst ms | RSS MB | of verifiers MB | open files | waiting |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def line(one: Sample) -> str:
    return (
        f"| {one.minute:.1f} | {one.per_second:.0f} | {one.faults.total()} | {one.p50_ms:.2f} | {one.p99_ms:.2f} "
        f"| {one.worst_ms:.0f} | {one.rss_mb:.1f} | {one.children_mb:.1f} | {one.open_files} | {one.waiting} |"
    )


def _rss(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE / 2**20


def _children(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            children += [int(word) for word in (task / "children").read_text("ascii").split()]
    return children


def _hub_pid(data_dir: Path) -> int:
    return int((data_dir / layout.LOCK).read_text("ascii").split()[1])


async def soak(port: int, hub_pk: bytes, pid: int, rate: float, seconds: float) -> list[Sample]:
    loop, tally = asyncio.get_running_loop(), Tally()
    connections = []
    for number in range(CONNECTIONS):
        connection = Connection(load.Writer(hub_pk, number), tally)
        await loop.create_connection(lambda connection=connection: connection, "127.0.0.1", port)  # type: ignore[misc]  # its own default
        connections.append(connection)
    samples: list[Sample] = []
    began = noted = time.perf_counter()
    sent = 0
    while (now := time.perf_counter()) < began + seconds and not any(connection.lost for connection in connections):
        for _ in range(min(int((now - began) * rate) - sent, CONNECTIONS * 4)):
            if connections[sent % CONNECTIONS].waiting >= WINDOW:
                break
            connections[sent % CONNECTIONS].send(began + sent / rate)
            sent += 1
        if now >= noted + 60:
            samples.append(_sample(connections, tally, pid, now - began, now - noted))
            print(line(samples[-1]), flush=True)
            noted, tally = now, Tally()
            for connection in connections:
                connection.tally = tally
        await asyncio.sleep(TICK_SECONDS)
    until = time.perf_counter() + PATIENCE_SECONDS
    while any(connection.waiting and not connection.lost for connection in connections) and time.perf_counter() < until:  # noqa: ASYNC110 - as above, a tick at a time
        await asyncio.sleep(TICK_SECONDS)
    now = time.perf_counter()
    tally.faults["unanswered"] = sum(connection.waiting for connection in connections)
    samples.append(_sample(connections, tally, pid, now - began, now - noted))
    for connection in connections:
        connection.close()
    await asyncio.sleep(0)
    return samples


def _sample(connections: list[Connection], tally: Tally, pid: int, at: float, seconds: float) -> Sample:
    return Sample(
        minute=at / 60,
        per_second=tally.latencies.total() / seconds,
        faults=tally.faults,
        p50_ms=tally.percentile_ms(0.50),
        p99_ms=tally.percentile_ms(0.99),
        worst_ms=tally.percentile_ms(1.0),
        rss_mb=_rss(pid),
        children_mb=sum(_rss(child) for child in _children(pid)),
        open_files=len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208 - only how many
        waiting=sum(connection.waiting for connection in connections),
    )


def at_rate(data_dir: Path, rate: float, seconds: float) -> list[Sample]:
    """What a new hub in `data_dir` did."""
    with hub.running_hub(data_dir) as (port, hub_pk):
        hub.authorize(port, CONNECTIONS)
        return hub.run(soak(port, hub_pk, _hub_pid(data_dir), rate, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--share", type=float, default=0.7, help="of the maximum that is measured first")
    parser.add_argument("--rate", type=float, help="messages a second, instead of measuring the maximum")
    parser.add_argument("--dir", type=Path, help="where to put the data directory (default: a temporary one)")
    parser.add_argument("--structure", action="store_true", help="verify everything at the end but the signatures")
    options = parser.parse_args()
    rate, load_text = options.rate, f"{options.rate} messages a second"
    root = Path(tempfile.mkdtemp(prefix="veen-soak-", dir=options.dir))
    try:
        if rate is None:
            (most,) = (sample.per_second for sample in at_rate(root / "most", MOST_RATE, MOST_SECONDS))
            shutil.rmtree(root / "most")
            rate = most * options.share
            load_text = (
                f"{rate:.0f} messages a second, {options.share:.0%} of the {most:.0f} that hub and generator reached "
                f"together in {MOST_SECONDS} s just before"
            )
        print(f"{report.machine()}\n{load_text}\n{HEAD}", flush=True)
        needed, free = int(rate * options.minutes * 60 * DISK_BYTES), shutil.disk_usage(root).free
        if needed > free:
            print(f"{root}: {needed >> 20} MiB may be needed, {free >> 20} MiB are free")
            return 1
        samples = at_rate(root / "data", rate, options.minutes * 60)
        print(line(samples[-1]), flush=True)
        level: Level = "structure" if options.structure else "full"
        began = time.perf_counter()
        outcome = verify_data(OsFs(root / "data"), level=level, jobs=os.cpu_count() or 1)
        words = verdict(samples, outcome, time.perf_counter() - began)
        print(words)
        if options.minutes >= WRITTEN_MINUTES and options.rate is None:
            report.write_section("soak", section(samples, load_text, words))
        return int(any(+sample.faults for sample in samples) or not outcome.ok)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def verdict(samples: list[Sample], found: Report, seconds: float) -> str:
    """What a reader wants to know."""
    faults = sum((sample.faults for sample in samples), Counter[str]())
    errors = ", ".join(f"{count} × {status}" for status, count in (+faults).items()) or "none"
    entries = sum(summary.size for summary in found.labels.values())
    state = "clean" if found.ok else f"{len(found.errors)} errors, the first: {found.errors[0]}"
    return (
        f"Errors: {errors}. Memory of the hub: {samples[0].rss_mb:.1f} MB after the first minute, "
        f"{samples[-1].rss_mb:.1f} MB at the end. Then verify-data ({found.level}): {entries} entries, "
        f"{found.counts.get('signatures', 0)} signatures, {state}, {seconds:.0f} s on {os.cpu_count()} cores."
    )


def section(samples: list[Sample], load_text: str, words: str) -> str:
    """Every fifth minute, and the last."""
    shown = [sample for number, sample in enumerate(samples, 1) if number % 5 == 1 or sample is samples[-1]]
    title = f"## Soak: {samples[-1].minute:.0f} minutes"
    how = (
        f"{load_text}; one message a request over {CONNECTIONS} connections in an open loop, at most {WINDOW} of a "
        "connection unanswered: latency counts from when a message was due. The generator makes and signs them on the "
        "same cores. Each line is one minute."
    )
    return "\n".join([title, "", report.machine(), "", how, "", HEAD, *map(line, shown), "", words])


if __name__ == "__main__":
    raise SystemExit(main())
