"""Written states: the result of a fold, with the schema, label, position and root it was made of (OVL-11, D-82).

    manifest.json    bindings of the state, and the hash of every other file; written last, so it commits them
    state.cbor       the canonical state: Ht("veen/state-" + fold, …) of these bytes is state_hash (D-93)
    snapshot.cbor    the summary, from which a later fold resumes
    cuts.parquet     fold, schema, label, upto_seq, mmr_root, state_hash: a row for each schema and label
    issues.parquet   label, stream_seq, code, what

A state holds decrypted contents of the log: on a disk only its owner can read it.

Result of a fold over a log: the state, its binding to the log, and entries without effect.
"""

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from veen.core import html
from veen.core.errors import VeenError
from veen.core.hashing import Ht
from veen.core.tree.mmr import Span
from veen.io.inside import FileRefused, read_inside
from veen.io.local import OsFs
from veen.io.places import open_fs
from veen.lake.folds.coverage import UnopenedCount
from veen.lake.folds.errors import FoldStateDamaged, NotBound
from veen.lake.log.columns import Column, arrow_schema
from veen.lake.log.events import Mark
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.schema import Draft, Issue
from veen.overlays.framework.snapshot import Cut, Snapshot
from veen.overlays.framework.state import state_bytes, state_hash
from veen.overlays.operations.state_checkpoint import checkpoint, state_id_of

_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class FoldResult:
    """The state of one fold over one prefix of the log. Equal for every engine, plan and number of parts."""

    fold: AnyFold = field(repr=False)
    summary: Any = field(repr=False)
    ts: int  # of the last entry
    as_of: int  # the time that the view is of (D-80)
    cuts: tuple[Cut, ...]  # of what the state was made, by label
    unproven: tuple[bytes, ...]  # labels of which some leaf is not known, so that their root could not be recomputed
    unopened: tuple[UnopenedCount, ...]  # of all entries of the state, those of an earlier state included
    entries: int  # that were read now
    plan: str
    streams: tuple[bytes, ...] = ()  # ids
    resumed: bool = False  # from an earlier state
    refused: str | None = None  # why an earlier state was not used
    times: Mapping[bytes, int] = field(default_factory=dict, repr=False)  # by label: ts* at its cut
    trees: Mapping[bytes, Span] = field(default_factory=dict, repr=False)  # by label: the tree at its cut, where known
    readers: Mapping[bytes, str] = field(default_factory=dict, repr=False)  # by stream: whose keys opened its entries

    @cached_property
    def view(self) -> Any:
        """The state in the form for people and programs."""
        return self.fold.view(self.summary, self.as_of)

    @cached_property
    def state_bytes(self) -> bytes:
        """The canonical form of the view (D-93)."""
        return state_bytes(self.view)

    @cached_property
    def state_hash(self) -> bytes:
        return state_hash(self.fold.name, self.view)

    @cached_property
    def issues(self) -> tuple[Issue, ...]:
        """Entries without effect and the reasons, by label and position."""
        return self.fold.issues(self.summary)

    @cached_property
    def snapshot(self) -> bytes:
        """Snapshot from which a later fold resumes. Raises NotBound if there are no roots to bind it to."""
        return Snapshot.take(self.fold, self.summary, self.bound()).to_bytes()

    def bound(self) -> tuple[Cut, ...]:
        """Return the cuts. Raise NotBound if there are none although entries were folded."""
        if not self.cuts and self.entries:
            raise NotBound("the rows came without cuts: nothing says which log they are of")
        return self.cuts

    def checkpoint(self, state_id: bytes | None = None) -> Draft:
        """Return a state.checkpoint.v1 about this state, ready to be sent."""
        cuts = self.bound()
        if not cuts:
            raise NotBound("nothing was folded, so there is no root to name")
        if self.as_of != self.ts:
            raise NotBound("a checkpoint is about the state at the last entry, not at another time")
        name = state_id_of(self.fold, self.streams) if state_id is None else state_id
        return checkpoint(state_id=name, state_class=self.fold.name, state_hash=self.state_hash, cuts=cuts)

    def write(self, path: str) -> str:
        """Write the state, its cuts and issues under `path`, a directory or URL; return the path of the manifest."""

        return write(self, path)

    def _facts(self) -> list[tuple[str, Any]]:
        facts: list[tuple[str, Any]] = [
            ("fold", self.fold.name),
            ("state_hash", self.state_hash),
            ("as_of", self.as_of),
            ("entries", self.entries),
            ("plan", self.plan),
        ]
        for cut in self.cuts[:_SHOWN]:
            facts.append(("upto", f"{cut.label.hex()[:16]}… {cut.upto_seq} under {cut.mmr_root.hex()[:16]}…"))
        if len(self.cuts) > _SHOWN:
            facts.append(("", f"and {len(self.cuts) - _SHOWN} more labels"))
        if self.issues:
            facts.append(("issues", len(self.issues)))
        for skip in self.unopened[:_SHOWN]:
            facts.append(("unopened", f"{skip.count} {skip.reason}, the first at {skip.first_seq}"))
        return facts

    def __repr__(self) -> str:
        lines = (f"  {name:<10} {value.hex() if isinstance(value, bytes) else value}" for name, value in self._facts())
        return "\n".join(("FoldResult", *lines))

    def _repr_html_(self) -> str:
        """Return a table for notebooks. It omits the state: notebooks are saved and shared."""
        rows = [(name, escape(value) if isinstance(value, str) else html.shown(value)) for name, value in self._facts()]
        return html.table(f"state of {self.fold.name}", rows)


