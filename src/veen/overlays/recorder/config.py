"""sdr.config.v1: the configuration of a recorder, as records on record/infrastructure/changes (SDR-02, SDR-04, D-122).

The recorder's admin writes the records; `Configuration` is their fold. It says which stream an event type is for, who
may record where, how often checkpoints are due and how large a payload may be, at every moment of the log: a record
counts from its own hub time on, for the events of all streams.

    SDR.CHANGE  the record lacks a field that its change needs
    SDR.ADMIN   the record is by another client than the admin
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Final

from veen.core import cbor
from veen.core.event import Event
from veen.core.hashing import Ht
from veen.core.wire import VERSION, Bytes32, Choice, Length, Uint, Version
from veen.overlays.federation.realm import is_by_emitter
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Issue, Schema, decode
from veen.overlays.framework.typed_table import TypedColumn, TypedTable

LONG_TERM_SEC: Final = 3_155_760_000  # a hundred years: the retention hint "long_term" (D-105)
_MAX_TARGETS: Final = 64

# change -> the fields that it needs besides ts
_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "map": ("event_type", "stream_id", "stream"),
    "rename": ("stream_id", "stream", "to", "to_names"),
    "split": ("stream_id", "stream", "to", "to_names"),
    "merge": ("stream_id", "stream", "to", "to_names"),
    "retention": ("stream_id", "stream", "retention_sec"),
    "checkpoint": (),
    "producer": ("stream_id", "stream", "producer"),
    "payload": ("max_payload",),
    "withdraw": ("stream_id", "stream", "producer"),  # the client records to the stream no more, nor do its successors
}
CHANGES: Final = tuple(_NEEDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange(Body, kind="sdr.config.v1"):
    """One change of the configuration."""

    ver: ClassVar[Version] = VERSION
    change: Annotated[str, Choice(*CHANGES)]
    event_type: str | None = None
    stream_id: Bytes32 | None = None
    stream: str | None = None
    to: Annotated[tuple[Bytes32, ...], Length(1, _MAX_TARGETS)] | None = None  # by id, in the order of `to_names`
    to_names: Annotated[tuple[str, ...], Length(1, _MAX_TARGETS)] | None = None
    producer: Bytes32 | None = None  # a client_id
    every_sec: Uint | None = None
    every_events: Uint | None = None
    max_payload: Uint | None = None
    retention_sec: Uint | None = None
    ts: Uint
    reason: str | None = None

    def _check(self) -> None:
        for name in _NEEDS[self.change]:
            if getattr(self, name) is None:
                raise InvalidBody("SDR.CHANGE", f"a {self.change} record needs {name}")
        if self.change == "checkpoint" and not (self.every_sec or self.every_events):
            raise InvalidBody("SDR.CHANGE", "a checkpoint record needs every_sec or every_events above 0")
        if self.to is not None and len(self.to) != len(self.to_names or ()):
            raise InvalidBody("SDR.CHANGE", "to and to_names name the same streams")


CONFIG: Final = Schema(ConfigChange.KIND, ConfigChange)


def _columns(body: ConfigChange) -> dict[str, object]:
    names = {"stream_id": "body_stream_id", "stream": "body_stream", "ts": "body_ts"}
    return {
        names.get(name, name): list(value) if isinstance(value, tuple) else value
        for name, value in body.present_fields()
        if name != "ver"
    }


CONFIG_TABLE: Final = TypedTable(
    schema=CONFIG,
    columns=(
        TypedColumn("change", "text", f"one of {', '.join(sorted(CHANGES))}"),
        TypedColumn("event_type", "text", "that is mapped to a stream"),
        TypedColumn("body_stream_id", "hex", "the stream that the change is about"),
        TypedColumn("body_stream", "text", "its name"),
        TypedColumn("to", "json", "ids of the streams that it becomes"),
        TypedColumn("to_names", "json", "their names, in the same order"),
        TypedColumn("producer", "hex", "a client that may record to the stream, or no more if it is withdrawn"),
        TypedColumn("every_sec", "integer", "how often checkpoints are due"),
        TypedColumn("every_events", "integer", "how often checkpoints are due, in events"),
        TypedColumn("max_payload", "integer", "bytes that a payload may have"),
        TypedColumn("retention_sec", "integer", "how long payloads of the stream are kept"),
        TypedColumn("body_ts", "time", "when the admin made the change"),
        TypedColumn("reason", "text", "why"),
    ),
    values=_columns,
    sort=("change",),
)


def change(kind: str, *, ts: int, **fields: Any) -> Draft:
    """Build a record, to be sent to record/infrastructure/changes."""
    return CONFIG.draft(ConfigChange(change=kind, ts=ts, **fields))


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The configuration after some records. A value: `after` returns the next one."""

    mapping: Mapping[str, bytes] = field(default_factory=dict)  # event_type -> stream_id
    streams: Mapping[bytes, str] = field(default_factory=dict)  # every stream that was named
    producers: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)  # client_id -> streams it may write to
    withdrawn: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)  # client_id -> streams taken from it
    retention: Mapping[bytes, int] = field(default_factory=dict)  # stream_id -> seconds
    every_sec: int = 0  # 0: not by time
    every_events: int = 0  # 0: not by volume
    max_payload: int = 0  # bytes; 0: no bound was set

    @property
    def is_closed(self) -> bool:
        """True after the first `map` record: every event type must then be mapped (D-122)."""
        return bool(self.mapping)

    def after(self, record: ConfigChange) -> "Configuration":
        names = dict(self.streams)
        if record.stream_id is not None and record.stream is not None:
            names[record.stream_id] = record.stream
        names.update(zip(record.to or (), record.to_names or (), strict=True))
        new = replace(self, streams=names)
        if record.change == "map":
            return replace(new, mapping={**self.mapping, str(record.event_type): _require(record.stream_id)})
        if record.change in ("rename", "merge"):
            # Every type of the old stream goes to the new one; a split says nothing about types, `map` records do.
            old, target = _require(record.stream_id), (record.to or (b"",))[0]
            return replace(new, mapping={kind: target if at == old else at for kind, at in self.mapping.items()})
        if record.change == "retention":
            sec = record.retention_sec or 0
            return replace(new, retention={**self.retention, _require(record.stream_id): sec})
        if record.change == "checkpoint":
            return replace(new, every_sec=record.every_sec or 0, every_events=record.every_events or 0)
        if record.change in ("producer", "withdraw"):
            who, stream = _require(record.producer), {_require(record.stream_id)}
            gains, loses = self.producers, self.withdrawn
            if record.change == "withdraw":
                gains, loses = loses, gains
            gains = {**gains, who: gains.get(who, frozenset()) | stream}
            loses = {**loses, who: loses.get(who, frozenset()) - stream}
            producers, withdrawn = (gains, loses) if record.change == "producer" else (loses, gains)
            return replace(new, producers=producers, withdrawn={key: ids for key, ids in withdrawn.items() if ids})
        if record.change == "payload":
            return replace(new, max_payload=record.max_payload or 0)
        return new

    def to_tree(self) -> cbor.Item:
        """Return the configuration as one deterministic CBOR value."""
        return {
            "mapping": dict(sorted(self.mapping.items())),
            "streams": [[stream_id, name] for stream_id, name in sorted(self.streams.items())],
            "producers": [[who, sorted(streams)] for who, streams in sorted(self.producers.items())],
            **(
                {"withdrawn": [[who, sorted(streams)] for who, streams in sorted(self.withdrawn.items())]}
                if self.withdrawn  # configurations without it keep their sdr_profile_id
                else {}
            ),
            "retention": [[stream_id, sec] for stream_id, sec in sorted(self.retention.items())],
            "every_sec": self.every_sec,
            "every_events": self.every_events,
            "max_payload": self.max_payload,
        }

    def profile_id(self) -> bytes:
        """Return sdr_profile_id, the id of this SDR0 configuration (D-124)."""
        return Ht("sdr/profile", cbor.encode(cbor.sort_keys(self.to_tree())))


