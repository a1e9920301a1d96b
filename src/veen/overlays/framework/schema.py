"""Schemas: the kinds of bodies and their ids (spec §4.7, D-83)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from veen.core.errors import VeenError
from veen.core.labels import schema_id
from veen.core.sealing.ciphertext import Attachment
from veen.core.wire import Wire
from veen.overlays.framework.body import Draft

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
