"""How long a reconciliation takes on Spark and in one process: `python -m benchmarks.reconcile [--events N]`.

N events are sent in one zone, exported, carried and imported in the other, by the real hubs, exporter and importer of a
bridge. Then the import stream is folded twice, by one process and by Spark on all cores; both must give the report byte
for byte. Prints one JSON object. The crossing itself is timed as well.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.products.airgap import test_reconciling
from tests.products.airgap.zones import SOURCE, phase, send_numbers

from veen.log.keys import write_keys
from veen.products.airgap.on_spark import arrived_on_spark
from veen.products.airgap.reconciling import Offline, arrived_in, reconcile
from veen.products.airgap.sources import identities_of
from veen.products.airgap.verifier import verify_here
from veen.spark.session import spark_session

_BATCH = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    events = parser.parse_args().events
    seconds: dict[str, float] = {}

    def timed(name: str, began: float) -> None:
        seconds[name] = round(seconds.get(name, 0.0) + time.perf_counter() - began, 2)

    async def cross(world: Any) -> None:
        for first in range(1, events + 1, _BATCH):
            began = time.perf_counter()
            await send_numbers(world, first, min(first + _BATCH - 1, events))
            timed("send", began)
            began = time.perf_counter()
            await world.exporter().export(SOURCE)
            timed("export", began)
            world.carry()
            began = time.perf_counter()
            await world.importer(verify=verify_here).run()
            timed("import", began)

    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        world = phase(root, cross)
        offline = Offline(uri=str(root / "z2"), identities=identities_of(world.trust, str(root / "z1"), []))
        checks: Any = test_reconciling  # as its tests read both zones
        ring, sides = checks.keyring_of(world), checks.sides_of(world)
        began = time.perf_counter()
        alone = reconcile(arrived_in(offline, ring), sides)
        timed("reconcile_one_process", began)
        keys = write_keys(root / "keys", ring.entries)
        spark = spark_session("veen bench reconcile")
        began = time.perf_counter()
        on_spark = reconcile(arrived_on_spark(spark, offline, keys), sides)
        timed("reconcile_spark", began)
        spark.stop()
    if on_spark.to_bytes() != alone.to_bytes() or not alone.is_clean:
        raise SystemExit("the two reports differ, or the bridge lost something")
    rate = round(events / seconds["reconcile_spark"])
    print(json.dumps({"events": events, "seconds": seconds, "events_per_second_spark": rate}), flush=True)


if __name__ == "__main__":
    main()
