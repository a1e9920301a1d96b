"""SDR0: events of the server drive recorder (001 products §3.2.1, D-105).

An event says who acted (`subject_id`), through which client (`principal_id`), what happened and where. The hub adds
when and at which place: hub_commit_time and hub_commit_seq come from the receipt. `principal_id` is the client_id of
the message (SDR0 I3): an event that names another client has no effect, so nobody can record in another's name.
"""

from dataclasses import dataclass
from typing import Any, Final

from veen.core.event import Event
from veen.core.wire import Anything, Bytes32, Uint
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Issue, Schema, Typed, decode
from veen.overlays.framework.typed_table import TypedColumn, TypedTable

MAX_TIME: Final = 253_402_300_799  # the last second of the year 9999, behind which timestamps have no form (D-108)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderEvent(Body, kind="sdr.event.v1"):
    """One event of a recorder."""

    subject_id: str
    principal_id: Bytes32
    event_type: str
    event_time: Uint  # seconds, as the application saw it
    origin: str
    payload: Anything = None  # free-form; a byte string may hold JSON, as the events of queries do (D-108)

    def _check(self) -> None:
        for name in ("subject_id", "event_type", "origin"):
            if not getattr(self, name):
                raise InvalidBody("SDR.EMPTY", f"{name} must not be empty")
        if self.event_time > MAX_TIME:
            raise InvalidBody("SDR.TIME", f"event_time {self.event_time} is after the year 9999")
        if not _has_text_keys(self.payload):
            raise InvalidBody("SDR.PAYLOAD", "maps in a payload must have text keys")


def _has_text_keys(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _has_text_keys(element) for key, element in value.items())
    return type(value) is not list or all(map(_has_text_keys, value))


EVENT: Final = Schema(RecorderEvent.KIND, RecorderEvent)


def event(
    *, subject_id: str, principal_id: bytes, event_type: str, event_time: int, origin: str, payload: Any = None
) -> Draft:
    """Build an event. `principal_id` is the client_id that will send it."""
    return EVENT.draft(
        RecorderEvent(
            subject_id=subject_id,
            principal_id=principal_id,
            event_type=event_type,
            event_time=event_time,
            origin=origin,
            payload=payload,
        )
    )


def read(found: Event) -> Typed[RecorderEvent] | Issue:
    """Decode an event of the schema EVENT. Codes: those of `decode`, SDR.*, and SDR.PRINCIPAL (I3)."""
    typed = decode(found, EVENT)
    if isinstance(typed, Typed) and typed.body.principal_id != found.client_id:
        what = "principal_id is not the client that signed the message"
        return Issue(found.label, found.stream_seq, "SDR.PRINCIPAL", what)
    return typed


EVENTS_TABLE: Final = TypedTable(
    schema=EVENT,
    columns=(
        TypedColumn("subject_id", "text", "who acted"),
        TypedColumn("principal_id", "hex", "the client that signed the event"),
        TypedColumn("event_type", "text", "what happened"),
        TypedColumn("event_time", "time", "when, as the application saw it"),
        TypedColumn("origin", "text", "where"),
        TypedColumn("payload", "json", "what else the application says"),
    ),
    read=read,
    sort=("subject_id", "event_type"),
)