MANIFEST: Final = "manifest.json"
_FORMAT: Final = 1
_MAX_MANIFEST_BYTES: Final = 256 << 20
_MAX_STATE_BYTES: Final = 4 << 30  # as much as a snapshot can have
_OURS: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-(state|snapshot|cuts|issues)\.(cbor|parquet)")
CUTS: Final = (
    Column("fold", "STRING", pa.string(), "the state class"),
    Column("schema", "BINARY", pa.binary(), "of the events that it counts"),
    Column("label", "BINARY", pa.binary(), "that was folded"),
    Column("upto_seq", "BIGINT", pa.int64(), "up to this position, included"),
    Column("mmr_root", "BINARY", pa.binary(), "the root there"),
    Column("state_hash", "BINARY", pa.binary(), "of the state"),
)
ISSUES: Final = (
    Column("label", "BINARY", pa.binary(), "where"),
    Column("stream_seq", "BIGINT", pa.int64(), "the message stands"),
    Column("code", "STRING", pa.string(), "why it has no effect"),
    Column("what", "STRING", pa.string(), "the same in words"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierState:
    """A state that a later fold may resume from, with all that decided it.

    The log decides a state together with the keys that opened it: entries that could not be opened had no effect. So
    `readers` and `unopened` are inputs as `snapshot` is, and a fold resumes only if they would be the same now.
    """

    snapshot: Snapshot
    readers: Mapping[bytes, str] | None  # by stream: the mark of its reader; None: not stated, by earlier releases
    unopened: tuple[UnopenedCount, ...]
    marks: Mapping[bytes, Mark] = field(default_factory=dict)  # by label; without one the log is asked
    trees: Mapping[bytes, Span] = field(default_factory=dict)

    @classmethod
    def of(cls, result: FoldResult) -> Self:
        """Return the result of a fold as a state to resume from."""
        return cls(
            snapshot=Snapshot.from_bytes(result.snapshot),
            readers=result.readers,
            unopened=result.unopened,
            marks={cut.label: Mark(cut.upto_seq, result.times[cut.label]) for cut in result.cuts},
            trees=result.trees,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState(EarlierState):
    """A state as it was written, its own hashes checked. `verify` compares it with the log."""

    path: str
    fold: str
    state_hash: bytes
    as_of: int
    ts: int
    state: bytes  # canonical CBOR
    issues: int
    entries: int
    plan: str
    streams: tuple[bytes, ...]


def write(result: FoldResult, path: str) -> str:
    """Write a state atomically: a reader sees the earlier state or this one."""
    place, snapshot = _Place(path), Snapshot.from_bytes(result.snapshot)
    rows = [
        {
            "fold": snapshot.fold,
            "schema": schema,
            "label": cut.label,
            "upto_seq": cut.upto_seq,
            "mmr_root": cut.mmr_root,
            "state_hash": result.state_hash,
        }
        for schema in snapshot.schemas
        for cut in snapshot.cuts
    ]
    files = {
        "state.cbor": result.state_bytes,
        "snapshot.cbor": result.snapshot,
        "cuts.parquet": _parquet(rows, CUTS),
        "issues.parquet": _parquet([issue._asdict() for issue in result.issues], ISSUES),
    }
    name = result.state_hash.hex()[:16] + "-" + sha256(result.snapshot).hexdigest()[:16]
    for file, data in files.items():
        place.write(f"{name}-{file}", data)
    manifest = {
        "format": _FORMAT,
        "fold": snapshot.fold,
        "schemas": {result.fold.schemas[schema].name: schema.hex() for schema in snapshot.schemas},
        "state_hash": result.state_hash.hex(),
        "as_of": result.as_of,
        "ts": result.ts,
        "cuts": [
            {
                **cut.to_json(),
                "ts": result.times[cut.label],
                "peaks": [node.hex() for node in tree.nodes] if (tree := result.trees.get(cut.label)) else None,
            }
            for cut in snapshot.cuts
        ],
        "streams": [stream_id.hex() for stream_id in result.streams],
        "readers": {stream_id.hex(): mark for stream_id, mark in sorted(result.readers.items())},
        "issues": len(result.issues),
        "unopened": [
            {"label": skip.label.hex(), "reason": skip.reason, "count": skip.count, "first_seq": skip.first_seq}
            for skip in result.unopened
        ],
        "entries": result.entries,
        "plan": result.plan,
        "files": {file: {"path": f"{name}-{file}", "sha256": sha256(data).hexdigest()} for file, data in files.items()},
    }
    place.write(MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())
    place.remove_others(f"{name}-")
    return f"{path.rstrip('/')}/{MANIFEST}"


def _parquet(rows: list[dict[str, Any]], columns: tuple[Column, ...]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow_schema(columns)), sink)
    return sink.getvalue()


def load(path: str) -> WrittenState:
    """Read a written state. Raise FoldStateDamaged if it is incomplete or changed."""
    fs = open_fs(path)
    try:
        manifest = json.loads(read_inside(fs, MANIFEST, _MAX_MANIFEST_BYTES))
        if manifest["format"] != _FORMAT:
            raise FoldStateDamaged(f"{path}: format {manifest['format']} is not known here")
        files = {}
        for file, listed in manifest["files"].items():
            if not _OURS.fullmatch(listed["path"]):
                raise FoldStateDamaged(f"{path}: {file} would lie elsewhere")
            files[file] = read_inside(fs, listed["path"], _MAX_STATE_BYTES)
            if sha256(files[file]).hexdigest() != listed["sha256"]:
                raise FoldStateDamaged(f"{path}: {file} was changed")
        return _state(path, manifest, files["state.cbor"], Snapshot.from_bytes(files["snapshot.cbor"]))
    except FileNotFoundError as exc:
        raise FoldStateDamaged(f"{path}: the state is incomplete") from exc
    except FileRefused as exc:
        raise FoldStateDamaged(f"{path}: {exc}") from exc
    except (OSError, ValueError, LookupError, TypeError, VeenError) as exc:
        if isinstance(exc, FoldStateDamaged):
            raise
        raise FoldStateDamaged(f"{path}: the state cannot be read") from exc


def _state(path: str, manifest: Mapping[str, Any], state: bytes, snapshot: Snapshot) -> WrittenState:
    claimed, fold = bytes.fromhex(manifest["state_hash"]), manifest["fold"]
    if Ht("veen/state-" + fold, state) != claimed:
        raise FoldStateDamaged(f"{path}: the state has another hash than its manifest says")
    marks, trees = {}, {}
    for cut, listed in zip(snapshot.cuts, manifest["cuts"], strict=True):
        if cut.to_json() != {name: listed[name] for name in ("label", "upto_seq", "mmr_root")}:
            raise FoldStateDamaged(f"{path}: snapshot and manifest are of different logs")
        marks[cut.label] = Mark(cut.upto_seq, listed["ts"])
        if listed["peaks"] is not None:
            tree = Span(0, cut.upto_seq, tuple(map(bytes.fromhex, listed["peaks"])))
            tree.check()
            if tree.root() != cut.mmr_root:
                raise FoldStateDamaged(f"{path}: the peaks of label {cut.label.hex()} have another root")
            trees[cut.label] = tree
    readers = manifest.get("readers")  # earlier releases wrote none
    return WrittenState(
        path=path,
        fold=fold,
        state_hash=claimed,
        as_of=manifest["as_of"],
        ts=manifest["ts"],
        state=state,
        snapshot=snapshot,
        marks=marks,
        trees=trees,
        unopened=tuple(
            UnopenedCount(
                label=bytes.fromhex(skip["label"]),
                reason=skip["reason"],
                count=skip["count"],
                first_seq=skip["first_seq"],
            )
            for skip in manifest["unopened"]
        ),
        issues=manifest["issues"],
        entries=manifest["entries"],
        plan=manifest["plan"],
        streams=tuple(map(bytes.fromhex, manifest["streams"])),
        readers=None if readers is None else {bytes.fromhex(stream): str(mark) for stream, mark in readers.items()},
    )


class _Place:
    """A directory to write to: local, or a store that Arrow supports."""

    def __init__(self, uri: str) -> None:
        scheme = urlsplit(uri).scheme
        self._local: OsFs | None = None
        if len(scheme) <= 1 or scheme == "file":
            root = Path(urlsplit(uri).path if scheme == "file" else uri)
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._local = OsFs(root)
        else:
            from pyarrow import fs

            self._fs, self._root = fs.FileSystem.from_uri(uri)
            self._fs.create_dir(self._root, recursive=True)

    def write(self, name: str, data: bytes) -> None:
        if self._local is not None:
            self._local.replace(name, data, private=True)
            return
        with self._fs.open_output_stream(f"{self._root.rstrip('/')}/{name}") as stream:
            stream.write(data)

    def remove_others(self, keep: str) -> None:
        """Remove files of earlier states, which no manifest names any more."""
        if self._local is not None:
            for name in self._local.list(""):
                if _OURS.fullmatch(name) and not name.startswith(keep):
                    self._local.remove(name)
