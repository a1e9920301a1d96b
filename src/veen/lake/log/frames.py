"""A log as Arrow, Polars or DuckDB tables, in one process: the rows of `format("veen")` without Spark and without Java.

    from veen.lake.log.frames import register_duckdb, to_arrow, to_polars
    to_polars("./hub", keys="reader.keys", stream="record/app/http")
    register_duckdb(duckdb.connect(), "entries", "./hub", keys="reader.keys")

Options are those of the source (docs/pipeline.md), in any case, and mean the same: a pinned prefix, levels of checking,
columns, bounds of positions and times. Rows stand by label and position.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from veen.client.errors import ExtraMissing
from veen.lake.log import columns
from veen.lake.log.columns import Column, arrow_schema
from veen.lake.log.entries import DirectorySource, LogSource, ReadSpec
from veen.lake.log.keys import KeyFile
from veen.lake.log.opened import OPENED, OPENED_LEAN, open_slices
from veen.lake.log.options import Options

if TYPE_CHECKING:
    import duckdb
    import polars


def arrow_batches(place: str, *, keys: str | KeyFile | None = None, **options: object) -> pa.RecordBatchReader:
    """Return the rows of a directory or a hub (`http://…`) as a stream of batches; memory stays bounded."""
    asked = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    asked["hub" if place.startswith(("http://", "https://")) else "path"] = place
    if keys is not None:
        asked["keys"] = str(Path(keys.path if isinstance(keys, KeyFile) else keys).absolute())
    parsed = Options.of(asked)
    every, lean = (columns.ENTRIES, columns.LEAN) if parsed.keys is None else (OPENED, OPENED_LEAN)
    wanted = columns.parse_columns(parsed.columns, every, lean)
    return pa.RecordBatchReader.from_batches(arrow_schema(wanted), _batches(parsed, wanted))


def to_arrow(place: str, *, keys: str | KeyFile | None = None, **options: object) -> pa.Table:
    """Read all rows into memory."""
    return arrow_batches(place, keys=keys, **options).read_all()


def to_polars(place: str, *, keys: str | KeyFile | None = None, **options: object) -> "polars.DataFrame":
    """Read all rows into a Polars DataFrame. Requires the extra lake."""
    return polars_frame(to_arrow(place, keys=keys, **options))


def register_duckdb(
    connection: "duckdb.DuckDBPyConnection",
    name: str,
    place: str,
    *,
    keys: str | KeyFile | None = None,
    **options: object,
) -> None:
    """Register a view `name` over all rows for SQL of that connection.

    The view is one pinned prefix, held in memory.
    """
    connection.register(name, to_arrow(place, keys=keys, **options))


def polars_frame(table: pa.Table) -> "polars.DataFrame":
    """Convert a table to Polars. Raise ExtraMissing if Polars is not installed."""
    try:
        import polars
    except ImportError as exc:
        raise ExtraMissing("lake", "DataFrames of Polars") from exc
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)  # noqa: S101 - of a table, not of an array
    return frame


def _batches(options: Options, wanted: tuple[Column, ...]) -> Iterator[pa.RecordBatch]:
    source = _source(options)
    pinned = source.pin(options.selection)
    spec = ReadSpec(
        columns=wanted,
        level=options.level,
        identity=pinned.identity,
        first_ts=options.selection.first_ts,
        last_ts=options.selection.last_ts,
        fail_fast=options.fail_fast,
    )
    slices = source.slices(pinned, options.selection)
    if options.keys is not None:
        return open_slices(source, slices, spec, options.keys)
    return source.read(slices, spec)


def _source(options: Options) -> LogSource:
    if options.hub is not None:
        from veen.lake.log.remote import RemoteHub

        return RemoteHub(options.hub, options.partition_bytes)
    assert options.path is not None  # noqa: S101 - there is exactly one of them
    return DirectorySource(options.path)
