"""What a service remembers of its log between two starts, and that nothing but the log decides it."""

import sqlite3

import pytest
from tests.client.hubs import run
from tests.products.federation.test_mirroring import erase
from tests.products.queryservice.services import ALICE, log_at, world_at
from tests.products.queryservice.test_service import asked

from veen.lake.query.errors import DuplicateQuery

QUERIES = ("q-1", "q-2", "q-3")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return log_at(tmp_path_factory.mktemp("log") / "hub")


def known(service):
    history = service._history
    return dict(history.requests), dict(history.results), dict(history.digests), dict(history.failures)


async def filled(world):
    service = await world.open()
    for query_id in QUERIES:
        await service.submit(ALICE, asked(query_id=query_id))
    await service.aclose()


@pytest.mark.req("QRY-24", "QRY-25")
def test_a_start_reads_what_is_new_and_knows_as_much_as_one_that_reads_all(tmp_path, log, monkeypatch):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            await filled(world)
            await (await world.open()).aclose()  # reads what the service wrote
            entries, read = [], type(world.client).read

            async def counted(client, *args, **options):
                async for entry in read(client, *args, **options):
                    entries.append(entry)
                    yield entry

            monkeypatch.setattr(type(world.client), "read", counted)
            resumed = await world.open()
            assert entries == []
            state = known(resumed)
            await resumed.aclose()
            world.store.history_path.unlink()
            anew = await world.open()
            assert (known(anew), len(entries)) == (state, 6)
            await anew.aclose()

    run(scenario())


@pytest.mark.parametrize("change", ["authors", "root", "damage"])
def test_a_history_of_other_keys_or_another_log_is_not_gone_on_from(tmp_path, log, change):
    async def scenario():
        async with world_at(tmp_path, log) as world:
            await filled(world)
            service = await world.open()
            state = known(service)
            await service.aclose()
            path = world.store.history_path
            if change == "damage":
                path.write_bytes(b"no database" * 1000)
            else:
                with sqlite3.connect(path) as database:
                    database.execute("DELETE FROM requests")
                    if change == "root":
                        database.execute("UPDATE cuts SET mmr_root = zeroblob(32)")
                database.close()
            again = await world.open(authors=frozenset({bytes(32)}) if change == "authors" else frozenset())
            assert known(again) == state
            await again.aclose()

    run(scenario())


@pytest.mark.req("QRY-24")
def test_what_retention_erases_stays_known_and_without_the_history_is_reported(tmp_path, log, caplog):
    async def scenario():
        async with world_at(tmp_path, log, limits__max_checkpoint_interval=2) as world:
            await filled(world)
            await (await world.open()).aclose()
            await erase(world.hub)
            service = await world.open()
            assert (sorted(service._history.requests), service.erased) == (list(QUERIES), 0)
            with pytest.raises(DuplicateQuery):
                await service.submit(ALICE, asked(query_id="q-1", limit=1))
            await service.aclose()
            world.store.history_path.unlink()
            bare = await world.open()
            assert (sorted(bare._history.requests), bare.erased) == (["q-3"], 4)
            assert "4 entries of the query streams were erased" in caplog.text
            assert b"veen_query_erased_entries 4" in bare.metrics.text(0, bare.retention, bare.erased)
            await bare.submit(ALICE, asked(query_id="q-4"))
            await bare.aclose()

    run(scenario())
