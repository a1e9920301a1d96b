"""What the driver of a query pays for planning: a synthetic inventory of many chunks through the real planner.

    python benchmarks/planner.py [CHUNKS ...]        # default: 10000 100000 1000000

Only the file system is made up: it lists names of chunks and tells their sizes and first times. Listing, pinning,
choosing by time and dividing into tasks are those of a query. Each size runs in a process of its own; seconds are of
CPU, memory is what the process has at most beyond what it began with.
"""

import json
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.receipt import Receipt
from veen.io.local import File
from veen.lake.log import prefix as prefixes
from veen.lake.log.slices import divide
from veen.storage import frame, layout, pinned

LABELS = 8
ENTRIES = 1024  # of a chunk, as hubs seal them
SIZE = 700 * ENTRIES
PARTS = 2_000
KEY = SigningKey(b"\x01" * 32)


class Chunk:
    """A chunk with one real frame at its beginning."""

    def __init__(self, name: str) -> None:
        self._name = name

    def size(self) -> int:
        return SIZE

    def read_at(self, offset: int, size: int) -> bytes:
        name = layout.chunk_of(self._name)
        if name is None:
            return b""
        receipt = Receipt.issue(
            KEY,
            label=name.label,
            stream_seq=name.start_seq,
            leaf_hash=bytes(32),
            mmr_root=bytes(32),
            hub_ts=1_700_000_000 + name.start_seq,
        )
        data = frame.encode(name.label, name.start_seq, b"\x80", receipt.to_bytes()).to_bytes()
        return data[offset : offset + size]

    def close(self) -> None:
        """Nothing is open."""


class Inventory:
    """A directory that has nothing but names."""

    def __init__(self, count: int) -> None:
        self._count = count

    def list(self, directory: str) -> list[str]:
        if directory != layout.LOG:
            return []
        names = []
        for number in range(self._count):
            start = number // LABELS * ENTRIES + 1
            label = bytes([number % LABELS]) * 32
            names.append(layout.chunk(label, start, start + ENTRIES - 1).rpartition("/")[2])
        return names

    def exists(self, path: str) -> bool:
        return path in ("", layout.LOG)

    def open(self, path: str, *, create: bool = False) -> File:
        if not path.startswith(f"{layout.LOG}/"):
            raise FileNotFoundError(path)
        return Chunk(path.rpartition("/")[2])  # type: ignore[return-value]  # is only read


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(count: int) -> dict[str, Any]:
    """Plan over so many chunks, step by step."""
    fs: Any = Inventory(count)
    for module in (pinned, prefixes):
        for name in ("open_fs", "open_place"):
            if hasattr(module, name):
                setattr(module, name, lambda uri: fs)
    result: dict[str, Any] = {"chunks": count}
    begin = peak_mib()

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        result[name] = round(time.process_time() - started, 2)

    with timed("names s"):
        fs.list(layout.LOG)
    names_peak = peak_mib() - begin
    with timed("pin s"):
        pin = pinned.pin("synthetic")
    with timed("plan s"):
        whole = prefixes.make_prefix("synthetic", pinned=pin, roots=False)
    with timed("divide s"):
        tasks = divide(whole.slices, PARTS)
    first = 1_700_000_000 + count // LABELS * ENTRIES // 2
    with timed("plan of an hour s"):
        hour = prefixes.make_prefix("synthetic", pinned=pin, roots=False, first_ts=first, last_ts=first + 3600)
    assert len(list(hour.slices)) <= LABELS * (3600 // ENTRIES + 3)
    with timed("pickle s"):
        sizes = [len(pickle.dumps(task)) for task in tasks]
    result |= {
        "tasks": len(tasks),
        "pickled MB": round(sum(sizes) / 1e6, 1),
        "largest task KB": round(max(sizes) / 1e3, 1),
        "memory MiB": round(peak_mib() - begin),
        "of it names MiB": round(names_peak),
    }
    result["µs per chunk"] = round(
        1e6 * sum(result[name] for name in ("pin s", "plan s", "divide s", "pickle s")) / count, 1
    )
    return result


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        sys.stdout.write(json.dumps(measured(int(sys.argv[2]))))
        return
    rows = []
    for count in map(int, sys.argv[1:] or ("10000", "100000", "1000000")):
        done = subprocess.run(
            [sys.executable, __file__, "--one", str(count)], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout))
    names = list(rows[0])
    for line in (names, ["---"] * len(names), *([row[name] for name in names] for row in rows)):
        sys.stdout.write("| " + " | ".join(map(str, line)) + " |\n")


if __name__ == "__main__":
    main()
