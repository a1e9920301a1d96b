"""One simulated history of a store: random crashes, recovery after each, and the log that must come out.

A seed replays a history exactly. `tests/storage/test_crash.py` runs thousands, `python -m benchmarks.crashes` a million
crash points.
"""

import random
from functools import cache

from tests.storage import driver
from tests.storage.oracle import assert_clean

from veen.storage.frame import Frame
from veen.testing.memfs import Crash, Fault, MemFs

__all__ = ["SPARSE", "Density", "reference", "survive", "truth"]

FSCK_EVERY = 5  # crashes: the disk is verified by fsck as that crash left it; all histories end like the reference

Density = tuple[int, int]  # crashes of one history at most, and the operations within which the next one comes


def truth(fs: MemFs) -> dict[str, bytes]:
    """The log and everything derived from it; the journal is gone when a store is at rest."""
    return {path: data for path, data in fs.files().items() if not path.startswith("journal/")}


@cache
def reference() -> MemFs:
    """The disk after the whole script without a crash."""
    fs = MemFs()
    store = driver.open_store(fs)
    driver.drive(store, [])
    store.close()
    return fs


SPARSE: Density = (3, reference().operations)


def survive(seed: int, density: Density = SPARSE, fsck_every: int = FSCK_EVERY) -> int:
    """Run one history; the number of its crashes. AssertionError where an acknowledged entry is lost or changed."""
    most, within = density
    rng = random.Random(seed)
    fs, released, crashes = MemFs(), list[Frame](), 0
    for _ in range(rng.randint(1, most)):
        fs.fault = Fault(rng.randint(1, within), rng.choice(["lost", "torn", "done"]))
        fs.operations = 0
        try:
            store = driver.open_store(fs)
            driver.check_released(store, released)
            driver.drive(store, released, sizes=(rng.randint(1, 6), rng.randint(1, 6)))
            store.close()
        except Crash:
            crashes += 1
            is_verified = (seed + crashes) % fsck_every == 0
            if is_verified:
                assert_clean(fs)  # the process is gone, and the machine is not
            fs = fs.after_crash(rng)
            if is_verified:
                sizes = assert_clean(fs).labels  # before anything repairs it
                assert all(sizes[framed.label].size >= framed.stream_seq for framed in released)
        else:
            break
    fs.fault = None
    store = driver.open_store(fs)
    driver.check_released(store, released)
    driver.drive(store, released)
    driver.check_released(store, released)
    store.close()
    assert truth(fs) == truth(reference())
    if seed % fsck_every == 0:
        assert_clean(fs)
    return crashes
