"""QueryDescriptor: a question in one form that everyone can compare and hash (001 query §4, QRY-05 … QRY-11).

`normalise` turns the input of a client into the descriptor that is recorded: defaults filled in, sets sorted, `*`
spelled out. Two descriptors of the same question have the same bytes, except query_id and meta.
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal, NamedTuple, Self, cast

from veen.core import canonical
from veen.core.canonical import Json
from veen.core.labels import stream_id_of
from veen.lake.query.clauses import (
    Chosen,
    FieldCondition,
    RowOrder,
    absorb_conditions,
    check_order,
    conditions_of,
    limit_of,
    orders_of,
)
from veen.lake.query.errors import InvalidDescriptor, UnsupportedVersion
from veen.lake.query.fields import ALL, FieldPath, seconds_of, timestamp

Mode = Literal["none", "spot", "full"]
MODES: Final[tuple[Mode, ...]] = ("none", "spot", "full")
FUNCTIONS: Final = ("min", "max", "sum", "avg")

MAX_BYTES: Final = 64 * 1024
_MAX_LIST: Final = 1024
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")  # ASCII, opaque, and a file name
_METRIC: Final = re.compile(rf"({'|'.join(FUNCTIONS)})\((.+)\)")


def new_query_id() -> str:
    """Return `q-` and 32 random hex digits (QRY-02)."""
    return f"q-{secrets.token_hex(16)}"


def new_result_id() -> str:
    """Return `r-` and 32 random hex digits (QRY-02)."""
    return f"r-{secrets.token_hex(16)}"


def check_id(text: str, where: str) -> str:
    if _ID.fullmatch(text) is None:
        raise InvalidDescriptor(where, "expected 1 to 128 letters, digits, '.', '_', ':' or '-'")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Selection of events: all members that are not None must match. Times are hub_commit_time, inclusive (D-108)."""

    subject_id: str | None = None
    event_type: tuple[str, ...] | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    where: tuple[FieldCondition, ...] = ()  # sorted; what the members above can say is not in it

    def takes_time(self, hub_ts: int) -> bool:
        return (self.first_ts is None or self.first_ts <= hub_ts) and (self.last_ts is None or hub_ts <= self.last_ts)

    def to_json(self) -> Json:
        value: dict[str, Json] = {
            "subject_id": self.subject_id,
            "event_type": None if self.event_type is None else list(self.event_type),
            "time": {
                "from": None if self.first_ts is None else timestamp(self.first_ts),
                "to": None if self.last_ts is None else timestamp(self.last_ts),
            },
        }
        if self.where:  # descriptors without it keep their bytes
            value["where"] = [condition.to_json() for condition in self.where]
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePolicy:
    """Policy of evidence: the proportion of the result that is proven."""

    mode: Mode
    sample_rate: int | Decimal | None = None  # exact, in (0, 1]; only of "spot"

    def to_json(self) -> Json:
        return {"mode": self.mode} if self.sample_rate is None else {"mode": self.mode, "sample_rate": self.sample_rate}


