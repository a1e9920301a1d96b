"""`recorder verify` over an empty, a half, a foreign and a grown log, beside a running hub."""

import time
from dataclasses import replace

from tests.client.hubs import OPEN, client_at, hub_at, pin_of, run
from tests.products.recorder.agents import WEB, lines_source, numbered, run_agent
from tests.products.recorder.recorders import ADMIN, recorder_at
from tests.products.recorder.test_evidence import checkpointed, judged

from veen.client.transport.inprocess import InProcess
from veen.core.verdict import Because, Outcome, StatedBy
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.checkpoint import log_root_of
from veen.products.recorder.events import CHECKPOINTS_STREAM
from veen.products.recorder.roles import record_streams
from veen.products.recorder.setup import Chain, RecordedHead, read_chain, read_history, select_covered
from veen.products.recorder.verify import judge_streams, verify

ONE = {"web": (WEB,)}


def row_of(report, name=WEB):
    (row,) = (row for row in report.verdict.compared if row.log == name)
    return row.read, row.head, row.stated_by


def test_a_verdict_over_no_stream_is_incomplete(tmp_path):
    """It said ok."""

    async def story():
        async with recorder_at(tmp_path, streams=ONE) as world, world.client(ADMIN) as client:
            report = await verify(client, [], admins=[client.client_id], now=int(time.time()))
            assert (report.ok, report.verdict.value) == (False, Outcome.INCOMPLETE)
            assert report.to_json()["verdict"]["compared"] == []

    run(story())


def test_a_stream_that_the_hub_does_not_have_is_good_only_if_a_checkpoint_says_that_it_is_empty(tmp_path):
    """A hub that hides a stream is not believed."""

    async def story():
        async with recorder_at(tmp_path, streams=ONE) as world:
            report = await judged(world)
            assert row_of(report) == (0, None, StatedBy.NOBODY)
            assert report.verdict.value is Outcome.INCOMPLETE
            await checkpointed(world)
            report = await judged(world)
            assert row_of(report) == (0, 0, StatedBy.CHECKPOINT)
            assert report.verdict.is_good, report.verdict.reasons

    run(story())


def test_a_whole_log_is_good_up_to_the_head_of_the_running_hub_and_says_what_was_checked(tmp_path):
    """walk A16: `signatures: 0` stood beside `ok: true`. The log grows behind the checkpoint."""

    async def story():
        async with recorder_at(tmp_path, streams=ONE) as world:
            await run_agent(world, [lines_source(numbered(5))])
            await checkpointed(world)
            await run_agent(world, [lines_source(numbered(9), id="more")])
            report = await judged(world)
            assert report.verdict.is_good, report.verdict.reasons
            assert row_of(report) == (14, 14, StatedBy.HUB)
            assert row_of(report, CHECKPOINTS_STREAM) == (1, 1, StatedBy.HUB)
            entries = sum(row.read for row in report.verdict.compared)
            assert report.signatures == 2 * entries > 28
            assert report.to_json()["signatures"] == report.signatures
            key = world.hub.identity.current_pk.hex()
            assert {row.identity for row in report.verdict.compared} == {f"ed25519:{key}"}

    run(story())


async def judged_with(client, ring, records):
    streams = select_covered(record_streams(ring))
    chain = Chain(tuple(records), ())
    return await judge_streams(client, streams, await read_history(client, None), chain, now=int(time.time()))


def with_another_root(record):
    streams = tuple(replace(head, mmr_root=b"\x07" * 32) if head.last_seq else head for head in record.body.streams)
    body = replace(record.body, streams=streams, log_root=log_root_of(streams))
    return RecordedHead(body, record.msg_id, record.seq)


def test_a_checkpoint_that_names_another_root_for_a_position_is_bad_evidence(tmp_path):
    """It was skipped if an earlier checkpoint ends at the same position or behind it."""

    async def story():
        async with recorder_at(tmp_path, streams=ONE) as world:
            await run_agent(world, [lines_source(numbered(5))])
            await checkpointed(world)
            await run_agent(world, [lines_source(numbered(5), id="more")])
            await checkpointed(world)
            ring = world.role(ADMIN).keystore.secrets.keyring
            async with world.client(ADMIN) as client:
                first, second = (await read_chain(client, None)).records
                assert (await judged_with(client, ring, [first, second, second])).verdict.value is not Outcome.BAD
                for forged in (first, second):
                    report = await judged_with(client, ring, [first, second, with_another_root(forged)])
                    assert report.verdict.value is Outcome.BAD
                    assert any("names another root" in reason.text for reason in report.verdict.reasons)

    run(story())


def test_half_a_log_and_a_foreign_log_are_not_good(tmp_path):
    async def story():
        async with recorder_at(tmp_path, streams=ONE) as world:
            await run_agent(world, [lines_source(numbered(6))])
            latest = await checkpointed(world)
            admin = world.role(ADMIN)
        async with hub_at(tmp_path / "foreign", settings=OPEN) as hub:
            ring = admin.keystore.secrets.keyring
            wire = InProcess(hub.api)
            async with client_at(wire, pin_of(hub), admin.keystore.identity, tmp_path / "new", ring=ring) as client:
                for count, state in ((3, "missing"), (6, "invalid")):
                    for _ in range(3):
                        draft = sdr.event(
                            subject_id="s", principal_id=client.client_id, event_type="t", event_time=1, origin="o"
                        )
                        await client.send(ring.for_stream(WEB), draft.body, schema=draft.schema)
                    report = await judged_with(client, ring, [latest])
                    (web,) = (stream for stream in report.streams if stream.stream == WEB)
                    assert [period.state for period in web.periods] == [state]
                    assert row_of(report)[:2] == (count, 6)
                    assert report.verdict.value is Outcome.BAD
                    assert report.verdict.first.because is Because.EVIDENCE

    run(story())
