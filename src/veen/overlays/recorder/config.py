"""sdr.config.v1: the configuration of a recorder, as records on record/infrastructure/changes (SDR-02, SDR-04, D-122).

The recorder's admin writes the records; `Configuration` is their fold. It says which stream an event type is for, who
may record where, how often checkpoints are due and how large a payload may be, at every moment of the log: a record
counts from its own hub time on, for the events of all streams.

    SDR.CHANGE  the record lacks a field that its change needs
    SDR.ADMIN   the record is by another client than the admin
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.event import Event
from veen.core.hashing import Ht
from veen.core.wire import VERSION, Fields
from veen.overlays.framework.body import Body, Draft, InvalidBody
from veen.overlays.framework.decode import Issue, decode
from veen.overlays.framework.schema import Schema

__all__ = ["CHANGES", "CONFIG", "LONG_TERM_SEC", "ConfigChange", "Configuration", "History", "change", "history_of"]

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
}
CHANGES: Final = tuple(_NEEDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange(Body):
    """sdr.config.v1: one change."""

    KIND: ClassVar[str] = "sdr.config.v1"

    change: str
    event_type: str | None = None
    stream_id: bytes | None = None
    stream: str | None = None
    to: tuple[bytes, ...] | None = None  # streams by id, in the order of `to_names`
    to_names: tuple[str, ...] | None = None
    producer: bytes | None = None  # a client_id
    every_sec: int | None = None
    every_events: int | None = None
    max_payload: int | None = None
    retention_sec: int | None = None
    ts: int
    reason: str | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        body = cls(
            change=f.choice("change", CHANGES),
            event_type=f.optional(f.text, "event_type"),
            stream_id=f.optional(f.bstr, "stream_id", 32),
            stream=f.optional(f.text, "stream"),
            to=f.optional(f.bstrs, "to", 32, at_least=1, at_most=_MAX_TARGETS),
            to_names=f.optional(f.texts, "to_names", at_least=1, at_most=_MAX_TARGETS),
            producer=f.optional(f.bstr, "producer", 32),
            every_sec=f.optional(f.uint, "every_sec"),
            every_events=f.optional(f.uint, "every_events"),
            max_payload=f.optional(f.uint, "max_payload"),
            retention_sec=f.optional(f.uint, "retention_sec"),
            ts=f.uint("ts"),
            reason=f.optional(f.text, "reason"),
        )
        for name in _NEEDS[body.change]:
            if getattr(body, name) is None:
                raise InvalidBody("SDR.CHANGE", f"a {body.change} record needs {name}")
        if body.change == "checkpoint" and not (body.every_sec or body.every_events):
            raise InvalidBody("SDR.CHANGE", "a checkpoint record needs every_sec or every_events above 0")
        if body.to is not None and len(body.to) != len(body.to_names or ()):
            raise InvalidBody("SDR.CHANGE", "to and to_names name the same streams")
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "ver": VERSION,
            "change": self.change,
            "event_type": self.event_type,
            "stream_id": self.stream_id,
            "stream": self.stream,
            "to": self.to,
            "to_names": self.to_names,
            "producer": self.producer,
            "every_sec": self.every_sec,
            "every_events": self.every_events,
            "max_payload": self.max_payload,
            "retention_sec": self.retention_sec,
            "ts": self.ts,
            "reason": self.reason,
        }


CONFIG: Final = Schema(ConfigChange.KIND, ConfigChange)


def change(kind: str, *, ts: int, **fields: Any) -> Draft:
    """A record ready to be sent to record/infrastructure/changes."""
    return CONFIG.draft(ConfigChange(change=kind, ts=ts, **fields))


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What the records up to some moment say. A value: `after` gives the next one."""

    mapping: Mapping[str, bytes] = field(default_factory=dict)  # event_type -> stream_id
    streams: Mapping[bytes, str] = field(default_factory=dict)  # every stream that was named
    producers: Mapping[bytes, frozenset[bytes]] = field(default_factory=dict)  # client_id -> streams it may write to
    retention: Mapping[bytes, int] = field(default_factory=dict)  # stream_id -> seconds
    every_sec: int = 0  # 0: not by time
    every_events: int = 0  # 0: not by volume
    max_payload: int = 0  # bytes; 0: no bound was set

    @property
    def is_closed(self) -> bool:
        """After the first `map` record every event type must be mapped (D-122)."""
        return bool(self.mapping)

    def after(self, record: ConfigChange) -> "Configuration":
        names = dict(self.streams)
        if record.stream_id is not None and record.stream is not None:
            names[record.stream_id] = record.stream
        names.update(zip(record.to or (), record.to_names or (), strict=True))
        new = replace(self, streams=names)
        if record.change == "map":
            return replace(new, mapping={**self.mapping, str(record.event_type): _known(record.stream_id)})
        if record.change in ("rename", "merge"):
            # Every type of the old stream goes to the new one; a split says nothing about types, `map` records do.
            old, target = _known(record.stream_id), (record.to or (b"",))[0]
            return replace(new, mapping={kind: target if at == old else at for kind, at in self.mapping.items()})
        if record.change == "retention":
            sec = record.retention_sec or 0
            return replace(new, retention={**self.retention, _known(record.stream_id): sec})
        if record.change == "checkpoint":
            return replace(new, every_sec=record.every_sec or 0, every_events=record.every_events or 0)
        if record.change == "producer":
            who = _known(record.producer)
            streams = self.producers.get(who, frozenset()) | {_known(record.stream_id)}
            return replace(new, producers={**self.producers, who: streams})
        if record.change == "payload":
            return replace(new, max_payload=record.max_payload or 0)
        return new

    def to_tree(self) -> cbor.Item:
        """As one deterministic CBOR value."""
        return {
            "mapping": dict(sorted(self.mapping.items())),
            "streams": [[stream_id, name] for stream_id, name in sorted(self.streams.items())],
            "producers": [[who, sorted(streams)] for who, streams in sorted(self.producers.items())],
            "retention": [[stream_id, sec] for stream_id, sec in sorted(self.retention.items())],
            "every_sec": self.every_sec,
            "every_events": self.every_events,
            "max_payload": self.max_payload,
        }

    def profile_id(self) -> bytes:
        """sdr_profile_id: which SDR0 configuration this is (D-124)."""
        return Ht("sdr/profile", cbor.encode(cbor.sort_keys(self.to_tree())))


