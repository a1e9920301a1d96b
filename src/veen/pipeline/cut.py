"""Which rows of some entries are wanted, and in what form."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from veen.pipeline.columns import Column, arrow_schema
from veen.pipeline.errors import SourceDamaged

__all__ = ["Cut"]

_MAX_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Which rows of a run of entries are wanted, and in what form; bounds are inclusive."""

    columns: tuple[Column, ...]
    first: int = 0
    last: int | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    fail_fast: bool = False

    @property
    def wanted(self) -> set[str]:
        """The columns to make: those that were asked for, and those by which rows are chosen and named."""
        return {column.name for column in self.columns} | {"stream_seq", "hub_ts", "ok", "reason", "path"}

    def batches(self, table: pa.Table) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.columns)
        part = self._within(table)
        if self.fail_fast:
            _stop_at_damage(part)
        for batch in part.select(schema.names).to_batches(max_chunksize=_MAX_ROWS):
            yield batch.cast(schema) if batch.schema != schema else batch

    def _within(self, table: pa.Table) -> pa.Table:
        """A row whose time is not known may belong to any: it stays."""
        seqs = table.column("stream_seq")
        chosen = pc.greater_equal(seqs, self.first)
        if self.last is not None:
            chosen = pc.and_(chosen, pc.less_equal(seqs, self.last))
        times = table.column("hub_ts")
        if self.first_ts is not None:
            chosen = pc.and_(chosen, pc.fill_null(pc.greater_equal(times, self.first_ts), True))
        if self.last_ts is not None:
            chosen = pc.and_(chosen, pc.fill_null(pc.less_equal(times, self.last_ts), True))
        return table if pc.all(chosen).as_py() else table.filter(chosen)


def _stop_at_damage(table: pa.Table) -> None:
    bad = table.filter(pc.invert(table.column("ok")))
    if bad.num_rows:
        row = bad.slice(0, 1).to_pylist()[0]
        raise SourceDamaged(f"{row['path']}: entry {row['stream_seq']}: {row['reason']}")
