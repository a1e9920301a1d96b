"""Proofs at any size, and checkpoints."""

from dataclasses import dataclass
from typing import ClassVar

from veen.core.tree.proof import ConsistencyProof
from veen.core.wire import Bytes32, Map, Uint

__all__ = ["CheckpointRangeRequest", "ConsistencyRequest", "ConsistencyResponse", "ProofAtRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAtRequest(Map):
    """An old leaf under a later root (D-34)."""

    KIND: ClassVar[str] = "proof_at request"

    label: Bytes32
    stream_seq: Uint
    tree_size: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyRequest(Map):
    """Asks for a consistency proof between two sizes."""

    KIND: ClassVar[str] = "consistency request"

    label: Bytes32
    from_size: Uint
    to_size: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyResponse(Map):
    """The proof, for the reader to verify against two roots."""

    KIND: ClassVar[str] = "consistency response"

    consistency_proof: ConsistencyProof
    server_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRangeRequest(Map):
    """The answer lists (epoch, label) in order; `after` continues behind that label of epoch_min (D-65)."""

    KIND: ClassVar[str] = "checkpoint_range request"

    epoch_min: Uint
    epoch_max: Uint
    label: Bytes32 | None = None
    after: Bytes32 | None = None
