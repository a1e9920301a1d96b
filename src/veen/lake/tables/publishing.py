"""Tables as Delta and Iceberg without copies: the Parquet files are registered where they are.

One manifest becomes one commit, which has the version and the hash of the manifest: files that it adds are added there,
files that compaction or erasure replaced are removed. The published version is read from the lake table itself, so
publishing resumes where it ended, and does nothing if there is nothing new. The files of a lake table are compared with
the manifest each time: files that others added are removed, and files that they removed are added.

Metadata have counts and times only. Minima and maxima of other columns would be plaintext that outlives an erasure.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from veen.client.errors import ExtraMissing
from veen.io.inside import check_inside
from veen.io.stores import LocalStore, TableStore, open_store
from veen.lake.log.errors import PipelineError
from veen.lake.tables.errors import NoTable, TableDamaged
from veen.lake.tables.manifest import DataFile, TableLog, TableState
from veen.lake.tables.reading import ready_tables
from veen.lake.tables.schema import PARTITIONS, arrow_of, is_partitioned

LakeFormat = Literal["delta", "iceberg"]
LAKE_FORMATS: Final[tuple[LakeFormat, ...]] = ("delta", "iceberg")
DELTA_LOG: Final = "_delta_log"  # in the directory of a table
ICEBERG: Final = "iceberg"  # beside the tables: catalog.db, and the metadata of its tables
NAMESPACE: Final = "veen"
_VERSION: Final = "veen.manifest"
_DIGEST: Final = "veen.manifest-sha256"
_MS: Final = 1000
_S3: Final = ("s3", "s3a", "s3n")  # the last two as Hadoop calls it


class PublishRefused(PipelineError, code="E.USAGE"):
    """Tables that cannot be published at their place, or over an earlier publication."""

    hint = "See docs/tables.md for the conditions. The tables themselves are unchanged."


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """Result of publishing one lake table."""

    format: LakeFormat
    table: str
    location: str  # what readers are given
    manifest: int  # the version that it shows now
    commits: int
    added: int
    removed: int
    foreign: int = 0  # files that somebody else had added to, or removed from, the version that it showed


class LakePlace(NamedTuple):
    """Place of tables, in the form that libraries for lake tables expect."""

    uri: str  # a directory, or a URL without a query
    options: dict[str, str] | None = None  # of the store behind a URL; credentials come from the environment

    @property
    def is_local(self) -> bool:
        return self.options is None


def place_of(store: TableStore) -> LakePlace:
    """Return the place of tables. Raise PublishRefused for one that cannot hold lake tables."""
    if isinstance(store, LocalStore):
        return LakePlace(store.uri)
    parts = urlsplit(store.uri)
    if parts.scheme not in _S3:
        raise PublishRefused(f"{parts.scheme}: tables are published in directories and behind s3://, and nowhere else")
    if "@" in parts.netloc:
        raise PublishRefused("the URL holds credentials: give them by the environment (AWS_ACCESS_KEY_ID, …) instead")
    query = dict(parse_qsl(parts.query))
    endpoint = query.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"{query.get('scheme', 'https')}://{endpoint}"
    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": query.get("region", "")}
    if endpoint.startswith("http://"):
        options["AWS_ALLOW_HTTP"] = "true"
    path = parts.path.rstrip("/")
    return LakePlace(f"s3://{parts.netloc}{path}", {name: value for name, value in options.items() if value})


class LakeCommit(NamedTuple):
    """One manifest, as one table sees it."""

    version: int
    digest: str
    at_ms: int
    add: tuple[DataFile, ...]
    remove: tuple[DataFile, ...]
    is_rearranged: bool  # only compacted: the rows are the same

    @property
    def properties(self) -> dict[str, str]:
        return {_VERSION: str(self.version), _DIGEST: self.digest}


class LakeTable(Protocol):
    """A table of a lake format, opened or new."""

    location: str

    def manifest_version(self) -> int:
        """Return the version of the manifest that it shows; 0 for a new one."""

    def paths(self) -> set[str]:
        """Return its data files, relative to the tables."""

    def commit(self, change: LakeCommit) -> None: ...


def publish(
    to: str, formats: Iterable[LakeFormat] = LAKE_FORMATS, *, tables: Sequence[str] | None = None
) -> list[PublishedTable]:
    """Bring the lake tables up to the manifests. Raise PublishRefused, NoTable, TableDamaged or ExtraMissing."""
    log = TableLog(to)
    place, wanted = place_of(log.store), tuple(formats)
    if "iceberg" in wanted and not place.is_local:
        raise PublishRefused(
            f"{place.uri}: an Iceberg catalog is a SQLite file, which a bucket cannot hold; publish --delta there"
        )
    state = log.require_state()
    names = _select_tables(state, tables)
    lakes = [(name, kind, open_lake(kind, place, name)) for kind in wanted for name in names]
    done: dict[tuple[str, LakeFormat], tuple[int, int, int]] = {(name, kind): (0, 0, 0) for name, kind, _ in lakes}
    for _, _, lake in lakes:
        if lake.manifest_version() > state.version:
            raise PublishRefused(
                f"{lake.location}: shows version {lake.manifest_version()}, the tables have {state.version}"
            )
    first = min((lake.manifest_version() for _, _, lake in lakes), default=state.version) + 1
    foreign = {(name, kind): _count_foreign(log, name, lake) for name, kind, lake in lakes}
    for at in _states(log, first, state):
        for name, kind, lake in lakes:
            change = _change(log.store, name, lake, at, is_last=at.version == state.version)
            if change is not None:
                lake.commit(change)
                commits, added, removed = done[name, kind]
                done[name, kind] = commits + 1, added + len(change.add), removed + len(change.remove)
    return [
        PublishedTable(
            format=kind,
            table=name,
            location=lake.location,
            manifest=state.version,
            commits=done[name, kind][0],
            added=done[name, kind][1],
            removed=done[name, kind][2],
            foreign=foreign[name, kind],
        )
        for name, kind, lake in lakes
    ]


def _select_tables(state: TableState, tables: Sequence[str] | None) -> list[str]:
    ready = [name for name in ready_tables(state) if state.of(name)]
    if tables is None:
        return ready
    if strange := [name for name in tables if name not in ready]:
        raise NoTable(f"{strange[0]}: there is no such table with files; there are {', '.join(ready) or 'none'}")
    return [name for name in ready if name in tables]


def _states(log: TableLog, first: int, last: TableState) -> Iterator[TableState]:
    """Yield each version that can still be read, and always the last.

    A vacuum removes old manifests, and then several become one commit. The last is compared even with lake tables that
    show it.
    """
    for version in range(first, last.version):
        try:
            yield log.state(version)
        except (NoTable, TableDamaged):
            continue
    yield last


def _count_foreign(log: TableLog, table: str, lake: LakeTable) -> int:
    """Count the files by which a lake table differs from the manifest that it shows."""
    if not lake.manifest_version():
        return 0
    try:
        state = log.state(lake.manifest_version())
    except (NoTable, TableDamaged):
        return 0  # a vacuum has removed it: what it named is not known any more
    return len({file.path for file in state.of(table)} ^ lake.paths())


def _change(store: TableStore, table: str, lake: LakeTable, state: TableState, *, is_last: bool) -> LakeCommit | None:
    """Return the change of a version; None for nothing, or if its files are gone again, as after an erasure."""
    if state.version <= lake.manifest_version() and not is_last:
        return None
    present = lake.paths()
    target = {file.path: file for file in state.of(table)}
    add = tuple(target[path] for path in sorted(target.keys() - present))
    remove = tuple(DataFile(path, 0, 0, "", _group(path)) for path in sorted(present - target.keys()))
    if not add and not remove:
        return None
    for file in add:
        if not store.has(file.path):
            if is_last:
                raise TableDamaged(f"{file.path}: is missing")
            return None
    reasons = [state.dead.get(file.path) for file in remove]
    is_rearranged = bool(remove) and all(dead is not None and dead.why == "compact" for dead in reasons)
    at_ms = max((dead.at for dead in reasons if dead is not None), default=max((f.last_ts for f in add), default=0))
    return LakeCommit(state.version, state.digest or "", at_ms * _MS, add, remove, is_rearranged)


def _group(path: str) -> str:
    return "/".join(path.split("/")[1:-1])


def open_lake(kind: LakeFormat, place: LakePlace, table: str) -> LakeTable:
    """Open a lake table, existing or new."""
    return DeltaLake(place, table) if kind == "delta" else IcebergLake(Path(place.uri), table)


# --- Delta ---------------------------------------------------------------------------------------------------------


class DeltaLake:
    """A Delta table in the directory of a table, partitioned by `sid` and `day`."""

    def __init__(self, place: LakePlace, table: str) -> None:
        try:
            import deltalake
        except ImportError as exc:
            raise ExtraMissing("lake", "Delta tables") from exc
        import pyarrow as pa

        self._delta: Any = deltalake
        self._table, self.location, self._options = table, f"{place.uri}/{table}", place.options
        self._partitions = [column.name for column in PARTITIONS] if is_partitioned(table) else []
        own = [pa.field(column.name, column.arrow) for column in PARTITIONS if column.name in self._partitions]
        self._schema = deltalake.Schema.from_arrow(pa.schema([*arrow_of(table), *own]))
        if place.is_local:
            check_inside(Path(place.uri), f"{table}/{DELTA_LOG}")
        self._lake = self._open() if deltalake.DeltaTable.is_deltatable(self.location, self._options) else None
        if self._lake is not None and self._lake.schema().to_json() != self._schema.to_json():
            raise PublishRefused(f"{self.location}: was published with other columns; remove {DELTA_LOG} there first")

    def _open(self) -> Any:
        return self._delta.DeltaTable(self.location, storage_options=self._options)

    def manifest_version(self) -> int:
        return 0 if self._lake is None else int(self._lake.transaction_version(NAMESPACE) or 0)

    def paths(self) -> set[str]:
        if self._lake is None:
            return set()
        actions = self._lake.get_add_actions(flatten=True)
        return {f"{self._table}/{path}" for path in actions.column("path").to_pylist()}

    def commit(self, change: LakeCommit) -> None:
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        data_change = not change.is_rearranged
        add = [
            AddAction(self._relative(file), file.size, self._values(file), change.at_ms, data_change, self._stats(file))
            for file in change.add
        ]
        remove = [
            RemoveAction(self._relative(file), data_change, change.at_ms, None, self._values(file))
            for file in change.remove
        ]
        properties = CommitProperties(
            custom_metadata=change.properties, app_transactions=[Transaction(NAMESPACE, change.version)]
        )
        if self._lake is None:
            self._delta.transaction.create_table_with_add_actions(
                self.location,
                self._schema,
                add,
                "error",
                self._partitions,
                self._table,
                storage_options=self._options,
                commit_properties=properties,
            )
            self._lake = self._open()
            return
        self._lake.create_write_transaction(
            [*add, *remove], "append", self._schema, self._partitions, commit_properties=properties
        )
        self._lake.update_incremental()

    def _relative(self, file: DataFile) -> str:
        return file.path.removeprefix(f"{self._table}/")

    def _values(self, file: DataFile) -> dict[str, str | None]:
        pairs = (part.partition("=") for part in file.group.split("/"))
        return {name: value for name, _, value in pairs if name in self._partitions}

    def _stats(self, file: DataFile) -> str:
        if not self._partitions:
            return json.dumps({"numRecords": file.rows})
        bounds = {"minValues": {"ts": file.first_ts}, "maxValues": {"ts": file.last_ts}}
        return json.dumps({"numRecords": file.rows, **bounds, "nullCount": {"ts": 0}})


# --- Iceberg -------------------------------------------------------------------------------------------------------


def iceberg_catalog(to: str) -> Any:
    """Open the catalog of published tables: SQLite beside them, tables in the namespace `veen`."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as exc:
        raise ExtraMissing("lake", "Iceberg tables") from exc
    root = Path(open_store(to).uri) / ICEBERG
    root.mkdir(mode=0o700, exist_ok=True)
    return SqlCatalog(NAMESPACE, uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}")


