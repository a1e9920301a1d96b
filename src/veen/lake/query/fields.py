"""Fields that a query can name: those of a recorder event, and dotted paths into its payload (QRY-08, SDR-01).

Timestamps of the Query API: whole seconds of UTC, `2025-11-19T03:20:00Z`, and no other form (QRY-04, D-108).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Final, Protocol, Self

from veen.core.canonical import InvalidJson, Json, parse_canonical
from veen.core.event import Order
from veen.overlays.recorder.events import MAX_TIME

_FORM: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)


def seconds_of(text: str) -> int:
    """Parse a timestamp into seconds since 1970. Raise ValueError for fractions, other zones and invalid dates."""
    if _FORM.fullmatch(text) is None:
        raise ValueError("expected YYYY-MM-DDTHH:MM:SSZ, without fractions of a second")
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as exc:
        raise ValueError("no such time") from exc
    return (moment - _EPOCH) // _SECOND


def timestamp(seconds: int) -> str:
    """Format seconds since 1970. Raise ValueError outside of the years 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError as exc:
        raise ValueError(f"{seconds} s is not in a year of four digits") from exc
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%SZ}"


_MAX_PATH: Final = 32
_MAX_NAME: Final = 1024
_PAYLOAD_DEPTH: Final = 64  # with what CBOR allows around it, any row can still be written
_PAYLOAD_DIGITS: Final = 100  # a sum of as many as there are places in a log can still be written


def receipt_id_of(leaf_hash: bytes) -> str:
    """Return the name of the receipt of an entry (D-108)."""
    return f"rcpt-{leaf_hash.hex()}"


class RecordedPlace(Protocol):
    """Place of an event in the log: an `Event`, or a row of a table."""

    @property
    def order(self) -> Order: ...
    @property
    def label(self) -> bytes: ...
    @property
    def stream_seq(self) -> int: ...
    @property
    def hub_ts(self) -> int: ...
    @property
    def leaf_hash(self) -> bytes: ...


class RecordedBody(Protocol):
    """Contents of an event: a `RecorderEvent`, or a row of a table."""

    @property
    def subject_id(self) -> str: ...
    @property
    def principal_id(self) -> bytes: ...
    @property
    def event_type(self) -> str: ...
    @property
    def event_time(self) -> int: ...
    @property
    def origin(self) -> str: ...
    @property
    def payload(self) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class RecordedEvent:
    """A recorder event at its place in the log, from which rows are made."""

    stream: str  # its name, as the scope of the query has it
    event: RecordedPlace = field(repr=False)
    body: RecordedBody = field(repr=False)

    @cached_property
    def payload(self) -> Json:
        return payload_of(self.body.payload)


def payload_of(value: object) -> Json:
    """Return a payload as JSON. Bytes that are the canonical JSON of an object or array become that; others hex."""
    if type(value) is bytes:
        if value[:1] in (b"{", b"["):
            try:
                return parse_canonical(value, max_depth=_PAYLOAD_DEPTH, max_digits=_PAYLOAD_DIGITS)
            except InvalidJson:
                pass
        return value.hex()
    if type(value) is list:
        return [payload_of(element) for element in value]
    if type(value) is dict:
        return {key: payload_of(element) for key, element in value.items()}
    return value


_BASE: Final[dict[str, Callable[[RecordedEvent], Json]]] = {
    "subject_id": lambda record: record.body.subject_id,
    "principal_id": lambda record: record.body.principal_id.hex(),
    "event_type": lambda record: record.body.event_type,
    "event_time": lambda record: timestamp(record.body.event_time),
    "origin": lambda record: record.body.origin,
    "payload": lambda record: record.payload,
    "stream": lambda record: record.stream,
    "hub_commit_seq": lambda record: record.event.stream_seq,
    # A hub may write any number.
    "hub_commit_time": lambda record: (
        timestamp(record.event.hub_ts) if record.event.hub_ts <= MAX_TIME else record.event.hub_ts
    ),
    "receipt_id": lambda record: receipt_id_of(record.event.leaf_hash),
}
ALL: Final = tuple(_BASE)  # what "*" stands for


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A field by its name; `path` leads from the payload to a part of it."""

    name: str
    path: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str) -> Self:
        """Parse the name of a field. Raise ValueError if there is none. `payload.*` is the whole payload."""
        if name == "payload.*":
            return cls("payload")
        if name in _BASE:
            return cls(name)
        base, _, rest = name.partition(".")
        path = tuple(rest.split("."))
        if base != "payload" or not all(path):
            raise ValueError(
                f"there is no field {name[:80]!r}; there are {', '.join(_BASE)} and paths such as payload.a.b"
            )
        if len(path) > _MAX_PATH or len(name) > _MAX_NAME:
            raise ValueError("the path is too long")
        return cls(name, path)

    def value(self, record: RecordedEvent) -> Json:
        """Return the value of the field in a record; null if it is missing."""
        if not self.path:
            return _BASE[self.name](record)
        return self.part_of(record.payload)

    def part_of(self, payload: Json) -> Json:
        """Return the value at the path of a payload; null if it is missing."""
        value = payload
        for step in self.path:
            if type(value) is dict:
                value = value.get(step)
            elif type(value) is list and step.isdecimal() and step.isascii() and len(step) < 10:
                value = value[int(step)] if int(step) < len(value) else None
            else:
                return None
        return value
