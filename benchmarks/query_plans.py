"""Queries on Spark, from the log and from typed tables: seconds of CPU by process, for as many events as asked for.

    python -m benchmarks.query_plans [EVENTS [ROUNDS]]        # default: 20000 3

Each query runs once to warm up, then ROUNDS times; the smallest figures count. `driver` is this process, which is one
thread of one machine however large the cluster is; `workers` are its Python workers, `jvm` is Spark itself. Rows are
hashed and forgotten. The digests of all engines must be equal, else nothing is printed.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.sparklog import EVENTS, built

from veen.lake import tables
from veen.lake.query import api
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import QueryOutcome
from veen.lake.spark.session import spark_session

ALL: dict[str, Any] = {"scope": [EVENTS], "evidence": {"mode": "none"}}
FEW = [{"field": "payload.ms", "op": "<", "value": 300}, {"field": "origin", "op": "^=", "value": "gw-"}]
QUERIES: dict[str, dict[str, Any]] = {
    "three fields of all events": ALL | {"projection": ["subject_id", "event_type", "payload.ms"]},
    "all fields of three of ten": ALL | {"filter": {"where": FEW}, "projection": ["*"]},
    "the hundred slowest": ALL
    | {
        "projection": ["receipt_id", "payload.ms"],
        "order": [{"field": "payload.ms", "direction": "desc"}],
        "limit": 100,
    },
    "count and mean by origin": ALL
    | {"projection": ["origin"], "aggregate": {"group_by": ["origin"], "metrics": ["count", "avg(payload.ms)"]}},
}


class Nowhere:
    def row(self, row: bytes) -> None:
        """Only its hash is of interest."""

    evidence = row


def below(pid: int) -> Iterator[int]:
    """The processes that a process has started, and theirs."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for child in (task / "children").read_text().split():
                yield int(child)
                yield from below(int(child))


def cpu() -> dict[str, float]:
    """CPU seconds so far: of this process, of the JVM, of Python workers (those that have ended included)."""
    tick = os.sysconf("SC_CLK_TCK")
    seconds = {"driver": time.process_time(), "jvm": 0.0, "workers": 0.0}
    for pid in below(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        own, ended = (int(fields[11]) + int(fields[12])) / tick, (int(fields[13]) + int(fields[14])) / tick
        seconds["jvm" if name == "java" else "workers"] += own
        seconds["workers"] += ended
    return seconds


def main() -> None:
    events, rounds = [*map(int, sys.argv[1:]), *(20_000, 3)[len(sys.argv) - 1 :]]
    log = built(2 * events)
    place = Path(tempfile.mkdtemp(prefix="veen-query-plans-"))
    try:
        tables.load(log.path, str(place), keys=log.keys, engine="python")
        measure(log.path, str(place), log.keys, rounds)
    finally:
        shutil.rmtree(place)


def measure(path: str, place: str, keys: Any, rounds: int) -> None:
    print("| query | from | rows | s | driver | jvm | workers |\n|---|---|---:|---:|---:|---:|---:|")
    spark = spark_session("veen query plans", master="local[2]", register=False)
    for name, query in QUERIES.items():
        asked = normalise({"query_id": "q-bench", **query}).descriptor
        digests = set()
        for origin, to in (("log", None), ("tables", place)):
            best: dict[str, float] = {}
            outcome: QueryOutcome
            for number in range(rounds + 1):
                before, begin = cpu(), time.perf_counter()
                outcome = api.answer_into(
                    Nowhere(),
                    path,
                    asked,
                    result_id="r-bench",
                    keys=keys,
                    engine="spark",
                    spark=spark,
                    tables=to,
                    now=lambda: 0,
                )
                spent = {"s": time.perf_counter() - begin} | {kind: cpu()[kind] - before[kind] for kind in before}
                if number:
                    best = {kind: min(spent[kind], best.get(kind, spent[kind])) for kind in spent}
            digests.add(outcome.digest)
            figures = " | ".join(f"{best[kind]:.2f}" for kind in ("s", "driver", "jvm", "workers"))
            print(f"| {name} | {origin} | {outcome.digest.row_count:,} | {figures} |", flush=True)
        if len(digests) != 1:
            raise SystemExit(f"{name}: log and tables give different results")
    spark.stop()


if __name__ == "__main__":
    main()
