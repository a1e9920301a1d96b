"""Manifests: the contents of the tables, one immutable file per change.

Version N is `manifests/N.json`: a line of JSON and a line with its hash, so an incomplete manifest is invalid. A change
becomes visible with its manifest, at once and in all tables; files that no manifest names do not count. Each manifest
names the hash of the one before it, and some repeat everything, so that reading stays short.

Log of manifests: the state of the tables, and the only way to change it.
"""

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

from veen.io.inside import FileRefused, check_name, check_size
from veen.io.stores import TableStore, open_store
from veen.lake.log.errors import OptionError
from veen.lake.log.prefix import Mark
from veen.lake.tables.errors import NoTable, TableBusy, TableDamaged
from veen.lake.tables.index import FileIndex, path_of

FORMAT: Final = 1
MAX_MANIFEST_BYTES: Final = 256 << 20
_MAX_FILE_BYTES: Final = 4 << 30
_SUFFIX: Final = ".parquet"
TABLES: Final = ("bronze", "silver", "gold", "gold_state", "gold_issues", "gold_entries")
_TYPED: Final = re.compile(r"typed_[a-z0-9_]{1,128}")  # by schema; overlays declare them
_STATE: Final = re.compile(r"state_[a-z0-9_]{1,128}")  # by fold; the same


class DataFile(NamedTuple):
    """One Parquet file: place, size, hash and index."""

    path: str
    rows: int
    size: int
    sha256: str
    group: str  # the directory below its table: sid=…/day=…, or fold=…
    first_ts: int = 0
    last_ts: int = 0
    labels: tuple[tuple[str, int, int], ...] = ()  # label in hex, first and last stream_seq
    file_index: FileIndex | None = None  # None: written by an earlier release, or of a table that has none

    def to_json(self) -> list[Any]:
        value = [*self[:-2], [list(span) for span in self.labels]]
        return value if self.file_index is None else [*value, self.file_index.to_json()]

    @classmethod
    def from_json(cls, table: str, value: list[Any]) -> Self:
        """Parse the entry of a file. Raise FileRefused unless it names a file of `table`."""
        path, rows, size, digest, group, first_ts, last_ts, labels, *index = value
        ranges = tuple((label, first, last) for label, first, last in labels)
        if check_name(path, below=table) != f"{table}/{group}/{path.rpartition('/')[2]}" or not path.endswith(_SUFFIX):
            raise FileRefused(f"{path!r} is not a data file of {table}")
        check_size(size, _MAX_FILE_BYTES, path)
        file = cls(path, rows, size, digest, group, first_ts, last_ts, ranges)
        return file._replace(file_index=FileIndex.from_json(index[0])) if index else file

    def has(self, label: str, first: int, last: int) -> bool:
        return any(other == label and a <= last and b >= first for other, a, b in self.labels)


class TableHead(NamedTuple):
    """Progress of loading a label: position, ts* there, and the last readable root with its position."""

    upto_seq: int
    ts: int
    root_seq: int = 0
    mmr_root: str | None = None

    @property
    def mark(self) -> Mark:
        return Mark(self.upto_seq, self.ts)

    def later(self, other: "TableHead") -> "TableHead":
        """Return the later values of both."""
        root = max((self.root_seq, self.mmr_root or ""), (other.root_seq, other.mmr_root or ""))
        return TableHead(max(self.upto_seq, other.upto_seq), max(self.ts, other.ts), root[0], root[1] or None)


class Dead(NamedTuple):
    """A replaced file, with the kind and time of the change. It is removed later, when its readers are done."""

    why: str
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Contents of one manifest. Everything but `kind` and `at` may be empty."""

    kind: str  # load, stream, compact, erase, gold, typed, index, vacuum
    at: int  # seconds: for people, and for the grace of replaced files
    hub: str | None = None
    batch: tuple[str, int] | None = None  # of a stream: its id and the number of the micro-batch
    heads: Mapping[str, TableHead] = field(default_factory=dict)  # by label in hex
    erased: Mapping[str, tuple[tuple[int, int, str], ...]] = field(default_factory=dict)  # all ranges of these labels
    add: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)  # by table
    remove: tuple[str, ...] = ()  # paths
    gone: tuple[str, ...] = ()  # replaced files that are removed by now
    meta: Mapping[str, Any] = field(default_factory=dict)  # gold: by fold
    typed: Mapping[str, str] | None = None  # the typed tables that are complete from now on; None: those before
    readers: Mapping[str, str] = field(default_factory=dict)  # by stream in hex: whose keys opened it (`reader_mark`)
    indexes: tuple[str, ...] | None = None  # paths of payloads that have an index from now on; None: those before


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The tables at one version."""

    version: int = 0
    digest: str | None = None  # of the manifest
    hub: str | None = None
    batches: Mapping[str, int] = field(default_factory=dict)
    heads: Mapping[str, TableHead] = field(default_factory=dict)
    erased: Mapping[str, tuple[tuple[int, int, str], ...]] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, DataFile]] = field(default_factory=dict)
    dead: Mapping[str, Dead] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    typed: Mapping[str, str] = field(default_factory=dict)  # complete typed tables and the hash of their declaration
    readers: Mapping[str, str] = field(default_factory=dict)  # as in Change; "": loads with several marks
    indexes: tuple[str, ...] = ()  # paths of payloads that new files have an index of

    def of(self, table: str) -> tuple[DataFile, ...]:
        """Return the files of a table, by path."""
        by_path = self.files.get(table, {})
        return tuple(by_path[path] for path in sorted(by_path))

    @property
    def marks(self) -> dict[bytes, Mark]:
        return {bytes.fromhex(label): head.mark for label, head in self.heads.items()}


