"""The ids by which payload headers name schemas (spec §4.5, §4.7, D-83).

Most documents hash the name; the operation profiles of spec-3 put a prefix before it. The name decides which rule
applies, so everyone derives the same id.
"""

import re
from typing import Final

from veen.core.hashing import H

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
