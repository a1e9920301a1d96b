"""Result of a fold over a log: the state, its binding to the log, and entries without effect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any, Final

from veen.core import html
from veen.core.tree.mmr import Span
from veen.lake.folds.coverage import UnopenedCount
from veen.lake.folds.errors import NotBound
from veen.overlays.framework.body import Draft
from veen.overlays.framework.decode import Issue
from veen.overlays.framework.fold import AnyFold
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
        from veen.lake.folds.states import write

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
