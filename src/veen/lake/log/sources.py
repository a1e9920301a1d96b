"""Sources of entries: a directory or bucket here, a hub in `veen.lake.log.remote`. A source is a small value."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from veen.io.places import open_fs
from veen.lake.log.entries import ReadSpec, batches
from veen.lake.log.slices import Selection, Slice, label_slices
from veen.storage.pinned import LogView, pin


class LogSource(Protocol):
    """A source of entries: pinned and planned on the driver, read on executors."""

    def pin(self, selection: Selection, after: Mapping[bytes, int] | None = None) -> LogView:
        """Return the current heads of all labels, or at least of those that `selection` takes.

        `after`: positions up to which labels were read; what lies before may be left out.
        """

    def slices(self, pinned: LogView, selection: Selection) -> Iterator[Slice]:
        """Yield the ranges of entries that can hold selected ones, by label and position."""

    def read(self, slices: Iterable[Slice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices."""


@dataclass(frozen=True, slots=True)
class DirectorySource:
    """A data directory, on this machine or in any store that Arrow can read."""

    uri: str

    def pin(self, selection: Selection, after: Mapping[bytes, int] | None = None) -> LogView:
        return pin(self.uri, selection.labels, after=after)

    def slices(self, pinned: LogView, selection: Selection) -> Iterator[Slice]:
        fs = open_fs(self.uri)
        for label in sorted(pinned.labels):
            yield from label_slices(fs, pinned.labels[label], selection)

    def read(self, slices: Iterable[Slice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        fs = open_fs(self.uri)
        for part in slices:
            yield from batches(fs, part, spec)
