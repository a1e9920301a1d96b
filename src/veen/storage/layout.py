"""The names of all files in a data directory (spec §4.8.3, D-42, D-68 … D-75). No other module contains a path."""

import re
from typing import Final, Literal, NamedTuple

LOG: Final = "log"
JOURNAL: Final = "journal"
KEYS: Final = "keys"
NODES: Final = "nodes"
OFFSETS: Final = "offsets"
ATTACHMENTS: Final = "attachments"  # made when the first one arrives
ATTACHMENT_RECORDS: Final = "attachments.db"  # whose they are and which entries they belong to; as above
BIRTH: Final = f"{KEYS}/birth.json"  # until when a blank directory may begin with the key beside it (D-121)
REPLICA: Final = "replica.json"  # whom the directory follows; there as long as it is a replica
REPLICA_DIR: Final = "replica"  # what a replica keeps beside the log
REPLACED: Final = "replaced.cbor"  # the hub.promote record of the replica that took the place of this hub
DIRECTORIES: Final = (LOG, JOURNAL, KEYS, NODES, OFFSETS)

INDEX: Final = "index.db"
IDENTITY: Final = "hub-identity.json"
IDENTITY_SIG: Final = "hub-identity.sig"
ROOT: Final = "hub-root.pk"  # the offline key that signs the identity, where its own key does not (HID-09)
KEY_MAP: Final = "hub-key-map.json"
CHECKPOINT_BINDING: Final = "checkpoint-binding.json"
LIMITS: Final = "limits.json"
ANCHORS: Final = "anchors.chain"  # made with the first anchor of the default backend
LOCK: Final = "lock"
CLOCK: Final = "clock"  # when the hub was last alive, by its own clock
LOCAL: Final = "local"  # only while the hub runs, and only for its own user
LOCAL_SOCKET: Final = f"{LOCAL}/hub.sock"  # the door for administration on the hub's own machine
RELOAD: Final = f"{LOCAL}/reload.json"  # how the last reload ended
ORIGIN: Final = "origin"  # the retained prefix of another hub, in a fork (D-77)
UNFINISHED: Final = "unfinished-copy.json"  # lies in a clone or fork until all of it is there
ERASED: Final = "erased.json"  # in a copy of a hub: entries that the hub had erased when it was asked for them
CUT: Final = "cut"  # what `veen hub cut-tail` took from the end of the journal, with a record of it
EVIDENCE: Final = "evidence"  # proofs of equivocation that somebody reported; no part of the log
OUTER: Final = "outer"  # the outer log (D-172); made when `outer.origin` is configured
OUTER_KEY: Final = f"{KEYS}/outer.seed"  # its signing key; not *.key, which are keys of the hub's identity
OUTER_LEAVES: Final = f"{OUTER}/leaves"  # the data of all leaves, one after the other
OUTER_OFFSETS: Final = f"{OUTER}/offsets"  # where each leaf ends, u64
OUTER_NODES: Final = f"{OUTER}/nodes"  # 32 bytes each, in the order of `mmr.node_position`
OUTER_SIGNED: Final = f"{OUTER}/signed"  # the last note that was signed
OUTER_PUBLISHED: Final = f"{OUTER}/published"  # the last note that went out, with its cosignatures
OUTER_INDEX: Final = f"{OUTER}/index.db"  # which leaf holds which checkpoint; made again when it is missing
FORK_ORIGIN: Final = "fork-origin.json"
FORK_ORIGIN_SIG: Final = "fork-origin.sig"
CONTROL: Final = f"{LOG}/control.cborseq"

_CHUNK: Final = re.compile(r"chunk-([0-9a-f]{64})-(\d{20})-(\d{20})\.log")
_ACTIVE: Final = re.compile(r"active-([0-9a-f]{64})-(\d{20})\.log")
_LOG_FILE: Final = re.compile(
    r"(?P<kind>chunk|receipts|heads)-(?P<label>[0-9a-f]{64})-(?P<start>[0-9]{20})-(?P<end>[0-9]{20})"
    r"\.(?P<suffix>log|summary|cborseq)"
    r"|(?P<open>active)-(?P<open_label>[0-9a-f]{64})-(?P<open_start>[0-9]{20})\.log"
    r"|(?P<upto_kind>peaks|checkpoint)-(?P<upto_label>[0-9a-f]{64})-(?P<upto>[0-9]{20})\.cbor"
    r"|checkpoint-index-(?P<index_label>[0-9a-f]{64})\.cbor"
)
_SUFFIXES: Final = {("chunk", "log"), ("chunk", "summary"), ("receipts", "cborseq"), ("heads", "cborseq")}
_SEGMENT: Final = re.compile(r"(\d{20})\.wal")


class ChunkName(NamedTuple):
    """Parsed name of a chunk file; an active chunk has no end yet."""

    label: bytes
    start_seq: int
    end_seq: int | None


