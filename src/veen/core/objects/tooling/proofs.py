"""Proofs at any size, and checkpoints."""

from dataclasses import dataclass

from veen.core.tree.proof import ConsistencyProof
from veen.core.wire import Bytes32, Map, Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAtRequest(Map, kind="proof_at request"):
    """Request for the proof of an old leaf under a later root (D-34)."""

    label: Bytes32
    stream_seq: Uint
    tree_size: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyRequest(Map, kind="consistency request"):
    """Request for a consistency proof between two sizes."""

    label: Bytes32
    from_size: Uint
    to_size: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyResponse(Map, kind="consistency response"):
    """The proof, for the reader to verify against two roots."""

    consistency_proof: ConsistencyProof
    server_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRangeRequest(Map, kind="checkpoint_range request"):
    """Request for checkpoints, listed by (epoch, label); `after` continues behind that label of epoch_min (D-65)."""

    epoch_min: Uint
    epoch_max: Uint
    label: Bytes32 | None = None
    after: Bytes32 | None = None
