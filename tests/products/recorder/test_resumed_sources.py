"""Resumed sources equal sources from the start, failures of one source leave the others alone, and work grows with what
is read (REVIEW L2-4, L2-11, P2-19; classes 4, 6 and 7)."""

import asyncio
import gzip
import io
import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.hubs import run
from tests.products.recorder.agents import FAST, WEB, connector, lines_source, numbered, numbers, run_agent, spool_of
from tests.products.recorder.recorders import ADMIN, recorder_at
from tests.products.recorder.sources import Taken
from tests.products.recorder.test_agent import own_events
from tests.products.recorder.test_evidence import judged
from tests.products.recorder.test_tail import read as read_log
from tests.products.recorder.test_tail_model import Agent as FileAgent
from tests.products.recorder.test_tail_model import Writer
from tests.waiting import eventually

from veen.client.errors import LocalError
from veen.core.labels import stream_id_of
from veen.products.recorder.adapters.journald import JournaldSource
from veen.products.recorder.adapters.lines import Lines
from veen.products.recorder.adapters.registry import SourceInvalid
from veen.products.recorder.agent import Agent, AgentSource
from veen.products.recorder.events import SourceRecord
from veen.products.recorder.setup import Wanted, apply, read_history
from veen.products.recorder.sink import Sinks

# --- lines --------------------------------------------------------------------------------------------------------


def lines_of(data, id="name"):
    return Lines(id, io.BufferedReader(io.BytesIO(data)))


def record(intake, data):
    adapter = lines_of(data)
    run(adapter.run(intake.sink(adapter)))


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=9), max_size=12), st.data())
def test_lines_that_are_piped_in_again_are_recorded_as_from_the_start(texts, data):
    """Class 4: resumed equals from the start."""
    lines = [text.encode() + b"\n" for text in texts]
    whole, resumed = Taken(), Taken()
    record(whole, b"".join(lines))
    for cut in sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=3))):
        record(resumed, b"".join(lines[:cut]))
    record(resumed, b"".join(lines))
    assert resumed.payloads() == whole.payloads()


def test_other_lines_under_the_same_name_are_refused_and_not_skipped():
    """Class 4: the state of a source has all of its inputs."""
    intake = Taken()
    record(intake, b"one\ntwo\n")
    with pytest.raises(SourceInvalid, match="another name"):
        record(intake, b"uno\ndos\ntres\n")
    assert intake.messages() == ["one", "two"]
    record(intake, b"one\ntwo\nthree\n")
    assert intake.messages() == ["one", "two", "three"]


def test_a_position_of_an_earlier_release_is_a_number():
    intake = Taken()
    intake.spool.set_position("name", "2")
    record(intake, b"one\ntwo\nthree\n")
    assert intake.messages() == ["three"]


# --- files --------------------------------------------------------------------------------------------------------