def apply(state: TableState, change: Change, *, version: int, digest: str) -> TableState:
    """Return the state after a change."""
    files = {table: dict(by_path) for table, by_path in state.files.items()}
    dead = dict(state.dead)
    removed = set(change.remove)
    for by_path in files.values():
        for path in removed & by_path.keys():
            del by_path[path]
            dead[path] = Dead(change.kind, change.at)
    for table, added in change.add.items():
        files.setdefault(table, {}).update((file.path, file) for file in added)
    for path in change.gone:
        dead.pop(path, None)
    batches = dict(state.batches)
    if change.batch is not None:
        batches[change.batch[0]] = max(change.batch[1], batches.get(change.batch[0], -1))
    # Loads with several marks: "", which no reader has.
    readers = {
        stream: mark if state.readers.get(stream, mark) == mark else "" for stream, mark in change.readers.items()
    }
    return replace(
        state,
        version=version,
        digest=digest,
        hub=change.hub or state.hub,
        batches=batches,
        heads={**state.heads, **change.heads},
        erased={**state.erased, **change.erased},
        files=files,
        dead=dead,
        meta={**state.meta, **change.meta},
        typed=state.typed if change.typed is None else change.typed,
        readers={**state.readers, **readers},
        indexes=state.indexes if change.indexes is None else change.indexes,
    )


# --- bytes -------------------------------------------------------------------------------------------------------


def manifest_of(
    change: Change, *, version: int, prev: str | None, base: TableState | None = None, writer: str | None = None
) -> bytes:
    """Encode the manifest of a change; with `base` (the state after it) it also repeats everything.

    `writer` is a random name of the attempt, so that a writer can tell its own manifest from an equal one.
    """
    value: dict[str, Any] = {"format": FORMAT, "version": version, "prev": prev, "change": _change_json(change)}
    if writer is not None:
        value["writer"] = writer
    if base is not None:
        value["base"] = _state_json(base)
    line = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
    return line + sha256(line).hexdigest().encode() + b"\n"


class TableManifest(NamedTuple):
    version: int
    prev: str | None
    digest: str
    change: Change
    base: TableState | None


def read_manifest(data: bytes, path: str) -> TableManifest | None:
    """Decode a manifest; return None if it is incomplete. Raise TableDamaged if it is complete and invalid.

    Every path in it is checked here, so that readers and removers of files stay inside the tables.
    """
    line, newline, digest = data.partition(b"\n")
    checksum = digest.strip().decode("ascii", "replace")
    if not newline or sha256(line + b"\n").hexdigest() != checksum:
        return None
    try:
        value = json.loads(line)
        if value["format"] != FORMAT:
            raise TableDamaged(f"{path}: format {value['format']} is not known to this version")
        base = _parse_state(value["base"], value["version"], checksum) if "base" in value else None
        return TableManifest(value["version"], value["prev"], checksum, _parse_change(value["change"]), base)
    except FileRefused as exc:
        raise TableDamaged(f"{path}: {exc}") from exc
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise TableDamaged(f"{path}: is not a valid manifest") from exc


def _change_json(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "at": change.at,
        "hub": change.hub,
        "batch": change.batch,
        "heads": change.heads,
        "erased": change.erased,
        "add": _files_json(change.add),
        "remove": sorted(change.remove),
        "gone": sorted(change.gone),
        "meta": change.meta,
        "typed": change.typed,
        "readers": change.readers,
        "indexes": change.indexes,
    }


