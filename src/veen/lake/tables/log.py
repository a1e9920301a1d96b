"""Log of manifests: the state of the tables, and the only way to change it."""

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from veen.io.inside import FileRefused
from veen.io.stores import TableStore, open_store
from veen.lake.tables.errors import NoTable, TableBusy, TableDamaged
from veen.lake.tables.manifest import (
    MAX_MANIFEST_BYTES,
    Change,
    TableManifest,
    TableState,
    apply,
    manifest_of,
    read_manifest,
)

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
