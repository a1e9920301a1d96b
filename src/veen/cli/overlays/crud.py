"""`veen crud`: records by entity and id, with revisions (spec §11.4, D-84)."""

from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from veen.cli.shared.as_of import View
from veen.cli.shared.command import CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, Outgoing
from veen.cli.shared.overlay_commands import absent, show_folded, show_rows, state_of
from veen.cli.shared.overlay_values import json_value
from veen.overlays.framework.nouns import plain

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded

crud: Final = NounGroup(
    "crud",
    "Records by entity and id over a stream; every change has a revision.",
    takes=[argument("stream", type=STREAM)],
)

_RECORD: Final = (argument("entity"), argument("record_id", metavar="ID"))
_FIELDS: Final = argument("fields")
_IF_REV: Final = option(
    "--if-rev", type=click.IntRange(min=0), help="Required revision of the record. 0: the record never existed."
)


def _change(operation: str, stream: str, entity: str, record_id: str, *fields: str, if_rev: int | None) -> Outgoing:
    from veen.overlays import crud as overlay

    make: Any = getattr(overlay, operation)
    values = [_object(text) for text in fields]
    facts = {"stream": stream, "entity": entity, "id": record_id}
    return Outgoing(stream, lambda: make(entity, record_id, *values, if_rev=if_rev), facts, fold=overlay.CrudFold)


def _object(text: str) -> dict[str, Any]:
    fields = json_value(text)
    if type(fields) is not dict:
        raise click.UsageError('FIELDS must be a JSON object, such as \'{"name": "Ann"}\'')
    return fields


@crud.write("create", "Create a record.", *_RECORD, _FIELDS, _IF_REV)
def _create(session: CliSession, stream: str, entity: str, record_id: str, fields: str, if_rev: int | None) -> Outgoing:
    """Create the record ID of ENTITY in STREAM with FIELDS, a JSON object.

    Exit code 6 if it has no effect: the record exists, or is not at the revision that was asked for.

    \b
    veen crud create app/users user 1 '{"name": "Ann"}'
    """
    return _change("create", stream, entity, record_id, fields, if_rev=if_rev)


@crud.write("update", "Change fields of a record.", *_RECORD, _FIELDS, _IF_REV)
def _update(session: CliSession, stream: str, entity: str, record_id: str, fields: str, if_rev: int | None) -> Outgoing:
    """Set the FIELDS of a record, a JSON object. null removes a field; other fields stay.

    \b
    veen crud update app/users user 1 '{"name": "Anna", "mail": null}' --if-rev 1
    """
    return _change("update", stream, entity, record_id, fields, if_rev=if_rev)


@crud.write("delete", "Delete a record.", *_RECORD, _IF_REV)
def _delete(session: CliSession, stream: str, entity: str, record_id: str, if_rev: int | None) -> Outgoing:
    """Delete a record. Its revisions continue if it is created again."""
    return _change("delete", stream, entity, record_id, if_rev=if_rev)


def _state_of_records(session: CliSession, stream: str, view: View) -> "Folded":
    from veen.overlays.crud import CrudFold

    return state_of(session, CrudFold(), [stream], view)


@crud.read("get", "Print a record.", *_RECORD)
def _get(session: CliSession, stream: str, entity: str, record_id: str, view: View) -> None:
    """Print a record of STREAM, now or as of a moment."""
    folded = _state_of_records(session, stream, view)
    state = folded.state.get(entity, {}).get(record_id)
    if state is None:
        raise absent(f"record {record_id!r} of {entity!r}", f"veen crud list {stream} {entity}")
    record = {"entity": entity, "id": record_id, **plain(state)}
    rows = [("rev", record["rev"]), *record["fields"].items()]
    show_folded(session, folded, record, lambda: session.output.fields(rows))


@crud.read("list", "List all records, or those of one entity.", argument("entity", required=False))
def _list(session: CliSession, stream: str, entity: str | None, view: View) -> None:
    """List the records of STREAM, or those of one ENTITY."""
    folded = _state_of_records(session, stream, view)
    records = [
        {"entity": name, "id": record_id, **plain(record)}
        for name, of_entity in folded.state.items()
        if entity in (None, name)
        for record_id, record in of_entity.items()
    ]
    show_rows(session, folded, "records", records, ("entity", "id", "rev", "fields"))