def _parse_change(value: dict[str, Any]) -> Change:
    batch = value["batch"]
    return Change(
        kind=value["kind"],
        at=value["at"],
        hub=value["hub"],
        batch=None if batch is None else (batch[0], batch[1]),
        heads={label: TableHead(*head) for label, head in value["heads"].items()},
        erased=_parse_ranges(value["erased"]),
        add=_parse_files(value["add"]),
        remove=tuple(map(_check_data_path, value["remove"])),
        gone=tuple(map(_check_data_path, value["gone"])),
        meta=value["meta"],
        typed=_parse_typed(value.get("typed")),
        readers=_parse_readers(value),
        indexes=_parse_indexes(value),
    )


def _parse_readers(value: dict[str, Any]) -> dict[str, str]:
    """Parse the readers, which manifests of earlier releases lack."""
    readers = value.get("readers", {})
    if not all(type(text) is str for member in readers.items() for text in member):
        raise FileRefused("a reader of a stream is invalid")
    return dict(readers)


def _parse_indexes(value: dict[str, Any]) -> tuple[str, ...] | None:
    """Parse the indexed paths, which manifests of earlier releases lack."""
    names = value.get("indexes")
    try:
        return None if names is None else tuple(path_of(name).name for name in names)
    except OptionError as exc:
        raise FileRefused(str(exc)) from exc


def _parse_typed(value: Any) -> dict[str, str] | None:
    """Parse the typed tables, which manifests of earlier releases lack."""
    if value is not None and not all(_TYPED.fullmatch(table) and type(text) is str for table, text in value.items()):
        raise FileRefused("a typed table has an invalid name or declaration")
    return value if value is None else dict(value)


def _state_json(state: TableState) -> dict[str, Any]:
    return {
        "hub": state.hub,
        "batches": state.batches,
        "heads": state.heads,
        "erased": state.erased,
        "files": _files_json({table: tuple(by_path.values()) for table, by_path in state.files.items()}),
        "dead": state.dead,
        "meta": state.meta,
        "typed": state.typed,
        "readers": state.readers,
        "indexes": state.indexes,
    }


def _parse_state(value: dict[str, Any], version: int, digest: str) -> TableState:
    files = _parse_files(value["files"])
    return TableState(
        version=version,
        digest=digest,
        hub=value["hub"],
        batches=value["batches"],
        heads={label: TableHead(*head) for label, head in value["heads"].items()},
        erased=_parse_ranges(value["erased"]),
        files={table: {entry.path: entry for entry in listed} for table, listed in files.items()},
        dead={_check_data_path(path): Dead(*entry) for path, entry in value["dead"].items()},
        meta=value["meta"],
        typed=_parse_typed(value.get("typed")) or {},
        readers=_parse_readers(value),
        indexes=_parse_indexes(value) or (),
    )


def _files_json(files: Mapping[str, Iterable[DataFile]]) -> dict[str, Any]:
    return {
        table: [file.to_json() for file in sorted(listed, key=lambda file: file.path)]
        for table, listed in files.items()
    }


def _parse_files(value: Mapping[str, Any]) -> dict[str, tuple[DataFile, ...]]:
    if not all(map(_is_table, value)):
        raise FileRefused("there is an unknown table")
    return {table: tuple(DataFile.from_json(table, file) for file in listed) for table, listed in value.items()}


def _is_table(name: str) -> bool:
    return name in TABLES or _TYPED.fullmatch(name) is not None or _STATE.fullmatch(name) is not None


def _check_data_path(path: Any) -> str:
    """Return the path of a data file of any table. Raise FileRefused for another path."""
    name = check_name(path)
    table, slash, _ = name.partition("/")
    if not _is_table(table) or not slash or not name.endswith(_SUFFIX):
        raise FileRefused(f"{name!r} is not a data file of a table")
    return name


def _parse_ranges(value: Mapping[str, Any]) -> dict[str, tuple[tuple[int, int, str], ...]]:
    return {label: tuple((a, b, kind) for a, b, kind in ranges) for label, ranges in value.items()}


MANIFESTS: Final = "manifests"
_LATEST: Final = f"{MANIFESTS}/latest"  # a hint: where to begin to look, never what counts
_MAX_HINT_BYTES: Final = 32
_BASE_EVERY: Final = 32


def manifest_path(version: int) -> str:
    return f"{MANIFESTS}/{version:020d}.json"