def _require(value: bytes | None) -> bytes:
    assert value is not None  # noqa: S101 - `_check` demands the field for this change
    return value


@dataclass(frozen=True, slots=True)
class History:
    """The configuration at every moment, and the records without effect."""

    moments: tuple[tuple[int, Configuration], ...]  # from this hub time on; ascending
    issues: tuple[Issue, ...]

    @property
    def now(self) -> Configuration:
        return self.moments[-1][1] if self.moments else Configuration()

    def at(self, ts: int) -> Configuration:
        """Return the configuration in the second `ts`, records of the same second included."""
        at = bisect_right(self.moments, ts, key=lambda moment: moment[0])
        return self.moments[at - 1][1] if at else Configuration()


def history_of(events: Iterable[Event], admins: Collection[bytes] | None) -> History:
    """Fold the stream of changes, in its order. `admins` as emitters; None: every writer of the stream."""
    current, moments, issues = Configuration(), [], []
    for event in events:
        if event.hdr.schema != CONFIG.id:
            continue
        typed = decode(event, CONFIG)
        if isinstance(typed, Issue):
            issues.append(typed)
        elif admins is not None and not is_by_emitter(admins, event):
            what = "only the recorder's admin changes its configuration"
            issues.append(Issue(event.label, event.stream_seq, "SDR.ADMIN", what))
        else:
            current = current.after(typed.body)
            moments.append((event.ts, current))
    return History(tuple(moments), tuple(issues))
