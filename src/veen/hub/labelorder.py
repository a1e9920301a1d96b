"""All labels by (epoch, label), for answers that list them without looking at every one (D-65)."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from itertools import islice

from veen.hub.calls import Context
from veen.storage.labelfiles import LabelFiles
from veen.storage.store import Store

__all__ = ["LabelOrder"]


class LabelOrder:
    """Follows the pipeline; also knows which label was committed to last."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store: Store | None = None
        self._known: set[bytes] = set()
        self._order: list[tuple[int, bytes]] = []
        self._last: bytes | None = None
        self._current()
        context.services.pipeline.on_applied(self._applied)

    def _current(self) -> Store:
        """The store, after starting over if it was reopened."""
        store = self._context.store
        if store is not self._store:
            labels = list(store.labels())
            self._store = store
            self._known = {files.label for files in labels}
            self._order = sorted((files.epoch, files.label) for files in labels)
            newest = max(labels, key=lambda files: (files.last_ts, files.row), default=None)
            self._last = newest.label if newest else None
        return store

    def _applied(self, labels: Sequence[bytes]) -> None:
        if not labels:  # control records only
            return
        store = self._current()
        for label in labels:
            if label not in self._known and (files := store.files(label)) is not None:
                self._known.add(label)
                insort(self._order, (files.epoch, label))
        self._last = labels[-1]

    def __len__(self) -> int:
        self._current()
        return len(self._order)

    def last(self) -> LabelFiles | None:
        """The label that was committed to last."""
        store = self._current()
        return store.files(self._last) if self._last is not None else None

    def between(self, epoch_min: int, epoch_max: int, after: bytes | None, limit: int) -> Iterator[LabelFiles]:
        """Labels of these epochs in order, behind label `after` of the first one; at most `limit`."""
        store = self._current()
        if after is None:
            start = bisect_left(self._order, (epoch_min, b""))
        else:
            start = bisect_right(self._order, (epoch_min, after))
        for epoch, label in list(islice(self._order, start, start + limit)):
            files = store.files(label)
            if epoch > epoch_max:
                return
            if files is not None:
                yield files
