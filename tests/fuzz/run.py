"""Run the fuzz targets under atheris: `python tests/fuzz/run.py [--seconds N] [--targets NAME …]`.

Each target runs in a process of its own, as many at a time as there are cores, from the seeds of `seeds.py`. Corpora
and crash files live in a temporary directory; nothing is left behind. A crash is printed as hex with the command that
replays it, and makes the exit status 1. Replaying needs no atheris.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
MAX_INPUT_BYTES: Final = 8192
INPUT_SECONDS: Final = 20  # libFuzzer's own alarm, for an input that never comes back; `targets` has a finer bound
RSS_LIMIT_MB: Final = 1024  # an input of a few kilobytes that needs this much is a finding


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one target."""

    name: str
    executions: int
    seconds: float
    edges: int | None
    crash: bytes | None
    output: str
    ok: bool

    def line(self) -> str:
        rate = self.executions / self.seconds if self.seconds else 0
        edges = "-" if self.edges is None else str(self.edges)
        verdict = "ok" if self.ok else "CRASH" if self.crash is not None else "FAILED"
        return f"{self.name:<26} {self.executions:>10} {rate:>10.0f} {edges:>7}  {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the decoders and verifiers of veen.core.")
    parser.add_argument("--seconds", type=int, default=60, help="how long each target runs (default 60)")
    parser.add_argument("--targets", nargs="+", metavar="NAME", help="only these; --list shows the names")
    parser.add_argument("--list", action="store_true", help="list the targets and exit")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "HEXFILE"), help="run one input, given as hex")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (default: cores)")
    parser.add_argument("--worker", nargs=3, metavar=("TARGET", "SECONDS", "DIRECTORY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))

    if args.worker:
        return work(args.worker[0], int(args.worker[1]), Path(args.worker[2]))
    from tests.fuzz import targets  # only now: a worker must import it under instrumentation

    if args.list:
        print("\n".join(targets.GROUPS))
        print("\n".join(f"  {name}" for name in targets.TARGETS if name not in targets.GROUPS))
        return 0
    available = {**targets.TARGETS, **targets.GROUPS}
    chosen = args.targets or list(targets.GROUPS)
    for name in [*chosen, *(args.replay or ())[:1]]:
        if name not in available:
            parser.error(f"no target {name!r}; --list shows them")
    if args.replay:
        return replay(args.replay[0], Path(args.replay[1]))
    if find_spec("atheris") is None:
        parser.error("atheris is not installed (the `fuzz` extra; it has no wheels for this Python, perhaps)")
    return run(chosen, args.seconds, args.jobs)


def replay(name: str, hexfile: Path) -> int:
    """Feed one input to a target; a broken law shows its traceback."""
    from tests.fuzz import targets

    text = sys.stdin.read() if str(hexfile) == "-" else hexfile.read_text("ascii")
    targets.named(name).watched(bytes.fromhex(text))
    print(f"{name}: ok")
    return 0


def run(names: list[str], seconds: int, jobs: int) -> int:
    """Run the targets, print a line for each as it ends, then the crashes in full."""
    print(f"{'target':<26} {'executions':>10} {'per second':>10} {'edges':>7}  result", flush=True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="veen-fuzz-") as place, ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda name: fuzz(name, seconds, Path(place)), names):
            print(result.line(), flush=True)
            results.append(result)
    for result in results:
        if not result.ok:
            print(f"\n--- {result.name} ---\n{report(result)}")
    return 0 if all(result.ok for result in results) else 1


def report(result: Result) -> str:
    """What Python said, the input and how to see it again."""
    if result.crash is None:
        return "\n".join(result.output.splitlines()[-40:])
    said = re.search(r"Uncaught Python exception: ===\n(.*?)\n==", result.output, re.DOTALL)
    reason = said[1] if said else "\n".join(re.findall(r".*ERROR: libFuzzer.*", result.output))
    command = f"echo {result.crash.hex()} | {sys.executable} tests/fuzz/run.py --replay {result.name} -"
    return f"{reason.strip()}\ninput: {result.crash.hex()}\nreplay: {command}"


def fuzz(name: str, seconds: int, place: Path) -> Result:
    """One target in a process of its own, so that a crash or a leak ends only that."""
    from tests.fuzz import targets

    directory = place / name
    corpus = directory / "corpus"
    corpus.mkdir(parents=True)
    for number, seed in enumerate(targets.named(name).seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--worker", name, str(seconds), str(directory)],
            cwd=directory,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=seconds + 120,
        )
        output, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired:
        output, status = "the fuzzer did not end by itself", -1
    crashes = [path for path in directory.iterdir() if path.name.startswith(("crash-", "timeout-", "oom-"))]
    executions = _last_number(r"stat::number_of_executed_units:\s+(\d+)", output) or _last_number(r"#(\d+)\t", output)
    return Result(
        name=name,
        executions=executions or 0,
        seconds=min(time.monotonic() - start, float(seconds)),
        edges=_last_number(r"cov: (\d+)", output),
        crash=crashes[0].read_bytes() if crashes else None,
        output=output,
        ok=status == 0 and not crashes,
    )


def _last_number(pattern: str, text: str) -> int | None:
    matches = re.findall(pattern, text)
    return int(matches[-1]) if matches else None


def work(name: str, seconds: int, directory: Path) -> int:
    """The process that fuzzes; ends through libFuzzer's own exit."""
    import atheris

    with atheris.instrument_imports(include=["veen"], enable_loader_override=False):
        from tests.fuzz import mutate, targets
    target = targets.named(name)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        # libFuzzer's own mutations know the comparisons that instrumentation saw; ours know the formats.
        mutant = atheris.Mutate(data, max_size) if rng.random() < 0.4 else mutate.mutate(data, rng, head=target.head)
        return bytes(mutant[:max_size])

    options = {
        "max_total_time": seconds,
        "max_len": MAX_INPUT_BYTES,
        "timeout": INPUT_SECONDS,
        "rss_limit_mb": RSS_LIMIT_MB,
        "artifact_prefix": f"{directory}/",
        "print_final_stats": 1,
    }
    flags = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup([name, *flags, str(directory / "corpus")], target.watched, custom_mutator=mutator)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
