"""Names of things: hub_id, routing_key, stream_id, epoch and label (spec §2, §12, D-21 … D-26).

The ids by which payload headers name schemas (spec §4.5, §4.7, D-83).

Most documents hash the name; the operation profiles of spec-3 put a prefix before it. The name decides which rule
applies, so everyone derives the same id.
"""

import re
from typing import Final

from veen.core.errors import InvalidKeyError, MalformedError
from veen.core.hashing import H, Ht, u64be

_HEX_ID: Final = re.compile(r"[0-9a-fA-F]{64}")


def hub_id_of(first_hub_pk: bytes) -> bytes:
    """Return the identity of a hub: fixed by its first key, unchanged by rotation (D-21)."""
    if len(first_hub_pk) != 32:
        raise InvalidKeyError(f"a hub key has 32 bytes, found {len(first_hub_pk)}")
    return Ht("veen/hub-id", first_hub_pk)


def routing_key_of(hub_id: bytes) -> bytes:
    """Return the salt of a hub's label space; a new hub_id means a new label space (spec §12)."""
    return Ht("veen/routing_key", hub_id)


def stream_id_of(name: str) -> bytes:
    """Return the id of a stream: 64 hex digits are a raw id, any other name is hashed (D-22)."""
    if not name:
        raise MalformedError("a stream name must not be empty", "stream")
    if _HEX_ID.fullmatch(name):
        return bytes.fromhex(name)
    try:
        return H(name.encode())
    except UnicodeEncodeError as exc:
        raise MalformedError("a stream name must be valid Unicode", "stream") from exc


def epoch_at(unix_time_sec: int, epoch_sec: int) -> int:
    """Return floor(t / epoch_sec), or 0 where labels do not rotate (spec §3.2)."""
    return unix_time_sec // epoch_sec if epoch_sec else 0


def epoch_window(epoch_sec: int, max_epoch_skew_sec: int) -> int:
    """Return the number of epochs before and after the current one that a hub accepts (spec §12)."""
    return max_epoch_skew_sec // epoch_sec if epoch_sec else 0


def label_of(routing_key: bytes, stream_id: bytes, epoch: int) -> bytes:
    """Return the label of a stream: unlinkable to its name without the routing key (spec §2)."""
    return Ht("veen/label", routing_key + stream_id + u64be(epoch))


# The profiles of 001 spec-3, §2 to §10.
OPERATIONS: Final = frozenset(
    {
        "paid.operation.v1",
        "access.grant.v1",
        "access.revoke.v1",
        "delegated.execution.v1",
        "agreement.definition.v1",
        "agreement.confirmation.v1",
        "data.publication.v1",
        "state.checkpoint.v1",
        "recovery.request.v1",
        "recovery.approval.v1",
        "recovery.execution.v1",
        "query.audit.v1",
        "federation.mirror.v1",
    }
)
_HEX_SCHEMA: Final = re.compile("[0-9a-fA-F]{64}")


def schema_id(schema: str | bytes) -> bytes:
    """Return the id of a schema, given as bytes, 64 hex digits or name: H(name), or H("veen/schema:" || name) for
    operations.
    """
    if isinstance(schema, bytes):
        return schema
    if _HEX_SCHEMA.fullmatch(schema):
        return bytes.fromhex(schema)
    prefix = b"veen/schema:" if schema in OPERATIONS else b""
    return H(prefix + schema.encode("utf-8", "surrogateescape"))
