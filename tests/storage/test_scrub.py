"""The scrubber reads sealed chunks again and finds what the disk did to them."""

import errno
import threading
import time

import pytest
from tests.storage.builders import World, copy_of, fill
from tests.storage.test_compress import compress
from tests.storage.test_retention import ALL, FAR, chunk_files
from tests.waiting import until

from veen.core.limits import Limits
from veen.io.local import OsFs
from veen.storage.index import Index
from veen.storage.maintenance import retention
from veen.storage.maintenance.scrub import Scrubber, ScrubState, scrub_step

ZLIB = Limits(max_checkpoint_interval=3, compression="zlib")


def filled(fs=None, count=20):
    world = World(fs, limits=ZLIB)
    fill(world, count)
    world.store.retire()
    return world


def one_round(fs, budget, state=None):
    """All findings of one round, and the state after it."""
    index, all_findings = Index(fs), []
    state = state or ScrubState()
    rounds, steps = state.rounds, 0
    while state.rounds == rounds:
        before = state.bytes
        state, findings = scrub_step(fs, index, state, budget)
        all_findings += findings
        steps += 1
        assert state.bytes - before < budget + 3000  # at most one entry, or one compressed chunk, too much
    index.close()
    return state, all_findings, steps


@pytest.mark.parametrize("budget", [1, 100, 777, 5000, 10**9])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_round_reads_every_sealed_byte_once(budget, compressed):
    world = filled()
    if compressed:
        compress(world)
    total = sum(chunk.total_bytes for row in (1, 2) for chunk in Index(world.fs).chunks(row))
    state, findings, steps = one_round(world.fs, budget)
    assert findings == []
    assert state.bytes == total
    assert state.chunks == len(chunk_files(world.fs))
    assert steps == 1 or budget < total
    state, _, _ = one_round(world.fs, budget, state)
    assert (state.bytes, state.rounds) == (2 * total, 2)


@pytest.mark.parametrize("budget", [100, 10**9])
def test_damage_anywhere_is_found_within_a_round(budget):
    world = filled(count=12)
    for path in chunk_files(world.fs):
        data = world.fs.files()[path]
        for place in range(0, len(data), 41):
            damaged = bytearray(data)
            damaged[place] ^= 16
            _, findings, _ = one_round(copy_of(world.fs, **{path: bytes(damaged)}), budget)
            assert [finding.path for finding in findings] == [path], place
        for bad in (data[:-1], b"", data + b"\x01", None):
            _, findings, _ = one_round(copy_of(world.fs, **{path: bad}), budget)
            assert [finding.path for finding in findings] == [path]


def test_good_frames_in_the_wrong_place_are_found():
    world = filled()
    first, second = chunk_files(world.fs)[:2]
    files = world.fs.files()
    _, findings, _ = one_round(copy_of(world.fs, **{first: files[second], second: files[first]}), 10**9)
    assert {finding.path for finding in findings} == {first, second}


def test_chunks_that_are_sealed_compressed_or_erased_meanwhile_do_not_disturb():
    world = filled()
    index = Index(world.fs)
    state, findings = scrub_step(world.fs, index, ScrubState(), 300)
    assert state.offset
    compress(world)
    state, more = scrub_step(world.fs, index, state, 300)
    findings += more
    retention.apply(world.fs, retention.plan(index, ALL, FAR), world.control, dropped=world.store.drop_level)
    world.store.retire()
    fill(world, 9)
    world.store.retire()
    while not state.rounds:
        state, more = scrub_step(world.fs, index, state, 300)
        findings += more
    assert findings == []


def test_an_empty_directory_is_a_round():
    world = World()
    state, findings, steps = one_round(world.fs, 100)
    assert (state.rounds, findings, steps) == (1, [], 1)


def test_the_thread_reports_and_stops(tmp_path):
    world = filled(OsFs(tmp_path))
    path = tmp_path / chunk_names(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    states, done = [], threading.Event()

    def report(state, findings):
        states.extend(findings)
        if state.rounds:
            done.set()

    scrubber = Scrubber(OsFs(tmp_path), 100_000_000, report)
    thread = threading.Thread(target=scrubber.run)
    thread.start()
    assert done.wait(20)
    scrubber.halt()
    thread.join()
    assert [str(tmp_path / finding.path) for finding in states] == [str(path)]
    world.store.abandon()


def test_the_thread_keeps_its_rate(tmp_path):
    world = filled(OsFs(tmp_path), count=30)
    total = sum(chunk.total_bytes for row in (1, 2) for chunk in Index(OsFs(tmp_path)).chunks(row))
    read = []
    scrubber = Scrubber(OsFs(tmp_path), max(1, total // 100), lambda state, findings: read.append(state.bytes))
    thread = threading.Thread(target=scrubber.run)
    began = time.monotonic()
    thread.start()
    until(lambda: read)
    threading.Event().wait(1.0)  # time itself is the subject
    scrubber.halt()
    thread.join()
    assert 0 < read[-1] < total // 10 * max(1.0, time.monotonic() - began)
    world.store.abandon()


def chunk_names(root):
    return sorted(str(path.relative_to(root)) for path in (root / "log").glob("chunk-*.log"))


class BadSectors(OsFs):
    """A disk that cannot read some files."""

    bad: tuple[str, ...] = ()

    def open(self, path, *, create=False):
        if path in self.bad:
            raise OSError(errno.EIO, "Input/output error")
        return super().open(path, create=create)


def test_a_bad_sector_is_a_finding_and_the_scrubber_goes_on(tmp_path):
    """EIO ended the thread, and nothing was read ever after."""
    world = filled(OsFs(tmp_path))
    names = chunk_names(tmp_path)
    fs = BadSectors(tmp_path)
    fs.bad = (names[1], names[3])
    state, findings, _ = one_round(fs, 1 << 20)
    assert state.rounds == 1
    assert state.chunks == len(names)
    assert [(finding.path, finding.message) for finding in findings] == [
        (name, "cannot be read: Input/output error") for name in fs.bad
    ]
    world.store.abandon()
