"""The write path, cut at every operation: nothing acknowledged is ever lost, and the log is the same as without."""

import random

import pytest
from tests.storage import driver
from tests.storage.oracle import assert_clean

from veen.storage.frame import Frame
from veen.testing.memfs import Crash, Fault, MemFs

CUTS = 2_000
SLOW_CUTS = 100_000
BLOCKS = 8
JUDGED = 5  # every so many runs are judged by fsck too; all are compared with the reference


def run(fs, released):
    store = driver.open_store(fs)
    driver.drive(store, released)
    store.close()


def reference():
    fs = MemFs()
    run(fs, [])
    return fs


REFERENCE = reference()
OPERATIONS = REFERENCE.operations


def truth(fs):
    """The log and everything derived from it; the journal is gone when a store is at rest."""
    return {path: data for path, data in fs.files().items() if not path.startswith("journal/")}


def survive(seed):
    """One run with several crashes; a seed replays it exactly."""
    rng = random.Random(seed)
    fs, released = MemFs(), list[Frame]()
    for _ in range(rng.randint(1, 3)):
        fs.fault = Fault(rng.randint(1, OPERATIONS), rng.choice(["lost", "torn", "done"]))
        fs.operations = 0
        try:
            store = driver.open_store(fs)
            driver.check_released(store, released)
            driver.drive(store, released, sizes=(rng.randint(1, 6), rng.randint(1, 6)))
            store.close()
        except Crash:
            fs = fs.after_crash(rng)
            if seed % JUDGED == 0:
                assert_clean(fs)  # as it was found, before anything mends it
        else:
            break
    fs.fault = None
    store = driver.open_store(fs)
    driver.check_released(store, released)
    driver.drive(store, released)
    driver.check_released(store, released)
    store.close()
    assert truth(fs) == truth(REFERENCE)
    if seed % JUDGED == 0:
        assert_clean(fs)


def survive_all(seeds):
    for seed in seeds:
        try:
            survive(seed)
        except Exception as exc:
            raise AssertionError(f"seed {seed} fails: {exc!r}") from exc


@pytest.mark.req("STOR-21", "GEN-19", "STOR-16")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_cut_of_the_write_path_loses_an_acknowledged_entry(block):
    survive_all(range(block, CUTS, BLOCKS))


@pytest.mark.parametrize("seed", [8611, 34873, 81280])
def test_a_segment_that_never_began_does_not_come_back(seed):
    """Found among the hundred thousand: a removed segment returned after a second crash and hid a torn write."""
    survive(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_cut_of_a_hundred_thousand_loses_an_acknowledged_entry(block):
    survive_all(range(CUTS + block, CUTS + SLOW_CUTS, BLOCKS))


def test_every_single_operation_is_cut_in_every_way():
    for at in range(1, OPERATIONS + 1):
        for kind in ("lost", "torn", "done"):
            fs, released = MemFs(fault=Fault(at, kind)), list[Frame]()
            with pytest.raises(Crash):
                run(fs, released)
            fs = fs.after_crash(random.Random(at))
            store = driver.open_store(fs)
            driver.check_released(store, released)
            driver.drive(store, released)
            store.close()
            assert truth(fs) == truth(REFERENCE), (at, kind)
