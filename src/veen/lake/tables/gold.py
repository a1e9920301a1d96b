"""Gold: states of folds, bound to the roots of the log they were made of (OVL-11), replaced as a whole.

A fold resumes from its last snapshot where the log is at hand, or runs again over silver, which needs no keys. It
starts from the beginning when payloads were erased meanwhile: what is gone from silver must not live on in a state. It
does so too when other keys read the log now, or if the state does not name its keys: entries that open now may have
been sealed then, and the reverse.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.io.stores import TableStore
from veen.lake.log.decryption import reader_marks
from veen.lake.log.events import entry_of
from veen.lake.log.keys import KeyFile
from veen.lake.tables.manifest import Change, TableLog, TableState
from veen.lake.tables.parts import read_part, write_part
from veen.lake.tables.reading import read, rows
from veen.lake.tables.schema import arrow_of, definitions_of, is_state, state_entries, state_tables
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.framework.snapshot import Cut, Snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from veen.lake.folds import FoldResult
    from veen.lake.folds.states import EarlierState

_FILE_ROWS: Final = 100_000  # of a state: a reader passes over the files whose statistics exclude its key


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """Result of `refresh`: a state in gold."""

    version: int
    fold: str
    state_hash: str
    changed: bool
    resumed: bool = False  # from the last snapshot


def cuts_of(state: TableState) -> tuple[Cut, ...]:
    """Return the last readable root of each label: it binds the rows of silver to the log."""
    return tuple(
        Cut(label=bytes.fromhex(label), upto_seq=head.root_seq, mmr_root=bytes.fromhex(head.mmr_root))
        for label, head in sorted(state.heads.items())
        if head.mmr_root is not None
    )


def replace_gold(
    log: TableLog, state: TableState, group: str, tables: Mapping[str, pa.Table], meta: Mapping[str, Any]
) -> TableState:
    """Replace the rows of `group` in all given tables, in one commit.

    Tables of states that are no longer declared lose theirs.
    """
    add = {}
    replaced = {*tables, *filter(is_state, state.files)}
    remove = [file.path for table in sorted(replaced) for file in state.of(table) if file.group == group]
    for table, content in tables.items():
        rows = content.cast(arrow_of(table))
        parts = [rows.slice(first, _FILE_ROWS) for first in range(0, rows.num_rows, _FILE_ROWS)]
        add[table] = tuple(write_part(log.store, table, group, part, number=at) for at, part in enumerate(parts))
    change = Change(kind="gold", at=log.now, add=add, remove=tuple(remove), meta={group: dict(meta)})
    return log.commit(state, change)


def refresh(
    to: str | TableStore,
    fold: str,
    *,
    spark: "SparkSession | None" = None,
    path: str | None = None,
    keys: KeyFile | None = None,
    parts: int | None = None,
) -> Refreshed:
    """Bring the state of a fold up to the loaded rows; write nothing if there are no new ones.

    With the log and its keys only new entries are folded. Without them silver is folded from its beginning.
    """
    log = TableLog(to)
    state = log.require_state()
    cuts = cuts_of(state)
    meta_before = state.meta.get(fold)
    readers = _readers(state, keys if path is not None else None)
    bound = _bound(state, cuts, readers)
    maker = BUILTIN.with_installed().make_fold(fold)
    declared = None if maker is None else definitions_of(maker)  # None: not installed here, so nothing is known
    if meta_before is not None and meta_before["bound"] == bound and declared in (None, meta_before.get("tables")):
        return Refreshed(version=state.version, fold=fold, state_hash=meta_before["state_hash"], changed=False)
    resumable = meta_before is not None and meta_before["erased"] == _hash_erased(state)
    if path is not None and keys is not None:
        result = _fold_log(log, state, fold, path, keys, cuts, spark, parts, resume=resumable)
    else:
        result = _fold_silver(log, state, fold, cuts, spark, parts)
    meta = {
        "bound": bound,
        "erased": _hash_erased(state),
        "state_hash": result.state_hash.hex(),
        "plan": result.plan,
        "tables": definitions_of(result.fold),
        "readers": {stream_id.hex(): mark for stream_id, mark in sorted(result.readers.items())},
        "unopened": [[skip.label.hex(), skip.reason, skip.count, skip.first_seq] for skip in result.unopened],
    }
    after = replace_gold(log, state, fold, _make_tables(fold, result), meta)
    return Refreshed(
        version=after.version, fold=fold, state_hash=result.state_hash.hex(), changed=True, resumed=result.resumed
    )


def _bound(state: TableState, cuts: tuple[Cut, ...], readers: Mapping[str, str]) -> str:
    """Return a hash of all that a state depends on: cuts, erased ranges, and the keys that opened the entries."""
    places = [(cut.label, cut.upto_seq, cut.mmr_root) for cut in cuts]
    return sha256(repr((places, _hash_erased(state), sorted(readers.items()))).encode()).hexdigest()


def _readers(state: TableState, keys: KeyFile | None) -> Mapping[str, str]:
    """Return the marks of readers by stream: of these keys, or of those that loaded the tables."""
    from veen.lake.folds.api import LEVEL

    if keys is None:
        return state.readers
    marks = reader_marks(keys.load(), map(bytes.fromhex, state.readers), LEVEL)
    return {stream_id.hex(): mark for stream_id, mark in marks.items()}


def _hash_erased(state: TableState) -> str:
    return sha256(repr(sorted(state.erased.items())).encode()).hexdigest()


def _fold_log(
    log: TableLog,
    state: TableState,
    fold: str,
    path: str,
    keys: KeyFile,
    cuts: tuple[Cut, ...],
    spark: "SparkSession | None",
    parts: int | None,
    *,
    resume: bool,
) -> "FoldResult":
    from veen.lake import folds

    return folds.run(
        path,
        fold,
        keys=keys,
        engine="spark" if spark is not None else "python",
        spark=spark,
        parts=parts,
        upto={cut.label: cut.upto_seq for cut in cuts},
        since=earlier_state(log, state, fold) if resume else None,
    )


def _fold_silver(
    log: TableLog, state: TableState, fold: str, cuts: tuple[Cut, ...], spark: "SparkSession | None", parts: int | None
) -> "FoldResult":
    from veen.lake import folds

    if spark is None:
        ends = {cut.label: cut.upto_seq for cut in cuts}
        entries = (entry_of(row) for row in rows(log, version=state.version))
        inside = [entry for entry in entries if entry.stream_seq <= ends.get(entry.label, 0)]
        return folds.run(inside, fold, engine="python", cuts=cuts)
    frame = _rows_within(spark, read(spark, log.store, version=state.version), cuts)
    return folds.run(frame, fold, spark=spark, cuts=cuts, parts=parts)


def _rows_within(spark: "SparkSession", frame: "DataFrame", cuts: tuple[Cut, ...]) -> "DataFrame":
    """Select the rows that the cuts bind. Nothing binds rows behind a damaged last entry."""
    ends = spark.createDataFrame([(cut.label, cut.upto_seq) for cut in cuts], "label BINARY, upto_seq BIGINT")
    joined = frame.join(ends.hint("broadcast"), "label")
    return joined.where("stream_seq <= upto_seq").drop("upto_seq")


def snapshot_of(log: TableLog, state: TableState, fold: str) -> Snapshot | None:
    """Return the snapshot in gold, if there is one."""
    for file in state.of("gold_state"):
        if file.group == fold:
            for row in read_part(log.store, "gold_state", file).to_pylist():
                return Snapshot.from_bytes(row["snapshot"])
    return None


def earlier_state(log: TableLog, state: TableState, fold: str) -> "EarlierState | None":
    """Return the state in gold with its readers; None if there is none, or an earlier release wrote no readers."""
    from veen.lake.folds.coverage import UnopenedCount
    from veen.lake.folds.states import EarlierState

    snapshot, meta = snapshot_of(log, state, fold), state.meta.get(fold)
    if snapshot is None or meta is None or "readers" not in meta:
        return None
    return EarlierState(
        snapshot=snapshot,
        readers={bytes.fromhex(stream_id): mark for stream_id, mark in meta["readers"].items()},
        unopened=tuple(
            UnopenedCount(label=bytes.fromhex(label), reason=reason, count=count, first_seq=first_seq)
            for label, reason, count, first_seq in meta["unopened"]
        ),
    )


def tables_of(result: "FoldResult") -> dict[str, pa.Table]:
    """Return the state of a fold as tables with the columns that its overlay declares, by name."""
    return state_tables(result.fold.name, result.fold, result.view, result.state_hash)


def _make_tables(fold: str, result: "FoldResult") -> dict[str, pa.Table]:
    bindings = [
        {
            "fold": fold,
            "schema": schema,
            "label": cut.label,
            "upto_seq": cut.upto_seq,
            "mmr_root": cut.mmr_root,
            "state_hash": result.state_hash,
        }
        for schema in sorted(result.fold.schemas)
        for cut in result.cuts
    ]
    issues = [
        {"fold": fold, "label": issue.label, "stream_seq": issue.stream_seq, "code": issue.code, "what": issue.what}
        for issue in result.issues
    ]
    snapshot = [{"fold": fold, "state_hash": result.state_hash, "snapshot": result.snapshot}]
    entries = [
        {"fold": fold, "state_hash": result.state_hash, "part": part, "key": key, "value": value}
        for part, key, value in state_entries(result.view)
    ]
    contents = {"gold": bindings, "gold_state": snapshot, "gold_issues": issues, "gold_entries": entries}
    gold = {table: pa.Table.from_pylist(content, schema=arrow_of(table)) for table, content in contents.items()}
    return gold | state_tables(fold, result.fold, result.view, result.state_hash)
