"""How long one waits for Spark: a query of 500 entries and the demo, with this code and with that of an earlier commit.

    python -m benchmarks.startup --baseline DIR     a checkout with its own environment: make .venv/.stamp-spark

The programs are started as a person starts them, in turns, and timed from the outside. Without --baseline only this
code is measured. Writes docs/benchmarks.md.
"""

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import report
from benchmarks.sparklog import EVENTS, built

ENTRIES: Final = 500
ROUNDS: Final = 3
HERE: Final = Path(__file__).parents[1]


def seconds_of(checkout: Path, home: Path, *words: str) -> float:
    """With a home of its own for each checkout, which is kept between runs."""
    home.mkdir(exist_ok=True)
    command = [str(checkout / ".venv" / "bin" / "veen"), *words]
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=home, env={**os.environ, "VEEN_HOME": str(home)})
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--baseline", type=Path, help="a checkout of an earlier commit, with its .venv")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as homes:
        report.write_section("startup", measured(chosen.baseline, chosen.rounds, Path(homes)))


def measured(baseline: Path | None, rounds: int, homes: Path) -> str:
    log = built(ENTRIES, None)
    query = ("query", "run", "--data-dir", log.path, "--key-file", log.keys.path, "--scope", EVENTS, "--json")
    cases = {
        f"a query of {ENTRIES} entries on Spark": (*query, "--engine", "spark"),
        "`veen demo --spark`": ("demo", "--spark"),
    }
    checkouts = {"now": HERE} | ({} if baseline is None else {"before": baseline})
    times: dict[tuple[str, str], list[float]] = {}
    for which, checkout in checkouts.items():  # a first run leaves a class-data archive behind
        seconds_of(checkout, homes / which, *query, "--engine", "spark")
    for _ in range(rounds):
        for name, words in cases.items():
            for which, checkout in checkouts.items():
                times.setdefault((name, which), []).append(seconds_of(checkout, homes / which, *words))
                print(name, which, f"{times[name, which][-1]:.1f}", flush=True)
    lines = [
        "## Waiting for Spark",
        "",
        report.machine(),
        "",
        f"Wall time of whole programs, started in turns; medians of {rounds} rounds. "
        + (f"Before: commit {report.commit_of(baseline)}. " if baseline else "")
        + "The archive of classes that a first run leaves behind was there.",
        "",
        "| what | before, s | now, s | now / before | target |",
        "|---|---:|---:|---:|---:|",
    ]
    for name in cases:
        now, before = median(times[name, "now"]), times.get((name, "before"))
        if before is None:
            lines.append(f"| {name} | – | {now:.1f} | – | ≤ 0.5 |")
        else:
            lines.append(f"| {name} | {median(before):.1f} | {now:.1f} | {now / median(before):.2f} | ≤ 0.5 |")
    auto = median(seconds_of(HERE, homes / "now", *query) for _ in range(rounds))
    lines += ["", f"The same query without `--engine`, which needs no JVM for so few entries: {auto:.1f} s."]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
