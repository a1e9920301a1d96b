"""What is in the tables, from the manifest alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from veen.pipeline.tables.log import TableLog
from veen.pipeline.tables.manifest import Head
from veen.pipeline.tables.reading import digest
from veen.pipeline.tables.store import TableStore

__all__ = ["Shown", "TableShown", "show"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShown:
    """One table."""

    table: str
    rows: int
    files: int
    size: int
    groups: int  # directories: stream and day, or folds
    digest: str | None = None  # of the canonical row stream, if asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """All tables of one place, at one version."""

    version: int
    hub: str | None
    tables: tuple[TableShown, ...]
    heads: Mapping[str, Head]
    states: Mapping[str, str]  # by fold: its state_hash
    replaced: int  # files that wait for `vacuum`


def show(to: str | TableStore, *, version: int | None = None, digests: bool = False) -> Shown:
    """`digests` reads every row, and so verifies every file."""
    log = TableLog(to)
    state = log.existing(version)
    found = []
    for table in state.files:
        files = state.of(table)
        found.append(
            TableShown(
                table=table,
                rows=sum(one.rows for one in files),
                files=len(files),
                size=sum(one.size for one in files),
                groups=len({one.group for one in files}),
                digest=digest(log, table, version=state.version) if digests else None,
            )
        )
    return Shown(
        version=state.version,
        hub=state.hub,
        tables=tuple(sorted(found, key=lambda one: one.table)),
        heads=dict(sorted(state.heads.items())),
        states={fold: meta["state_hash"] for fold, meta in sorted(state.meta.items())},
        replaced=len(state.dead),
    )
