"""Values of programs: bodies of any kind, entries with time, author and body, and times as people write them."""

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
    """Return a message: dicts and lists become JSON, text UTF-8, bytes stay as they are. Raise LocalError for other
    types."""
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
        raise LocalError(f"the body must be a dict, a list, text or bytes, not {type(body).__name__}")
    return Draft(body=data, schema=None if schema is None else schema_id(schema), **details)


def moment_of(value: Moment | None) -> int | None:
    """Return the seconds since 1970 of an aware datetime, of text such as "-1h" or ISO 8601, or of a number."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise LocalError(f"{value!r} has no time zone: use datetime.now(UTC) or .astimezone()")
        return max(int(value.timestamp()), 0)
    if not isinstance(value, str):
        raise LocalError(f"the time must be a datetime, text or a number, not {type(value).__name__}")
    try:
        return parse_moment(value, time.time())
    except ValueError as exc:
        raise LocalError(str(exc)) from exc


class StreamEntry:
    """One verified entry: its signatures, order and place in the log were checked. A value."""

    __slots__ = ("_name", "entry")

    def __init__(self, entry: Entry, name: AuthorName) -> None:
        self.entry, self._name = entry, name

    @property
    def seq(self) -> int:
        """Number of the entry in the log, from 1."""
        return self.entry.seq

    @property
    def time(self) -> datetime:
        """Time of admission, by the hub's clock."""
        return datetime.fromtimestamp(self.entry.receipt.hub_ts, UTC)

    @property
    def client_id(self) -> bytes:
        """Key that signed the entry."""
        return self.entry.msg.client_id

    @property
    def author(self) -> str:
        """Name of the author, if it is known here and its binding is in force; otherwise the key in hex."""
        return self._name(self.entry) or self.client_id.hex()

    @property
    def msg_id(self) -> bytes:
        """Hash that identifies the message."""
        return self.entry.msg_id

    @property
    def receipt(self) -> Receipt:
        """Receipt that the hub signed for the entry."""
        return self.entry.receipt

    @property
    def is_open(self) -> bool:
        """True if a key of the keyring opened the body."""
        return self.entry.event is not None

    @property
    def error(self) -> str | None:
        """Reason why the body cannot be read, although the entry is verified; None if it can be."""
        return self.entry.error

    @property
    def body(self) -> bytes:
        """Body of the entry; OpenError if no key of the keyring opens it."""
        return self.entry.body

    @property
    def text(self) -> str:
        """Body as text; LocalError if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as exc:
            raise LocalError(f"the body of entry {self.seq} is not UTF-8 text") from exc

    @property
    def json(self) -> Any:
        """Body decoded as JSON; LocalError if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as exc:
            raise LocalError(f"the body of entry {self.seq} is not JSON") from exc

    def __repr__(self) -> str:
        state = "opened" if self.is_open else self.error or "sealed"
        return f"StreamEntry(seq={self.seq}, time={self.time.isoformat()}, author={self.author[:16]!r}, {state})"

    def _repr_html_(self) -> str:
        return self.entry._repr_html_()
