"""veen.label.class.v1: hints about labels, for clients and operators (LCLASS0, 001 spec-2 §6, D-103, D-155).

The last record in logical order counts for a label. A class advises on padding, rate and retention; it never decides
whether a message is admitted, and a label without a class is as correct as any other.

    LCLASS.CLASS    the class is empty
    LCLASS.EMITTER  the client is not among those who may classify
    LCLASS.STREAM   the record does not stand on the realm's stream of label classes
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from veen.core.event import Order
from veen.core.wire import Bytes32, Name, Uint
from veen.overlays.federation.realm import DEFAULT_REALM, EmitterRule, Emitters, admin_streams
from veen.overlays.framework.fold import NO_MIRRORS, Compact, Mirrors
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.typed_table import StateTable

KNOWN_CLASSES: Final = ("admin", "bulk", "control", "log", "metric", "user", "wallet")  # the set is open (D-155)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelClass(Body, kind="veen.label.class.v1"):
    """The class of a label; `class` on the wire is `class_name` here."""

    label: Bytes32
    class_name: Annotated[str, Name("class")]
    sensitivity: str | None = None
    retention_hint: Uint | None = None  # seconds

    def _check(self) -> None:
        if not self.class_name:
            raise InvalidBody("LCLASS.CLASS", "class must not be empty")


LABEL_CLASS: Final = Schema(LabelClass.KIND, LabelClass)


def classify(
    label: bytes, class_name: str, *, sensitivity: str | None = None, retention_hint: int | None = None
) -> Draft:
    """Build a record, to be sent to `admin_streams(realm_id).label_class`."""
    return LABEL_CLASS.draft(
        LabelClass(label=label, class_name=class_name, sensitivity=sensitivity, retention_hint=retention_hint)
    )


class Classified(NamedTuple):
    """The class of a label, with its message."""

    order: Order
    class_name: str
    sensitivity: str | None
    retention_hint: int | None
    msg_id: bytes
    client_id: bytes


class Advice(NamedTuple):
    """Suggestions of a class (§6.2), for the configuration of clients and hubs."""

    pad_blocks: tuple[int, ...]  # sizes to choose from, in bytes; 0: no padding. Empty: the default of the profile
    rate: str  # "default", "higher" or "tighter" than the limits of the hub
    retention_sec: int | None  # None: as the hub retains everything else


_PADDING: Final = {"user": (256, 1024), "wallet": (256, 1024), "log": (0,), "metric": (0,)}
_RATES: Final = {"admin": "higher", "control": "higher", "bulk": "tighter"}


def advise(class_name: str | None, retention_hint: int | None = None) -> Advice:
    """Return the suggestions of a class; none for an unknown class."""
    name = class_name or ""
    return Advice(_PADDING.get(name, ()), _RATES.get(name, "default"), retention_hint)


@dataclass(frozen=True, slots=True)
class LabelClasses:
    """The classes of a realm, by label."""

    labels: Mapping[bytes, Classified]

    def class_of(self, label: bytes, siblings: Iterable[bytes] = ()) -> Classified | None:
        """Return the class of a label, else the latest of the other labels of its stream (`siblings`), else None.

        A stream whose labels rotate keeps its class: the labels resolve to one stream (D-103).
        """
        if label in self.labels:
            return self.labels[label]
        return max((self.labels[sibling] for sibling in siblings if sibling in self.labels), default=None)

    def advice(self, label: bytes, siblings: Iterable[bytes] = ()) -> Advice:
        record = self.class_of(label, siblings)
        return advise(None) if record is None else advise(record.class_name, record.retention_hint)


class LabelClassFold(EmitterRule, Compact[dict[bytes, Classified], LabelClasses]):
    """The classes of one realm. `emitters` are client_ids; by default the owner's count (D-186).

    A fold does not know her: nobody counts until `with_emitters` brings her keys. `any_emitter`: everybody counts.
    """

    name = "label.class"
    schemas = SchemaSet([LABEL_CLASS])
    SUMMARY = dict[bytes, Classified]

    def __init__(
        self,
        realm_id: bytes = DEFAULT_REALM,
        *,
        emitters: Emitters | None = None,
        any_emitter: bool = False,
        stream_id: bytes | None = None,
        mirrors: Mirrors = NO_MIRRORS,
    ) -> None:
        super().__init__(mirrors=mirrors)
        self._stream_id = stream_id or admin_streams(realm_id).label_class
        self._set_rule(emitters, any_emitter, (self._stream_id,))

    def settings(self) -> Any:
        return [self._rule_settings(), self._stream_id]

    def start(self) -> dict[bytes, Classified]:
        return {}

    def add(self, into: dict[bytes, Classified], event: Typed[LabelClass]) -> None:
        e, body = event
        if not self.is_emitted(e):
            raise Violation("LCLASS.EMITTER", "this client may not classify labels")
        if e.stream_id != self._stream_id:
            raise Violation("LCLASS.STREAM", "the record is not on the realm's stream of label classes")
        record = Classified(e.order, body.class_name, body.sensitivity, body.retention_hint, e.leaf_hash, e.client_id)
        self.absorb(into, {body.label: record})

    def absorb(self, into: dict[bytes, Classified], other: dict[bytes, Classified]) -> None:
        for label, record in other.items():
            if label not in into or into[label].order < record.order:
                into[label] = record

    def show(self, state: dict[bytes, Classified], as_of: int) -> LabelClasses:
        return LabelClasses(dict(sorted(state.items())))


STATES: Final = (
    StateTable.of(
        LabelClassFold.name, Classified, {"label": "hex"}, lambda view: view.labels, about="the class of each label"
    ),
)
