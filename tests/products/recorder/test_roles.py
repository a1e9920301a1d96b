"""Roles of a recorder: separate identities, real tokens, configuration as records (SDR-02 … SDR-06)."""

import time
from typing import Any

import pytest
from tests.client.hubs import run
from tests.products.recorder.recorders import ADMIN, DISCLOSURE, STREAMS, recorder_at

from veen.client.errors import HubRefused, NoReaderKey, TokenMissing, UnknownStream
from veen.core.labels import stream_id_of
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.config import LONG_TERM_SEC
from veen.products.recorder.events import CHANGES_STREAM, OPENINGS_STREAM, OWN_STREAM
from veen.products.recorder.roles import RoleConflict, check_roles, record_streams
from veen.products.recorder.setup import read_history


def event(client, **fields):
    options: dict[str, Any] = {
        "subject_id": "alice",
        "event_type": "login",
        "event_time": int(time.time()),
        "origin": "test",
    } | fields
    return sdr.event(principal_id=client.client_id, **options)


@pytest.mark.req("SDR-05")
def test_a_producer_writes_to_its_own_streams_and_to_no_other(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world, world.authority("web") as web:
            sent = await web.send(stream_id_of("record/app/web"), event(web.client))
            assert sent.seq == 1
            with pytest.raises((UnknownStream, TokenMissing)):
                await web.send(stream_id_of("record/security/gate"), event(web.client))
            token = await web.capability(stream_id_of("record/app/web"))
            gate = world.role("gate").keystore.secrets.keyring.for_stream("record/security/gate")
            with pytest.raises(HubRefused):  # a key that was found elsewhere gives no right at the hub
                await web.client.send(gate, b"x", auth_ref=token.auth_ref())
            with pytest.raises(NoReaderKey):
                [entry async for entry in web.client.read("record/app/web")]

    run(story())


@pytest.mark.req("SDR-05")
def test_the_admin_reads_all_streams_but_the_openings(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            ring = world.role(ADMIN).keystore.secrets.keyring
            names = {str(keys) for keys in record_streams(ring)}
            assert {stream for streams in STREAMS.values() for stream in streams} | {
                OWN_STREAM,
                CHANGES_STREAM,
            } <= names
            assert OPENINGS_STREAM not in names
            assert not ring.for_stream(OPENINGS_STREAM).can_read
            assert world.role(DISCLOSURE).keystore.secrets.keyring.for_stream(OPENINGS_STREAM).can_read
            for name in STREAMS:
                entries = world.role(name).keystore.secrets.keyring.entries
                assert [str(keys) for keys in entries if keys.can_read] == [CHANGES_STREAM]  # which it enforces

    run(story())


@pytest.mark.req("SDR-03", "SDR-06")
def test_the_configuration_is_in_the_log_and_is_written_once(tmp_path):
    async def story():
        async with recorder_at(tmp_path, mapping={"login": "record/security/gate"}, every_events=500) as world:
            assert world.lines
            assert await world.set_up(mapping={"login": "record/security/gate"}, every_events=500) == []
            async with world.client(ADMIN) as client:
                history = await read_history(client, [client.client_id])
            now = history.now
            assert not history.issues
            assert now.mapping["login"] == stream_id_of("record/security/gate")
            assert now.mapping["recorder.loss"] == stream_id_of(OWN_STREAM)
            assert now.every_events == 500
            assert now.retention[stream_id_of("record/app/web")] == LONG_TERM_SEC
            web = world.role("web").keystore.identity.client_id
            assert now.producers[web] == {stream_id_of("record/app/web")}
            assert await world.set_up() == []  # what is not asked for stays as it is
            changed = await world.set_up(mapping={"login": "record/security/gate"}, every_events=600)
            assert len(changed) == 1

    run(story())


@pytest.mark.parametrize(
    ("admin", "disclosure", "producers"),
    [
        ("admin", None, {"admin": ["record/app/a"]}),
        ("admin", "privacy", {"privacy": ["record/app/a"]}),
        ("admin", "admin", {}),
        ("admin", None, {"web": []}),
        ("admin", None, {"web": ["orders"]}),
        ("admin", None, {"web": [CHANGES_STREAM]}),
        ("admin", None, {"web": [OPENINGS_STREAM]}),
    ],
)
@pytest.mark.req("SDR-05")
def test_roles_that_do_not_go_together_are_refused(admin, disclosure, producers):
    with pytest.raises(RoleConflict):
        check_roles(admin, disclosure, producers)
