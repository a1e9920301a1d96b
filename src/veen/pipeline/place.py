"""Where entries are read from: a data directory here, a hub in `veen.pipeline.remote`. A place is a small value."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from veen.core.hubkeys import HubIdentity
from veen.pipeline import bronze
from veen.pipeline.bronze import Level
from veen.pipeline.cut import Cut
from veen.pipeline.files import open_fs
from veen.pipeline.inventory import ChunkRef, Pinned, pin
from veen.pipeline.plan import Piece, Selection, pieces

__all__ = ["Directory", "Place"]


class Place(Protocol):
    """Pinned and planned on the driver, read on executors."""

    def pin(self, selection: Selection) -> Pinned:
        """The heads of all labels, or at least of those that `selection` takes, as they are now."""

    def pieces(self, pinned: Pinned, selection: Selection) -> Iterator[Piece]:
        """The runs of entries that can hold what was selected, by label and position."""

    def read(
        self, found: Iterable[Piece], cut: Cut, level: Level, identity: HubIdentity | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some pieces; `cut` says which columns, and bounds besides those of the pieces."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A data directory, on this machine or wherever Arrow can reach."""

    uri: str

    def pin(self, selection: Selection) -> Pinned:
        return pin(self.uri, selection.labels)

    def pieces(self, pinned: Pinned, selection: Selection) -> Iterator[Piece]:
        """With a piece for each hole: that a file is gone must not look as if there had been nothing."""
        yield from pieces(open_fs(self.uri), pinned, selection)
        for label in sorted(pinned.labels):
            found = pinned.labels[label]
            for start, end in found.gaps:
                hole = ChunkRef(
                    label=label,
                    epoch=found.epoch,
                    stream_id=found.stream_id,
                    start_seq=start,
                    end_seq=end,
                    path="",
                    kind="missing",
                    size=0,
                )
                if selection.takes(hole):
                    yield selection.of(hole)

    def read(
        self, found: Iterable[Piece], cut: Cut, level: Level, identity: HubIdentity | None
    ) -> Iterator[pa.RecordBatch]:
        fs = open_fs(self.uri)
        for piece in found:
            yield from bronze.batches(
                fs,
                piece.ref,
                cut.columns,
                level=level,
                identity=identity,
                first=piece.first,
                last=piece.last,
                first_ts=cut.first_ts,
                last_ts=cut.last_ts,
                fail_fast=cut.fail_fast,
            )
