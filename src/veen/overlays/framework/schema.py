"""Schemas: the kinds of bodies and their ids (spec §4.7, D-83).

Bodies: the typed contents of messages, as maps with text keys in listed order (D-02 … D-05).

A body is a wire object of the form "body" and lists its fields once, in the order of its document. What is free-form
(`Fields.anything`, `Fields.mapping`) is read in any order and written sorted (D-03): `_write` passes it through
`cbor.sort_keys`.

Total decoding: every event yields a typed event or a stable code at its position (spec §4.7, §11.1, D-81).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeVar

from veen.core import cbor
from veen.core.errors import FieldSizeError, FormatError, VeenError, VersionError
from veen.core.event import Event, Order
from veen.core.labels import schema_id
from veen.core.sealing.ciphertext import Attachment
from veen.core.wire import Fields, Form, Wire


class Body(Wire):
    """Base of all bodies. KIND is the name of the schema, or of the part where bodies nest."""

    __slots__ = ()

    FORM: ClassVar[Form] = "body"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        """Read the fields, then check them. If both fail, the error about the fields is raised (D-177)."""
        try:
            body = cls._read(fields)
        except InvalidBody:
            fields.done()
            raise
        fields.done()
        return body


class InvalidBody(FormatError):
    """A body whose fields have the right types but break a rule of the schema.

    Raised by `_read` when it has read all fields, so what cannot be read cannot be written either. `code` is stable
    and names the broken rule.
    """

    def __init__(self, code: str, what: str) -> None:
        super().__init__(code, what)
        self.code, self.what = code, what

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message to be sent: schema, body, and what a writer puts into payload_hdr."""

    schema: bytes
    body: bytes
    parent_id: bytes | None = None
    expires_at: int | None = None


B = TypeVar("B", bound=Wire)

_NAME: Final = re.compile(r"(?P<family>[a-z][a-z0-9]*(?:\.[a-z0-9]+)*)\.v(?P<version>[1-9][0-9]{0,3})")


class SchemaClash(VeenError):
    """Two schemas with the same name or id."""

    hint = "Two installed overlays define the same schema: remove one, or give its schema another name."

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"schema {self.name} is defined twice"


@dataclass(frozen=True, slots=True)
class Schema(Generic[B]):
    """One version of one kind of body.

    A new version is a new schema with a new name and thus a new id (spec §4.7): old logs keep their meaning, and a
    fold that understands both lists both.
    """

    name: str  # "family.vN"
    body: type[B]
    needs_parent: bool = False  # payload_hdr.parent_id must be there
    attachments_of: Callable[[B], Sequence[Attachment]] | None = None  # what the body declares (D-16)
    id: bytes = field(init=False)

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError(f"{self.name!r} is not a schema name: expected family.vN")
        object.__setattr__(self, "id", schema_id(self.name))

    @property
    def family(self) -> str:
        """Name without the version."""
        return self.name.rpartition(".v")[0]

    @property
    def version(self) -> int:
        """Number of the version, from the name."""
        return int(self.name.rpartition(".v")[2])

    def draft(self, body: B, *, parent_id: bytes | None = None, expires_at: int | None = None) -> Draft:
        """Check and encode a body; return the draft to send."""
        if self.needs_parent and parent_id is None:
            raise ValueError(f"{self.name} needs a parent_id")
        return Draft(schema=self.id, body=body.to_bytes(), parent_id=parent_id, expires_at=expires_at)


AnySchema = Schema[Any]


class SchemaSet(Mapping[bytes, AnySchema]):
    """Schemas by id; by name through `named`."""

    __slots__ = ("_by_id", "_by_name")

    def __init__(self, schemas: Iterable[AnySchema] = ()) -> None:
        self._by_id: dict[bytes, AnySchema] = {}
        self._by_name: dict[str, AnySchema] = {}
        for schema in schemas:
            if self._by_id.setdefault(schema.id, schema) is not schema:
                raise SchemaClash(schema.name)
            if self._by_name.setdefault(schema.name, schema) is not schema:
                raise SchemaClash(schema.name)

    def __getitem__(self, schema_id: bytes) -> AnySchema:
        return self._by_id[schema_id]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_id)

    def __len__(self) -> int:
        return len(self._by_id)

    def named(self, name: str) -> AnySchema | None:
        """Return the schema of this name, or None."""
        return self._by_name.get(name)

    def versions(self, family: str) -> list[AnySchema]:
        """Return every version of one family, oldest first."""
        return sorted((s for s in self._by_id.values() if s.family == family), key=lambda s: s.version)

    def __or__(self, other: "SchemaSet") -> "SchemaSet":
        return SchemaSet([*self.values(), *(s for s in other.values() if self.get(s.id) is not s)])


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