def _known(value: bytes | None) -> bytes:
    assert value is not None  # noqa: S101 - `_read` demands the field for this change
    return value


@dataclass(frozen=True, slots=True)
class History:
    """The configuration at every moment, and the records that do not count."""

    moments: tuple[tuple[int, Configuration], ...]  # from this hub time on; ascending
    issues: tuple[Issue, ...]

    @property
    def now(self) -> Configuration:
        return self.moments[-1][1] if self.moments else Configuration()

    def at(self, ts: int) -> Configuration:
        """What counted in the second `ts`; a record of the same second counts already."""
        current = Configuration()
        for since, configuration in self.moments:
            if since > ts:
                break
            current = configuration
        return current


def history_of(events: Iterable[Event], admins: Collection[bytes] | None) -> History:
    """Fold the stream of changes, in its order. `admins` are client_ids; None: every writer of the stream."""
    current, moments, issues = Configuration(), [], []
    for event in events:
        if event.hdr.schema != CONFIG.id:
            continue
        typed = decode(event, CONFIG)
        if isinstance(typed, Issue):
            issues.append(typed)
        elif admins is not None and event.client_id not in admins:
            what = "only the recorder's admin changes its configuration"
            issues.append(Issue(event.label, event.stream_seq, "SDR.ADMIN", what))
        else:
            current = current.after(typed.body)
            moments.append((event.ts, current))
    return History(tuple(moments), tuple(issues))
