"""How the store's costs grow: append, proof, page, restart and memory at 10⁴, 10⁶ and 10⁷ entries of one label.

    python -m benchmarks.growth 10000 1000000 10000000

The directories are filled by the storage code itself, only without signatures: what is measured here does not
look at them. Then each of them is read in turn, in several rounds, by a process of its own, so that memory is its own
too. The files of a tree are read through before, so that it is the store that is measured and not the disk.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import report

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, LabelOpen
from veen.core.tree.proof import prove_inclusion
from veen.io.local import OsFs
from veen.storage.label_files import LabelFiles
from veen.storage.store import Group, Store

KEY: Final = SigningKey(H(b"growth"))
LABEL: Final = H(b"growth label")
CLIENTS: Final = [H(b"growth client %d" % number) for number in range(64)]
LIMITS: Final = Limits()
MSG: Final = bytes(300)
RECEIPT_TAIL: Final = bytes(140)
GROUP: Final = 100
APPENDED: Final = 5000
ROUNDS: Final = 5


def seal(files: LabelFiles, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
    return Checkpoint.issue(
        KEY, label_prev=files.label, label_curr=files.label, upto_seq=upto_seq, mmr_root=mmr_root, epoch=0
    )


def open_store(root: Path) -> Store:
    return Store.open(OsFs(root), LIMITS, seal)


def fill(store: Store, count: int, *, sync: bool) -> None:
    """Append entries as a hub would; `sync` writes each group to the journal, else only every hundredth."""
    state = store.state
    if LABEL not in state.labels:
        group = Group()
        record = ControlRecord.issue(KEY, None, LabelOpen(label=LABEL, epoch=0), hub_ts=1)
        store.stage_control(record)
        group.add_control(record)
        store.journal.write(group.payload())
        store.apply(group)
    label = state.labels[LABEL]
    written = 0
    while written < count:
        group = Group()
        for _ in range(GROUP if sync else 10 * GROUP):
            seq = label.size + 1
            client_id = CLIENTS[seq % len(CLIENTS)]
            cursor = state.client(label, client_id)
            admitted = state.admit(
                label,
                client_id=client_id,
                client_seq=cursor.client_seq + 1 if cursor else 1,
                prev_ack=0,
                auth_ref=None,
                leaf_hash=H(seq.to_bytes(8, "big")),
                hub_ts=1_700_000_000 + seq // 1000,
            )
            receipt = admitted.mmr_root + RECEIPT_TAIL
            group.add_entry(admitted, MSG, receipt)
            written += 1
        store.journal.write(group.payload())
        store.apply(group)
        if store.journal_is_full:
            store.retire()


def load(size: int, root: Path) -> dict[str, float]:
    began = time.perf_counter()
    store = open_store(root)
    fill(store, size, sync=False)
    store.close()
    os.sync()  # or it is written while others are measured
    return {"entries": size, "load_seconds": time.perf_counter() - began}


def read(size: int, root: Path) -> dict[str, float]:
    """What reading costs in a directory that was loaded by another process."""
    for path in root.glob("nodes/*"):
        with path.open("rb") as file:
            while file.read(1 << 20):
                pass
    restarts = []
    for _ in range(5):
        began = time.perf_counter()
        store = open_store(root)
        restarts.append(time.perf_counter() - began)
        store.abandon()
    store = open_store(root)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = store.files(LABEL)
    assert files is not None
    rng = random.Random(7)

    reads = 0

    def node_at(height: int, index: int) -> bytes:
        nonlocal reads
        reads += 1
        return files.node_at(height, index)

    proofs, most = [], 0
    for _ in range(2000):
        stream_seq = rng.randint(1, files.size)
        began = time.perf_counter()
        prove_inclusion(files.node_at, stream_seq, files.size)
        proofs.append(time.perf_counter() - began)
        reads = 0
        prove_inclusion(node_at, stream_seq, files.size)
        most = max(most, reads)
    pages = []
    for _ in range(300):
        first = rng.randint(1, files.size - 100)
        began = time.perf_counter()
        store.reader.frames(files, first, first + 99, 1 << 23)
        pages.append(time.perf_counter() - began)
    store.abandon()
    proofs.sort()
    return {
        "entries": size,
        "proof_p50_us": proofs[1000] * 1e6,
        "proof_p99_us": proofs[1980] * 1e6,
        "proof_reads": most,
        "page_p50_us": median(pages) * 1e6,
        "restart_ms": median(restarts) * 1e3,
        "rss_mb": rss / 1024,
    }


def append(size: int, root: Path) -> dict[str, float]:
    store = open_store(root)
    began = time.process_time()
    fill(store, APPENDED, sync=True)
    append_cpu = time.process_time() - began
    store.close()
    return {"entries": size, "append_cpu_us": append_cpu / APPENDED * 1e6}


PARTS: Final = {"load": load, "read": read, "append": append}


def table(results: list[dict[str, float]]) -> str:
    """Each cost as it is, and as a multiple of the same cost in the smallest directory."""
    rows = {
        "append, CPU µs": "append_cpu_us",
        "proof of a random entry, p50 µs": "proof_p50_us",
        "proof of a random entry, p99 µs": "proof_p99_us",
        "most nodes of a proof": "proof_reads",
        "page of 100 entries, p50 µs": "page_p50_us",
        "restart, ms": "restart_ms",
        "memory of the process, MB": "rss_mb",
    }
    lines = [
        "## Growth of the store",
        "",
        report.machine(),
        "",
        f"One label, filled by the storage code without signatures; medians of {ROUNDS} interleaved rounds, the tree "
        "in the page cache; in parentheses the multiple of the first column. A proof has one step for each doubling of "
        "the log, so its cost follows the logarithm.",
        "",
        "| entries | " + " | ".join(f"{result['entries']:,.0f}" for result in results) + " |",
        "|---|" + "---:|" * len(results),
    ]
    for name, key in rows.items():
        cells = [f"{result[key]:.1f} ({result[key] / results[0][key]:.2f})" for result in results]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _run_part(part: str, size: int, root: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.growth", str(size), "--part", part, "--dir", str(root)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(done.stdout.strip(), flush=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--dir", type=Path, help="where to build the directories (default: a temporary one)")
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part](options.sizes[0], options.dir)))
        return
    root = Path(tempfile.mkdtemp(prefix="veen-growth-", dir=options.dir))
    try:
        directories = {size: root / str(size) for size in options.sizes}
        for size, directory in directories.items():
            directory.mkdir()
            _run_part("load", size, directory)
        results: list[dict[str, float]] = [{} for _ in directories]
        for part in ("read", "append"):  # appending changes the sizes
            rounds = [[_run_part(part, *at) for at in directories.items()] for _ in range(ROUNDS)]
            for result, same_size in zip(results, zip(*rounds, strict=True), strict=True):
                result |= {key: median(one_round[key] for one_round in same_size) for key in same_size[0]}
        report.write_section("growth", table(results))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
