"""A real log of very many small chunk files, through the real planner, and one small query of it on Spark.

    python -m benchmarks.many_chunks [CHUNKS]        # default: 100000

Entries are those of `sparklog`; each is put into a chunk file of its own, with the frame it had. Planning runs in a
process of its own: seconds are of CPU, memory is what it has at most beyond what it began with. The directory is kept
between runs.
"""

import json
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.sparklog import EVENTS, built

from veen.io.local import OsFs
from veen.lake.log.columns import ENTRIES
from veen.lake.log.options import Options
from veen.lake.log.slices import divide
from veen.lake.query import api
from veen.lake.query.descriptor import QueryDescriptor, normalise
from veen.lake.query.engine import plan_query, skip_missing
from veen.lake.query.fields import timestamp
from veen.storage import layout
from veen.storage.pinned import pin
from veen.storage.scan import chunk_frames, inventory

PARTS = 200
SECONDS = 30  # of the small query


def split(chunks: int) -> tuple[Path, Any, int]:
    """The directory, the keys of its reader, and the hub's time in the middle."""
    log = built(chunks)
    root = Path(tempfile.gettempdir()) / f"veen-bench-chunks-{chunks}"
    if not (root / "done").exists():
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(log.path, root / "hub", ignore=lambda path, names: names if path.endswith("/log") else [])
        shutil.copy(Path(log.path, layout.CONTROL), root / "hub" / layout.CONTROL)
        source = OsFs(Path(log.path))
        for files in inventory(source).values():
            for file in files:
                if file.kind in ("chunk", "active"):
                    for _, entry in chunk_frames(source, file.path):
                        name = layout.chunk(entry.label, entry.stream_seq, entry.stream_seq)
                        (root / "hub" / name).write_bytes(entry.to_bytes())
        (root / "done").touch()
    return root / "hub", log.keys, 1_700_000_000 + chunks // 200


def asked(middle: int | None = None) -> QueryDescriptor:
    bounds = {} if middle is None else {"time": {"from": timestamp(middle), "to": timestamp(middle + SECONDS)}}
    query = {"query_id": "q-bench", "scope": [EVENTS], "filter": bounds, "projection": ["payload.n"]}
    return normalise(query | {"evidence": {"mode": "none"}}).descriptor


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def planned(path: str, middle: int) -> dict[str, Any]:
    result: dict[str, Any] = {"files": sum(1 for _ in Path(path, "log").iterdir())}
    begin = peak_mib()

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        result[name] = round(time.process_time() - started, 2)

    with timed("pin"):
        pinned = pin(path)
    with timed("plan"):
        prefix = plan_query(path, asked())
    with timed("divide"):
        tasks = divide(skip_missing(prefix.slices), PARTS)
    with timed("pickle"):
        size = sum(len(pickle.dumps(task)) for task in tasks)
    result |= {
        "chunks": sum(len(label.chunks) for label in pinned.labels.values()),
        "to tasks MB": round(size / 1e6, 1),
    }
    result["memory MiB"] = round(peak_mib() - begin)
    with timed("source pickle"):
        result["source MB"] = round(len(pickle.dumps(pinned)) / 1e6, 1)
    with timed(f"plan of {SECONDS} s"):
        few = plan_query(path, asked(middle))
    result["of them"] = sum(1 for _ in few.slices)
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from veen.lake.spark.source import EntryStream

    stream = EntryStream(Options.of({"path": path}), ENTRIES)
    with timed("stream, first look"):
        first = stream.latestOffset({"heads": {}}, ReadAllAvailable())
    with timed("stream, next look"):
        stream.partitions(first, stream.latestOffset(first, ReadAllAvailable()))
    return result


class Nowhere:
    def row(self, row: bytes) -> None:
        """Only the digest is of interest."""

    evidence = row


def main() -> None:
    if sys.argv[1:2] == ["--plan"]:
        sys.stdout.write(json.dumps(planned(sys.argv[2], int(sys.argv[3]))))
        return
    path, keys, middle = split(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.many_chunks", "--plan", str(path), str(middle)],
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout)
    for name, value in result.items():
        sys.stdout.write(f"{name}: {value}\n")
    sys.stdout.flush()
    from veen.lake.spark.session import spark_session

    spark = spark_session("veen many chunks", master="local[2]", register=False)
    settings: dict[str, Any] = {"result_id": "r-bench", "keys": keys, "now": lambda: 0}
    digests = []
    for engine in ("python", "spark", "spark"):
        begin, wall = time.process_time(), time.perf_counter()
        more: dict[str, Any] = {"engine": engine, "spark": spark if engine == "spark" else None}
        outcome = api.answer_into(Nowhere(), str(path), asked(middle), **settings, **more)
        digests.append(outcome.digest)
        spent = f"{time.process_time() - begin:.2f} s of driver, {time.perf_counter() - wall:.2f} s"
        sys.stdout.write(f"query of {SECONDS} s, {engine}: {outcome.digest.row_count} rows, {spent}\n")
    assert len(set(digests)) == 1
    spark.stop()


if __name__ == "__main__":
    main()
