"""Compare this checkout with another one: interleaved rounds, the median of their ratios, and its interval.

The other checkout is a directory with an environment of its own (`make .venv/.stamp-spark` makes one). The benchmarks
of this checkout measure both, in processes of their own, in turns: now and before, then before and now.
"""

import json
import math
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import report

__all__ = ["HERE", "ROUNDS", "Installation", "add_options", "comparison", "interval", "ratios_of", "run_module"]

ROOT: Final = Path(__file__).resolve().parents[1]
ROUNDS: Final = 9
LEAST: Final = 0.97  # the median ratio, or the interval has 1 in it


@dataclass(frozen=True, slots=True)
class Installation:
    """A program to measure: that of this checkout, or of another one with a virtual environment of its own."""

    python: str = sys.executable
    directory: Path | None = None
    environment: tuple[tuple[str, str], ...] = ()

    @classmethod
    def at(cls, directory: Path) -> "Installation":
        return cls(str(directory.resolve() / ".venv" / "bin" / "python"), directory.resolve())


HERE: Final = Installation()
Rates = Mapping[str, float]  # by the name of the row; more is better


def add_options(parser: ArgumentParser) -> None:
    """Add --baseline and --baseline-rounds."""
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="Another checkout with .venv to compare with.")
    parser.add_argument(
        "--baseline-rounds", type=int, default=ROUNDS, metavar="N", help=f"Rounds with --baseline. Default: {ROUNDS}."
    )


def run_module(installation: Installation, module: str, *arguments: str, **environment: str) -> Any:
    """Run a benchmark of this checkout with the program of an installation; return the JSON of its last line."""
    command = [installation.python, "-m", module, *arguments]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings = {**own, **dict(installation.environment), **environment}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=settings)
    return json.loads(done.stdout.splitlines()[-1])


def ratios_of(
    measure: Callable[[Installation], Rates], baseline: Installation, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the rates of each row, now and before, for each round."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds):
        turns = (HERE, baseline) if number % 2 == 0 else (baseline, HERE)
        rates = {installation is HERE: measure(installation) for installation in turns}
        for name in rates[True].keys() & rates[False].keys():
            pairs.setdefault(name, []).append((rates[True][name], rates[False][name]))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return dict(sorted(pairs.items()))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the median at 95 %, by order statistics; of less than 6 values all of them."""
    ordered, count = sorted(values), len(values)
    outside, left_out = 0.0, 0
    while (outside := outside + math.comb(count, left_out) / 2**count) <= 0.025:
        left_out += 1
    first = max(left_out - 1, 0)
    return ordered[first], ordered[count - 1 - first]


def comparison(measure: Callable[[Installation], Rates], directory: Path, rounds: int) -> str:
    """Measure both checkouts in turns; return the table."""
    pairs = ratios_of(measure, Installation.at(directory), rounds)
    lines = [
        f"Beside commit {report.commit_of(directory)} in the same {rounds} interleaved rounds. The ratio is the median "
        "of now / before within the rounds (more is better), with its interval at 95 %. Met: at least "
        f"{LEAST}, or the interval has 1 in it.",
        "",
        "| what | now | before | now / before | interval | met |",
        "|---|---:|---:|---:|---|---|",
    ]
    for name, rates in pairs.items():
        ratios = [now / before for now, before in rates]
        low, high = interval(ratios)
        met = median(ratios) >= LEAST or low <= 1 <= high
        now, before = (median(rate[side] for rate in rates) for side in (0, 1))
        lines.append(
            f"| {name} | {now:,.4g} | {before:,.4g} | {median(ratios):.3f} | {low:.3f} to {high:.3f} "
            f"| {'yes' if met else 'NO'} |"
        )
    return "\n".join(lines)
