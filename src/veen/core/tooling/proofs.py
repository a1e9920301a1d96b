"""Proofs at any size, and checkpoints."""

from dataclasses import dataclass
from typing import ClassVar, Self

from veen.core.proof import ConsistencyProof
from veen.core.tooling.base import Map
from veen.core.wire import Fields

__all__ = ["CheckpointRangeRequest", "ConsistencyRequest", "ConsistencyResponse", "ProofAtRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofAtRequest(Map):
    """An old leaf under a later root (D-34)."""

    KIND: ClassVar[str] = "proof_at request"

    label: bytes
    stream_seq: int
    tree_size: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32), stream_seq=f.uint("stream_seq"), tree_size=f.uint("tree_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyRequest(Map):
    KIND: ClassVar[str] = "consistency request"

    label: bytes
    from_size: int
    to_size: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32), from_size=f.uint("from_size"), to_size=f.uint("to_size"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyResponse(Map):
    KIND: ClassVar[str] = "consistency response"

    consistency_proof: ConsistencyProof
    server_version: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            consistency_proof=f.object("consistency_proof", ConsistencyProof),
            server_version=f.optional(f.text, "server_version"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRangeRequest(Map):
    """The answer lists (epoch, label) in order; `after` continues behind that label of epoch_min (D-65)."""

    KIND: ClassVar[str] = "checkpoint_range request"

    epoch_min: int
    epoch_max: int
    label: bytes | None = None
    after: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            epoch_min=f.uint("epoch_min"),
            epoch_max=f.uint("epoch_max"),
            label=f.optional(f.bstr, "label", 32),
            after=f.optional(f.bstr, "after", 32),
        )
