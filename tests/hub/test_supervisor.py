"""Everything that runs beside the log: nothing of it ends without a word, and all of it is started again."""

import asyncio
import errno
from functools import partial

import pytest
from tests.hub import builders as w
from tests.hub.test_outer import OUTER
from tests.hub.test_runtime import log_lines, run, running, submit
from tests.waiting import eventually

from veen.core.tlog.proof import CHECKPOINT_LEAF, OuterLeaf
from veen.hub.process import housekeeping
from veen.hub.process.logs import EventLog
from veen.hub.process.supervisor import Supervisor
from veen.storage.index import Index
from veen.storage.maintenance.scrub import Scrubber


class Log(EventLog):
    """The log of a hub, as a list."""

    def __init__(self):
        self.lines = []

    def event(self, level, operation, message, **fields):
        self.lines.append((level, operation, message, fields))


def test_a_task_that_fails_is_logged_counted_and_started_again_with_a_growing_pause():
    async def scenario():
        log = Log()
        begun: list[int] = []
        beside = Supervisor(log, first_pause=0.001, longest_pause=0.004)

        async def work():
            begun.append(len(begun))
            if len(begun) == 1:
                raise OSError(errno.EIO, "Input/output error")
            if len(begun) == 2:
                return
            if len(begun) == 3:  # a future that somebody cancelled, and not this task
                lost = asyncio.get_running_loop().create_future()
                lost.cancel()
                await lost
            if len(begun) == 4:
                raise ValueError("a defect")
            await asyncio.Event().wait()

        beside.start("scrubber", work)
        await eventually(lambda: len(begun) == 5)
        assert beside.fault() is None
        assert beside.restarts == {"scrubber": 4}
        await beside.stop()
        return log.lines

    lines = run(scenario())
    assert [line[:2] for line in lines] == [("error", "background")] * 4
    assert [line[3]["restart_seconds"] for line in lines] == [0.001, 0.002, 0.004, 0.004]
    reasons = ["Input/output error", "it ended", "cancelled", "ValueError: a defect"]
    assert all(reason in line[2] for reason, line in zip(reasons, lines, strict=True))


def test_a_supervisor_that_stops_waits_for_its_tasks():
    async def scenario():
        beside, ended = Supervisor(Log()), []

        async def work(name):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(name)

        for name in ("first", "second"):
            beside.start(name, partial(work, name))
        await asyncio.sleep(0)
        await beside.stop()
        assert ended == ["second", "first"]

    run(scenario())


@pytest.fixture
def quick(monkeypatch):
    """Restarts without a pause that a person would notice."""
    monkeypatch.setattr(Supervisor.__init__, "__kwdefaults__", {"first_pause": 0.01, "longest_pause": 0.02})


def test_every_task_beside_the_log_is_supervised_and_shown(tmp_path, quick):
    """The metrics name each of them, with its restarts."""

    async def scenario():
        async with running(tmp_path, **OUTER) as hub:
            names = list(hub.background.states)
            assert names == [
                "watch",
                "retirement",
                "authority",
                "scrubber",
                "housekeeping",
                "anchoring",
                "replicas",
                "outer log",
            ]
            text = hub.metrics_text().decode()
            for name in names:
                assert f'veen_background_restarts_total{{task="{name}"}} 0' in text
                assert f'veen_background_running{{task="{name}"}} 1' in text

    run(scenario())


def test_housekeeping_that_meets_a_defect_goes_on(tmp_path, quick, monkeypatch):
    """It ended silently and was never started again."""
    monkeypatch.setattr(housekeeping, "_EVERY_SECONDS", 0.01)
    rounds = []

    async def scenario():
        async with running(tmp_path) as hub:

            async def fail():
                rounds.append(1)
                raise RuntimeError("a defect")

            monkeypatch.setattr(hub.house, "compress", fail)
            await eventually(lambda: len(rounds) >= 3)
            assert hub.background.states["housekeeping"].restarts >= 2
            text = hub.metrics_text().decode()
            assert 'veen_background_restarts_total{task="housekeeping"} 0' not in text

    run(scenario())
    assert any("housekeeping ended: RuntimeError" in line.get("message", "") for line in log_lines(tmp_path))


def test_a_scrubber_whose_index_cannot_be_read_is_started_again_where_it_was(tmp_path, quick, monkeypatch):
    flags = {"limits__max_checkpoint_interval": "2", "scrub__bytes_per_second": "1MiB"}
    monkeypatch.setattr(Scrubber.__init__, "__kwdefaults__", {"idle_sec": 0.01})  # the first round begins at once

    async def scenario():
        async with running(tmp_path, **flags) as hub:
            await submit(hub, 5)
            chunk_after = Index.chunk_after
            failures: list[tuple[object, ...]] = []

            def fail(index, *place):
                if len(failures) < 2:
                    failures.append(place)
                    raise OSError(errno.EIO, "Input/output error")
                return chunk_after(index, *place)

            monkeypatch.setattr(Index, "chunk_after", fail)
            await eventually(lambda: hub.background.states["scrubber"].restarts >= 2)
            rounds = hub.observer.scrub_rounds
            await eventually(lambda: hub.observer.scrub_rounds > rounds)

    run(scenario())


class FullFile:
    """A file on a disk that has no room left."""

    def __init__(self, file):
        self.read_at, self.size, self.close = file.read_at, file.size, file.close

    def write_at(self, offset, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_does_not_end_the_outer_log_and_no_label_is_forgotten(tmp_path, quick):
    """The list of labels was emptied before the leaves were written."""

    async def scenario():
        async with running(tmp_path, **{**OUTER, "outer__every": "1"}) as hub:
            await submit(hub, 1)
            await eventually(lambda: hub.outer.files.last_upto(w.LABEL) == 1)
            leaves = hub.outer.files._leaves
            hub.outer.files._leaves = FullFile(leaves)
            await submit(hub, 1, 2)
            await eventually(lambda: any(line["operation"] == "outer" for line in log_lines(tmp_path)))
            hub.outer.files._leaves = leaves
            await eventually(lambda: hub.outer.files.last_upto(w.LABEL) == 2)  # nothing else was sent
            assert hub.background.states["outer log"].restarts == 0
            files = hub.outer.files
            await eventually(lambda: files.signed_size == files.size)
            listed = [OuterLeaf.from_bytes(files.leaf(pos)) for pos in range(files.signed_size)]
            checkpoints = [leaf.checkpoint() for leaf in listed if leaf.kind == CHECKPOINT_LEAF]
            assert [checkpoint and checkpoint.upto_seq for checkpoint in checkpoints] == [1, 2]

    run(scenario())
