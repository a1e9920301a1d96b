"""How long a reconciliation takes on Spark and in one process: `python -m benchmarks.reconcile [--events N]`.

N events are sent in one zone, exported, carried and imported in the other, by the real hubs, exporter and importer of a
bridge. Then the import stream is folded twice, by one process and by Spark on all cores; both must give the report byte
for byte. Prints one JSON object and writes the table to docs/benchmarks.md. The crossing itself is timed as well. With
`--zones DIR` both zones are kept there, and a second run compares them without another crossing.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import report
from tests.products.bridge import test_reconciling
from tests.products.bridge.zones import SOURCE, phase, send_numbers

from veen.lake.log.keys import write_keys
from veen.lake.spark.session import spark_session
from veen.products.bridge.on_spark import fold_on_spark
from veen.products.bridge.reconciling import Offline, fold_imports, reconcile
from veen.products.bridge.sources import identities_of
from veen.products.bridge.verifier import verify_here

_BATCH = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--zones", type=Path, help="keep the two zones here, or compare those of an earlier run")
    options = parser.parse_args()
    events: int = options.events
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

    async def nothing(world: Any) -> None:
        pass

    with tempfile.TemporaryDirectory() as directory:
        root = options.zones or Path(directory)
        crossing = root / "crossing.json"
        again = crossing.exists()
        if again:
            about = json.loads(crossing.read_text())
            events, seconds = about["events"], about["seconds"]
            world = phase(root, nothing)
        else:
            root.mkdir(parents=True, exist_ok=True)
            world = phase(root, cross)
            crossing.write_text(json.dumps({"events": events, "seconds": seconds}))
        offline = Offline(uri=str(root / "z2"), identities=identities_of(world.trust, str(root / "z1"), []))
        checks: Any = test_reconciling  # as its tests read both zones
        ring, sides = checks.keyring_of(world), checks.sides_of(world)
        began = time.perf_counter()
        alone = reconcile(fold_imports(offline, ring), sides)
        timed("reconcile_one_process", began)
        keys = write_keys(Path(directory) / "keys", ring.entries)
        spark = spark_session("veen bench reconcile")
        began = time.perf_counter()
        on_spark = reconcile(fold_on_spark(spark, offline, keys), sides)
        timed("reconcile_spark", began)
        spark.stop()
    if on_spark.to_bytes() != alone.to_bytes() or not alone.is_clean:
        raise SystemExit("the two reports differ, or the bridge lost something")
    rate = round(events / seconds["reconcile_spark"])
    print(json.dumps({"events": events, "seconds": seconds, "events_per_second_spark": rate}), flush=True)
    report.write_section("reconcile", table(events, seconds, again=again))


def table(events: int, seconds: dict[str, float], *, again: bool) -> str:
    """`again`: the zones are those of an earlier run, whose times of the crossing are left out."""
    names = {
        "send": "send in zone 1, receipts verified",
        "export": "export",
        "import": "import in zone 2, verified",
        "reconcile_one_process": "reconcile, one process",
        "reconcile_spark": "reconcile, Spark on all cores, start of its workers included",
    }
    lines = [
        "## Bridge: reconciliation",
        "",
        report.machine(),
        "",
        f"{events:,} events sent, exported, carried in bundles of {_BATCH:,} and imported; then both zones are "
        "compared. Both reports are equal byte for byte.",
        "",
        "| step | seconds | events/s |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {names[step]} | {spent:.1f} | {events / spent:,.0f} |"
        for step, spent in seconds.items()
        if not again or step.startswith("reconcile")
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
