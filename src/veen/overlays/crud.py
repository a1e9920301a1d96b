"""CRUD: records by entity and id, created, updated and deleted by typed events; reads are views (spec §11.4, D-84).

Every change of a record gives it the next revision, also a deletion; a record created again goes on counting. `if_rev`
makes a change depend on the revision that the writer saw: 0 where there was none. An update names the fields it sets;
null removes a field. What breaks a rule changes nothing and is reported:

    CRUD.EXISTS    create of a record that exists
    CRUD.MISSING   update or delete of a record that does not exist
    CRUD.REV       the record is not at if_rev
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.wire import Fields
from veen.overlays.body import Body, Draft, InvalidBody
from veen.overlays.decode import Typed, Violation
from veen.overlays.ordered import Ordered, Table
from veen.overlays.schema import Schema, SchemaSet
from veen.overlays.state import Free

__all__ = ["CRUD", "Crud", "CrudFold", "Record", "create", "delete", "update"]

Key = tuple[str, str]  # (entity, id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crud(Body):
    """veen.crud.v1"""

    KIND: ClassVar[str] = "veen.crud.v1"

    op: str
    entity: str
    id: str
    fields: dict[str, Any] | None = None
    if_rev: int | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            op=f.choice("op", ("create", "update", "delete")),
            entity=f.text("entity"),
            id=f.text("id"),
            fields=f.optional(f.mapping, "fields"),
            if_rev=f.optional(f.uint, "if_rev"),
        )
        if (body.op == "delete") != (body.fields is None):
            raise InvalidBody("CRUD.FIELDS", "create and update need fields, delete has none")
        return body

    def _write(self) -> dict[str, Any]:
        fields = cbor.sort_keys(self.fields)
        return {"op": self.op, "entity": self.entity, "id": self.id, "fields": fields, "if_rev": self.if_rev}


CRUD: Final = Schema("veen.crud.v1", Crud)


def create(entity: str, id_: str, fields: dict[str, Any], *, if_rev: int | None = None) -> Draft:
    return CRUD.draft(Crud(op="create", entity=entity, id=id_, fields=fields, if_rev=if_rev))


def update(entity: str, id_: str, fields: dict[str, Any], *, if_rev: int | None = None) -> Draft:
    return CRUD.draft(Crud(op="update", entity=entity, id=id_, fields=fields, if_rev=if_rev))


def delete(entity: str, id_: str, *, if_rev: int | None = None) -> Draft:
    return CRUD.draft(Crud(op="delete", entity=entity, id=id_, if_rev=if_rev))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record at its last revision, and the message that made it so."""

    rev: int
    fields: Free | None  # None: deleted, kept so that revisions never repeat
    msg_id: bytes
    expires_at: int | None = None


class CrudFold(Ordered[Key, Record, dict[str, dict[str, Record]]]):
    """The records that exist, by entity and id."""

    name = "crud"
    schemas = SchemaSet([CRUD])
    TABLE = dict[Key, Record]

    def step(self, state: Table[Key, Record], event: Typed[Crud]) -> None:
        e, body = event
        key = body.entity, body.id
        known = state.get(key)
        rev = 0 if known is None else known.rev
        fields = None if known is None or known.fields is None else known.fields.value
        if body.if_rev is not None and body.if_rev != rev:
            raise Violation("CRUD.REV", f"the record is at revision {rev}, not {body.if_rev}")
        if body.op == "create" and fields is not None:
            raise Violation("CRUD.EXISTS", "the record exists")
        if body.op != "create" and fields is None:
            raise Violation("CRUD.MISSING", "there is no such record")
        after = None
        if body.fields is not None:
            merged = {**(fields or {}), **body.fields}
            after = Free({name: value for name, value in merged.items() if value is not None})
        state[key] = Record(rev=rev + 1, fields=after, msg_id=e.leaf_hash, expires_at=e.hdr.expires_at)

    def show(self, state: Table[Key, Record], as_of: int) -> dict[str, dict[str, Record]]:
        shown: dict[str, dict[str, Record]] = {}
        for (entity, id_), record in sorted(state.items()):
            if record.fields is not None and (record.expires_at is None or as_of <= record.expires_at):
                shown.setdefault(entity, {})[id_] = record
        return shown