class TableLog:
    """The manifests of one place."""

    def __init__(self, place: str | TableStore, *, now: Callable[[], float] = time.time) -> None:
        self.store = open_store(place)
        self._now = now

    @property
    def now(self) -> int:
        return int(self._now())

    def state(self, version: int | None = None) -> TableState:
        """Return the current state or that of a version; an empty state if there are no tables.

        No directory of data is listed.
        """
        last = self._read_last() if version is None else self._read(version)
        if last is None:
            if version is None:
                return TableState()
            raise NoTable(f"{self.store.uri}: there is no version {version}")
        behind: list[TableManifest] = []
        at = last
        while at.base is None and at.version > 1:
            behind.append(at)
            earlier = self._read(at.version - 1)
            if earlier is None or earlier.digest != at.prev:
                raise TableDamaged(f"{self.store.uri}: manifest {at.version - 1} is missing or was replaced")
            at = earlier
        state = at.base or apply(TableState(), at.change, version=at.version, digest=at.digest)
        for manifest in reversed(behind):
            state = apply(state, manifest.change, version=manifest.version, digest=manifest.digest)
        return state

    def require_state(self, version: int | None = None) -> TableState:
        """Return the state. Raise NoTable if there are no tables."""
        state = self.state(version)
        if not state.version:
            raise NoTable(f"{self.store.uri}: there are no tables")
        return state

    def ensure_made(self, state: TableState, typed: Mapping[str, str] | None = None) -> TableState:
        """Return the state; commit an empty one first if there are no tables. An empty log has tables, too."""
        return state if state.version else self.commit(state, Change(kind="load", at=self.now, typed=typed))

    def last_base(self, state: TableState) -> int:
        """Return the newest version up to `state` whose manifest repeats everything."""
        at = state.version
        while at > 1:
            manifest = self._read(at)
            if manifest is None or manifest.base is not None:
                break
            at -= 1
        return at

    def commit(self, state: TableState, change: Change, *, whole: bool = False) -> TableState:
        """Commit a change to the tables as they were read. Raise TableBusy if they changed meanwhile.

        The change is atomic: writing the manifest makes all of it visible. With `whole` the manifest repeats
        everything, so that earlier ones are not needed any more.
        """
        version = state.version + 1
        after = apply(state, change, version=version, digest="")
        base = after if whole or version % _BASE_EVERY == 0 else None
        data = manifest_of(change, version=version, prev=state.digest, base=base, writer=uuid.uuid4().hex)
        manifest = read_manifest(data, manifest_path(version))
        assert manifest is not None  # noqa: S101 - written a line above
        # The step that makes all of it visible. Data files were written before, under names that no manifest has; a
        # writer that loses the race for this version leaves only such files, which `vacuum` removes.
        if not self._write_manifest(version, data):
            raise TableBusy(f"{self.store.uri}: version {version} was made by another writer")
        with contextlib.suppress(OSError):  # only a hint
            self.store.put(_LATEST, str(version).encode())
        return apply(state, change, version=version, digest=manifest.digest)

    def _write_manifest(self, version: int, data: bytes) -> bool:
        """Write a manifest; the store decides which of several writers succeeds."""
        path = manifest_path(version)
        if self.store.put_new(path, data):
            return True
        try:
            present = self.store.get(path, MAX_MANIFEST_BYTES)
        except FileNotFoundError:
            return False
        except FileRefused as exc:
            raise TableDamaged(str(exc)) from exc
        if present == data:  # ours: the answer was lost, and the request was made again
            return True
        is_whole = read_manifest(present, path) is not None
        return not is_whole and self.store.put_over(path, present, data)  # what was there was never finished

    def _read(self, version: int) -> TableManifest | None:
        path = manifest_path(version)
        try:
            manifest = read_manifest(self.store.get(path, MAX_MANIFEST_BYTES), path)
        except FileNotFoundError:
            return None
        except FileRefused as exc:
            raise TableDamaged(str(exc)) from exc
        if manifest is not None and manifest.version != version:
            raise TableDamaged(f"{path}: says that it is version {manifest.version}")
        return manifest

    def _read_last(self) -> TableManifest | None:
        manifest = self._read(self._find_start())
        while (following := self._read(manifest.version + 1 if manifest else 1)) is not None:
            manifest = following
        return manifest

    def _find_start(self) -> int:
        """Return a version that exists, by the hint, else by the names of the manifests; 0 if there is none."""
        try:
            hinted = int(self.store.get(_LATEST, _MAX_HINT_BYTES))
        except (FileNotFoundError, ValueError, FileRefused):
            hinted = 0
        if hinted and self._read(hinted) is not None:
            return hinted
        names = (file.path.rpartition("/")[2].removesuffix(".json") for file in self.store.walk(MANIFESTS))
        whole = (number for number in sorted((int(name) for name in names if name.isdecimal()), reverse=True))
        return next((number for number in whole if self._read(number) is not None), 0)
