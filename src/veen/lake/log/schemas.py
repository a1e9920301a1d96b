"""Formats and tables of the pipeline by name, as `veen spark schema` shows them (D-07)."""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from veen.lake.log.columns import CHECKPOINTS, ENTRIES, RECEIPTS, Column
from veen.lake.log.events import SILVER
from veen.verify.audit.findings import SCHEMA as FINDINGS
from veen.verify.audit.tables import COMMITMENTS, CURSORS

_SQL: Final = {
    pa.binary(): "BINARY",
    pa.bool_(): "BOOLEAN",
    pa.int64(): "BIGINT",
    pa.list_(pa.binary()): "ARRAY<BINARY>",
    pa.string(): "STRING",
}


def _columns(schema: pa.Schema) -> tuple[Column, ...]:
    return tuple(
        Column(field.name, _SQL[field.type] + ("" if field.nullable else " NOT NULL"), field.type, "")
        for field in schema
    )


SCHEMAS: Final[Mapping[str, tuple[Column, ...]]] = {
    "veen": ENTRIES,
    "veen.receipts": RECEIPTS,
    "veen.checkpoints": CHECKPOINTS,
    "events": SILVER,
    "audit.findings": _columns(FINDINGS),
    "audit.commitments": _columns(COMMITMENTS),
    "audit.cursors": _columns(CURSORS),
}
