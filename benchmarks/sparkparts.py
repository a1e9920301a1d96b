"""What the benchmarks of the pipeline measure, each beside its limit, in a process of its own for each number of cores.

Limits run on as many plain processes as Spark has cores, without Spark, on the same cores: the process and all it
starts are bound to them. Limit and measurement take turns; medians are reported.
"""

import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
from benchmarks.sparkbench import (
    Bench,
    Figure,
    Limits,
    Rate,
    Touched,
    in_processes,
    rate_of,
    seconds_of,
    turns,
    warmed,
)
from benchmarks.sparklog import EVENTS, START, STATE, STATE_KEYS, Log, begin_of
from nacl.bindings import crypto_sign_open

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H, u64be
from veen.core.labels import stream_id_of
from veen.io.places import open_fs
from veen.lake.folds import run as run_fold
from veen.lake.folds import typed_frame
from veen.lake.folds.coverage import FoldCoverage
from veen.lake.folds.on_spark import NATIVE
from veen.lake.folds.planning import PlanName
from veen.lake.log.columns import ENTRIES, LEAN, arrow_schema, ddl, select_columns
from veen.lake.log.entries import DirectorySource, Level, ReadSpec, batches
from veen.lake.log.events import EventJob, make_prefix
from veen.lake.log.keys import KeyFile
from veen.lake.log.options import Options
from veen.lake.log.slices import Selection, Slice, divide, pack
from veen.lake.query import api
from veen.lake.query.descriptor import QueryDescriptor, normalise
from veen.lake.query.engine import execute, plan_query
from veen.lake.query.fields import timestamp
from veen.lake.query.on_spark import SparkSource
from veen.lake.query.tasks import QueryJob, group_batches, match_batches
from veen.lake.spark.audit import SparkEngine
from veen.lake.spark.runner import divide_timed, events_frame
from veen.lake.spark.session import spark_session
from veen.overlays.framework.stream import fold_events
from veen.overlays.kv import KvFold
from veen.verify.audit import AuditOptions, audit

__all__ = ["PARTS", "measured"]

_WARM_SECONDS: Final = 0.3
_VERIFY_SECONDS: Final = 1.0
_PARTITION_BYTES: Final = Options.of({"path": "."}).partition_bytes
_MAX_PREPARED: Final = 1_000_000  # entries: a gigabyte of batches
_PLANS: Final[tuple[PlanName, ...]] = ("native", "generic")
# What decides between two writes to a key (D-27), and what is kept of the last one.
_LATEST: Final = (
    "at", "ts", "stream_id", "epoch", "stream_seq", "leaf_hash", "value", "client_id", "expires_at",
)  # fmt: skip


# --- reading -------------------------------------------------------------------------------------------------

_READS: Final[tuple[tuple[str, Level, tuple[str, ...]], ...]] = (
    ("read, all columns, hashes checked", "hash", tuple(column.name for column in ENTRIES)),
    ("read, lean columns, hashes checked", "hash", tuple(column.name for column in LEAN)),
    ("read, all columns, unchecked", "none", tuple(column.name for column in ENTRIES)),
    ("read, two columns, unchecked", "none", ("label", "stream_seq")),
)


def _decode(path: str, task: tuple[Slice, ...], level: Level, names: tuple[str, ...]) -> int:
    """What a task of the source does, and nothing around it."""
    fs, spec = open_fs(path), ReadSpec(columns=select_columns(names, ENTRIES), level=level)
    return sum(batch.num_rows for part in task for batch in batches(fs, part, spec))


def _prepare(path: str, task: tuple[Slice, ...], names: tuple[str, ...], to: str) -> None:
    """The batches of a task in a file from which they can be mapped into memory."""
    fs, wanted = open_fs(path), select_columns(names, ENTRIES)
    with pa.OSFile(to, "wb") as file, pa.ipc.new_file(file, arrow_schema(wanted)) as writer:
        for part in task:
            for batch in batches(fs, part, ReadSpec(columns=wanted, level="none")):
                writer.write_batch(batch)


