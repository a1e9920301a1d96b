"""A query of Z1, executed again in Z2 over imported events: the same digests (QRY-28, D-110)."""

import pytest
from tests.products.bridge.zones import SOURCE, TARGET, phase

from veen.client.identity.keyring import Keyring
from veen.lake.query import api
from veen.overlays.recorder import events as sdr
from veen.products.bridge.evidence import replay_imported
from veen.products.bridge.verifier import verify_here

QUERIES = {
    "rows": {"projection": ["*"], "evidence": {"mode": "full"}},
    "spot": {"projection": ["subject_id", "payload.n"], "evidence": {"mode": "spot", "sample_rate": 0.5}},
    "none": {"projection": ["receipt_id", "hub_commit_seq"], "evidence": {"mode": "none"}},
    "groups": {
        "projection": ["subject_id"],
        "evidence": {"mode": "full"},
        "aggregate": {"group_by": ["subject_id"], "metrics": ["count"]},
    },
}


async def emit(world, count):
    for number in range(count):
        draft = sdr.event(
            subject_id=f"user-{number % 3}",
            principal_id=world.producer.client_id,
            event_type="login" if number % 2 else "logout",
            event_time=1_700_000_000 + number,
            origin="sshd",
            payload={"n": number},
        )
        await world.producer.send(SOURCE, draft.body, schema=draft.schema)
    await world.producer.send(SOURCE, b"no recorder event")


def replayed(tmp_path, query, **options):
    """The query in Z1, and again in Z2."""

    async def work(world):
        await emit(world, 9)
        await world.exporter(**options).export(SOURCE)
        world.carry()
        await world.importer(verify=verify_here).run()

    world = phase(tmp_path, work)
    asked = {"scope": [SOURCE], "filter": {"event_type": ["login", "logout"]}, **query}
    result = api.run(str(tmp_path / "z1"), asked, keys=Keyring.of([world.source_keys]))
    return replay_imported(
        str(tmp_path / "z2"),
        api.make_recorded(result.descriptor, result.digest),
        keys=Keyring.of([world.target_keys]),
        streams={SOURCE: TARGET},
        identity=world.exporter_client.pin.identity,
    )


@pytest.mark.req("QRY-28")
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_the_same_digests_in_the_other_zone(tmp_path, query):
    again = replayed(tmp_path, QUERIES[query], max_events=4)
    assert again.ok, again.differences
    assert again.after.row_count == (3 if query == "groups" else 9)


@pytest.mark.req("QRY-28")
def test_a_withheld_row_shows(tmp_path):
    again = replayed(tmp_path, QUERIES["rows"], withhold=lambda entry, opened: "private" if entry.seq == 2 else None)
    assert set(again.differences) == {"row_count", "rows_hash", "evidence_hash"}
    assert again.after.row_count == 8
