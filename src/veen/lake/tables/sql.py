"""SQL over typed tables and states by DuckDB: one SELECT, and a digest that others can compute again.

Files are read here, each checked against its hash in the manifest, and passed to DuckDB as tables in memory. DuckDB
itself has no access to files, the network, extensions or objects of this process, and its settings are locked.

The result is a function of the statement, the version of the tables and DuckDB: one thread, UTC, rows in logical order.
Rows without an ORDER BY have no order in SQL: they are sorted by their canonical JSON. Text is compared by its bytes.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Self

import pyarrow as pa

from veen.client.errors import ExtraMissing
from veen.core import canonical
from veen.core.canonical import InvalidJson, Json
from veen.io.stores import TableStore
from veen.lake.log.errors import PipelineError
from veen.lake.query.descriptor import new_result_id
from veen.lake.query.digest import RowsHash
from veen.lake.query.fields import timestamp
from veen.lake.tables.errors import NoTable, TableDamaged
from veen.lake.tables.manifest import TableLog, TableState
from veen.lake.tables.parts import read_part
from veen.lake.tables.reading import ready_tables, select_files
from veen.lake.tables.schema import COLUMNS, arrow_of, is_partitioned

MAX_ROWS: Final = 1_000_000
_MAX_SQL: Final = 64 * 1024
_MAX_TABLE_BYTES: Final = 2 << 30  # of Parquet: the tables of a statement are held in memory
_FETCH: Final = 1_000
_ORDER: Final = [(name, "ascending") for name in ("ts", "stream_id", "epoch", "stream_seq", "leaf_hash")]
_SETTINGS: Final = (
    "SET TimeZone = 'UTC'",
    "SET threads = 1",
    "SET python_enable_replacements = false",
    "SET memory_limit = '4GB'",
    "SET temp_directory = ''",
    "SET allow_community_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",  # the last one
)


class SqlRefused(PipelineError, code="E.USAGE"):
    """A statement that is not a single SELECT over the tables, or that DuckDB rejects."""

    hint = (
        "Write one SELECT over typed tables and states; `veen table show TABLES` lists them, docs/typed-tables.md has "
        "their columns."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlDigest:
    """Record of a result: enough to execute it again and to compare."""

    result_id: str
    sql: str
    manifest_version: int
    manifest_digest: str
    hub_id: str | None
    engine: str
    row_count: int
    rows_hash: str
    executed_at: str

    def to_json(self) -> dict[str, Json]:
        names = self.__dataclass_fields__
        return {"version": 1, **{name: getattr(self, name) for name in names}}

    def to_bytes(self) -> bytes:
        return canonical.encode(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse a digest. Raise TableDamaged if it is invalid."""
        try:
            value = canonical.parse(data)
            digest = cls(**{name: value[name] for name in cls.__dataclass_fields__})
        except (InvalidJson, KeyError, TypeError) as exc:
            raise TableDamaged(f"no digest of a SQL result: {exc}") from exc
        numbers = (digest.manifest_version, digest.row_count)
        texts = (digest.result_id, digest.sql, digest.manifest_digest, digest.rows_hash)
        if not all(type(number) is int for number in numbers) or not all(type(text) is str for text in texts):
            raise TableDamaged("no digest of a SQL result: a member is of the wrong type")
        return digest


@dataclass(frozen=True, slots=True)
class SqlResult:
    columns: tuple[str, ...]
    rows: tuple[bytes, ...]  # canonical JSON, in the order of the result
    digest: SqlDigest


def sql_tables(state: TableState) -> tuple[str, ...]:
    """Return the typed tables and states that are complete at this version and whose overlays are installed."""
    return tuple(name for name in ready_tables(state) if name not in COLUMNS)


