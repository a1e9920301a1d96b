"""Verification of tables: their files, their rows under the roots of the log, and published lake tables.

Tables are derived from a log. A file that differs from its manifest, rows that do not have the root of their label, and
a lake table that shows other files are reasons of the kind `derived`: the log has everything, and the tables can be
made again. If the log has another root than the tables were made under, one of the two was changed: that is evidence.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from veen.client.errors import ExtraMissing
from veen.core.errors import VeenError
from veen.core.objects.identity import HubIdentity
from veen.core.tree.mmr import Span
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
from veen.io.places import open_fs
from veen.io.stores import LocalStore, TableStore
from veen.lake.log.prefix import receipt_at
from veen.lake.tables.errors import TableDamaged
from veen.lake.tables.loading import LOADED
from veen.lake.tables.manifest import DataFile, TableHead, TableLog, TableState
from veen.lake.tables.parts import read_part
from veen.lake.tables.publishing import DELTA_LOG, ICEBERG, LAKE_FORMATS, LakeFormat, open_lake, place_of
from veen.lake.tables.reading import ready_tables
from veen.storage.pinned import pin

_SHOWN: Final = 3  # paths that a reason names


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCheck:
    """Result of verifying tables: the numbers of files and rows read, and the verdict."""

    verdict: Verdict
    version: int = 0
    files: int = 0
    rows: int = 0
    lakes: tuple[str, ...] = ()  # lake tables that were compared, as format:table


@dataclass(slots=True)
class _Reading:
    """The findings so far. Owned by `verify`."""

    reasons: list[Reason] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    spans: dict[tuple[str, bytes], list[Span]] = field(default_factory=dict)  # by table and label

    def add(self, because: Because, text: str) -> None:
        self.reasons.append(Reason(because, text))


def verify(to: str | TableStore, *, path: str | None = None, identity: HubIdentity | None = None) -> TableCheck:
    """Read every file of the newest version, and compare it with its manifest, with roots and with lake tables.

    `path` is the log: its heads and roots are compared, too. Without it the tables themselves state their heads.
    """
    log, reading = TableLog(to), _Reading()
    try:
        state = log.require_state()
    except TableDamaged as exc:
        return TableCheck(verdict=Verdict.of([], [Reason(Because.DERIVED, str(exc))]))
    for table in state.files:
        for file in state.of(table):
            _read_file(log.store, state, table, file, reading)
    proven = {  # up to there the rows of bronze and silver have the root of the manifest
        name: min(_prove_label(table, name, head, reading) for table in LOADED)
        for name, head in sorted(state.heads.items())
    }
    if path is not None:
        rows = _rows_of_log(state, path, identity, proven, reading)
    else:
        rows = [
            Coverage(log=name, read=proven[name], head=head.upto_seq, stated_by=StatedBy.OWN_FILES, identity=None)
            for name, head in sorted(state.heads.items())
        ]
    lakes = tuple(_check_lakes(log, state, reading))
    return TableCheck(
        verdict=Verdict.of(rows, reading.reasons),
        version=state.version,
        files=reading.files,
        rows=reading.rows,
        lakes=lakes,
    )


def _read_file(store: TableStore, state: TableState, table: str, file: DataFile, reading: _Reading) -> None:
    """Read one file; as written if no installed overlay declares its table."""
    try:
        content = read_part(store, table, file, as_written=table not in ready_tables(state))
    except TableDamaged as exc:
        reading.add(Because.DERIVED, str(exc))
        return
    reading.files += 1
    reading.rows += content.num_rows
    if table in LOADED:
        for label, spans in _leaves(content):
            reading.spans.setdefault((table, label), []).extend(spans)


def _leaves(content: pa.Table) -> Iterator[tuple[bytes, list[Span]]]:
    """Fold the leaves of a file, label by label, into runs."""
    by_label: dict[bytes, list[tuple[int, bytes]]] = {}
    columns = (content.column(name).to_pylist() for name in ("label", "stream_seq", "leaf_hash"))
    for label, seq, leaf in zip(*columns, strict=True):
        if leaf is not None:
            by_label.setdefault(label, []).append((seq, leaf))
    for label, numbered in by_label.items():
        numbered.sort()
        starts = [at for at, (seq, _) in enumerate(numbered) if at == 0 or seq != numbered[at - 1][0] + 1]
        ends = [*starts[1:], len(numbered)]
        yield (
            label,
            [
                Span.of(numbered[start][0] - 1, [leaf for _, leaf in numbered[start:end]])
                for start, end in zip(starts, ends, strict=True)
            ],
        )


def _prove_label(table: str, name: str, head: TableHead, reading: _Reading) -> int:
    if head.mmr_root is None:
        reading.add(Because.COVERAGE, f"{name}: no root was loaded, so nothing binds its rows to the log")
        return 0
    tree = Span(0, 0, ())
    for span in sorted(reading.spans.get((table, bytes.fromhex(name)), ()), key=lambda span: span.start):
        if span.start != tree.end or span.start >= head.root_seq:
            break
        tree = tree.merge(span)
    if tree.end < head.root_seq:
        why = f"{table} has the rows of entries 1 to {tree.end}, and leaves up to {head.root_seq} were loaded"
        reading.add(Because.COVERAGE, f"{name}: {why}")
        return tree.end
    if tree.end == head.root_seq and tree.root().hex() != head.mmr_root:
        reading.add(Because.DERIVED, f"{name}: the rows of {table} have another root than the manifest names")
        return 0
    return head.upto_seq


def _rows_of_log(
    state: TableState, path: str, identity: HubIdentity | None, proven: Mapping[str, int], reading: _Reading
) -> list[Coverage]:
    """Compare with the log: return a row for each label, and look for each root of the tables in it."""
    pinned, fs = pin(path), open_fs(path)
    name = None if identity is None else f"hub {identity.hub_id.hex()}"
    if state.hub is not None and pinned.identity is not None and state.hub != pinned.identity.hub_id.hex():
        reading.add(Because.COVERAGE, f"the tables are of hub {state.hub}, the log of {pinned.identity.hub_id.hex()}")
    rows = []
    for label in sorted({*state.heads, *(label.hex() for label in pinned.labels)}):
        label_pin, head = pinned.labels.get(bytes.fromhex(label)), state.heads.get(label)
        size = 0 if label_pin is None else label_pin.size
        read = 0 if head is None else min(proven[label], size)
        claimed = max(size, 0 if head is None else head.upto_seq)
        rows.append(Coverage(log=label, read=read, head=claimed, stated_by=StatedBy.OWN_FILES, identity=name))
        if head is None or head.mmr_root is None or label_pin is None or size < head.root_seq:
            continue
        receipt = receipt_at(fs, label_pin.chunks, head.root_seq)
        hub = identity or pinned.identity
        if receipt is None or hub is None:
            reading.add(Because.COVERAGE, f"{label}: the receipt of entry {head.root_seq} cannot be read or checked")
            continue
        try:
            hub.verify_receipt(receipt)
        except VeenError as exc:
            reading.add(Because.EVIDENCE, f"{label}: the receipt of entry {head.root_seq}: {exc}")
        if receipt.mmr_root.hex() != head.mmr_root:
            what = f"the log has root {receipt.mmr_root.hex()} at {head.root_seq}, the tables were made under"
            reading.add(Because.EVIDENCE, f"{label}: {what} {head.mmr_root}")
    return rows


def _check_lakes(log: TableLog, state: TableState, reading: _Reading) -> Iterator[str]:
    """Compare the files that published tables show with those of the manifest that they name."""
    for table in state.files:
        for kind in LAKE_FORMATS:
            if not _is_published(log.store, kind, table):
                continue
            try:
                lake = open_lake(kind, place_of(log.store), table)
                shown, version = lake.paths(), lake.manifest_version()
                stated = log.state(version) if version else TableState()
            except (ExtraMissing, VeenError) as exc:
                reading.add(Because.COVERAGE, f"{kind} table {table}: was not compared: {exc}")
                continue
            if not version and not shown:
                continue  # a catalog of other tables
            named = {file.path for file in stated.of(table)}
            for paths, what in ((shown - named, "shows files that no manifest names"), (named - shown, "lacks files")):
                if paths:
                    some = ", ".join(sorted(paths)[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")
                    reading.add(Because.DERIVED, f"{kind} table {table}: {what}: {some}")
            yield f"{kind}:{table}"


def _is_published(store: TableStore, kind: LakeFormat, table: str) -> bool:
    if kind == "delta":
        return any(True for _ in store.walk(f"{table}/{DELTA_LOG}"))
    return isinstance(store, LocalStore) and store.has(f"{ICEBERG}/catalog.db")
