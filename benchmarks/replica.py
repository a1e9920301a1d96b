"""How far a replica is behind its primary while messages come at a fixed rate.

    python -m benchmarks.replica                       5,000 messages a second; writes docs/benchmarks.md
    python -m benchmarks.replica --quick               500 a second for three seconds; nothing is written
    python -m benchmarks.replica --rate 2000 --seconds 20 --dry

Primary, replica and load generator are processes on one machine. The generator offers batches at fixed times, whether
or not the hub keeps up: the rate that was reached is in the table. It notes when each batch was acknowledged; this
program notes when the replica serves how many entries, by `/tooling/feed`, which answers with each commit.

The lag of the n-th entry is the time from its receipt at the writer until the replica has n entries; the lag in entries
is taken at each commit of the replica. The first second does not count.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import load, report
from benchmarks.hub import authorize, run, running_hub

from veen.client.transport.calls import NO_RETRY, Calls
from veen.client.transport.http import HttpTransport
from veen.core.objects.tooling import FeedRequest, FeedResponse

RATE: Final = 5_000  # messages a second
SECONDS: Final = 30
CONNECTIONS: Final = 8
BATCH: Final = 25
WARM_SECONDS: Final = 1.0


# --- the generator, a process of its own -------------------------------------------------------------------


class Paced(load.Connection):
    """Sends a request at its time; if the answer before it is late, as soon as that is there."""

    def __init__(self, requests: list[bytes], done: "asyncio.Future[None]", interval: float, offset: float) -> None:
        super().__init__(requests, done)
        self._interval, self._offset = interval, offset
        self.acknowledged: list[float] = []  # by time.monotonic, which all processes of a machine share
        self._began = 0.0

    def begin(self, at: float) -> None:
        self._began = at + self._offset
        self._at_its_time(0)

    def _at_its_time(self, number: int) -> None:
        wait = self._began + number * self._interval - time.monotonic()
        asyncio.get_running_loop().call_later(max(0.0, wait), load.Connection.send, self)

    def send(self) -> None:  # called by the base when an answer is there
        self._at_its_time(self._next)

    def data_received(self, data: bytes) -> None:
        before = len(self.answers)
        super().data_received(data)
        self.acknowledged += [time.monotonic()] * (len(self.answers) - before)


async def offer(port: int, lists: list[list[bytes]], rate: int) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    interval = BATCH * len(lists) / rate
    links, waiting = [], []
    for number, messages in enumerate(lists):
        done: asyncio.Future[None] = loop.create_future()
        link = Paced(load.requests_of(messages, BATCH), done, interval, interval * number / len(lists))
        await loop.create_connection(partial(_same, link), "127.0.0.1", port)
        links.append(link)
        waiting.append(done)
    began = time.monotonic()
    cpu = time.process_time()
    for link in links:
        link.begin(began)
    await asyncio.gather(*waiting)
    own_cpu = time.process_time() - cpu
    receipts, refused = load.check([answer for link in links for answer in link.answers], BATCH)
    times = sorted(moment for link in links for moment in link.acknowledged)
    return {"began": began, "receipts": receipts, "refused": refused, "times": times, "own_cpu": own_cpu}


def _same(link: Paced) -> Paced:
    return link


# --- the replica -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_replica(source: str, root: Path, hub_pk: bytes) -> Iterator[tuple[str, int]]:
    """A replica process; yields its address and its pid."""
    command = [sys.executable, "-m", "veen", "replica", "run", source, str(root), "--json"]
    command += ["--hub-pk", f"ed25519:{hub_pk.hex()}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while True:
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the replica did not start: {''.join(lines)}")
            lines.append(line)
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and value.get("url"):
                    yield str(value["url"]), process.pid
                    return
    finally:
        process.terminate()
        process.wait(timeout=60)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def watch(url: str, total: "asyncio.Future[int]") -> list[tuple[float, int]]:
    """When the replica had how many entries, until it has all of them."""
    transport = HttpTransport(url)
    try:
        calls, commits = Calls(transport, NO_RETRY), []
        request = FeedRequest(control_bytes=0, wait_sec=0)
        while True:
            answer = await calls.ask("tooling/feed", request, FeedResponse, timeout=60.0)
            commits.append((time.monotonic(), answer.entries))
            if total.done() and answer.entries >= total.result():
                return commits
            request = FeedRequest(
                control_bytes=answer.control_bytes, wait_sec=1, instance=answer.instance, after=answer.commit
            )
    finally:
        await transport.aclose()


async def measure(rate: int, seconds: int, root: Path) -> dict[str, float]:
    with running_hub(root / "primary") as (port, hub_pk):
        authorize(port, CONNECTIONS)
        each = -(-rate * seconds // (CONNECTIONS * BATCH)) * BATCH
        load.prepare(hub_pk, CONNECTIONS, each, root / "messages")
        with running_replica(f"http://127.0.0.1:{port}", root / "replica", hub_pk) as (url, pid):
            total: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            watching = asyncio.create_task(watch(url, total))
            cpu = cpu_seconds(pid)
            command = [sys.executable, "-m", "benchmarks.replica", "--offer", str(port), str(root / "messages")]
            process = await asyncio.create_subprocess_exec(
                *command, "--rate", str(rate), stdout=asyncio.subprocess.PIPE, limit=1 << 26
            )
            output, _ = await process.communicate()
            offered = json.loads(output)
            if process.returncode or offered["refused"]:
                raise RuntimeError(f"messages were refused: {offered['refused']}")
            total.set_result(offered["receipts"])
            commits = await watching
            cpu = cpu_seconds(pid) - cpu
    return figures(offered, commits, cpu)


def figures(offered: dict[str, Any], commits: list[tuple[float, int]], cpu: float) -> dict[str, float]:
    """Lag by entry and by commit; percentiles over entries and over commits."""
    times: list[float] = offered["times"]  # of batches
    receipts, warm = int(offered["receipts"]), offered["began"] + WARM_SECONDS
    counts = [count for _, count in commits]
    milliseconds: list[float] = []
    place = 0
    for number, moment in enumerate(times, start=1):
        while counts[place] < number * BATCH:
            place += 1
        if moment >= warm:
            milliseconds.append(max(0.0, commits[place][0] - moment) * 1000)
    behind = sorted(
        max(0, bisect_right(times, moment) * BATCH - count) for moment, count in commits if warm <= moment <= times[-1]
    )
    milliseconds.sort()
    seconds = times[-1] - offered["began"]
    return {
        "receipts": receipts,
        "per_second": receipts / seconds,
        **{f"ms_{name}": at(milliseconds, share) for name, share in SHARES.items()},
        **{f"entries_{name}": at([float(count) for count in behind], share) for name, share in SHARES.items()},
        "caught_up_ms": (commits[-1][0] - times[-1]) * 1000,
        "replica_us": cpu / receipts * 1e6,
        "generator_share": offered["own_cpu"] / seconds,
    }


SHARES: Final = {"p50": 0.50, "p99": 0.99, "max": 1.0}


def at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


# --- the table ---------------------------------------------------------------------------------------------


def table(result: dict[str, float], rate: int) -> str:
    return "\n".join(
        [
            "## Replica",
            "",
            report.machine(),
            "",
            f"{rate:,} messages a second are offered in batches of {BATCH} over {CONNECTIONS} connections to a hub "
            f"that a replica follows; {result['receipts']:,.0f} were acknowledged, {result['per_second']:,.0f} a "
            "second. The replica verifies all that a reader verifies and syncs it to its own disk. Primary, replica "
            f"and load generator share {os.cpu_count()} cores; the generator took {result['generator_share']:.2f} of "
            "one. "
            f"{result['caught_up_ms']:.0f} ms after the last receipt the replica had everything; it took "
            f"{result['replica_us']:.0f} µs of CPU for an entry.",
            "",
            "| behind the receipts of the primary | p50 | p99 | max |",
            "|---|---:|---:|---:|",
            f"| milliseconds | {result['ms_p50']:,.0f} | {result['ms_p99']:,.0f} | {result['ms_max']:,.0f} |",
            f"| entries | {result['entries_p50']:,.0f} | {result['entries_p99']:,.0f} | {result['entries_max']:,.0f} |",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dry", action="store_true", help="print the section instead of writing it")
    parser.add_argument("--offer", nargs=2, metavar=("PORT", "MESSAGES"), help="be the load generator")
    options = parser.parse_args()
    if options.offer:
        lists = pickle.loads(Path(options.offer[1]).read_bytes())  # noqa: S301 - our own file
        print(json.dumps(run(offer(int(options.offer[0]), lists, options.rate))))
        return
    rate, seconds = (500, 3) if options.quick else (options.rate, options.seconds)
    root = Path(tempfile.mkdtemp(prefix="veen-bench-"))
    try:
        section = table(run(measure(rate, seconds, root)), rate)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(section)
    if not options.quick and not options.dry:
        report.write_section("replica", section)


if __name__ == "__main__":
    main()
