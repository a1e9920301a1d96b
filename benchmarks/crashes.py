"""Simulated crashes of the store until a million are done.

    python -m benchmarks.crashes        goes on where the last run stopped; at a million it writes docs/benchmarks.md
    python -m benchmarks.crashes --points 10000 --processes 2

Each seed is one history (`tests/storage/crashes.py`): the store is cut at random operations, recovers, and must hold
every acknowledged entry and end with the same files as a store that never crashed.
"""

import sys
import time
from functools import lru_cache
from typing import Any, Final

from benchmarks import report, resumable
from tests.storage.crashes import SPARSE, Density, survive

from veen.core.objects.captoken import CapToken
from veen.core.objects.control import ControlRecord
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt

FSCK_EVERY: Final = 20  # crashes
DENSITIES: Final[tuple[Density, ...]] = (SPARSE, (16, 60), (64, 24), (128, 12))  # by seed, in turns


def remember_encodings() -> None:
    """In processes of this program: decode and encode each object once, where recovery would do so a million times."""
    kinds: tuple[Any, ...] = (ControlRecord, CapToken, Msg, Receipt)
    for kind in kinds:
        read: Any = lru_cache(4096)(kind.from_bytes.__func__)
        kind.from_bytes = classmethod(read)
        kind.to_bytes = lru_cache(4096)(kind.to_bytes)


def run_block(first: int, size: int) -> tuple[int, float]:
    """The crashes of the seeds from `first` on, `size` of them, and the CPU seconds they took."""
    began, points = time.process_time(), 0
    for seed in range(first, first + size):
        density = DENSITIES[seed % len(DENSITIES)]
        try:
            points += survive(seed, density, FSCK_EVERY)
        except Exception as exc:
            raise AssertionError(f"seed {seed} with density {density} fails: {exc!r}") from exc
    return points, time.process_time() - began


RUN: Final = resumable.Run(
    name="crashes",
    unit="crash points",
    points=1_000_000,
    block=run_block,
    code=("src/veen/core", "src/veen/storage", "src/veen/testing", "tests/storage"),
    prepare=remember_encodings,
)


def publish(progress: resumable.Progress) -> None:
    text = f"""## Simulated crashes

Written by `python -m benchmarks.crashes` at {resumable.commit_name()}. {report.machine()}

{progress.points:,} crash points in {progress.seeds:,} histories (seeds 0 to {progress.seeds - 1:,}), up to 128
crashes each: before, in the middle of or after an operation; what was not synced is lost, torn or reordered. After each
crash the store recovered with every acknowledged entry in place, and every history ended with the same bytes in all
files as one without a crash; one disk in twenty was also verified by `verify-data` as the crash left it. None failed.
{progress.seconds / 3600:.1f} hours of CPU time.
"""
    report.write_section("crashes", text)


if __name__ == "__main__":
    sys.exit(resumable.main(RUN, publish))
