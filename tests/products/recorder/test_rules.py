"""Emitters refuse events of a type that is mapped elsewhere, and payloads above the bound (SDR-02, SDR-03, D-127)."""

import json
import time
from typing import Any

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.test_recorder import admin, emit, init
from tests.client.hubs import run
from tests.products.recorder.agents import WEB, lines_source, recorded, run_agent
from tests.products.recorder.recorders import ADMIN, recorder_at
from tests.products.recorder.test_roles import event

from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.core.labels import stream_id_of
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.config import LONG_TERM_SEC, change
from veen.products.recorder.emitting import emit as emit_records
from veen.products.recorder.events import CHANGES_STREAM, OWN_STREAM, SourceRecord
from veen.products.recorder.rules import MappingRefused, OversizeRefused, RecorderRules, read_configuration

MAPPED = {"login": "record/security/gate", "tick": WEB}


def record(kind, payload, position="1"):
    return SourceRecord(
        subject="u", event_type=kind, origin="test", time=int(time.time()), payload=payload, position=position
    )


@pytest.mark.req("SDR-02", "SDR-03")
def test_the_emitting_call_refuses_what_the_configuration_forbids(tmp_path):
    """001 products §3.2.2: one event type, one stream; no payload beyond the bound. What is allowed is recorded."""

    async def story():
        async with recorder_at(tmp_path, mapping=MAPPED, max_payload=2_000) as world:
            async with world.authority("web") as web:
                keys = web.client.keyring.for_stream(WEB)
                records = [
                    record("tick", {"n": 1}),
                    record("login", {"n": 2}),
                    record("tick", {"n": 3, "blob": "x" * 2_000}),
                    record("unheard", {"n": 4}),
                    record("tick", {"n": 5}),
                ]
                outcomes = await emit_records(web, keys, records)
                wanted = [Sent, MappingRefused, OversizeRefused, MappingRefused, Sent]
                assert [type(outcome) for outcome in outcomes] == wanted
                assert "login is mapped to record/security/gate" in str(outcomes[1])
                assert "at most 2000 are allowed" in str(outcomes[2])
            assert [payload["n"] for _, payload in await recorded(world)] == [1, 5]

    run(story())


@pytest.mark.req("SDR-02", "SDR-03")
def test_any_client_with_the_rule_refuses_before_anything_is_sealed(tmp_path):
    """Clients of `veen` and of the Python API have it: `send` and `send_many` refuse as the recorder's call does."""

    async def story():
        async with (
            recorder_at(tmp_path, mapping=MAPPED, max_payload=2_000) as world,
            world.authority("web", rules=[RecorderRules()]) as web,
        ):
            for kind in ("login", "unheard"):
                with pytest.raises(MappingRefused):
                    await web.send(stream_id_of(WEB), event(web.client, event_type=kind))
            with pytest.raises(OversizeRefused):
                await web.send(stream_id_of(WEB), event(web.client, event_type="tick", payload="x" * 2_000))
            token = await web.capability(stream_id_of(WEB))
            bodies = [b"short", b"y" * 2_001]  # without a schema: the body is the payload
            outcomes = await web.client.send_many(WEB, bodies, capability=token)
            assert [type(outcome) for outcome in outcomes] == [Sent, OversizeRefused]
            with pytest.raises(OversizeRefused):
                await web.client.prepare(WEB, [Draft(body=bytes(2_001))], capability=token)
            sent = await web.send(stream_id_of(WEB), event(web.client, event_type="tick"))
            assert sent.seq == 2

    run(story())


