"""Reconciliation on Spark gives the bytes of one process, for any number of tasks."""

import pytest
from tests.products.bridge.test_reconciling import keyring_of, sides_of, write_import
from tests.products.bridge.zones import SOURCE, crossed, phase, send_numbers

from veen.lake.log.keys import write_keys
from veen.products.bridge.on_spark import fold_on_spark
from veen.products.bridge.reconciling import Offline, fold_imports, reconcile
from veen.products.bridge.sources import identities_of
from veen.products.bridge.verifier import verify_here

pytestmark = pytest.mark.xdist_group("spark")


@pytest.mark.slow
def test_any_number_of_tasks_gives_the_report_of_one_process(spark, tmp_path):
    async def work(world):
        for number in range(3):
            await send_numbers(world, number * 20 + 1, number * 20 + 20)
            await world.exporter(withhold=lambda entry, opened: "odd" if entry.seq % 7 == 0 else None).export(SOURCE)
        names = world.carry()
        world.import_files.path("incoming", names[2]).unlink()
        await world.importer(verify=verify_here).run()
        await write_import(world, (await crossed(world))[4].body)

    world = phase(tmp_path, work)
    identities = identities_of(world.trust, str(tmp_path / "z1"), [])
    offline = Offline(uri=str(tmp_path / "z2"), identities=identities)
    keys = write_keys(tmp_path / "keys", keyring_of(world).entries)
    sides = sides_of(world)
    expected = reconcile(fold_imports(offline, keyring_of(world)), sides)
    assert expected.data["streams"][0]["duplicates"] == [[5, 5]]
    for parts in (1, 3, 16):
        assert reconcile(fold_on_spark(spark, offline, keys, parts), sides).to_bytes() == expected.to_bytes()
