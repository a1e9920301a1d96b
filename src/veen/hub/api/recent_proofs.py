"""A cache of inclusion proofs (spec §3.4.1, GEN-21).

A proof under the root of an entry's own receipt never changes (D-33), and writers and followers ask mostly for the
newest entries. Losing a cached proof costs a few reads.
"""

from typing import Final

from veen.core.lru import Lru
from veen.core.tree.proof import MmrProof, prove_inclusion
from veen.storage.label_files import LabelFiles

_CAPACITY: Final = 2_048


class RecentProofs:
    """Recent proofs; the least recently used one is dropped first."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._proofs: Lru[tuple[bytes, int], MmrProof] = Lru(capacity)

    def __len__(self) -> int:
        return len(self._proofs)

    def prove(self, files: LabelFiles, stream_seq: int) -> MmrProof:
        """Return the proof of an entry under the root in its own receipt."""
        key = (files.label, stream_seq)
        proof = self._proofs.get(key)
        if proof is None:
            proof = prove_inclusion(files.node_at, stream_seq)
            self._proofs.put(key, proof)
        return proof
