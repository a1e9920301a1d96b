"""Long runs of seeded cases: in all processes, saved as they go, for exactly the code that ran.

A run is a sequence of blocks of seeds. Progress is saved in the order of seeds, so none is left out; a change of the
code under test begins anew. The first case that fails ends the run; its message names the seed.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Final

__all__ = ["ROOT", "Progress", "Run", "commit_name", "main"]

ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done so far: seeds 0 … seeds-1 of the code with this digest."""

    code: str
    seeds: int = 0
    points: int = 0  # what the run counts: crashes, signatures
    seconds: float = 0.0  # of CPU, all processes together


@dataclass(frozen=True, slots=True)
class Run:
    """What to do: `block(first, size)` works through the seeds from `first` on and gives points and CPU seconds."""

    name: str
    unit: str  # what a point is, in the plural
    points: int  # how many make the run complete
    block: Callable[[int, int], tuple[int, float]]
    code: Sequence[str]  # directories and files whose change makes earlier results worthless
    size: int = 200  # seeds of one block
    prepare: Callable[[], None] = lambda: None  # in each process, before its first block
    root: Path = ROOT

    @property
    def path(self) -> Path:
        return self.root / ".benchmarks" / f"{self.name}.json"

    def digest(self) -> str:
        """A hash of all the code that the result depends on."""
        digest = hashlib.sha256()
        places = [self.root / part for part in self.code]
        files = {path for place in places for path in ([place] if place.is_file() else place.rglob("*"))}
        for path in sorted(path for path in files if path.suffix in {".py", ".rs", ".toml"}):
            data = path.read_bytes()
            digest.update(f"{path.relative_to(self.root)} {len(data)}\n".encode() + data)
        return digest.hexdigest()

    def load(self) -> Progress:
        """The progress of this code, or none."""
        code = self.digest()
        try:
            progress = Progress(**json.loads(self.path.read_text("utf-8")))
        except (OSError, ValueError, TypeError):
            return Progress(code)
        return progress if progress.code == code else Progress(code)

    def save(self, progress: Progress) -> None:
        self.path.parent.mkdir(exist_ok=True)
        partial = self.path.with_suffix(".tmp")
        partial.write_text(json.dumps(asdict(progress)), "utf-8")
        partial.replace(self.path)

    def work(self, points: int, processes: int) -> Progress:
        """Go on until `points` are done."""
        progress = self.load()
        with ProcessPoolExecutor(processes, initializer=_begin, initargs=(self.prepare,)) as pool:
            while progress.points < points:
                firsts = range(progress.seeds, progress.seeds + 4 * processes * self.size, self.size)
                for done, seconds in pool.map(self.block, firsts, repeat(self.size)):
                    progress = Progress(
                        progress.code, progress.seeds + self.size, progress.points + done, progress.seconds + seconds
                    )
                    self.save(progress)
                print(f"{progress.points:,} of {points:,} {self.unit}", flush=True)
        return progress


def _begin(prepare: Callable[[], None]) -> None:
    """In a new process: an interrupt is for the parent, which saves what is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prepare()


def commit_name() -> str:
    """The commit that is checked out, for the page that shows the result."""
    git = ["git", "rev-parse", "--short", "HEAD"]
    answer = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "an unknown commit"


def main(run: Run, publish: Callable[[Progress], None], arguments: Iterable[str] | None = None) -> int:
    """The program around a run; `publish` is called when it is complete."""
    parser = argparse.ArgumentParser(description=f"seeded {run.unit} until so many are done; resumable")
    parser.add_argument("--points", type=int, default=run.points, help=f"{run.unit} in all (default %(default)s)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(None if arguments is None else list(arguments))
    try:
        progress = run.work(options.points, options.processes)
    except KeyboardInterrupt:
        print("stopped; the next run goes on from here", file=sys.stderr)
        return 130
    if progress.points >= run.points:
        publish(progress)
    return 0
