"""What programs send and get: bodies of any kind, entries with time, author and body, times as people write them."""

import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from veen.client.errors import LocalError
from veen.client.moments import parse_moment
from veen.client.read.reading import Entry
from veen.client.send.sealing import Draft
from veen.core.objects.receipt import Receipt
from veen.core.schema_id import schema_id

Body = Mapping[str, Any] | list[Any] | str | bytes
Moment = datetime | str | int
AuthorName = Callable[[Entry], str | None]

JSON_SCHEMA: Final = "veen.json.v1"  # a body that is one JSON value, in UTF-8


def draft_of(body: Body, schema: str | bytes | None = None, **details: Any) -> Draft:
    """A message: dicts and lists as JSON, text as UTF-8, bytes as they are; LocalError for anything else."""
    if isinstance(body, bytes | bytearray | memoryview):
        data = bytes(body)
    elif isinstance(body, str):
        data = body.encode()
    elif isinstance(body, Mapping | list | tuple):
        try:
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise LocalError(f"the body is not JSON: {exc}") from exc
        schema = schema or JSON_SCHEMA
    else:
        raise LocalError(f"a body is a dict, a list, text or bytes, not {type(body).__name__}")
    return Draft(body=data, schema=None if schema is None else schema_id(schema), **details)


def moment_of(value: Moment | None) -> int | None:
    """Seconds since 1970 of an aware datetime, of text such as "-1h" or ISO 8601, or of a number."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise LocalError(f"{value!r} has no time zone: use datetime.now(UTC) or .astimezone()")
        return max(int(value.timestamp()), 0)
    if not isinstance(value, str):
        raise LocalError(f"a time is a datetime, text or a number, not {type(value).__name__}")
    try:
        return parse_moment(value, time.time())
    except ValueError as exc:
        raise LocalError(str(exc)) from exc


class StreamEntry:
    """One entry that was verified: signatures, order, its place in the log. A value."""

    __slots__ = ("_name", "entry")

    def __init__(self, entry: Entry, name: AuthorName) -> None:
        self.entry, self._name = entry, name

    @property
    def seq(self) -> int:
        """Its number in the log, from 1."""
        return self.entry.seq

    @property
    def time(self) -> datetime:
        """When the hub took it in, by the hub's clock."""
        return datetime.fromtimestamp(self.entry.receipt.hub_ts, UTC)

    @property
    def client_id(self) -> bytes:
        """The key that signed it."""
        return self.entry.msg.client_id

    @property
    def author(self) -> str:
        """The name of whose key signed it, where it is known here; else, or after the end of its binding, the key."""
        return self._name(self.entry) or self.client_id.hex()

    @property
    def msg_id(self) -> bytes:
        """The hash that names the message."""
        return self.entry.msg_id

    @property
    def receipt(self) -> Receipt:
        """What the hub signed about it."""
        return self.entry.receipt

    @property
    def is_open(self) -> bool:
        """Whether our keys opened the body."""
        return self.entry.event is not None

    @property
    def error(self) -> str | None:
        """Why the body cannot be read, although the entry is verified."""
        return self.entry.error

    @property
    def body(self) -> bytes:
        """The body; OpenError if our keys do not open it."""
        return self.entry.body

    @property
    def text(self) -> str:
        """The body as text; LocalError if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as exc:
            raise LocalError(f"the body of entry {self.seq} is not UTF-8 text") from exc

    @property
    def json(self) -> Any:
        """The body read as JSON; LocalError if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as exc:
            raise LocalError(f"the body of entry {self.seq} is not JSON") from exc

    def __repr__(self) -> str:
        state = "opened" if self.is_open else self.error or "sealed"
        return f"StreamEntry(seq={self.seq}, time={self.time.isoformat()}, author={self.author[:16]!r}, {state})"

    def _repr_html_(self) -> str:
        return self.entry._repr_html_()