LogKind = Literal["chunk", "summary", "receipts", "heads", "active", "peaks", "checkpoint", "checkpoint-index"]


class LogFile(NamedTuple):
    """Parsed name of a label's file in the log directory; bounds that it does not name are 0."""

    kind: LogKind
    label: bytes
    start_seq: int = 0
    end_seq: int = 0
    path: str = ""


def key(key_id: str) -> str:
    """Return the path of a private key; the directory is absent from a verifier's copy (D-42)."""
    return f"{KEYS}/{key_id}.key"


def attachment(coid: bytes) -> str:
    """Return the path of an attachment, in one of 256 directories so that none grows without bound (D-15)."""
    return f"{ATTACHMENTS}/{coid.hex()[:2]}/{coid.hex()}"


def active(label: bytes, start_seq: int) -> str:
    """Return the path of the growing chunk, which is renamed when it is sealed (D-69)."""
    return f"{LOG}/active-{label.hex()}-{start_seq:020d}.log"


def chunk(label: bytes, start_seq: int, end_seq: int) -> str:
    return f"{LOG}/chunk-{label.hex()}-{start_seq:020d}-{end_seq:020d}.log"


def summary(label: bytes, start_seq: int, end_seq: int) -> str:
    return f"{LOG}/chunk-{label.hex()}-{start_seq:020d}-{end_seq:020d}.summary"


def receipts_archive(label: bytes, start_seq: int, end_seq: int) -> str:
    """Return the path of the receipts of a chunk whose payloads were erased (D-74)."""
    return f"{LOG}/receipts-{label.hex()}-{start_seq:020d}-{end_seq:020d}.cborseq"


def evidence(digest: bytes) -> str:
    return f"{EVIDENCE}/{digest.hex()}.cbor"


def replica_seal(label: bytes, upto_seq: int) -> str:
    """Return the path of a checkpoint of the primary that the replica needs to seal the chunk that ends there."""
    return f"{REPLICA_DIR}/seal-{label.hex()}-{upto_seq:020d}.cbor"


def outer_refusal(digest: bytes) -> str:
    """Return the path of a request that a witness refused as a fork of the outer log."""
    return f"{OUTER}/refused-{digest.hex()}.txt"


def heads_archive(label: bytes, start_seq: int, end_seq: int) -> str:
    """Return the path of the heads of a chunk whose payloads were erased, from which cursors follow (STOR-22)."""
    return f"{LOG}/heads-{label.hex()}-{start_seq:020d}-{end_seq:020d}.cborseq"


def peaks(label: bytes, upto_seq: int) -> str:
    return f"{LOG}/peaks-{label.hex()}-{upto_seq:020d}.cbor"


def checkpoint(label: bytes, upto_seq: int) -> str:
    return f"{LOG}/checkpoint-{label.hex()}-{upto_seq:020d}.cbor"


def checkpoint_index(label: bytes) -> str:
    return f"{LOG}/checkpoint-index-{label.hex()}.cbor"


def nodes(label: bytes) -> str:
    """Return the path of all MMR nodes of a label, 32 bytes each, in the order of `mmr.node_position`."""
    return f"{NODES}/{label.hex()}.nodes"


def locations(label: bytes) -> str:
    """Return the path of the locations of a label's entries, 16 bytes each."""
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


def log_file(name: str) -> LogFile | None:
    """Read the name of a file in the log directory, or None if no label's file is called so."""
    match = _LOG_FILE.fullmatch(name)
    if match is None:
        return None
    part, path = match.groupdict(), f"{LOG}/{name}"
    if part["open"]:
        return LogFile("active", bytes.fromhex(part["open_label"]), int(part["open_start"]), 0, path)
    if part["index_label"]:
        return LogFile("checkpoint-index", bytes.fromhex(part["index_label"]), 0, 0, path)
    if part["upto_kind"]:
        kind: LogKind = "peaks" if part["upto_kind"] == "peaks" else "checkpoint"
        return LogFile(kind, bytes.fromhex(part["upto_label"]), 0, int(part["upto"]), path)
    if (part["kind"], part["suffix"]) not in _SUFFIXES:
        return None
    kinds: dict[str, LogKind] = {"chunk": "chunk", "receipts": "receipts", "heads": "heads"}
    kind = "summary" if part["suffix"] == "summary" else kinds[part["kind"]]
    return LogFile(kind, bytes.fromhex(part["label"]), int(part["start"]), int(part["end"]), path)


def label_of_array(name: str, suffix: str) -> bytes | None:
    """Return the label of a file of nodes or locations, or None for other names."""
    match = re.fullmatch(rf"([0-9a-f]{{64}})\.{suffix}", name)
    return bytes.fromhex(match[1]) if match else None
