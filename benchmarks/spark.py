"""The pipeline on Spark beside its limits (DESIGN §8): reading, auditing, folding, querying.

    python -m benchmarks.spark                     at 200 thousand and 5 million entries; writes docs/benchmarks.md
    python -m benchmarks.spark --entries 20000     a first look; only prints, without --write
    python -m benchmarks.spark --baseline DIR      beside another checkout, which has a virtual environment; only prints

The smallest log is measured on one core and on all of them, the others on all. Logs are really sealed and signed, which
takes some minutes for millions of entries; they are kept in --cache (by default the directory for temporary files).
200 thousand entries should take about half an hour on two quiet cores (an estimate from 50 thousand), most for folds
and queries on one core; --parts read audit columns leaves these out, --large-parts does so for all but the smallest
log. Standard error says how long each part took.
"""

import argparse
import json
import os
import sys
import time
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any, Final

from benchmarks import baseline, report
from benchmarks.sparklog import Log, built
from benchmarks.sparkparts import PARTS, measured

SIZES: Final = (200_000, 5_000_000)
SMALL: Final = 20_000  # what a session warms up with
ROUNDS: Final = 3
TARGETS: Final = {
    "read, all columns, hashes checked": 0.7,
    "read, lean columns, hashes checked": 0.7,
    "audit; limit: cores × one thread": 0.88,
    "fold of typed columns, native": 0.9,
    "query, three fields of all events": 0.8,
}
GROWTH: Final = 1.2
BEYOND: Final = 1.0

Run = dict[str, Any]


def _run(
    entries: int,
    cores: int,
    rounds: int,
    parts: list[str],
    cache: Path | None,
    installation: baseline.Installation = baseline.HERE,
) -> Run:
    """One number of cores needs a process of its own: what it may run on is fixed before the JVM starts."""
    arguments = ["--entries", str(entries), "--cores", str(cores), "--rounds", str(rounds), "--parts", *parts]
    arguments += ["--inside", *(["--cache", str(cache)] if cache else [])]
    began = time.monotonic()
    run: Run = baseline.run_module(installation, "benchmarks.spark", *arguments)
    print(f"{entries:,} entries, cores: {cores}: took {time.monotonic() - began:,.0f} s", file=sys.stderr, flush=True)
    return {"entries": entries, "cores": cores, "found": run}


def rates(
    entries: int, cores: int, parts: list[str], cache: Path | None, installation: baseline.Installation
) -> dict[str, float]:
    """Return the rate of each figure in one round."""
    run = _run(entries, cores, 1, [part for part in parts if part != "touched"], cache, installation)
    return {name: figure["rate"] for name, figure in _figures(run).items()}


def _figures(run: Run) -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for part, figures in run["found"].items() if part != "touched" for figure in figures}


def _number(ratio: float) -> str:
    return "–" if isnan(ratio) else f"{ratio:.2f}"


def _rates(run: Run) -> list[str]:
    rows = []
    for name, figure in _figures(run).items():
        target = TARGETS.get(name)
        goal = "–" if target is None else f"≥ {target}"
        met = "–" if target is None else "yes" if figure["ratio"] >= target else "NO"
        if figure["ratio"] > BEYOND and not any(word in name for word in ("Parquet", "alone", "audit")):
            met = "limit disturbed"  # nothing is faster than its limit: something else ran while that was measured
        rows.append(
            f"| {name} | {run['entries']:,} | {run['cores']} | {figure['rate']:,.0f} {figure['unit']} "
            f"| {figure['limit']:,.0f} | {figure['ratio']:.2f} | {_number(figure['cpu_ratio'])} | {goal} | {met} |"
        )
    return rows


def _scaling(runs: list[Run]) -> list[str]:
    """Speed-up by cores at the smallest size; time for an entry at each size as a multiple of that at the smallest."""
    smallest = runs[0]["entries"]
    most = max(run["cores"] for run in runs)
    by = {(run["entries"], run["cores"]): _figures(run) for run in runs}
    sizes = sorted({run["entries"] for run in runs})
    first, reference = by[smallest, min(run["cores"] for run in runs)], by[smallest, most]
    lines = []
    for name, figure in reference.items():
        cells = [f"{figure['rate'] / first[name]['rate']:.2f}" if name in first and first is not reference else "–"]
        for size in sizes[1:]:
            other = by[size, most].get(name)
            growth = figure["rate"] / other["rate"] if other else None
            cells.append("–" if growth is None else f"{growth:.2f}")
            cells.append("–" if growth is None else "yes" if growth <= GROWTH else "NO")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    heads = ["", *(f"time per entry at {size:,} / at {smallest:,} | ≤ {GROWTH}" for size in sizes[1:])]
    title = f"| what | {most} cores / 1 core{' | '.join(heads)} |"
    return [title, "|---|" + "---:|" * (1 + 2 * (len(sizes) - 1)), *lines]


