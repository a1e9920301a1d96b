"""Bindings of client keys to principals, by stream: the rule of `Speaking` as a state of its own (D-179)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import SchemaSet, Typed
from veen.overlays.framework.speaking import Bound, Principal, Speaking, SpeakingKey, SpeakingRecord, principal_of
from veen.overlays.framework.state import state_record
from veen.overlays.framework.typed_table import StateTable

_ID_BYTES: Final = 32


@state_record
class BoundKey:
    """A client key and the principal that it speaks for."""

    principal_pk: bytes
    not_before: int
    not_after: int
    is_ended: bool  # by name, or together with all bindings of the principal before that end


@state_record
class Succession:
    """The key that took the place of a principal."""

    successor_pk: bytes


@dataclass(frozen=True, slots=True)
class Bindings:
    """All valid bindings, ended ones included, and the principals that were replaced."""

    keys: Mapping[tuple[bytes, bytes], BoundKey]  # by (stream_id, client_id)
    successors: Mapping[tuple[bytes, bytes], Succession]  # by (stream_id, principal_pk)

    def principal_of(self, stream_id: bytes, client_id: bytes, at: int) -> bytes | None:
        """Return the principal that a key speaks for at a time; None if it is not bound, or its binding is over."""
        row = self.keys.get((stream_id, client_id))
        if row is None or row.is_ended or not row.not_before <= at <= row.not_after:
            return None
        return row.principal_pk


class SpeaksFold(Speaking[SpeakingKey, SpeakingRecord, Bindings]):
    """Fold of the statements of one or more streams."""

    name = "speaks"
    schemas = SchemaSet()  # `Speaking` adds the statements
    TABLE = dict[SpeakingKey, SpeakingRecord]

    def step(self, state: Table[SpeakingKey, SpeakingRecord], event: Typed[Any]) -> None:
        self.take_statement(state, event)

    def show(self, state: Table[SpeakingKey, SpeakingRecord], as_of: int) -> Bindings:
        keys: dict[tuple[bytes, bytes], BoundKey] = {}
        successors: dict[tuple[bytes, bytes], Succession] = {}
        for (_, place), record in sorted(state.items(), key=lambda item: item[0]):
            stream_id, identity = place[:_ID_BYTES], place[_ID_BYTES:]
            if isinstance(record, Bound):
                record_of_principal = principal_of(state, stream_id, record.principal)
                keys[stream_id, identity] = BoundKey(
                    principal_pk=record.principal,
                    not_before=record.not_before,
                    not_after=record.not_after,
                    is_ended=record.is_ended or record.number <= record_of_principal.ended,
                )
            elif isinstance(record, Principal) and record.successor is not None:
                successors[stream_id, identity] = Succession(successor_pk=record.successor)
        return Bindings(keys, successors)


STATES: Final = (
    StateTable.of(
        SpeaksFold.name,
        BoundKey,
        {"stream_id": "hex", "client_id": "hex"},
        lambda view: view.keys,
        part="keys",
        about="client keys that are bound to principals",
        times=("not_before", "not_after"),
    ),
    StateTable.of(
        SpeaksFold.name,
        Succession,
        {"stream_id": "hex", "principal_pk": "hex"},
        lambda view: view.successors,
        part="successors",
        about="principals whose place another key took",
    ),
)
