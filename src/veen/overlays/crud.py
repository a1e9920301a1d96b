"""CRUD: records by entity and id, created, updated and deleted by typed events; reads are views (spec §11.4, D-84).

Every change of a record gives it the next revision, also a deletion; a record created again goes on counting. `if_rev`
makes a change depend on the revision that the writer saw: 0 where there was none. An update names the fields it sets;
null removes a field. A record that expired before the hub took a `create` (hub_ts) does not stand in its way; the new
one has none of the old fields (D-177). What breaks a rule changes nothing and is reported:

    CRUD.EXISTS    create of a record that exists
    CRUD.MISSING   update or delete of a record that does not exist
    CRUD.REV       the record is not at if_rev
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from veen.core.wire import Choice, TextMap, Uint
from veen.overlays.framework.args import Arg
from veen.overlays.framework.nouns import Noun, Verb
from veen.overlays.framework.ordered import Ordered, Table
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.state import Free
from veen.overlays.framework.typed_table import StateTable

Key = tuple[str, str]  # (entity, id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crud(Body, kind="veen.crud.v1"):
    """Creation, update or deletion of a record."""

    op: Annotated[str, Choice("create", "update", "delete")]
    entity: str
    id: str
    fields: TextMap | None = None
    if_rev: Uint | None = None

    def _check(self) -> None:
        if (self.op == "delete") != (self.fields is None):
            raise InvalidBody("CRUD.FIELDS", "create and update need fields, delete has none")


CRUD: Final = Schema(Crud.KIND, Crud)


def create(entity: str, id_: str, fields: dict[str, Any], *, if_rev: int | None = None) -> Draft:
    return CRUD.draft(Crud(op="create", entity=entity, id=id_, fields=fields, if_rev=if_rev))


def update(entity: str, id_: str, fields: dict[str, Any], *, if_rev: int | None = None) -> Draft:
    return CRUD.draft(Crud(op="update", entity=entity, id=id_, fields=fields, if_rev=if_rev))


def delete(entity: str, id_: str, *, if_rev: int | None = None) -> Draft:
    return CRUD.draft(Crud(op="delete", entity=entity, id=id_, if_rev=if_rev))


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record at its last revision, and the message that wrote it."""

    rev: int
    fields: Free | None  # None: deleted, kept so that revisions never repeat
    msg_id: bytes
    expires_at: int | None = None


class CrudFold(Ordered[Key, Record, dict[str, dict[str, Record]]]):
    """Fold of existing records, by entity and id."""

    name = "crud"
    version = 2  # a create may follow an expired record (D-177)
    schemas = SchemaSet([CRUD])
    TABLE = dict[Key, Record]

    def step(self, state: Table[Key, Record], event: Typed[Crud]) -> None:
        e, body = event
        key = body.entity, body.id
        previous = state.get(key)
        rev = 0 if previous is None else previous.rev
        fields = None if previous is None or previous.fields is None else previous.fields.value
        if body.op == "create" and previous is not None and not _is_live(previous, e.hub_ts):
            fields = None
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
            if record.fields is not None and _is_live(record, as_of):
                shown.setdefault(entity, {})[id_] = record
        return shown


def _is_live(record: Record, at: int) -> bool:
    return record.expires_at is None or at <= record.expires_at


STATES: Final = (
    StateTable.of(
        CrudFold.name,
        Record,
        {"entity": "text", "id": "text"},
        lambda view: (((entity, id_), record) for entity, of in view.items() for id_, record in of.items()),
        about="records that exist, at their last revision",
        times=("expires_at",),
    ),
)

_RECORD: Final = {"entity": Arg(), "id": Arg(word="record_id", metavar="ID")}
_FIELDS: Final = {"fields": Arg("object")}
_IF_REV: Final = {"if_rev": Arg("uint", "Required revision of the record. 0: the record never existed.")}


def _verb(name: str, help_: str, args: Mapping[str, Arg], about: str, *examples: str) -> Verb:
    facts = ("stream", "entity", "id")
    args = {**_RECORD, **args, **_IF_REV}
    return Verb(
        name=name,
        help=help_,
        about=about,
        examples=examples,
        schema=CRUD,
        fixed={"op": name},
        args=args,
        facts=facts,
    )


NOUNS: Final = {
    "crud": Noun(
        name="crud",
        about="Records by entity and id over a stream; every change has a revision.",
        fold=CrudFold,
        verbs=[
            _verb(
                "create",
                "Create a record.",
                _FIELDS,
                "Create the record ID of ENTITY in STREAM with FIELDS, a JSON object.\n\nExit code 6 if it has no "
                "effect: the record exists, or is not at the revision that was asked for.",
                """veen crud create app/users user 1 '{"name": "Ann"}'""",
            ),
            _verb(
                "update",
                "Change fields of a record.",
                _FIELDS,
                "Set the FIELDS of a record, a JSON object. null removes a field; other fields stay.",
                """veen crud update app/users user 1 '{"name": "Anna", "mail": null}' --if-rev 1""",
            ),
            _verb(
                "delete",
                "Delete a record.",
                {},
                "Delete a record. Its revisions continue if it is created again.",
            ),
        ],
    )
}
