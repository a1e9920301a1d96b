"""A summary of the tables, from the manifest alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from veen.io.stores import TableStore
from veen.lake.tables.log import TableLog
from veen.lake.tables.manifest import TableHead
from veen.lake.tables.reading import digest


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShown:
    """Summary of one table."""

    table: str
    rows: int
    files: int
    size: int
    groups: int  # directories: stream and day, or folds
    digest: str | None = None  # of the canonical row stream, if asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Summary of all tables of one place at one version."""

    version: int
    hub: str | None
    tables: tuple[TableShown, ...]
    heads: Mapping[str, TableHead]
    states: Mapping[str, str]  # by fold: its state_hash
    replaced: int  # files that wait for `vacuum`
    indexes: tuple[str, ...] = ()  # paths of payloads


def show(to: str | TableStore, *, version: int | None = None, digests: bool = False) -> Shown:
    """Summarize the tables. With `digests` read every row, and so verify every file."""
    log = TableLog(to)
    state = log.require_state(version)
    infos = []
    for table in state.files:
        files = state.of(table)
        infos.append(
            TableShown(
                table=table,
                rows=sum(file.rows for file in files),
                files=len(files),
                size=sum(file.size for file in files),
                groups=len({file.group for file in files}),
                digest=digest(log, table, version=state.version) if digests else None,
            )
        )
    return Shown(
        version=state.version,
        hub=state.hub,
        tables=tuple(sorted(infos, key=lambda file: file.table)),
        heads=dict(sorted(state.heads.items())),
        states={fold: meta["state_hash"] for fold, meta in sorted(state.meta.items())},
        replaced=len(state.dead),
        indexes=state.indexes,
    )
