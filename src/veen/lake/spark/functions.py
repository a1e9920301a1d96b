"""SQL functions over columns of entries: verify, open, read a body.

    register_functions(spark, keys="/etc/veen/reader.keys", identity="/etc/veen/hub-identity.json")
    spark.sql("SELECT veen_open(msg).payload FROM entries WHERE veen_verify(msg, receipt)")

Both files are named by paths, which executors read; neither their content nor a key is part of a plan.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from veen.core.errors import VeenError
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.lake.log.errors import OptionError
from veen.lake.log.keys import KeyFile
from veen.lake.log.opened import RowOpener, json_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPENED_TYPE: Final = "STRUCT<schema: STRING, payload: STRING, body: BINARY, ok: BOOLEAN, reason: STRING>"
_OPENED: Final = pa.struct(
    [
        ("schema", pa.string()),
        ("payload", pa.string()),
        ("body", pa.binary()),
        ("ok", pa.bool_()),
        ("reason", pa.string()),
    ]
)


def register_functions(
    spark: "SparkSession", *, keys: str | None = None, identity: str | None = None
) -> tuple[str, ...]:
    """Register SQL functions; return their names.

    veen_body(schema, body)    the body as JSON text; NULL if it is not CBOR
    veen_verify(msg, receipt)  true for valid signatures and a receipt of this message; needs `identity`
    veen_open(msg)             schema, payload, body; or ok = false and the reason; needs `keys`
    """
    from pyspark.sql.functions import arrow_udf

    functions: dict[str, tuple[Callable[..., pa.Array], str]] = {"veen_body": (_body, "STRING")}
    if identity is not None:
        functions["veen_verify"] = (_verifier(_absolute("identity", identity)), "BOOLEAN")
    if keys is not None:
        functions["veen_open"] = (_opener(_absolute("keys", keys)), OPENED_TYPE)
    for name, (function, sql) in functions.items():
        spark.udf.register(name, arrow_udf(function, sql))
    return tuple(functions)


def _absolute(name: str, path: str) -> str:
    if not Path(path).is_absolute():
        raise OptionError(f"{name} is {path!r}: give an absolute path, since executors run in directories of their own")
    return path


def _body(schema: pa.Array, body: pa.Array) -> pa.Array:
    """Convert bodies to JSON. `schema` is for later decoders of schemas; today every body is CBOR."""
    return pa.array([None if data is None else json_of(data) for data in body.to_pylist()], pa.string())


def _verifier(path: str) -> Callable[..., pa.Array]:
    def verify(msg: pa.Array, receipt: pa.Array) -> pa.Array:
        hub = _identity(path)
        pairs: Iterable[tuple[Any, Any]] = zip(msg.to_pylist(), receipt.to_pylist(), strict=True)
        return pa.array([None if None in pair else _holds(hub, *pair) for pair in pairs], pa.bool_())

    return verify


@lru_cache(maxsize=4)
def _identity(path: str) -> HubIdentity:
    try:
        return HubIdentity.from_bytes(Path(path).read_bytes())
    except OSError as exc:
        raise OptionError(f"identity {path}: {exc.strerror}") from exc


def _holds(hub: HubIdentity, raw: bytes, receipt_raw: bytes) -> bool:
    try:
        msg, receipt = Msg.from_bytes(raw), Receipt.from_bytes(receipt_raw)
        msg.check_ct_hash()
        if receipt.leaf_hash != msg.leaf_hash() or receipt.label != msg.label:
            return False
        receipt.verify(hub.signing_key_at(receipt.hub_ts).hub_pk)
    except VeenError:
        return False
    return msg.is_signed(Msg.digest_of(raw))


def _opener(path: str) -> Callable[..., pa.Array]:
    def open_column(msg: pa.Array) -> pa.Array:
        opener = RowOpener(KeyFile(path).load())
        return pa.array([None if raw is None else _open_msg(opener, raw) for raw in msg.to_pylist()], _OPENED)

    return open_column


def _open_msg(opener: RowOpener, raw: bytes) -> dict[str, Any]:
    try:
        return opener.open_msg(raw)
    except VeenError:
        return {"ok": False, "reason": "damaged"}
