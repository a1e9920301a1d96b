"""Records of sources in the form of recorder events: SourceRecord, its limits, and the events of the recorder itself.

The payload of an event is canonical JSON, so that `veen query` reads it field by field and any number survives exactly.
Its member `_src` describes the origin: adapter, source, position in the source, the time as the source wrote it
(`event_time` is whole seconds, D-125), and for a listener the address and the credential of the sender.

Nothing is dropped because of its form: text that is not UTF-8 is stored as base64, and a payload above the limit is
replaced by its beginning, its size and its hash (`_cut`, SDR.OVERSIZE).

Selection of the fields of an event from a record: fixed words, or dotted paths such as `.user.name`.
"""

import base64
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from veen.core import cbor
from veen.core.canonical import InvalidJson, Json, encode, parse
from veen.core.errors import FormatError
from veen.overlays.framework.schema import Draft
from veen.overlays.recorder import events as sdr
from veen.products.recorder.redaction import Opening

_NANOS: Final = 10**9
_LATEST: Final = 253_402_300_799


def value_at(value: Json, path: str) -> Json:
    """Return the member at a dotted path such as `.a.b`, or None. A name that contains dots is tried whole first."""
    name = path.removeprefix(".")
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        head, dot, rest = name.partition(".")
        if dot and head in value:
            return value_at(value[head], rest)
    return None


def words_of(value: Json) -> str | None:
    """Return a scalar as text; None for null, booleans, objects and lists."""
    if value is None or isinstance(value, (dict, list, bool)):
        return None
    return str(value)


