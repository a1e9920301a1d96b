"""Checkpoints, replay with proven edges, verification by period, OCSF (SDR-06 … SDR-12)."""

import json
import time
from dataclasses import replace

import pytest
from tests.client.hubs import run
from tests.products.recorder.agents import FAST, lines_source, numbered, run_agent
from tests.products.recorder.recorders import ADMIN, recorder_at

from veen.core.labels import stream_id_of
from veen.core.verdict import Outcome
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.checkpoint import log_root_of
from veen.products.recorder.events import CHANGES_STREAM, CHECKPOINTS_STREAM, OWN_STREAM
from veen.products.recorder.replay import (
    EdgeUnproven,
    canonical,
    check_edges,
    fingerprint_of,
    ocsf_event,
    replay_range,
    replay_window,
)
from veen.products.recorder.roles import record_streams
from veen.products.recorder.setup import heads_of, is_due, read_chain, read_history, select_covered, take
from veen.products.recorder.verify import verify

WEB = "record/app/web"


async def checkpointed(world):
    async with world.authority(ADMIN) as authority:
        ring = world.role(ADMIN).keystore.secrets.keyring
        configuration = (await read_history(authority.client, None)).now
        last = (await read_chain(authority.client, None)).last
        return await take(authority, record_streams(ring), configuration, last, now=int(time.time()))


async def judged(world, **options):
    ring = world.role(ADMIN).keystore.secrets.keyring
    async with world.client(ADMIN) as client:
        options = {"admins": [client.client_id], "now": int(time.time()), **options}
        return await verify(client, record_streams(ring), **options)


@pytest.mark.req("SDR-06", "SDR-10")
def test_a_checkpoint_covers_every_stream_but_its_own_and_is_chained(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(20))])
            first = await checkpointed(world)
            second = await checkpointed(world)
            ring = world.role(ADMIN).keystore.secrets.keyring
            async with world.client(ADMIN) as client:
                chain = await read_chain(client, [client.client_id])
                assert not chain.issues
                assert [record.body.prev for record in chain.records] == [None, first.msg_id]
                assert chain.last is not None
                assert chain.last.msg_id == second.msg_id
                body = chain.records[0].body
                names = {keys.stream_id: str(keys) for keys in record_streams(ring)}
                covered_names = {names[head.stream_id] for head in body.streams}
                assert covered_names == set(names.values()) - {CHECKPOINTS_STREAM}
                assert {WEB, CHANGES_STREAM, OWN_STREAM} <= covered_names
                assert body.log_root == log_root_of(body.streams)
                for head in body.streams:
                    if head.last_seq:
                        client.pin.check_checkpoint(head.read_checkpoint(), 0)
                history = await read_history(client, None)
                assert body.sdr_profile_id == history.now.profile_id()
                heads = await heads_of(client, select_covered(record_streams(ring)))
                assert sum(head.last_seq for head in heads) == chain.last.body.events

    run(story())


@pytest.mark.req("SDR-06")
def test_a_checkpoint_is_due_by_time_and_by_volume(tmp_path):
    async def story():
        async with recorder_at(tmp_path, every_sec=100, every_events=10) as world:
            last = await checkpointed(world)
            async with world.client(ADMIN) as client:
                configuration = (await read_history(client, None)).now
            at, events = last.body.ts, last.body.events
            assert is_due(None, 0, at, configuration)
            assert not is_due(last, events, at + 1000, configuration)  # nothing is new
            assert not is_due(last, events + 9, at + 99, configuration)
            assert is_due(last, events + 10, at, configuration)
            assert is_due(last, events + 1, at + 100, configuration)

    run(story())


@pytest.mark.req("SDR-07", "SDR-12")
def test_replay_by_sequence_gives_the_range_in_order_with_receipts(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(30))])
            ring = world.role(ADMIN).keystore.secrets.keyring
            async with world.client(ADMIN) as client:
                keys = ring.for_stream(WEB)
                rows, coverage = await replay_range(client, keys, 5, 12)
                replayed = [row async for row in rows]
                assert [row.receipt.stream_seq for row in replayed] == list(range(5, 13))
                assert [row.to_json()["payload"]["n"] for row in replayed] == list(range(5, 13))
                for row in replayed:
                    client.pin.check_receipt(row.receipt)
                beside = [receipt.stream_seq for receipt in (coverage.before, coverage.after) if receipt is not None]
                assert beside == [4, 13]
                from veen.client.errors import LocalError

                for first, last in ((0, 3), (5, 4), (1, 31)):
                    with pytest.raises(LocalError):
                        await replay_range(client, keys, first, last)

    run(story())


