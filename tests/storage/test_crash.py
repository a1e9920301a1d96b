"""The write path, cut at every operation: nothing acknowledged is ever lost, and the log is the same as without."""

import contextlib
import random

import pytest
from tests.examples import spread
from tests.storage import driver
from tests.storage.crashes import reference, survive, truth

from veen.io.errors import StorageError
from veen.storage.frame import Frame
from veen.testing.memfs import Crash, Fault, MemFs

pytestmark = pytest.mark.long

CUTS = 200  # the same in each run: more of them are for `make test-slow`, single cuts are all tried below
SLOW_CUTS = 100_000
BLOCKS = 8
SHORT = 20  # messages of the script, where every operation is cut: the time is that of their square


def run_script(fs, released):
    store = driver.open_store(fs)
    driver.check_released(store, released)
    driver.drive(store, released)
    store.close()


def survive_all(seeds):
    for seed in seeds:
        try:
            survive(seed)
        except Exception as exc:
            raise AssertionError(f"seed {seed} fails: {exc!r}") from exc


@pytest.mark.req("STOR-21", "GEN-19", "STOR-16")
@pytest.mark.parametrize("block", spread(range(BLOCKS), 2))
def test_no_cut_of_the_write_path_loses_an_acknowledged_entry(block):
    survive_all(range(block, CUTS, BLOCKS))


@pytest.mark.parametrize("seed", [8611, 34873, 81280])
def test_a_segment_that_never_began_does_not_come_back(seed):
    """Found among the hundred thousand: a removed segment returned after a second crash and hid a torn write."""
    survive(seed)


@pytest.mark.slow
@pytest.mark.req("STOR-21")
def test_no_cut_loses_an_entry_where_the_whole_disk_is_synced_at_once(monkeypatch):
    """As for retirements of many labels, with the files written ahead."""
    monkeypatch.setattr("veen.storage.store._SYNCED_ONE_BY_ONE", 0)
    reference.cache_clear()
    try:
        survive_all(range(60))
    finally:
        reference.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_cut_of_a_hundred_thousand_loses_an_acknowledged_entry(block):
    survive_all(range(CUTS + block, CUTS + SLOW_CUTS, BLOCKS))


@pytest.fixture(params=[SHORT, pytest.param(len(driver.SCRIPT), marks=pytest.mark.slow)])
def script(request, monkeypatch):
    """The first messages of the script: enough for seals of both labels and several retirements."""
    monkeypatch.setattr(driver, "SCRIPT", driver.SCRIPT[: request.param])
    reference.cache_clear()
    assert len({path for path in reference().files() if "/checkpoint-" in path}) > 3
    yield
    reference.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("script")
def test_every_single_operation_is_cut_in_every_way():
    """What is done before a cut is also there when the next operation is lost; so only the last one is cut so."""
    for at in range(1, reference().operations + 1):
        for kind in ("lost", "torn", "done") if at == reference().operations else ("lost", "torn"):
            fs, released = MemFs(fault=Fault(at, kind)), list[Frame]()
            with pytest.raises(Crash):
                run_script(fs, released)
            fs = fs.after_crash(random.Random(at))
            run_script(fs, released)
            assert truth(fs) == truth(reference()), (at, kind)


@pytest.mark.req("STOR-21")
@pytest.mark.usefixtures("script")
@pytest.mark.parametrize("part", spread(range(5), 1))
def test_nothing_is_chained_onto_what_a_failed_sync_left_behind(part):
    """The next start reads such a group from memory; without writing it again, no sync would bring it to the disk."""
    for at in range(1 + part, reference().operations + 1, 5):
        fs, released = MemFs(fault=Fault(at, "error")), list[Frame]()
        with contextlib.suppress(OSError, StorageError):  # the process ends here, the machine goes on
            run_script(fs, released)
        fs, steps = fs.after_exit(), (1, 2, 7, 100)[at % 4]
        store = driver.open_store(fs)
        driver.check_released(store, released)
        driver.drive(store, released, sizes=(steps,), at_most=steps)
        fs = fs.after_crash(random.Random(at))  # and now the power goes
        run_script(fs, released)
        assert truth(fs) == truth(reference()), (at, steps)