def test_a_source_that_gets_another_path_begins_with_that_file_and_reports_no_loss(tmp_path):
    """Class 4: the path is an input of the state of a tail."""
    intake = Taken()
    for name, text in (("a", "one\n"), ("b", "two\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "app.log").write_text(text)
        read_log(intake, tmp_path / name / "app.log")
    assert intake.messages() == ["one", "two"]
    (tmp_path / "b").rename(tmp_path / "c")
    with (tmp_path / "c" / "app.log").open("a") as file:
        file.write("three\n")
    read_log(intake, tmp_path / "c" / "app.log")
    assert intake.messages() == ["one", "two", "three"]
    assert intake.losses() == []


class Counted(FileAgent):
    """Counts the bytes that are read from the disk, packed or not, and the accesses to the directory."""

    def __init__(self, path, **options):
        super().__init__(path, **options)
        self.unpacked = self.accesses = 0
        self.access = self.count

    def count(self):
        self.accesses += 1

    def open(self, path):
        file = super().open(path)
        if isinstance(file, gzip.GzipFile):
            buffer = vars(file)["_buffer"]  # no part of what GzipFile promises
            packed, agent = buffer.raw._fp, self  # what GzipFile reads the file through, also when it seeks back
            inner = packed.read

            def read(size):
                data = inner(size)
                agent.unpacked += len(data)
                return data

            packed.read = read
        return file


def cost_of_packed(folder, count):
    writer = Writer(folder, begins_with_line=True)
    text = b"".join(os.urandom(500).hex().encode() + b"\n" for _ in range(count))
    (folder / "app.log.1.gz").write_bytes(gzip.compress(text, 1))
    agent = Counted(writer.path, read_rotated=True)
    while agent.turn():
        pass
    agent.end()
    assert len(agent.lines) == count + 1
    return agent.unpacked


def test_a_packed_log_is_unpacked_a_fixed_number_of_times(tmp_path):
    """REVIEW P2-19, class 7: each mebibyte was unpacked from the start of the file again."""
    costs = []
    for count in (3_000, 6_000):
        (tmp_path / str(count)).mkdir()
        costs.append(cost_of_packed(tmp_path / str(count), count))
    assert costs[1] < 2.5 * costs[0], costs


def accesses_for(folder, count):
    """Accesses to the directory of the first look, of the next one, and of the first one after a restart."""
    writer = Writer(folder, begins_with_line=True)
    for _ in range(count):
        writer.append(150)
        for _ in writer.steps("rename"):
            pass
    agent = Counted(writer.path, read_rotated=True)
    costs = []
    for is_restart in (False, False, True):
        if is_restart:
            agent.end()
        agent.accesses = 0
        while agent.turn():
            pass
        costs.append(agent.accesses)
    agent.end()
    assert agent.lines == writer.lines
    return costs


def test_twice_as_many_files_take_twice_as_many_accesses(tmp_path):
    """Class 7: the first look compared each file with all others, by reading both."""
    costs = []
    for count in (20, 40):
        (tmp_path / str(count)).mkdir()
        costs.append(accesses_for(tmp_path / str(count), count))
    assert all(after < 2.5 * before for before, after in zip(*costs, strict=True)), costs


def test_the_configuration_of_a_moment_is_found_without_reading_all_moments():
    """Class 7: verify asked all changes for each event."""
    from veen.overlays.recorder.config import Configuration, History

    class Moments(tuple[tuple[int, Configuration], ...]):
        looked = 0

        def __getitem__(self, at):
            Moments.looked += 1
            return super().__getitem__(at)

    moments = Moments((ts, Configuration(max_payload=ts)) for ts in range(10, 40_010, 10))
    history = History(moments, ())
    assert [history.at(ts).max_payload for ts in (5, 10, 19, 20, 39_999, 10**9)] == [0, 10, 10, 20, 39_990, 40_000]
    assert Moments.looked < 6 * 20


# --- the journal --------------------------------------------------------------------------------------------------


def journalctl(tmp_path, lines):
    """A program that prints what journalctl would."""
    output, program = tmp_path / "output", tmp_path / "journalctl"
    output.write_bytes(b"".join(line + b"\n" for line in lines))
    program.write_text(f"#!/bin/sh\ncat {output}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_an_entry_of_the_journal_above_the_bound_is_recorded_by_its_beginning_and_ends_nothing(tmp_path, monkeypatch):
    """REVIEW L2-4: it ended the agent at every start. Many entries are one transaction."""
    monkeypatch.setattr("veen.products.recorder.adapters.journald._MAX_LINE", 100_000)
    entries = [{"__CURSOR": f"c{n}", "MESSAGE": f"order {n}"} for n in range(400)]
    entries[7]["MESSAGE"] = "x" * 300_000
    program = journalctl(tmp_path, [json.dumps(entry).encode() for entry in entries])
    intake, transactions = Taken(), []
    append = intake.spool.append

    def counted(records, **more):
        transactions.append(1)
        return append(records, **more)

    monkeypatch.setattr(intake.spool, "append", counted)
    for _ in range(2):
        adapter = JournaldSource("journal", follow=False, program=program)
        run(adapter.run(intake.sink(adapter)))
    payloads = intake.payloads()
    assert [payload["_src"]["pos"] for payload in payloads] == [f"c{n}" for n in range(400)]
    assert "above 100000" in payloads[7]["malformed"]
    assert payloads[7]["MESSAGE"].startswith('{"__CURSOR": "c7"')
    assert len(transactions) < 60


# --- failures -----------------------------------------------------------------------------------------------------


class Fragile:
    """A source that fails so many times, each time after a record, and then ends."""

    kind = "fragile"

    def __init__(self, id, failures, *, error=None, records=True):
        self.id, self._failures, self._records = id, failures, records
        self._error = error or LocalError("the device is away")
        self.starts = 0

    async def run(self, sink):
        self.starts += 1
        if self._records:
            n = self.starts
            event = SourceRecord(
                subject="s", event_type="t", origin="o", time=1, payload={"n": n}, position=str(n), key=str(n)
            )
            await sink.put([event])
        if self.starts <= self._failures:
            raise self._error


def test_a_source_that_fails_is_started_again_and_the_others_go_on(tmp_path):
    """REVIEW L2-11: one source that failed ended all sources."""

    async def story():
        async with recorder_at(tmp_path, streams={"web": (WEB,)}) as world:
            fragile = Fragile("fragile", 3, error=RuntimeError("secret words of a record"))
            sources = [AgentSource(fragile, stream_id_of(WEB)), lines_source(numbered(20))]
            with spool_of(world, "web") as spool:
                role, shared = world.role("web"), Sinks(spool, "h")
                agent = Agent(role.keystore, role.tokens, shared, sources, connector(world), pace=FAST)
                task = asyncio.create_task(agent.run())
                await eventually(lambda: agent.restarts.get("fragile", 0) >= 1)
                await agent.heartbeat()
                await task
            assert fragile.starts == 4
            assert agent.restarts == {"fragile": 3}
            assert sorted(await numbers(world)) == sorted([*range(1, 21), 1, 2, 3, 4])
            beats = [payload for kind, payload in await own_events(world) if kind == "recorder.heartbeat"]
            assert beats[0]["restarts"]["fragile"] >= 1
            assert "secret" not in json.dumps(beats[0])

    run(story())


def test_an_agent_none_of_whose_sources_ever_worked_ends_with_the_reason(tmp_path):
    async def story():
        async with recorder_at(tmp_path, streams={"web": (WEB,)}) as world:
            source = AgentSource(Fragile("fragile", 9, records=False), stream_id_of(WEB))
            with pytest.raises(LocalError, match="the device is away"):
                await run_agent(world, [source])

    run(story())


def test_lines_that_were_read_before_a_failure_are_recorded_after_it():
    intake, data = Taken(), b"one\ntwo\nthree\n"
    adapter = lines_of(data)
    sink = intake.sink(adapter)
    put = sink.put

    async def fail(records):
        sink.put = put
        raise LocalError("the disk is full")

    sink.put = fail
    with pytest.raises(LocalError):
        run(adapter.run(sink))
    run(adapter.run(intake.sink(adapter)))
    assert intake.messages() == ["one", "two", "three"]


# --- producers ----------------------------------------------------------------------------------------------------


def test_a_producer_can_be_taken_back_and_its_later_events_are_findings(tmp_path):
    """REVIEW L2-11."""

    async def story():
        async with recorder_at(tmp_path, streams={"web": (WEB,)}) as world:
            await run_agent(world, [lines_source(numbered(2))])
            client_id = world.role("web").keystore.identity.client_id
            wanted = Wanted(producers={}, mapping={}, withdrawn=[client_id])
            secrets = world.role(ADMIN).keystore.secrets
            identity, ring = secrets.identity, secrets.keyring
            now = int(asyncio.get_running_loop().time())
            async with world.authority(ADMIN) as authority:
                before = (await read_history(authority.client, None)).now.profile_id()
                assert await apply(authority, identity, ring, wanted, now=now) == [
                    f"withdraw {client_id.hex()[:16]}… {WEB}"
                ]
                assert await apply(authority, identity, ring, wanted, now=now) == []
                configuration = (await read_history(authority.client, None)).now
                assert configuration.producers[client_id] == frozenset()
                assert configuration.withdrawn[client_id] == {stream_id_of(WEB)}
                assert configuration.profile_id() != before
            await run_agent(world, [lines_source(numbered(1), id="later")])
            codes = [(f.code, f.seq) for f in (await judged(world)).findings if f.code == "SDR.PRODUCER"]
            assert ("SDR.PRODUCER", 3) in codes
            await world.set_up({"web": (WEB,)})
            async with world.client(ADMIN) as client:
                configuration = (await read_history(client, None)).now
                assert configuration.withdrawn == {}
                assert configuration.profile_id() == before

    run(story())