@pytest.mark.req("SDR-08")
def test_replay_by_time_has_the_window_and_proves_its_edges(tmp_path):
    from tests.client.hubs import Clock, client_at, hub_at, pin_of

    from veen.client.identity.identity import Identity
    from veen.client.identity.keyring import Keyring, StreamKeys
    from veen.client.transport.inprocess import InProcess

    async def story():
        clock, keys = Clock(), StreamKeys.create(WEB)
        who = Identity.create("web", now=int(clock()))
        async with hub_at(tmp_path / "hub", clock=clock) as hub:
            wire = InProcess(hub.api)
            ring = Keyring.of([keys])
            async with client_at(wire, pin_of(hub), who, tmp_path / "home", ring=ring, clock=clock) as client:
                begun = clock.now
                for n in range(20):
                    draft = sdr.event(
                        subject_id="s", principal_id=client.client_id, event_type="t", event_time=1, origin="o",
                        payload={"n": n},
                    )  # fmt: skip
                    await client.send(keys, draft.body, schema=draft.schema)
                    clock.now += 0 if n % 4 else 10  # several entries share a second
                windows = [
                    (0, 2**40),
                    (begun, begun),
                    (begun + 10, begun + 20),
                    (begun - 9, begun - 1),
                    (begun + 11, begun + 12),
                ]
                for since, until in windows:
                    async for rows, coverage in replay_window(client, keys, since, until):
                        replayed = [row async for row in rows]
                        every = [entry.receipt async for entry in client.read(keys)]
                        inside = [receipt.stream_seq for receipt in every if since <= receipt.hub_ts <= until]
                        assert [row.receipt.stream_seq for row in replayed] == inside
                        check_edges(coverage, since, until)
                        if coverage.to_seq >= coverage.from_seq and coverage.before is not None:
                            with pytest.raises(EdgeUnproven):  # a window that began earlier is not proven by them
                                check_edges(coverage, coverage.before.hub_ts, until)
                            with pytest.raises(EdgeUnproven):  # a withheld first entry shows
                                check_edges(replace(coverage, from_seq=coverage.from_seq + 1), since, until)
                        if coverage.after is None:
                            with pytest.raises(EdgeUnproven):  # a withheld last entry shows
                                check_edges(replace(coverage, to_seq=coverage.to_seq - 1), since, until)

    run(story())


@pytest.mark.req("SDR-12", "SDR-09")
def test_a_sound_recorder_verifies_period_by_period(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(10), id="a")])
            await checkpointed(world)
            await run_agent(world, [lines_source(numbered(7), id="b")])
            await checkpointed(world)
            await run_agent(world, [lines_source(numbered(3), id="c")])
            report = await judged(world)
            assert report.ok, report.to_json()
            assert report.findings == []
            (web,) = [stream for stream in report.streams if stream.stream == WEB]
            assert [(p.from_seq, p.to_seq, p.state, p.checkpoint) for p in web.periods] == [
                (1, 10, "valid", 1), (11, 17, "valid", 2), (18, 20, "valid", None),
            ]  # fmt: skip
            json.dumps(report.to_json())

    run(story())


@pytest.mark.req("SDR-12")
def test_a_hub_that_lost_its_end_is_missing_evidence_not_silence(tmp_path):
    """The hub is restored from an older backup: periods under a checkpoint are reported as missing (I2)."""
    import shutil

    from tests.client.hubs import client_at, hub_at, pin_of

    from veen.client.transport.inprocess import InProcess

    async def story():
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(10), id="a")])
        shutil.copytree(tmp_path / "hub", tmp_path / "backup")
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(5), id="b")])
            latest = await checkpointed(world)
            admin = world.role(ADMIN)
        async with hub_at(tmp_path / "backup") as hub:
            ring = admin.keystore.secrets.keyring
            wire = InProcess(hub.api)
            async with client_at(wire, pin_of(hub), admin.keystore.identity, tmp_path / "new", ring=ring) as client:
                # The auditor has the checkpoint that the hub has lost.
                from veen.products.recorder.setup import Chain
                from veen.products.recorder.setup import read_history as read
                from veen.products.recorder.verify import judge_streams

                streams = select_covered(record_streams(ring))
                chain = Chain((latest,), ())
                report = await judge_streams(client, streams, await read(client, None), chain, now=int(time.time()))
        (web,) = [stream for stream in report.streams if stream.stream == WEB]
        assert [(p.from_seq, p.to_seq, p.state) for p in web.periods] == [(1, 15, "missing")]
        assert "ends at entry 10" in str(web.periods[0].why)
        assert not report.ok

    run(story())