def run_sql(
    to: str | TableStore,
    sql: str,
    *,
    version: int | None = None,
    result_id: str | None = None,
    max_rows: int = MAX_ROWS,
    now: Callable[[], int] = lambda: int(time.time()),
) -> SqlResult:
    """Execute one SELECT over one version of the tables. Raise SqlRefused, NoTable or TableDamaged."""
    duckdb = _duckdb()
    if len(sql) > _MAX_SQL:
        raise SqlRefused(f"the statement has more than {_MAX_SQL} characters")
    log = TableLog(to)
    state = log.require_state(version)
    connection = duckdb.connect(
        ":memory:", config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    try:
        is_ordered = _check_select(duckdb, connection, sql)
        for name, rows in _read_inputs(log, state, sql):
            connection.register(name, rows)
        for setting in _SETTINGS:
            connection.execute(setting)
        cursor = connection.execute(sql)
        columns = tuple(description[0] for description in cursor.description)
        if len(set(columns)) != len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise SqlRefused(f"two columns of the result are named {twice!r}: give one of them another name with AS")
        encoded = [canonical.encode(row) for row in _fetch_rows(cursor, columns, max_rows)]
    except duckdb.Error as exc:
        raise SqlRefused(f"DuckDB: {exc}") from exc
    except InvalidJson as exc:
        raise SqlRefused(f"a value of the result has no form in JSON: {exc}") from exc
    finally:
        connection.close()
    if not is_ordered:
        encoded.sort()
    rows_hash = RowsHash()
    for row in encoded:
        rows_hash.add(row)
    digest = SqlDigest(
        result_id=result_id or new_result_id(),
        sql=sql,
        manifest_version=state.version,
        manifest_digest=state.digest or "",
        hub_id=state.hub,
        engine=f"duckdb {duckdb.__version__}",
        row_count=len(encoded),
        rows_hash=rows_hash.hexdigest(),
        executed_at=timestamp(now()),
    )
    return SqlResult(columns, tuple(encoded), digest)


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as exc:
        raise ExtraMissing("sql", "SQL over tables") from exc
    return duckdb


def _check_select(duckdb: Any, connection: Any, sql: str) -> bool:
    """Raise SqlRefused unless the text is one SELECT; return True if it has ORDER BY."""
    statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise SqlRefused(f"expected one statement; there are {len(statements)}")
    if statements[0].type != duckdb.StatementType.SELECT:
        raise SqlRefused(f"{statements[0].type.name} is refused: the tables are for reading")
    ((text,),) = connection.execute("SELECT CAST(json_serialize_sql(?) AS VARCHAR)", [sql]).fetchall()
    parsed = json.loads(text)
    if parsed.get("error"):
        raise SqlRefused("only SELECT is understood here")
    modifiers = parsed["statements"][0]["node"].get("modifiers", ())
    return any(modifier["type"] == "ORDER_MODIFIER" for modifier in modifiers)


def _read_inputs(log: TableLog, state: TableState, sql: str) -> Iterator[tuple[str, pa.Table]]:
    """Yield the tables that the statement names, in logical order. Raise TableDamaged for a file that was changed."""
    names = sql_tables(state)
    if not names:
        raise NoTable(f"{log.store.uri}: there are no typed tables at version {state.version}")
    size = 0
    for name in names:
        if name not in sql.lower():
            continue
        files = select_files(state, name)
        size += sum(file.size for file in files)
        if size > _MAX_TABLE_BYTES:
            raise SqlRefused(f"the tables have more than {_MAX_TABLE_BYTES} bytes: use Spark SQL or DuckDB itself")
        parts = [read_part(log.store, name, file) for file in files]
        rows = pa.concat_tables(parts) if parts else arrow_of(name).empty_table()
        yield name, rows.sort_by(_ORDER) if is_partitioned(name) else rows


def _fetch_rows(cursor: Any, columns: Sequence[str], max_rows: int) -> Iterator[Mapping[str, Json]]:
    count = 0
    while batch := cursor.fetchmany(_FETCH):
        count += len(batch)
        if count > max_rows:
            raise SqlRefused(f"the result has more than {max_rows} rows: add a LIMIT or an aggregate")
        for values in batch:
            yield {name: _to_json(value) for name, value in zip(columns, values, strict=True)}


def _to_json(value: Any) -> Json:
    """Convert a DuckDB value to JSON: bytes as hex, times in UTC, other types as text."""
    if value is None or isinstance(value, bool | int | float | Decimal | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return moment.isoformat() + ("Z" if value.tzinfo else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_to_json(element) for element in value]
    if isinstance(value, dict):
        return {str(key): _to_json(element) for key, element in value.items()}
    return str(value)
