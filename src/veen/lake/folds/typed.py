"""Typed silver: bodies decoded once, in Arrow, into columns that SQL can aggregate (D-07).

One row per event that the fold counts, with its place in the logical order; beside them rows for what does not decode,
for copies (D-85), and one per task for its coverage. u64 are DECIMAL(20,0). Times are there a second time, less 2^63,
as a BIGINT of the same order (`at_key`): Spark compares a DECIMAL of 20 digits through objects.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from veen.core import cbor
from veen.lake.folds.coverage import FoldCoverage, coverage_row
from veen.lake.folds.errors import PlanUnfit
from veen.lake.log.columns import Column
from veen.lake.log.events import SILVER, SORT_KEYS, LogEntry
from veen.overlays.crdt import CounterDelta, CounterFold, LwwFold, LwwSet, OrSetFold, OrSetOp
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.schema import Issue, Typed, decode
from veen.overlays.framework.state import Free, to_tree
from veen.overlays.kv import Kv, KvFold

HALF: Final = 1 << 63
ORDER_KEYS: Final = frozenset({"at_key", "expires_at_key"})


def _u64(name: str, about: str) -> Column:
    return Column(name, "DECIMAL(20,0)", pa.decimal128(20, 0), about)


def _key(name: str) -> Column:
    return Column(f"{name}_key", "BIGINT", pa.int64(), f"{name} less 2^63, which has the same order")


def key_of(value: int | None) -> int | None:
    """Return a u64 as a BIGINT of the same order."""
    return None if value is None else value - HALF


def _binary(name: str, about: str) -> Column:
    return Column(name, "BINARY", pa.binary(), about)


def _text(name: str, about: str) -> Column:
    return Column(name, "STRING", pa.string(), about)


_POSITION: Final = (
    *(column for column in SILVER if column.name in (*SORT_KEYS, "label", "client_id")),
    _u64("expires_at", "of the payload header"),
    _key("expires_at"),
    _binary("att_root", "of the payload header"),
)
_BESIDE: Final = (
    _text("kind", "event, copy, issue or seen"),
    _text("code", "of an issue"),
    _text("what", "of an issue"),
    _binary("original", "of a copy: the msg_id of what it copies"),
    _binary("data", "of a copy: the event; of seen: the coverage of the task"),
)


@dataclass(frozen=True, slots=True)
class BodyColumns:
    """The columns of a body, and the function that fills them."""

    columns: tuple[Column, ...]
    of: Callable[[Typed[Any]], dict[str, Any]]


def _kv(typed: Typed[Kv]) -> dict[str, Any]:
    event, body = typed
    value = None if body.value is None else Free(body.value).data
    at = event.ts if body.ts is None else body.ts
    return {"key": body.key, "value": value, "at": at, "at_key": key_of(at)}


def _lww(typed: Typed[LwwSet]) -> dict[str, Any]:
    body = typed.body
    return {"key": body.key, "value": body.value, "at": body.ts, "at_key": key_of(body.ts)}


def _orset(typed: Typed[OrSetOp]) -> dict[str, Any]:
    body = typed.body
    return {"id": body.id, "elem": body.elem, "tomb": None if body.tomb is None else list(body.tomb)}


def _counter(typed: Typed[CounterDelta]) -> dict[str, Any]:
    return {"shard": typed.body.shard, "delta": typed.body.delta}


TYPES: Final[Mapping[type[AnyFold], BodyColumns]] = MappingProxyType(
    {
        KvFold: BodyColumns(
            (
                _text("key", "of the value"),
                _binary("value", "in canonical CBOR; NULL if the key is deleted"),
                _u64("at", "when it was written: the writer's ts, else ts*"),
                _key("at"),
            ),
            _kv,
        ),
        LwwFold: BodyColumns(
            (
                _binary("key", "of the register"),
                _binary("value", "written"),
                _u64("at", "the writer's ts"),
                _key("at"),
            ),
            _lww,
        ),
        OrSetFold: BodyColumns(
            (
                _binary("id", "of an add"),
                _binary("elem", "that is added"),
                Column("tomb", "ARRAY<BINARY>", pa.list_(pa.binary()), "ids that a remove has seen"),
            ),
            _orset,
        ),
        CounterFold: BodyColumns((_binary("shard", "that counts"), _u64("delta", "what it adds")), _counter),
    }
)


def event_columns(fold: AnyFold) -> tuple[Column, ...]:
    """Return the columns of an event: its position, and the fields of its body."""
    return (*_POSITION, *_body_columns(fold).columns)


def columns_of(fold: AnyFold) -> tuple[Column, ...]:
    """Return all columns, also those of rows that are no events."""
    return (*event_columns(fold), *_BESIDE)


def are_typed(fold: AnyFold, names: Iterable[str]) -> bool:
    """Return True if a table with these columns has typed rows of the fold, order keys or not."""
    return {column.name for column in columns_of(fold)} - ORDER_KEYS <= set(names)


def _body_columns(fold: AnyFold) -> BodyColumns:
    columns = TYPES.get(type(fold))
    if columns is None:
        raise PlanUnfit(f"the bodies of {fold.name} have no columns")
    return columns


def decode_rows(fold: AnyFold, found: Iterable[LogEntry]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a task, and last its coverage."""
    coverage, find, columns_of, mirrors = FoldCoverage(), dict(fold.schemas).get, _body_columns(fold).of, fold.mirrors
    for event in coverage.events(found):
        schema = find(event.hdr.schema)
        if schema is None:
            continue
        event = mirrors.with_origin_times(event) if mirrors else event
        typed = decode(event, schema)
        place = {"label": event.label, "stream_seq": event.stream_seq}
        if isinstance(typed, Issue):
            yield place | {"kind": "issue", "code": typed.code, "what": typed.what}
            continue
        row = place | {
            "kind": "event",
            "ts": event.order[0],
            "stream_id": event.stream_id,
            "epoch": event.epoch,
            "leaf_hash": event.leaf_hash,
            "client_id": event.client_id,
            "expires_at": event.hdr.expires_at,
            "expires_at_key": key_of(event.hdr.expires_at),
            "att_root": event.hdr.att_root,
        }
        original = mirrors.original_of(event) if mirrors else None
        if original is not None:
            data = cbor.encode(to_tree(event, pairs=True))
            yield row | columns_of(typed) | {"kind": "copy", "original": original, "data": data}
        else:
            yield row | columns_of(typed)
    yield coverage_row(coverage) | {"kind": "seen"}