class IcebergLake:
    """A table of the catalog beside the tables. It has no partitions: the files lack these columns."""

    def __init__(self, root: Path, table: str) -> None:
        check_inside(root, f"{ICEBERG}/catalog.db")
        self._root, self._name = root, (NAMESPACE, table)
        self._catalog = iceberg_catalog(str(root))
        self.location = f"{root / ICEBERG / 'catalog.db'}#{NAMESPACE}.{table}"
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        self._arrow = arrow_of(table)
        self._lake: Any = self._catalog.load_table(self._name) if self._catalog.table_exists(self._name) else None
        if self._lake is not None and self._lake.schema().column_names != self._arrow.names:
            raise PublishRefused(f"{self.location}: was published with other columns; drop it from the catalog first")

    def manifest_version(self) -> int:
        snapshot = None if self._lake is None else self._lake.current_snapshot()
        return 0 if snapshot is None else int(snapshot.summary.additional_properties.get(_VERSION, 0))

    def _files(self) -> dict[str, Any]:
        """Return the files by path relative to the tables."""
        if self._lake is None:
            return {}
        prefix = f"file://{self._root}/"
        return {task.file.file_path.removeprefix(prefix): task.file for task in self._lake.scan().plan_files()}

    def paths(self) -> set[str]:
        return set(self._files())

    def commit(self, change: LakeCommit) -> None:
        from pyiceberg.io.pyarrow import parquet_files_to_data_files
        from pyiceberg.table import TableProperties

        if self._lake is None:
            self._lake = self._catalog.create_table(self._name, self._arrow, properties=_properties(self._name[1]))
        present = self._files()
        with self._lake.transaction() as transaction:
            if self._lake.metadata.name_mapping() is None:  # our files have no field ids
                mapping = self._lake.schema().name_mapping.model_dump_json()
                transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
            added = (f"file://{self._root}/{file.path}" for file in change.add)
            with transaction.update_snapshot(snapshot_properties=change.properties).overwrite() as snapshot:
                for file in change.remove:
                    snapshot.delete_data_file(present[file.path])
                for data_file in parquet_files_to_data_files(self._lake.io, transaction.table_metadata, added):
                    snapshot.append_data_file(data_file)


def _properties(table: str) -> dict[str, str]:
    """Return table properties: bounds of `ts` only, counts of the other columns."""
    properties = {"write.metadata.metrics.default": "counts"}
    if is_partitioned(table):
        properties["write.metadata.metrics.column.ts"] = "full"
    return properties