@dataclass(frozen=True, slots=True)
class Metric:
    """`count`, or a function of a field."""

    function: str
    field: FieldPath | None = None

    @property
    def name(self) -> str:
        return "count" if self.field is None else f"{self.function}({self.field.name})"

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a metric. Raise ValueError if there is no such metric."""
        if text == "count":
            return cls("count")
        match = _METRIC.fullmatch(text)
        if match is None:
            functions = ", ".join(f"{name}(FIELD)" for name in FUNCTIONS)
            raise ValueError(f"there is no metric {text[:80]!r}; there are count, {functions}")
        return cls(match[1], FieldPath.of(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    group_by: tuple[FieldPath, ...]
    metrics: tuple[Metric, ...]

    def to_json(self) -> Json:
        return {
            "group_by": [named.name for named in self.group_by],
            "metrics": [named.name for named in self.metrics],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDescriptor:
    """A normalised descriptor."""

    query_id: str
    scope: tuple[str, ...]
    filter: Filter
    projection: tuple[FieldPath, ...]
    evidence: EvidencePolicy
    aggregate: Aggregate | None = None
    order: tuple[RowOrder, ...] = ()  # none: logical order, or that of the group keys
    limit: int | None = None
    meta: Mapping[str, Json] | None = field(default=None, hash=False)

    @property
    def stream_names(self) -> dict[bytes, str]:
        """Streams of the scope: stream_id -> name."""
        return {stream_id_of(name): name for name in self.scope}

    @property
    def names_receipts(self) -> bool:
        return any(path.name == "receipt_id" for path in self.projection)

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = {
            "query_id": self.query_id,
            "version": 1,
            "scope": list(self.scope),
            "filter": self.filter.to_json(),
            "projection": [path.name for path in self.projection],
            "evidence": self.evidence.to_json(),
        }
        if self.aggregate is not None:
            value["aggregate"] = self.aggregate.to_json()
        if self.order:
            value["order"] = [order.to_json() for order in self.order]
        if self.limit is not None:
            value["limit"] = self.limit
        if self.meta is not None:
            value["meta"] = dict(self.meta)
        return value

    def to_bytes(self) -> bytes:
        """Encode in the form that record/query/requests has (QRY-12)."""
        return canonical.encode(self.to_json())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode a recorded descriptor: exactly the bytes that `to_bytes` gives."""
        descriptor = normalise(canonical.parse(data, max_bytes=MAX_BYTES)).descriptor
        if descriptor.to_bytes() != data:
            raise InvalidDescriptor("", "not a normalised descriptor in canonical JSON")
        return cast("Self", descriptor)


class Normalised(NamedTuple):
    """The descriptor, and the names of unknown filters, which have no effect (QRY-31)."""

    descriptor: QueryDescriptor
    ignored: tuple[str, ...]


def normalise(given: bytes | str | Mapping[str, Any], *, new_id: Callable[[], str] = new_query_id) -> Normalised:
    """Fill in defaults, check, and normalise. Raise InvalidJson, InvalidDescriptor or UnsupportedVersion.

    Values that never were JSON text, such as floats of a program, are taken as their shortest decimal text.
    """
    text = given if isinstance(given, (bytes, str)) else canonical.encode(dict(given))
    value = canonical.parse(text, max_bytes=MAX_BYTES)
    top = _Object(value, "")
    version = top.left.pop("version", 1)
    if type(version) is not int:  # true is not 1
        raise InvalidDescriptor("version", "expected the integer 1")
    if version != 1:
        raise UnsupportedVersion(f"version {version} of QueryDescriptor is not supported; 1 is")
    query_id = check_id(top.text("query_id"), "query_id") if "query_id" in top.left else new_id()
    scope = _scope(top)
    chosen, ignored = _filter(top)
    projection = _projection(top)
    evidence = _evidence(top)
    aggregate = _aggregate(top.left.pop("aggregate")) if "aggregate" in top.left else None
    order, limit = orders_of(top.left.pop("order", None)), limit_of(top.left.pop("limit", None))
    check_order(order, limit, _columns(projection, aggregate))
    meta = top.left.pop("meta", None)
    if meta is not None and type(meta) is not dict:
        raise InvalidDescriptor("meta", "expected an object")
    top.finish()
    descriptor = QueryDescriptor(
        query_id=query_id,
        scope=scope,
        filter=chosen,
        projection=projection,
        evidence=evidence,
        aggregate=aggregate,
        order=order,
        limit=limit,
        meta=meta,
    )
    return Normalised(descriptor, ignored)


