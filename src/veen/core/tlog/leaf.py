"""The leaves of a hub's outer log (D-172): deterministic CBOR `[1, kind, bytes]`.

Kind 0 is hub-identity.json and always leaf 0; kind 1 a CHECKPOINT without witness_sigs; kind 2 the newest record of the
control journal.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tlog.errors import NoteError

IDENTITY_LEAF: Final = 0
CHECKPOINT_LEAF: Final = 1
CONTROL_LEAF: Final = 2
MAX_LEAF_BYTES: Final = 65_535  # of an entry bundle of tlog-tiles
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class OuterLeaf:
    kind: int
    data: bytes

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> Self:
        return cls(CHECKPOINT_LEAF, replace(checkpoint, witness_sigs=None).to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            tree = cbor.decode(data, what="outer leaf", max_bytes=MAX_LEAF_BYTES)
        except FormatError as exc:
            raise NoteError(f"outer leaf: {exc}") from exc
        if type(tree) is not list or len(tree) != 3 or type(tree[1]) is not int or type(tree[2]) is not bytes:
            raise NoteError("outer leaf: expected [1, kind, bytes]")
        if type(tree[0]) is not int or tree[0] != _VERSION or not 0 <= tree[1] <= CONTROL_LEAF:
            raise NoteError("outer leaf: unknown version or kind")
        return cls(tree[1], tree[2])

    def to_bytes(self) -> bytes:
        return cbor.encode([_VERSION, self.kind, self.data])

    def checkpoint(self) -> Checkpoint | None:
        """Return the CHECKPOINT of the leaf; None for other kinds. Raise NoteError if it is invalid or has
        witness_sigs.
        """
        if self.kind != CHECKPOINT_LEAF:
            return None
        try:
            checkpoint = Checkpoint.from_bytes(self.data)
        except FormatError as exc:
            raise NoteError(f"outer leaf: {exc}") from exc
        if checkpoint.witness_sigs is not None:
            raise NoteError("outer leaf: a CHECKPOINT is listed without witness_sigs")
        return checkpoint