def seconds_of(value: Json) -> tuple[int, str] | None:
    """Parse a time, ISO 8601 or a number in s, ms, µs or ns; return whole seconds and the text of the source."""
    if isinstance(value, str):
        text = value.strip()
        if text.lstrip("-").replace(".", "", 1).isdigit() and len(text) < 40:
            return _of_number(Decimal(text), value)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return _within_years(int(moment.timestamp() // 1), value)
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return _of_number(Decimal(str(value)), str(value))
    return None


def _of_number(number: Decimal, text: str) -> tuple[int, str] | None:
    if not number.is_finite():
        return None
    for unit in (1, 1_000, 1_000_000, _NANOS):
        if abs(number) < 10**11 * unit:  # seconds up to the year 5138; a larger number counts a smaller unit
            return _within_years(int(number // unit), text)
    return None


def _within_years(seconds: int, text: str) -> tuple[int, str] | None:
    return (seconds, text) if 0 <= seconds <= _LATEST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """Selectors of the four fields.

    A plain word is the value; `.path` reads a member, with the word after `|` as default.
    """

    subject: str = ".user|unknown"
    event_type: str = ".event|log"
    origin: str = ".origin|"
    time: str = ".time"

    def pick(self, selector: str, value: Json, default: str) -> str:
        for option in selector.split("|"):
            word = words_of(value_at(value, option)) if option.startswith(".") else option
            if word:
                return word
        return default

    def when(self, value: Json, now: int) -> tuple[int, str | None]:
        """Return event_time and the time as the source wrote it; `now` if there is no valid time."""
        stamp = value_at(value, self.time) if self.time.startswith(".") else self.time
        moment = seconds_of(stamp)
        return (now, words_of(stamp)) if moment is None else moment


OWN_STREAM: Final = "record/infrastructure/recorder"  # heartbeats, losses, starts and stops of all agents
CHANGES_STREAM: Final = "record/infrastructure/changes"
CHECKPOINTS_STREAM: Final = "record/infrastructure/checkpoints"
OPENINGS_STREAM: Final = "record/security/openings"  # redacted values, sealed for another reader

START: Final = "recorder.start"
STOP: Final = "recorder.stop"
HEARTBEAT: Final = "recorder.heartbeat"
LOSS: Final = "recorder.loss"
ROTATE: Final = "recorder.rotate"
OPENING: Final = "recorder.opening"

MAX_PAYLOAD: Final = 262_144  # bytes of canonical JSON; an event must fit into one MSG
UNBOUNDED: Final = 2**62  # for `shaped`: cut nothing
_MAX_NAME: Final = 512  # characters of subject, type and origin
_MAX_HEAD: Final = 4_096  # bytes that are kept of a payload above the bound
_DEPTH: Final = 60  # veen query reads payloads up to 64
_DIGITS: Final = 100
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SourceRecord:
    """One record of a source. `position` is the place where reading continues after it.

    `key` is a hash of the whole source record and detects repetitions (D-184). `sender_id` is a hash of the id that the
    sender chose: a different record with the same id is recorded and marked as a repeat.
    """

    subject: str
    event_type: str
    origin: str
    time: int  # seconds
    payload: Json
    position: str
    key: str | None = None
    source_time: str | None = None
    earlier_keys: tuple[str, ...] = ()  # that tell a repetition as well
    sender_id: str | None = None
    shown_position: str | None = None  # what the event says instead of `position`
    about: Mapping[str, Json] = field(default_factory=dict)  # further members of `_src`
    openings: tuple[Opening, ...] | None = None  # of redacted values; None: the rules were not applied yet

    def __repr__(self) -> str:
        return f"Record({self.event_type!r} at {self.position!r})"


def text_of(data: bytes) -> Json:
    """Return bytes as text; bytes that are not UTF-8 as {"base64": …, "text": …}, with escapes in the text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode(), "text": data.decode(errors="backslashreplace")}


def json_line(data: bytes) -> Json:
    """Return a line as JSON if it is an object, else as {"message": text}."""
    value = json_object(data)
    return {"message": text_of(data)} if value is None else value


def json_object(data: bytes) -> dict[str, Json] | None:
    """Return the JSON object in a line; None if the line is anything else."""
    if data[:1] == b"{":
        try:
            value = parse(data, max_depth=_DEPTH, max_digits=_DIGITS)
        except InvalidJson:
            return None
        if type(value) is dict:
            return value
    return None


def fit_record(record: SourceRecord, *, adapter: str, source: str, max_payload: int = MAX_PAYLOAD) -> SourceRecord:
    """Return the record within the limits of an event, with `_src` in its payload and the payload as canonical JSON
    bytes.
    """
    payload = record.payload if type(record.payload) is dict else {"value": record.payload}
    position = record.position if record.shown_position is None else record.shown_position
    src: dict[str, Json] = {"adapter": adapter, "id": source, "pos": position, **record.about}
    if record.source_time is not None:
        src["time"] = _clean(record.source_time)[:_MAX_NAME]
    try:
        data = encode({**_clean(payload), "_src": src})
        parse(data, max_depth=_DEPTH, max_digits=_DIGITS)
    except (InvalidJson, RecursionError) as exc:
        raw = repr(payload).encode(errors="backslashreplace")
        data = encode({"_cut": _cut("SDR.PAYLOAD", raw, str(exc)), "_src": src})
    if len(data) > max_payload:
        raw = encode(_clean(payload))
        data = encode({"_cut": _cut("SDR.OVERSIZE", raw, f"at most {max_payload} bytes"), "_src": src})
    return replace(
        record,
        subject=_name(record.subject),
        event_type=_name(record.event_type),
        origin=_name(record.origin),
        time=min(max(record.time, 0), sdr.MAX_TIME),
        payload=data,
    )


def _cut(code: str, raw: bytes, why: str) -> dict[str, Json]:
    """Return the replacement of a payload that cannot be recorded: code, reason, size, hash and first bytes."""
    return {
        "code": code,
        "why": why,
        "bytes": len(raw),
        "sha256": hashlib.sha256(raw).hexdigest(),
        "head": text_of(raw[:_MAX_HEAD]),
    }


def _name(text: str) -> str:
    return str(_clean(text))[:_MAX_NAME] or UNKNOWN


def _clean(value: Any) -> Any:
    """Return a value with lone surrogates escaped: they have no UTF-8 encoding."""
    if type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode(errors="backslashreplace").decode()
        return value
    if type(value) is dict:
        return {str(_clean(str(key))): _clean(element) for key, element in value.items()}
    if type(value) in (list, tuple):
        return [_clean(element) for element in value]
    return value


def payload_json(event: sdr.RecorderEvent) -> Json:
    """Return the payload of an event as JSON; other bytes as hex, as in `veen query`."""
    from veen.lake.query.fields import payload_of

    return payload_of(event.payload)


def own(
    event_type: str, payload: Mapping[str, Json], *, origin: str, position: str, now: int | None = None
) -> SourceRecord:
    """Return an event of the recorder about itself."""
    return SourceRecord(
        subject="recorder",
        event_type=event_type,
        origin=origin,
        time=int(time.time()) if now is None else now,
        payload=dict(payload),
        position=position,
    )


def to_bytes(record: SourceRecord) -> bytes:
    """Encode a fitted record for the spool."""
    return cbor.encode([record.subject, record.event_type, record.origin, record.time, record.payload])


def within_bound(data: bytes, max_payload: int) -> bytes:
    """Return a record of the spool; cut a payload above the limit to its beginning."""
    subject, event_type, origin, when, payload = _fields(cbor.decode(data))
    if len(payload) <= max_payload:
        return data
    value = parse(payload, max_depth=_DEPTH, max_digits=_DIGITS)
    value = dict(value) if type(value) is dict else {"value": value}
    src = value.pop("_src", {})
    raw, why = encode(value), f"at most {max_payload} bytes"
    cut = {**_cut("SDR.OVERSIZE", raw, why), "head": text_of(raw[: max(0, min(_MAX_HEAD, max_payload // 8))])}
    return cbor.encode([subject, event_type, origin, when, encode({"_cut": cut, "_src": src})])


def event_type_of(data: bytes) -> str:
    """Return the event type of a record of the spool."""
    return _fields(cbor.decode(data))[1]


def draft_of(data: bytes, principal_id: bytes) -> Draft:
    """Return the event in a record of the spool, for the client key that will sign it (I3)."""
    subject, event_type, origin, when, payload = _fields(cbor.decode(data))
    return sdr.event(
        subject_id=subject,
        principal_id=principal_id,
        event_type=event_type,
        event_time=when,
        origin=origin,
        payload=payload,
    )


def _fields(tree: Any) -> tuple[str, str, str, int, bytes]:
    if type(tree) is not list or [type(item) for item in tree] != [str, str, str, int, bytes]:
        raise FormatError("not a record of the spool")
    return tree[0], tree[1], tree[2], tree[3], tree[4]