class _Object:
    """Reader of the members of one object."""

    def __init__(self, value: Json, where: str) -> None:
        if type(value) is not dict:
            raise InvalidDescriptor(where, "expected an object")
        self.left: dict[str, Json] = dict(value)
        self._where = where

    def at(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def take(self, name: str) -> Json:
        if name not in self.left:
            raise InvalidDescriptor(self.at(name), "is missing")
        return self.left.pop(name)

    def text(self, name: str) -> str:
        value = self.take(name)
        if type(value) is not str or not value:
            raise InvalidDescriptor(self.at(name), "expected a text that is not empty")
        return value

    def texts(self, name: str, *, empty: bool = False) -> list[str]:
        value = self.take(name)
        if type(value) is not list or not all(type(text) is str and text for text in value):
            raise InvalidDescriptor(self.at(name), "expected an array of texts that are not empty")
        if not value and not empty:
            raise InvalidDescriptor(self.at(name), "must not be empty")
        if len(value) > _MAX_LIST:
            raise InvalidDescriptor(self.at(name), f"has more than {_MAX_LIST} elements")
        return value

    def drop_null(self, name: str) -> bool:
        """Return True if the member is present and not null; remove null, which constrains nothing (QRY-07)."""
        if self.left.get(name) is None:
            self.left.pop(name, None)
            return False
        return True

    def finish(self) -> None:
        """Raise InvalidDescriptor if members remain."""
        if self.left:
            raise InvalidDescriptor(self.at(min(self.left)), "there is no such member")


def _scope(top: _Object) -> tuple[str, ...]:
    names = top.texts("scope")
    for name in names:
        if any(character in name for character in "*?["):
            raise InvalidDescriptor(
                "scope", f"{name!r} is a pattern; streams are hashes of names, so name each of them"
            )
    return tuple(sorted(set(names)))


def _columns(projection: Sequence[FieldPath], aggregate: Aggregate | None) -> set[str]:
    """Return the members of the rows."""
    if aggregate is None:
        return {path.name for path in projection}
    receipts = {path.name for path in projection if path.name == "receipt_id"}
    return {path.name for path in aggregate.group_by} | {metric.name for metric in aggregate.metrics} | receipts


def _filter(top: _Object) -> tuple[Filter, tuple[str, ...]]:
    members = _Object(top.take("filter") if top.drop_null("filter") else {}, "filter")
    subject_id = members.text("subject_id") if members.drop_null("subject_id") else None
    event_type = tuple(sorted(set(members.texts("event_type")))) if members.drop_null("event_type") else None
    first_ts = last_ts = None
    if members.drop_null("time"):
        time = _Object(members.take("time"), "filter.time")
        first_ts, last_ts = _time(time, "from"), _time(time, "to")
        time.finish()
        if first_ts is not None and last_ts is not None and first_ts > last_ts:
            raise InvalidDescriptor("filter.time", "from is behind to")
    conditions = conditions_of(members.take("where"), "filter.where") if members.drop_null("where") else ()
    chosen, where = absorb_conditions(Chosen(subject_id, event_type, first_ts, last_ts), conditions)
    # Later versions may bring filters that an older server can ignore (001 query §10.3); the caller is told which.
    return Filter(**chosen._asdict(), where=where), tuple(sorted(members.left))


def _time(given: _Object, name: str) -> int | None:
    if not given.drop_null(name):
        return None
    try:
        return seconds_of(given.text(name))
    except ValueError as exc:
        raise InvalidDescriptor(given.at(name), str(exc)) from exc


def _fields(names: Sequence[str], where: str) -> tuple[FieldPath, ...]:
    try:
        paths = {FieldPath.of(name) for name in names}
    except ValueError as exc:
        raise InvalidDescriptor(where, str(exc)) from exc
    return tuple(sorted(paths, key=lambda one: one.name))


def _projection(top: _Object) -> tuple[FieldPath, ...]:
    names = top.texts("projection")
    if names == ["*"]:
        names = list(ALL)
    return _fields(names, "projection")


def _evidence(top: _Object) -> EvidencePolicy:
    members = _Object(top.take("evidence"), "evidence")
    mode = members.text("mode")
    if mode not in MODES:
        raise InvalidDescriptor("evidence.mode", f"expected {', '.join(MODES)}")
    rate: Json = members.take("sample_rate") if members.drop_null("sample_rate") else None
    members.finish()
    if mode != "spot" and rate is not None:
        raise InvalidDescriptor("evidence.sample_rate", f"has no meaning in mode {mode!r}")
    if mode == "spot" and (type(rate) not in (int, Decimal) or not 0 < rate <= 1):
        raise InvalidDescriptor("evidence.sample_rate", "expected a number above 0 and not above 1")
    return EvidencePolicy(mode=mode, sample_rate=rate)


def _aggregate(value: Json) -> Aggregate | None:
    if value is None:
        return None
    members = _Object(value, "aggregate")
    names = members.texts("group_by", empty=True) if members.drop_null("group_by") else []
    try:
        metrics = {Metric.of(text) for text in members.texts("metrics")}
    except ValueError as exc:
        raise InvalidDescriptor("aggregate.metrics", str(exc)) from exc
    members.finish()
    return Aggregate(
        group_by=_fields(names, "aggregate.group_by"),
        metrics=tuple(sorted(metrics, key=lambda one: one.name)),
    )
