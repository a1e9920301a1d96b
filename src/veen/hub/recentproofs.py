"""Inclusion proofs that were asked for lately (spec §3.4.1, GEN-21).

A proof under the root of an entry's own receipt never changes (D-33), and entries that were just written are the ones
that writers and followers ask about. So they are kept, and forgetting one costs a few reads and nothing else.
"""

from collections import OrderedDict
from typing import Final

from veen.core.proof import MmrProof, prove_inclusion
from veen.storage.labelfiles import LabelFiles

__all__ = ["RecentProofs"]

_CAPACITY: Final = 2_048


class RecentProofs:
    """The least recently used goes first."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._proofs: OrderedDict[tuple[bytes, int], MmrProof] = OrderedDict()

    def __len__(self) -> int:
        return len(self._proofs)

    def prove(self, files: LabelFiles, stream_seq: int) -> MmrProof:
        """The proof of an entry under the root in its own receipt."""
        key = (files.label, stream_seq)
        proof = self._proofs.get(key)
        if proof is not None:
            self._proofs.move_to_end(key)
            return proof
        proof = prove_inclusion(files.node_at, stream_seq)
        self._proofs[key] = proof
        if len(self._proofs) > self._capacity:
            self._proofs.popitem(last=False)
        return proof
