"""The bindings of a stream: which client keys speak for which principals, and until when (D-179).

Every fold of operations keeps this for itself; here it is a state of its own, for people who ask.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.overlays.framework.decode import Typed
from veen.overlays.framework.dedup import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import SchemaSet
from veen.overlays.framework.speaking import Bound, Principal, Speaking, SpeakingKey, SpeakingRecord, principal_of
from veen.overlays.framework.typed_table import StateTable

KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBinding:
    """A client key that was bound to a principal in one stream."""

    principal_pk: bytes
    not_before: int
    not_after: int
    is_ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Succession:
    """A principal whose place another one took in one stream."""

    successor: bytes


@dataclass(frozen=True, slots=True)
class Bindings:
    """Bindings by (stream_id, client_id), successions by (stream_id, principal_pk)."""

    keys: Mapping[tuple[bytes, bytes], KeyBinding]
    successions: Mapping[tuple[bytes, bytes], Succession]


class BindingsFold(Speaking[SpeakingKey, SpeakingRecord, Bindings]):
    """The statements of streams, without the messages that they give a voice to."""

    name = "speaks"
    version = 1
    schemas = SchemaSet([])
    TABLE = dict[SpeakingKey, SpeakingRecord]

    def __init__(self, *, mirrors: Mirrors = NO_MIRRORS) -> None:
        super().__init__(mirrors=mirrors)

    def settings(self) -> Any:
        return None

    def step(self, state: Table[SpeakingKey, SpeakingRecord], event: Typed[Any]) -> None:
        self.take_statement(state, event)

    def show(self, state: Table[SpeakingKey, SpeakingRecord], as_of: int) -> Bindings:
        keys: dict[tuple[bytes, bytes], KeyBinding] = {}
        successions: dict[tuple[bytes, bytes], Succession] = {}
        for (kind, name), record in sorted(state.items(), key=lambda item: item[0]):
            stream_id, identity = name[:KEY_BYTES], name[KEY_BYTES:]
            if kind == "speaks" and isinstance(record, Bound):
                ended = principal_of(state, stream_id, record.principal).ended
                keys[stream_id, identity] = KeyBinding(
                    principal_pk=record.principal,
                    not_before=record.not_before,
                    not_after=record.not_after,
                    is_ended=record.is_ended or record.number <= ended,
                )
            elif kind == "speaks.principal" and isinstance(record, Principal) and record.successor is not None:
                successions[stream_id, identity] = Succession(successor=record.successor)
        return Bindings(keys, successions)


STATES: Final = (
    StateTable.of(
        BindingsFold.name,
        KeyBinding,
        {"stream_id": "hex", "client_id": "hex"},
        lambda view: view.keys,
        about="client keys that speak for principals",
        times=("not_before", "not_after"),
    ),
    StateTable.of(
        BindingsFold.name,
        Succession,
        {"stream_id": "hex", "principal_pk": "hex"},
        lambda view: view.successions,
        part="successions",
        about="principals whose place another one took",
    ),
)
