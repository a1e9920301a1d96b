"""Snapshots: a summary kept, bound to the very log it was made from (spec §11.3, D-82, CRDT0.3).

A snapshot names the schemas, the settings of the fold and, for each label, the position and the root up to which it
holds. Who restores it says which root their own copy of the log has there; with any other root it is refused.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar

from veen.core import cbor
from veen.core.errors import FormatError, VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.wire import Bytes32, Length, Map, Part, Uint
from veen.overlays.framework.fold import AnyFold, Fold
from veen.overlays.framework.state import state_hash

T = TypeVar("T")

_MAX_SCHEMAS = 4_096
_MAX_CUTS = 1_000_000


class SnapshotRefused(VerifyError, code="E.SNAPSHOT"):
    """A snapshot of another log or another fold, or a damaged one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(Part, kind="snapshot cut"):
    """One label up to a position, which is included, and the root it had there."""

    label: Bytes32
    upto_seq: Uint
    mmr_root: Bytes32

    @classmethod
    def at(cls, checkpoint: Checkpoint) -> Self:
        """Return the cut of a verified CHECKPOINT (CRDT0.3)."""
        return cls(label=checkpoint.label_curr, upto_seq=checkpoint.upto_seq, mmr_root=checkpoint.mmr_root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Map, kind="snapshot"):
    """A summary with its validity key. `summary` is the fold's own form, read with its types only."""

    MAX_BYTES: ClassVar[int] = 1 << 32

    fold: str
    schemas: Annotated[tuple[Bytes32, ...], Length(0, _MAX_SCHEMAS)]
    settings: bytes  # what else decides the state: version and parameters of the fold, and mirrors
    cuts: Annotated[tuple[Cut, ...], Length(0, _MAX_CUTS)]
    state_hash: Bytes32
    summary: bytes

    @classmethod
    def take(cls, fold: Fold[T, Any], summary: T, cuts: Iterable[Cut]) -> Self:
        """Make a snapshot. `summary` must be that of all events up to `cuts` and of no others."""
        summary = fold.seal(summary)
        return cls(
            **_key(fold),
            cuts=tuple(sorted(cuts, key=lambda cut: cut.label)),
            state_hash=state_hash(fold.name, fold.view(summary)),
            summary=cbor.encode(fold.dump(summary)),
        )

    def restore(self, fold: Fold[T, Any], root_at: Callable[[bytes, int], bytes | None]) -> T:
        """Return the summary; raise SnapshotRefused unless the caller's log has the same root at every cut.

        `root_at(label, upto_seq)` comes from RECEIPTs or CHECKPOINTs that the caller has verified.
        """
        for name, value in _key(fold).items():
            if getattr(self, name) != value:
                raise SnapshotRefused(f"the snapshot was made by another fold: {name} differs")
        for cut in self.cuts:
            if root_at(cut.label, cut.upto_seq) != cut.mmr_root:
                raise SnapshotRefused(f"label {cut.label.hex()} has another root at {cut.upto_seq}")
        try:
            summary = fold.load(cbor.decode(self.summary, what="snapshot", max_bytes=len(self.summary)))
        except FormatError as exc:
            raise SnapshotRefused(f"the snapshot is damaged: {exc}") from exc
        if state_hash(fold.name, fold.view(summary)) != self.state_hash:
            raise SnapshotRefused("the snapshot is damaged: its state has another hash")
        return summary


def _key(fold: AnyFold) -> dict[str, Any]:
    """Return what the state depends on besides the log: fold, schemas and settings."""
    return {
        "fold": fold.name,
        "schemas": tuple(sorted(fold.schemas)),
        "settings": fold.semantics(),
    }
