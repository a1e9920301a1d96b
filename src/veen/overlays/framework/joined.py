"""Several folds as one: one pass over the log, one snapshot, one cut for all of them (spec §0).

Overlays compose by what they declare: the schemas that a fold reads and the state class that it makes. What needs the
states of several overlays, such as who may spend from a wallet, is a function of their views at the same cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from veen.core import cbor
from veen.core.errors import MalformedError
from veen.core.event import Event
from veen.overlays.framework.decode import Issue
from veen.overlays.framework.fold import AnyFold, Fold
from veen.overlays.framework.schema import SchemaSet

Summaries = tuple[Any, ...]  # in the order of the folds


class Joined(Fold[Summaries, dict[str, Any]]):
    """The views of some folds by their names. Each keeps its own mirrors."""

    def __init__(self, folds: Iterable[AnyFold]) -> None:
        super().__init__()
        self._folds = sorted(folds, key=lambda fold: fold.name)
        self.name = "+".join(fold.name for fold in self._folds)
        self.schemas = SchemaSet()
        for fold in self._folds:
            self.schemas |= fold.schemas

    @property
    def folds(self) -> Sequence[AnyFold]:
        """The folds by name, in the order of their summaries, for callers that fold each by itself."""
        return self._folds

    def settings(self) -> Mapping[str, bytes]:
        return {fold.name: fold.semantics() for fold in self._folds}

    def summarize(self, events: Iterable[Event]) -> Summaries:
        batch = list(events)
        return tuple(fold.summarize(batch) for fold in self._folds)

    def combine(self, parts: Iterable[Summaries]) -> Summaries:
        summaries = list(parts)
        return tuple(fold.combine(part[i] for part in summaries) for i, fold in enumerate(self._folds))

    def seal(self, summary: Summaries) -> Summaries:
        return tuple(fold.seal(part) for fold, part in zip(self._folds, summary, strict=True))

    def view(self, summary: Summaries, as_of: int | None = None) -> dict[str, Any]:
        return {fold.name: fold.view(part, as_of) for fold, part in zip(self._folds, summary, strict=True)}

    def issues(self, summary: Summaries) -> tuple[Issue, ...]:
        issues = {issue for fold, part in zip(self._folds, summary, strict=True) for issue in fold.issues(part)}
        return tuple(sorted(issues))

    def dump(self, summary: Summaries) -> cbor.Item:
        return [fold.dump(part) for fold, part in zip(self._folds, summary, strict=True)]

    def load(self, tree: cbor.Item) -> Summaries:
        if type(tree) is not list or len(tree) != len(self._folds):
            raise MalformedError("a summary of other folds", self.name)
        return tuple(fold.load(part) for fold, part in zip(self._folds, tree, strict=True))