def _touched(runs: list[Run]) -> list[str]:
    lines = []
    for run in runs:
        for touched in run["found"].get("touched", ()):
            files = "–" if touched["files"] is None else f"{touched['files']:,}"
            size = "–" if touched["megabytes"] is None else f"{touched['megabytes']:,.1f}"
            lines.append(
                f"| {touched['name']} | {run['entries']:,} | {touched['rows']:,} | {files} | {size} "
                f"| {touched['seconds']:.2f} |"
            )
    return lines


def table(runs: list[Run], rounds: int) -> str:
    lines = [
        "## Pipeline on Spark",
        "",
        report.machine(),
        "",
        f"Spark in local mode on the given cores, to which it and all that it starts are bound; medians of {rounds} "
        "rounds at the smallest size, one round at others, each warmed up until two rounds agree. The limit of "
        "reading and querying is the same decoder, called for the same parts of the log in as many plain processes "
        "without Spark; a second limit of reading is Spark over the same columns in Parquet, where nothing is "
        "checked; a third, up to a million entries, is the time of the decoder alone and the time that a Python "
        "source of Spark takes for batches that are there already, together: Spark makes a row of each entry in "
        "the JVM, whoever decodes it. The limit of the audit is bare Ed25519 verification by libsodium, which the "
        "native module is faster than; that of a fold of typed columns is the same aggregation over plain columns, "
        "with nothing made of its rows. Ratios are of wall time and, beside it, of CPU time of all processes. Half "
        "of the entries are recorder events, half writes of a key-value state.",
        "",
        "| what | entries | cores | a second | limit | ratio | by CPU | target | met |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
        *(row for run in runs for row in _rates(run)),
        "",
        *((*_scaling(runs), "") if len(runs) > 1 else ()),
        "What a query touches, counted in one process (files opened, bytes read), and its time on Spark:",
        "",
        "| query | entries | rows | files opened | MB read | seconds |",
        "|---|---:|---:|---:|---:|---:|",
        *_touched(runs),
    ]
    return "\n".join(lines)


def _logs(sizes: list[int], cache: Path | None) -> None:
    for size in sorted({SMALL, *sizes}):
        print(f"the log of {size:,} entries", file=sys.stderr, flush=True)
        built(size, cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--entries", type=int, nargs="+", help="sizes of logs; default: 200 thousand and 5 million")
    parser.add_argument("--cores", type=int, nargs="+", help="default: 1 and all")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--large-parts", nargs="+", choices=PARTS, help="for logs beyond the smallest; default: --parts"
    )
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md, whatever the sizes")
    parser.add_argument("--cache", type=Path, help="where logs are kept between runs")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    baseline.add_options(parser)
    chosen = parser.parse_args()
    sizes = sorted(chosen.entries or SIZES)
    cores = sorted(chosen.cores or {1, os.cpu_count() or 1})
    if chosen.inside:
        logs: list[Log] = [built(size, chosen.cache) for size in (sizes[0], SMALL)]
        print(json.dumps(measured(*logs, cores=cores[0], rounds=chosen.rounds, parts=chosen.parts)))
        return
    if chosen.baseline is not None:
        _logs(sizes[:1], chosen.cache)
        measure = partial(rates, sizes[0], cores[-1], chosen.parts, chosen.cache)
        print(baseline.comparison(measure, chosen.baseline, chosen.baseline_rounds))
        return
    runs, began = [], time.monotonic()
    for size in sizes:
        _logs([size], chosen.cache)
        for count in cores if size == sizes[0] else cores[-1:]:
            first = size == sizes[0]
            parts = chosen.parts if first else chosen.large_parts or chosen.parts
            parts = [part for part in parts if part != "touched" or (first and count == cores[-1])]
            print(f"{size:,} entries, cores: {count}", file=sys.stderr, flush=True)
            runs.append(_run(size, count, chosen.rounds if first else 1, parts, chosen.cache))
            if chosen.entries is None or chosen.write:  # so that hours of work survive what happens to the next size
                report.write_section("spark", table(runs, chosen.rounds))
    print(table(runs, chosen.rounds))
    print(f"all of it took {time.monotonic() - began:,.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
