"""The names of all files in a data directory (spec §4.8.3, D-42, D-68 … D-75). No other module spells a path."""

import re
from typing import Final, NamedTuple

__all__ = [
    "CHECKPOINT_BINDING",
    "CONTROL",
    "DIRECTORIES",
    "IDENTITY",
    "IDENTITY_SIG",
    "INDEX",
    "JOURNAL",
    "KEYS",
    "KEY_MAP",
    "LIMITS",
    "LOG",
    "ChunkName",
    "active",
    "checkpoint",
    "checkpoint_index",
    "chunk",
    "chunk_of",
    "journal_segment",
    "locations",
    "nodes",
    "peaks",
    "receipts_archive",
    "segment_number",
    "summary",
]

LOG: Final = "log"
JOURNAL: Final = "journal"
KEYS: Final = "keys"
NODES: Final = "nodes"
OFFSETS: Final = "offsets"
DIRECTORIES: Final = (LOG, JOURNAL, KEYS, NODES, OFFSETS)

INDEX: Final = "index.db"
IDENTITY: Final = "hub-identity.json"
IDENTITY_SIG: Final = "hub-identity.sig"
KEY_MAP: Final = "hub-key-map.json"
CHECKPOINT_BINDING: Final = "checkpoint-binding.json"
LIMITS: Final = "limits.json"
CONTROL: Final = f"{LOG}/control.cborseq"

_CHUNK: Final = re.compile(r"chunk-([0-9a-f]{64})-(\d{20})-(\d{20})\.log")
_ACTIVE: Final = re.compile(r"active-([0-9a-f]{64})-(\d{20})\.log")
_SEGMENT: Final = re.compile(r"(\d{20})\.wal")


class ChunkName(NamedTuple):
    """What the name of a chunk file says; an active chunk has no end yet."""

    label: bytes
    start_seq: int
    end_seq: int | None


def active(label: bytes, start_seq: int) -> str:
    """The chunk that still grows; renamed when it is sealed (D-69)."""
    return f"{LOG}/active-{label.hex()}-{start_seq:020d}.log"


def chunk(label: bytes, start_seq: int, end_seq: int) -> str:
    return f"{LOG}/chunk-{label.hex()}-{start_seq:020d}-{end_seq:020d}.log"


def summary(label: bytes, start_seq: int, end_seq: int) -> str:
    return f"{LOG}/chunk-{label.hex()}-{start_seq:020d}-{end_seq:020d}.summary"


def receipts_archive(label: bytes, start_seq: int, end_seq: int) -> str:
    """The receipts of a chunk whose payloads were erased (D-74)."""
    return f"{LOG}/receipts-{label.hex()}-{start_seq:020d}-{end_seq:020d}.cborseq"


def peaks(label: bytes, upto_seq: int) -> str:
    return f"{LOG}/peaks-{label.hex()}-{upto_seq:020d}.cbor"


def checkpoint(label: bytes, upto_seq: int) -> str:
    return f"{LOG}/checkpoint-{label.hex()}-{upto_seq:020d}.cbor"


def checkpoint_index(label: bytes) -> str:
    return f"{LOG}/checkpoint-index-{label.hex()}.cbor"


def nodes(label: bytes) -> str:
    """All MMR nodes of a label, 32 bytes each, in the order of `mmr.node_position`."""
    return f"{NODES}/{label.hex()}.nodes"


def locations(label: bytes) -> str:
    """Where each entry of a label lies, 16 bytes each."""
    return f"{OFFSETS}/{label.hex()}.loc"


def journal_segment(number: int) -> str:
    return f"{JOURNAL}/{number:020d}.wal"


def segment_number(name: str) -> int | None:
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def chunk_of(name: str) -> ChunkName | None:
    """Read the name of a chunk file in the log directory, or None for other files."""
    if match := _CHUNK.fullmatch(name):
        return ChunkName(bytes.fromhex(match[1]), int(match[2]), int(match[3]))
    if match := _ACTIVE.fullmatch(name):
        return ChunkName(bytes.fromhex(match[1]), int(match[2]), None)
    return None
