"""Total decoding: every event yields a typed event or a stable code at its position (spec §4.7, §11.1, D-81)."""

from typing import Generic, NamedTuple

from veen.core import cbor
from veen.core.errors import FieldSizeError, FormatError, VeenError, VersionError
from veen.core.event import Event, Order
from veen.overlays.framework.body import InvalidBody
from veen.overlays.framework.schema import B, Schema

Place = tuple[bytes, int]  # (label, stream_seq)


class Typed(NamedTuple, Generic[B]):
    """An event whose body has been read."""

    event: Event
    body: B

    @property
    def order(self) -> Order:
        """Place of the event in the logical order."""
        return self.event.order

    @property
    def place(self) -> Place:
        """Label and stream_seq of the event."""
        return self.event.label, self.event.stream_seq


class Issue(NamedTuple):
    """An event that has no effect, with the reason. Equal logs give equal issues.

    `code` is stable and belongs to the result; `what` is for people.
    """

    label: bytes
    stream_seq: int
    code: str
    what: str

    @property
    def place(self) -> Place:
        return self.label, self.stream_seq


class Violation(VeenError, code="OVL.BODY"):
    """An event that breaks a rule of a fold. It changes nothing and is reported under `code` (D-98)."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(code, what)
        self.code, self.what = code, what

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


def decode(event: Event, schema: Schema[B]) -> Typed[B] | Issue:
    """Decode the body of an event by its schema. Codes of an Issue, the first that applies:

    OVL.CBOR      the body is not one deterministic CBOR item
    OVL.BODY      a key is missing, unknown, repeated, misplaced or of the wrong type
    OVL.SIZE      a byte string or list has a size the schema does not allow
    OVL.VERSION   the body speaks a version that is not known
    OVL.PARENT    the schema needs a parent_id and the header has none
    or the code of the rule of the schema that is broken.
    """
    code = "OVL.CBOR"
    parentless = schema.needs_parent and event.hdr.parent_id is None
    try:
        tree = cbor.decode(event.body, what=schema.name)
        code = "OVL.BODY"
        body = schema.body.from_tree(tree)
    except FormatError as exc:
        if isinstance(exc, InvalidBody):
            if parentless:
                return _parentless(event, schema)  # OVL.* comes before the rules of a schema (D-177)
            code = exc.code
        elif isinstance(exc, VersionError):
            code = "OVL.VERSION"
        elif isinstance(exc, FieldSizeError) and code == "OVL.BODY":
            code = "OVL.SIZE"
        return Issue(event.label, event.stream_seq, code, str(exc))
    return _parentless(event, schema) if parentless else Typed(event, body)


def _parentless(event: Event, schema: Schema[B]) -> Issue:
    return Issue(event.label, event.stream_seq, "OVL.PARENT", f"{schema.name} needs a parent_id")
