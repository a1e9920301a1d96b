"""How a hub's start and memory follow from the number of its labels and clients.

    python -m benchmarks.labels 1000 100000 1000000
    python -m benchmarks.labels 100000 --baseline DIR     beside another checkout with .venv; only prints

Each label has one entry of a client of its own. The directories are filled by the storage code itself, without
admission, without syncing, and without the three files of each label that hold its entries: a million labels would make
three million of them, and neither a start nor a cursor looks at them. Then a whole hub starts on each directory in a
process of its own.
"""

import argparse
import asyncio
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import baseline, report

from veen.core.hashing import H
from veen.core.limits import Limits
from veen.core.objects.control import ControlRecord, LabelOpen
from veen.hub.process.config import load
from veen.hub.process.runtime import Hub
from veen.hub.process.startup import Sealing
from veen.io.local import File, OsFs
from veen.storage import layout
from veen.storage.keys import identity
from veen.storage.store import Group, Store

LIMITS: Final = Limits()
MSG: Final = bytes(300)
RECEIPT_TAIL: Final = bytes(140)
GROUP: Final = 200
STARTS: Final = 5
ENTRIES: Final = (f"{layout.NODES}/", f"{layout.OFFSETS}/", f"{layout.LOG}/active-")
ACTIVE: Final = 10_000  # labels that are touched to see what one of them takes


class UnsyncedFile:
    def __init__(self, file: File) -> None:
        self.read_at, self.write_at, self.size = file.read_at, file.write_at, file.size
        self.truncate, self.close = file.truncate, file.close

    def sync(self) -> None:
        pass


class NoFile:
    """A file that nobody will read."""

    def write_at(self, offset: int, data: bytes) -> None:
        pass

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class UnsyncedFs(OsFs):
    """A directory that is filled for a measurement: nothing in it must survive a crash."""

    def open(self, path: str, *, create: bool = False) -> Any:
        return NoFile() if path.startswith(ENTRIES) else UnsyncedFile(super().open(path, create=create))

    def sync_dir(self, directory: str) -> None:
        pass


def label_of(number: int) -> bytes:
    return H(b"label %d" % number)


def client_of(number: int) -> bytes:
    return H(b"client %d" % number)


def groups(store: Store, keys: identity.HubKeys, count: int) -> Iterator[Group]:
    key, now, group = next(iter(keys.private.values())), int(time.time()), Group()
    state = store.state
    for number in range(count):
        label = label_of(number)
        record = ControlRecord.issue(key, state.control, LabelOpen(label=label, epoch=0), hub_ts=now)
        store.stage_control(record)
        group.add_control(record)
        admitted = state.admit(
            state.labels[label],
            client_id=client_of(number),
            client_seq=1,
            prev_ack=0,
            auth_ref=None,
            leaf_hash=H(number.to_bytes(8, "big")),
            hub_ts=now,
        )
        group.add_entry(admitted, MSG, admitted.mmr_root + RECEIPT_TAIL)
        if len(group.done) >= GROUP:
            yield group
            group = Group()
    if group.done:
        yield group


def build(size: int, root: Path) -> dict[str, float]:
    began = time.perf_counter()
    root.mkdir(exist_ok=True)
    fs = UnsyncedFs(root)
    keys = identity.create(fs, H(b"labels"), int(time.time()) - 10)
    store = Store.open(fs, LIMITS, Sealing(keys).seal)
    for group in groups(store, keys, size):
        store.journal.write(group.payload())
        store.apply(group)
        if store.journal_is_full:
            store.retire()
    store.close()
    return {"build_seconds": time.perf_counter() - began}


