"""The log of manifests: the state of tables, and the one way to change them."""

import contextlib
import time
from collections.abc import Callable
from typing import Final

from veen.pipeline.tables.errors import NoTable, TableBusy, TableDamaged
from veen.pipeline.tables.manifest import Change, Manifest, State, apply, manifest_of, read_manifest
from veen.pipeline.tables.store import TableStore, open_store

__all__ = ["MANIFESTS", "TableLog", "manifest_path"]

MANIFESTS: Final = "manifests"
_LATEST: Final = f"{MANIFESTS}/latest"  # a hint: where to begin to look, never what counts
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

    def state(self, version: int | None = None) -> State:
        """The tables as they are, or as they were; an empty state if there are none. Lists no directory of data."""
        last = self._last() if version is None else self._read(version)
        if last is None:
            if version is None:
                return State()
            raise NoTable(f"{self.store.uri}: there is no version {version}")
        behind: list[Manifest] = []
        at = last
        while at.base is None and at.version > 1:
            behind.append(at)
            earlier = self._read(at.version - 1)
            if earlier is None or earlier.digest != at.prev:
                raise TableDamaged(f"{self.store.uri}: manifest {at.version - 1} is gone or not the one that was there")
            at = earlier
        state = at.base or apply(State(), at.change, version=at.version, digest=at.digest)
        for one in reversed(behind):
            state = apply(state, one.change, version=one.version, digest=one.digest)
        return state

    def existing(self, version: int | None = None) -> State:
        """The same; NoTable if there is nothing."""
        state = self.state(version)
        if not state.version:
            raise NoTable(f"{self.store.uri}: there are no tables")
        return state

    def made(self, state: State) -> State:
        """The same state; tables of an empty log are tables, too."""
        return state if state.version else self.commit(state, Change(kind="load", at=self.now))

    def last_base(self, state: State) -> int:
        """The newest version up to `state` from which reading can begin."""
        at = state.version
        while at > 1:
            found = self._read(at)
            if found is None or found.base is not None:
                break
            at -= 1
        return at

    def commit(self, state: State, change: Change) -> State:
        """Make a change to the tables as they were read; TableBusy if they are not so any more.

        Before this line nothing has happened; after it, everything has.
        """
        version = state.version + 1
        after = apply(state, change, version=version, digest="")
        base = after if version % _BASE_EVERY == 0 else None
        data = manifest_of(change, version=version, prev=state.digest, base=base)
        made = read_manifest(data, manifest_path(version))
        assert made is not None  # noqa: S101 - written a line above
        if not self._put(version, data):
            raise TableBusy(f"{self.store.uri}: version {version} was made by somebody else")
        with contextlib.suppress(OSError):  # only a hint
            self.store.put(_LATEST, str(version).encode())
        return apply(state, change, version=version, digest=made.digest)

    def _put(self, version: int, data: bytes) -> bool:
        path = manifest_path(version)
        if self.store.put_new(path, data):
            return True
        if self._read(version) is not None:
            return False
        self.store.put(path, data)  # what is there was never finished
        return True

    def _read(self, version: int) -> Manifest | None:
        path = manifest_path(version)
        try:
            found = read_manifest(self.store.get(path), path)
        except FileNotFoundError:
            return None
        if found is not None and found.version != version:
            raise TableDamaged(f"{path}: says that it is version {found.version}")
        return found

    def _last(self) -> Manifest | None:
        found = self._read(self._hint())
        while (following := self._read(found.version + 1 if found else 1)) is not None:
            found = following
        return found

    def _hint(self) -> int:
        """A version that may be there. Without the hint, the names of the manifests tell."""
        try:
            hinted = int(self.store.get(_LATEST))
        except (FileNotFoundError, ValueError):
            hinted = 0
        if hinted and self._read(hinted) is not None:
            return hinted
        names = (one.path.rpartition("/")[2].removesuffix(".json") for one in self.store.walk(MANIFESTS))
        whole = (number for number in sorted((int(name) for name in names if name.isdecimal()), reverse=True))
        return next((number for number in whole if self._read(number) is not None), 0)