@pytest.mark.req("SDR-05", "SDR-12")
def test_findings_name_mapping_producers_schemas_and_losses(tmp_path):
    async def story():
        async with recorder_at(tmp_path, mapping={"tick": "record/app/audit"}) as world:
            async with world.authority("web") as web:  # a client without the rules of emitters
                stream = stream_id_of(WEB)
                mine = web.client.client_id
                tick = sdr.event(subject_id="s", principal_id=mine, event_type="tick", event_time=1, origin="o")
                await web.send(stream, tick)
                draft = sdr.event(
                    subject_id="s", principal_id=b"\x01" * 32, event_type="tick", event_time=1, origin="o"
                )
                await web.send(stream, draft)
                capability = await web.capability(stream)
                await web.client.send(stream, b"hello", capability=capability)
            # The gate gets a token and the key of a stream that the configuration does not give it.
            admin, gate = world.role(ADMIN), world.role("gate")
            from veen.products.recorder.roles import equip

            streams = ("record/security/gate", "record/app/audit", WEB)
            equip(
                admin,
                {"gate": (gate, streams)},
                None,
                ttl=86_400,
                hub_id=world.hub.identity.hub_id,
                now=int(time.time()),
            )
            async with world.authority("gate") as foreign:
                draft = sdr.event(
                    subject_id="s", principal_id=foreign.client.client_id, event_type="other", event_time=1, origin="o",
                    payload=b"x" * 300_000,
                )  # fmt: skip
                await foreign.send(stream_id_of(WEB), draft)
            report = await judged(world)
            assert report.verdict.value is Outcome.INCOMPLETE
            codes = [(finding.code, finding.seq) for finding in report.findings if finding.stream == WEB]
            assert codes == [
                ("SDR.MAPPING", 1), ("SDR.PRINCIPAL", 2), ("SDR.FOREIGN_SCHEMA", 3),
                ("SDR.MAPPING", 4), ("SDR.PRODUCER", 4), ("SDR.OVERSIZE", 4),
            ]  # fmt: skip

    run(story())


def test_losses_silence_and_gaps_are_findings(tmp_path):
    from veen.products.recorder.agent import AgentSource
    from veen.products.recorder.events import SourceRecord

    class Counting:
        kind, id = "syslog", "net"

        async def run(self, sink):
            for n in (1, 2, 5, 9):
                record = SourceRecord(subject="s", event_type="t", origin="o", time=1, payload={}, position=f"7:{n}")
                await sink.put([record])
            await sink.lost("spool full", 2)

    async def story():
        async with recorder_at(tmp_path) as world:
            pace = replace(FAST, heartbeat=1.0)
            agent = await run_agent(world, [AgentSource(Counting(), stream_id_of(WEB))], pace=pace)
            assert agent is not None
            report = await judged(world, now=int(time.time()) + 3600)
            codes = {finding.code: finding.what for finding in report.findings}
            assert "2 records of net were lost: spool full" in codes["SDR.LOSS"]
            assert "3 numbers of net are missing" in codes["SDR.GAP"]  # 3, 4, 6, 7, 8 without the two that were lost
            assert "SDR.SILENCE" not in codes  # it said that it stops

    run(story())


@pytest.mark.req("SDR-07")
def test_ocsf_events_carry_their_integrity(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            await run_agent(world, [lines_source(numbered(3))])
            ring = world.role(ADMIN).keystore.secrets.keyring
            async with world.client(ADMIN) as client:
                rows, _ = await replay_range(client, ring.for_stream(WEB), 1, 3)
                previous, events = None, []
                async for row in rows:
                    event = ocsf_event(row, client.hub_id, previous)
                    attestation = event["record_integrity"]["attestation_list"][0]
                    assert attestation["fingerprint"]["value"] == fingerprint_of(event)
                    if previous is not None:
                        assert attestation["prev_event"]["fingerprint"]["value"] == previous[1]
                    previous = (row.receipt.stream_seq, fingerprint_of(event))
                    events.append(event)
                assert events[0]["actor"]["user"]["uid"] == "u"
                assert json.loads(events[0]["raw_data"])["n"] == 1
                assert len({event["metadata"]["uid"] for event in events}) == 3
                changed = json.loads(json.dumps(events[1]))
                changed["message"] = "other"
                assert fingerprint_of(changed) != fingerprint_of(events[1])
                assert canonical({"b": 1, "a": "é\n"}) == '{"a":"é\\n","b":1}'.encode()

    run(story())


@pytest.mark.req("SDR-06", "SDR-08", "SDR-12")
def test_labels_that_rotate_are_checkpointed_verified_and_replayed_as_one_stream(tmp_path):
    from tests.client.hubs import Clock

    from veen.core.objects.profile import PRESETS

    async def story():
        clock = Clock(int(time.time()))
        profile = {"admission.profiles": "rotating"}
        async with recorder_at(tmp_path, settings=profile, clock=clock) as world:
            begun = clock.now
            for number, source in enumerate("abc"):
                await run_agent(
                    world, [lines_source(numbered(5), id=source)], clock=clock, client_options={"clock": clock}
                )
                if number < 2:
                    await checkpointed(world)
                clock.now += 2 * PRESETS["rotating"].epoch_sec
            await world.set_up()  # tokens and classes of the new epoch
            report = await judged(world, now=clock.now)
            assert report.ok, report.to_json()
            (web,) = [stream for stream in report.streams if stream.stream == WEB]
            assert [(p.to_seq, p.state, p.checkpoint) for p in web.periods] == [
                (5, "valid", 1), (5, "valid", 2), (5, "valid", None),
            ]  # fmt: skip
            assert len({period.epoch for period in web.periods}) == 3
            ring = world.role(ADMIN).keystore.secrets.keyring
            async with world.client(ADMIN) as client:
                parts = [part async for part in replay_window(client, ring.for_stream(WEB), begun, clock.now)]
                sources = [row.to_json()["payload"]["_src"]["id"] for rows, _ in parts async for row in rows]
                assert sources == [source for source in "abc" for _ in range(5)]

    run(story())