@pytest.mark.req("SDR-02", "SDR-03")
def test_an_agent_puts_aside_what_is_mapped_elsewhere_and_cuts_what_is_too_large(tmp_path):
    """Nothing is lost in silence: what was refused is a loss with its reason, and a cut payload says what it was."""

    async def story():
        async with recorder_at(tmp_path, mapping=MAPPED, max_payload=2_000) as world:
            lines = [{"user": "u", "event": "tick", "n": 1}, {"user": "u", "event": "login", "n": 2},
                     {"user": "u", "event": "tick", "n": 3, "blob": "x" * 3_000}]  # fmt: skip
            data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
            await run_agent(world, [lines_source(data)])
            events = await recorded(world)
            assert [body.event_type for body, _ in events] == ["tick", "tick"]
            assert events[0][1]["n"] == 1
            assert events[1][1]["_cut"]["code"] == "SDR.OVERSIZE"
            assert events[1][1]["_src"]["pos"] == "3"
            assert all(len(body.payload) <= 2_000 for body, _ in events)
            own = [(body.event_type, payload) for body, payload in await recorded(world, OWN_STREAM)]
            losses = [payload for kind, payload in own if kind == "recorder.loss"]
            assert [(loss["reason"], loss["count"]) for loss in losses] == [("refused SDR.MAPPING", 1)]

    run(story())


@pytest.mark.req("SDR-02")
def test_a_mapping_counts_for_emitters_only_if_the_admin_wrote_it(tmp_path):
    """A producer that writes to the stream of changes at an open hub changes nothing for others."""

    async def story():
        async with recorder_at(tmp_path, gated=False, mapping=MAPPED) as world:
            async with world.client("web") as web:
                forged = change("map", ts=1, event_type="tick", stream_id=stream_id_of("record/x"), stream="record/x")
                await web.send(CHANGES_STREAM, forged.body, schema=forged.schema)
                configuration = await read_configuration(web)
                assert configuration is not None
                assert configuration.mapping["tick"] == stream_id_of(WEB)
                assert configuration.retention[stream_id_of(WEB)] == LONG_TERM_SEC
            async with world.authority(ADMIN) as admin_role:
                moved = change(
                    "map", ts=2, event_type="tick", stream_id=stream_id_of("record/app/b"), stream="record/app/b"
                )
                await admin_role.send(stream_id_of(CHANGES_STREAM), moved)
            async with world.client("web") as web:
                configuration = await read_configuration(web)
                assert configuration is not None
                assert configuration.mapping["tick"] == stream_id_of("record/app/b")

    run(story())


@pytest.mark.req("SDR-02", "SDR-03")
def test_veen_send_and_recorder_emit_refuse_alike(tmp_path):
    cli = Cli(tmp_path / "home")
    with running(tmp_path / "hub") as hub:
        about = init(cli, hub, "--map", "login=record/security/gate", "--max-payload", "2KiB")
        refused = emit(cli, hub, "record/app/web", "--type", "login", "--subject", "a", "{}", code=4)
        assert [fault["code"] for fault in refused["faults"]] == ["SDR.MAPPING"]
        web = ("--identity", "web", "--hub", hub.url, "--pin", hub.about["hub_pk"])
        body = tmp_path / "event.cbor"
        client_id = bytes.fromhex(about["producers"]["web"]["client_id"])
        fields: dict[str, Any] = {"subject_id": "a", "principal_id": client_id, "event_time": 1, "origin": "here"}
        body.write_bytes(sdr.event(event_type="login", **fields).body)
        words = ("send", "record/app/web", "--file", body, "--schema", "sdr.event.v1", *web)
        assert cli.json(*words, code=6)["code"] == "SDR.MAPPING"
        assert cli.json("send", "record/app/web", "x" * 2_049, *web, code=6)["code"] == "SDR.OVERSIZE"
        lines = "\n".join(["short", "y" * 2_049])
        done = cli.invoke("send", "record/app/web", "--lines", *web, "--json", stdin=lines)
        assert json.loads(done.stderr.splitlines()[-1])["code"] == "SDR.OVERSIZE"
        admin(cli, hub, "map", "login", "record/app/web")
        assert emit(cli, hub, "record/app/web", "--type", "login", "--subject", "a", "{}")["recorded"] == 1