def rss_mb() -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def run_hub(size: int, root: Path, *, touch: bool) -> dict[str, float]:
    flags = {
        "data_dir": str(root),
        "listen.port": "0",
        "engine.workers": "0",
        "log.level": "error",
        "admission.capability_gating": "false",
        "admission.stream_scope": "open",
        "scrub.bytes_per_second": "0",
    }
    hub = Hub(load(None, {}, flags), accept_clock=True)
    began = time.perf_counter()
    await hub.start()
    figures = {"start_ms": (time.perf_counter() - began) * 1e3, "rss_mb": rss_mb()}
    store = hub.sequencer.store
    if touch:
        count = min(size, ACTIVE)
        step = size // count
        loading = time.perf_counter()
        labels = [store.state.labels[label_of(number)] for number in range(0, size, step)]
        figures["load_us"] = (time.perf_counter() - loading) / len(labels) * 1e6
        for number in range(0, size, step):
            store.files(label_of(number))
        figures["label_bytes"] = (rss_mb() - figures["rss_mb"]) * 2**20 / len(labels)
        before = rss_mb()
        for number, label in zip(range(0, size, step), labels, strict=True):
            assert store.state.client(label, client_of(number)) is not None
        figures["client_bytes"] = (rss_mb() - before) * 2**20 / len(labels)
    began = time.perf_counter()
    await hub.stop()
    figures["stop_ms"] = (time.perf_counter() - began) * 1e3
    return figures


def measure(size: int, root: Path) -> dict[str, float]:
    runs = [asyncio.run(run_hub(size, root, touch=False)) for _ in range(STARTS)]
    touched = asyncio.run(run_hub(size, root, touch=True))
    starts = {name: median(run[name] for run in runs) for name in ("start_ms", "stop_ms")}
    return {"labels": size, **touched, **starts, "rss_mb": runs[0]["rss_mb"]}


PARTS: Final = {"build": build, "measure": measure}


def table(results: list[dict[str, float]]) -> str:
    rows = {
        "start until it listens, ms": "start_ms",
        "stop, ms": "stop_ms",
        "memory after the start, MB": "rss_mb",
        "a label from the index, µs": "load_us",
        "memory of an active label, bytes": "label_bytes",
        "memory of an active client, bytes": "client_bytes",
    }
    lines = [
        "## Start and memory by the number of labels",
        "",
        report.machine(),
        "",
        f"`python -m benchmarks.labels` at commit {commit()}. Each label has one entry, by a client of its own; in "
        "parentheses the multiple of the first column. Active are those that were used since the last retirement, and "
        "of the others the most recent `engine.cached_labels` and `engine.cached_clients`; their memory is the growth "
        f"of the process when {ACTIVE:,} of each are read, and says little where there are only a thousand.",
        "",
        "| labels | " + " | ".join(f"{result['labels']:,.0f}" for result in results) + " |",
        "|---|" + "---:|" * len(results),
    ]
    for name, key in rows.items():
        first = results[0][key]
        cells = [f"{result[key]:.1f}" + (f" ({result[key] / first:.2f})" if first else "") for result in results]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=report.PAGE.parent).stdout.strip()


def _run_part(
    part: str, size: int, root: Path, installation: baseline.Installation = baseline.HERE
) -> dict[str, float]:
    arguments = (str(size), "--part", part, "--dir", str(root))
    result: dict[str, float] = baseline.run_module(installation, "benchmarks.labels", *arguments)
    print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def rates(size: int, root: Path, installation: baseline.Installation) -> dict[str, float]:
    """Return starts, stops and labels from the index, each for a second."""
    figures = _run_part("measure", size, root, installation)
    return {
        f"starts with {size:,} labels": 1e3 / figures["start_ms"],
        f"stops with {size:,} labels": 1e3 / figures["stop_ms"],
        f"labels from the index, of {size:,}": 1e6 / figures["load_us"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--dir", type=Path, help="where to build the directories (default: a temporary one)")
    baseline.add_options(parser)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](options.sizes[0], options.dir)))
        return
    results = []
    for size in options.sizes:
        root = Path(tempfile.mkdtemp(prefix="veen-labels-", dir=options.dir))
        try:
            if options.baseline is not None:
                _run_part("build", size, root / "hub")
                measure_there = partial(rates, size, root / "hub")
                print(baseline.comparison(measure_there, options.baseline, options.baseline_rounds))
                continue
            built, measured = (_run_part(part, size, root / "hub") for part in PARTS)
            results.append({**built, **measured})
        finally:
            shutil.rmtree(root, ignore_errors=True)
    if results:
        report.write_section("labels", table(results))


if __name__ == "__main__":
    main()