def _batches_source() -> type:
    """A Python source of Spark that has its batches already. A local class: workers cannot import this module."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class BatchesReader(DataSourceReader):  # type: ignore[misc]  # PySpark has no types for it
        def __init__(self, folder: str) -> None:
            self._folder = folder

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            reader = pa.ipc.open_file(pa.memory_map(partition.value))
            return (reader.get_batch(number) for number in range(reader.num_record_batches))

    class BatchesSource(DataSource):  # type: ignore[misc]  # as above
        @classmethod
        def name(cls) -> str:
            return "batches"

        def reader(self, schema: Any) -> DataSourceReader:
            return BatchesReader(self.options["path"])

    return BatchesSource


def _by_parts(
    bench: Bench, folder: str, tasks: list[tuple[Any, ...]], schema: str, plain: Callable[[], Rate]
) -> Callable[[], Rate]:
    """A limit: what the decoder takes alone, and what Spark takes for batches that are there already."""
    bench.pool.starmap(
        _prepare, [(path, task, names, f"{folder}/{at:06}") for at, (path, task, _, names) in enumerate(tasks)]
    )
    bench.spark.dataSource.register(_batches_source())

    def read_batches() -> None:
        bench.spark.read.format("batches").schema(schema).load(folder).write.format("noop").mode("overwrite").save()

    warmed(read_batches)

    def rate() -> Rate:
        decoder, spark = plain(), rate_of(bench.log.entries, read_batches)
        return Rate(*(1 / (1 / a + 1 / b) for a, b in zip(decoder, spark, strict=True)))

    return rate


def read(bench: Bench) -> Iterator[Figure]:
    for name, level, names in _READS:
        schema = ddl(select_columns(names, ENTRIES))

        def tasks(log: Log, level: Level = level, names: tuple[str, ...] = names) -> list[tuple[Any, ...]]:
            source = DirectorySource(log.path)
            slices = source.slices(source.pin(Selection()), Selection())
            return [(log.path, task, level, names) for task in pack(slices, _PARTITION_BYTES)]

        def on_spark(log: Log = bench.log, level: Level = level, schema: str = schema) -> None:
            frame = bench.spark.read.format("veen").option("verify", level).schema(schema).load(log.path)
            frame.write.format("noop").mode("overwrite").save()

        warmed(on_spark)
        plain = in_processes(bench, _decode, tasks, bench.log.entries)
        parquet = _parquet(bench, bench.log, names)
        warmed(parquet)
        limits = {name: plain, f"{name}; limit: Spark over Parquet": parquet}
        with tempfile.TemporaryDirectory(prefix="veen-bench-batches-") as folder:
            if bench.log.entries <= _MAX_PREPARED:
                by_parts = _by_parts(bench, folder, tasks(bench.log), schema, plain)
                limits[f"{name}; limit: decoder and Spark, each alone"] = by_parts
            yield from turns(bench, "entries", bench.log.entries, on_spark, limits)


def _parquet(bench: Bench, log: Log, names: tuple[str, ...]) -> Callable[[], Rate]:
    """The same columns, read by Spark from Parquet (ZSTD): columnar in the JVM, nothing checked. Kept with the log."""
    path = Path(log.path).parent / "entries.parquet"
    if not (path / "_SUCCESS").exists():
        frame = bench.spark.read.format("veen").option("verify", "none").option("columns", "all").load(log.path)
        frame.write.mode("overwrite").option("compression", "zstd").parquet(str(path))

    def read_columns() -> None:
        bench.spark.read.parquet(str(path)).select(*names).write.format("noop").mode("overwrite").save()

    return lambda: rate_of(log.entries, read_columns)


# --- auditing ------------------------------------------------------------------------------------------------


def _verify(seconds: float) -> Rate:
    """Bare verifications, on one thread. Of many signatures: a processor learns the branches of one."""
    key = SigningKey(H(b"bare"))
    digests = [H(u64be(number)) for number in range(500)]
    signed = [key.sign(digest) + digest for digest in digests]
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        for signature in signed:
            crypto_sign_open(signature, key.public)
        done += len(signed)
    return Rate(done / (time.perf_counter() - began), done / (time.process_time() - cpu))


def audits(bench: Bench) -> Iterator[Figure]:
    def run(log: Log = bench.log) -> None:
        result = audit(log.path, AuditOptions(), engine=SparkEngine(bench.spark))
        assert result.ok
        assert result.counts["signatures"] >= 2 * log.entries  # and those of checkpoints and control records

    def one_thread() -> Rate:
        rate = bench.pool.apply(_verify, (_VERIFY_SECONDS,))
        return rate._replace(wall=bench.cores * rate.wall)

    def together() -> Rate:
        rates = bench.pool.map(_verify, [_VERIFY_SECONDS] * bench.cores, chunksize=1)
        return Rate(sum(rate.wall for rate in rates), sum(rate.cpu for rate in rates) / len(rates))

    warmed(lambda: run(bench.small))
    limits: Limits = {"audit; limit: cores × one thread": one_thread}
    if bench.cores > 1:
        limits["audit; limit: all cores at once"] = together
    yield from turns(bench, "signatures", 2 * bench.log.entries, run, limits)


# --- querying ------------------------------------------------------------------------------------------------

_ALL: Final = {"scope": [EVENTS], "filter": {}, "evidence": {"mode": "none"}}
_QUERIES: Final = {
    "query, three fields of all events": _ALL | {"projection": ["subject_id", "event_type", "payload.ms"]},
    "query, count and mean by origin": _ALL
    | {
        "projection": ["origin"],
        "aggregate": {"group_by": ["origin"], "metrics": ["count", "avg(payload.ms)"]},
    },
}


class _Nowhere:
    def row(self, row: bytes) -> None:
        """Only its hash is of interest."""

    evidence = row


def _open(job: QueryJob, slices: list[Slice]) -> int:
    """What a task of a query does, and nothing around it."""
    run = match_batches if job.descriptor.aggregate is None else group_batches
    return sum(batch.num_rows for batch in run(job, slices))


def _answer(bench: Bench, log: Log, asked: QueryDescriptor) -> int:
    """On Spark, to the digest; rows are hashed and forgotten."""
    plan = plan_query(log.path, asked)
    source = SparkSource(bench.spark, plan, asked, log.keys)
    outcome = execute(plan, asked, "r-bench", source, _Nowhere(), now=lambda: 0)
    assert not outcome.coverage.skipped
    return outcome.digest.row_count


def _events(log: Log) -> int:
    return (log.entries + 1) // 2  # every second entry is one


def query(bench: Bench) -> Iterator[Figure]:
    for name, query in _QUERIES.items():
        asked = normalise(query).descriptor

        def tasks(log: Log, asked: QueryDescriptor = asked) -> list[tuple[Any, ...]]:
            plan = plan_query(log.path, asked)
            job = QueryJob(uri=plan.uri, descriptor=asked, identity=plan.identity, keys=log.keys)
            return [(job, slices) for slices in divide(plan.slices, 8 * bench.cores)]

        def on_spark(log: Log = bench.log, asked: QueryDescriptor = asked) -> None:
            _answer(bench, log, asked)

        warmed(partial(on_spark, bench.small))
        plain = in_processes(bench, _open, tasks, _events(bench.log))
        yield from turns(bench, "events", _events(bench.log), on_spark, {name: plain})


# --- folding -------------------------------------------------------------------------------------------------


def _fold_alone(job: EventJob, slices: list[Slice]) -> int:
    """What a task of a fold does, and nothing around it: open, decode, fold."""
    coverage = FoldCoverage()
    fold_events(KvFold(), coverage.events(job.opener().events(open_fs(job.uri), slices)))
    return coverage.rows


def folds(bench: Bench) -> Iterator[Figure]:
    """From the log to a state, by both plans."""

    def tasks(log: Log) -> list[tuple[Any, ...]]:
        prefix = make_prefix(log.path, streams=[stream_id_of(STATE)])
        job = EventJob(prefix.uri, log.keys)
        return [(job, slices) for slices in divide_timed(None, prefix, 8 * bench.cores)]

    plain = in_processes(bench, _fold_alone, tasks, _writes(bench.log))
    for plan in _PLANS:

        def on_spark(log: Log = bench.log, plan: PlanName = plan) -> None:
            result = run_fold(log.path, KvFold(), keys=log.keys, streams=[STATE], spark=bench.spark, plan=plan)
            assert result.entries == _writes(log)
            assert not result.issues

        warmed(partial(on_spark, bench.small))
        yield from turns(bench, "writes", _writes(bench.log), on_spark, {f"fold of the log, {plan}": plain})


def _writes(log: Log) -> int:
    return log.entries // 2  # every second entry is one


def columns(bench: Bench) -> Iterator[Figure]:
    """From typed columns to a state, beside the same aggregation over plain columns."""
    from pyspark.sql import functions as F  # noqa: N812 - as everyone calls it

    typed, simple = _written(bench, bench.log)

    def native() -> None:
        state = NATIVE[KvFold](bench.spark.read.parquet(typed), FoldCoverage(), "bench")
        assert len(state) <= STATE_KEYS

    def plain() -> None:
        last = F.max(F.struct(*_LATEST)).alias("last")
        table = bench.spark.read.parquet(simple).groupBy("key").agg(last).toArrow()
        assert table.num_rows <= STATE_KEYS

    warmed(plain)
    warmed(native)
    limits: Limits = {"fold of typed columns, native": lambda: rate_of(_writes(bench.log), plain)}
    yield from turns(bench, "writes", _writes(bench.log), native, limits)


def _written(bench: Bench, log: Log) -> tuple[str, str]:
    """The bodies as columns, in Parquet: as the fold has them, and as plain integers. Kept with the log.

    Both have the same rows in as many files: seven files take longer than two.
    """
    root = Path(log.path).parent
    typed, simple = root / "typed-3", root / "plain-3"  # counts up with the columns of typed rows
    if not (root / "plain-3.done").exists():
        frame = events_frame(bench.spark, make_prefix(log.path, streams=[stream_id_of(STATE)]), log.keys)
        typed_frame(frame, KvFold()).write.mode("overwrite").parquet(str(typed))
        names = ("CAST(at AS BIGINT) AS at", "CAST(expires_at AS BIGINT) AS expires_at")
        shutil.rmtree(simple, ignore_errors=True)
        for file in sorted(typed.glob("*.parquet")):
            plain = bench.spark.read.parquet(str(file)).selectExpr("key", *_LATEST[1:-1], *names)
            plain.coalesce(1).write.mode("append").parquet(str(simple))
        (root / "plain-3.done").touch()
    return str(typed), str(simple)


# --- what a selective query touches --------------------------------------------------------------------------


def _opened_and_read(path: str, given: dict[str, Any], keys: KeyFile, small: str) -> tuple[int, int]:
    """Files of the log that one process really opens for a query, and bytes that it really reads.

    Over a small log first: what is loaded only once, modules and keys, is not of the query.
    """
    opened: set[str] = set()
    counting = True

    def hook(event: str, found: tuple[Any, ...]) -> None:
        if counting and event == "open" and str(found[0]).startswith(path):
            opened.add(str(found[0]))

    api.run(small, given, keys=keys, store=None)
    sys.addaudithook(hook)
    before = _bytes_read()
    api.run(path, given, keys=keys, store=None)
    counting = False
    return len(opened), _bytes_read() - before


def _bytes_read() -> int:
    match = re.search(r"^rchar: (\d+)$", Path("/proc/self/io").read_text("ascii"), re.MULTILINE)
    assert match is not None
    return int(match[1])


def touched(bench: Bench) -> Iterator[Touched]:
    """The same query over all events, and over one percent of the time, without and with evidence."""
    log = bench.log
    first = begin_of(log.entries // 2)
    window = {"from": timestamp(first), "to": timestamp(first + max(1, (begin_of(log.entries) - START) // 100) - 1)}
    base = _QUERIES["query, three fields of all events"]
    asked = {
        "all events": base,
        "one percent of the time": base | {"filter": {"time": window}},
        "the same with full evidence": base | {"filter": {"time": window}, "evidence": {"mode": "full"}},
    }
    for name, query in asked.items():
        descriptor = normalise(query).descriptor
        files, size = bench.pool.apply(_opened_and_read, (log.path, query, log.keys, bench.small.path))
        rows = _answer(bench, log, descriptor)
        seconds = median(seconds_of(lambda d=descriptor: _answer(bench, log, d)) for _ in range(bench.rounds))  # type: ignore[misc]  # a lambda with a default
        yield Touched(name=name, rows=rows, files=files, megabytes=size / 1e6, seconds=seconds)
    entry_seconds = [seconds_of(lambda: _one_entry(bench)) for _ in range(bench.rounds + 1)][1:]
    name = "one entry, by the source: what every read costs"
    yield Touched(name=name, rows=1, files=None, megabytes=None, seconds=median(entry_seconds))


def _one_entry(bench: Bench) -> None:
    frame = bench.spark.read.format("veen").option("stream", STATE).option("toSeq", 1).load(bench.log.path)
    assert frame.count() == 1


# --- all of it -----------------------------------------------------------------------------------------------

PARTS: Final[dict[str, Callable[[Bench], Iterator[Figure | Touched]]]] = {
    "read": read,
    "audit": audits,
    "fold": folds,
    "columns": columns,
    "query": query,
    "touched": touched,
}


def measured(log: Log, small: Log, *, cores: int, rounds: int, parts: list[str]) -> dict[str, Any]:
    """Run the parts on the first `cores` cores of this machine; the figures of each."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])  # and all that is started from here on
    figures: dict[str, Any] = {}
    with multiprocessing.get_context("spawn").Pool(cores) as pool:
        pool.map(_verify, [_WARM_SECONDS] * cores, chunksize=1)
        spark = spark_session("veen bench", master=f"local[{cores}]", settings={"spark.driver.memory": "2g"})
        try:
            bench = Bench(spark=spark, pool=pool, cores=cores, rounds=rounds, log=log, small=small)
            for part in parts:
                began = time.monotonic()
                figures[part] = [asdict(figure) for figure in PARTS[part](bench)]
                print(f"{part}: took {time.monotonic() - began:,.0f} s", file=sys.stderr, flush=True)
        finally:
            spark.stop()
    return figures
