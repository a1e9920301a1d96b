"""`veen crud`: records by entity and id, with revisions (spec §11.4, D-84)."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.asof import View, view_options
from veen.cli.clictx import Session, client_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options
from veen.cli.overlaycmd import absent, drafted, send_draft, show_folded, state_of, tell_counted, write_options
from veen.cli.overlayvalues import json_value, plain

if TYPE_CHECKING:
    from veen.overlays.body import Draft

__all__ = ["create", "crud", "delete", "get", "list_", "update"]


class _CrudGroup(LazyGroup):
    table: ClassVar[Table] = {
        "create": ("veen.cli.crud:create", "Create a record."),
        "delete": ("veen.cli.crud:delete", "Delete a record."),
        "get": ("veen.cli.crud:get", "Print a record."),
        "list": ("veen.cli.crud:list_", "All records, or those of one entity."),
        "update": ("veen.cli.crud:update", "Change fields of a record."),
    }


@click.group(cls=_CrudGroup)
def crud() -> None:
    """Records by entity and id over a stream; every change has a revision."""


_IF_REV = click.option(
    "--if-rev", type=click.IntRange(min=0), help="Only if the record is at this revision; 0: there never was one."
)


def _fields(text: str) -> dict[str, Any]:
    fields = json_value(text)
    if type(fields) is not dict:
        raise click.UsageError('FIELDS is a JSON object, such as \'{"name": "Ann"}\'')
    return fields


def _sent(
    output: Output, session: Session, stream: str, draft: "Draft", cap: Path | None, facts: dict[str, Any]
) -> None:
    from veen.overlays.crud import CrudFold

    sent = send_draft(session, stream, draft, cap)
    tell_counted(output, session, sent, {"stream": stream, **facts}, CrudFold(), [stream])


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("entity")
@click.argument("record_id", metavar="ID")
@click.argument("fields")
@_IF_REV
@write_options
@output_options
@client_options
def create(
    output: Output,
    session: Session,
    stream: str,
    entity: str,
    record_id: str,
    fields: str,
    if_rev: int | None,
    cap: Path | None,
) -> None:
    """Create the record ID of ENTITY in STREAM with FIELDS, a JSON object.

    Exit code 6 if it counts for nothing: the record exists, or is not at the revision that was asked for.

    \b
    veen crud create app/users user 1 '{"name": "Ann"}'
    """
    from veen.overlays import crud as overlay

    draft = drafted(lambda: overlay.create(entity, record_id, _fields(fields), if_rev=if_rev))
    _sent(output, session, stream, draft, cap, {"entity": entity, "id": record_id})


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("entity")
@click.argument("record_id", metavar="ID")
@click.argument("fields")
@_IF_REV
@write_options
@output_options
@client_options
def update(
    output: Output,
    session: Session,
    stream: str,
    entity: str,
    record_id: str,
    fields: str,
    if_rev: int | None,
    cap: Path | None,
) -> None:
    """Set the FIELDS of a record, a JSON object; null removes a field, what is not named stays.

    \b
    veen crud update app/users user 1 '{"name": "Anna", "mail": null}' --if-rev 1
    """
    from veen.overlays import crud as overlay

    draft = drafted(lambda: overlay.update(entity, record_id, _fields(fields), if_rev=if_rev))
    _sent(output, session, stream, draft, cap, {"entity": entity, "id": record_id})


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("entity")
@click.argument("record_id", metavar="ID")
@_IF_REV
@write_options
@output_options
@client_options
def delete(
    output: Output, session: Session, stream: str, entity: str, record_id: str, if_rev: int | None, cap: Path | None
) -> None:
    """Delete a record. Its revisions go on counting if it is created again."""
    from veen.overlays import crud as overlay

    draft = drafted(lambda: overlay.delete(entity, record_id, if_rev=if_rev))
    _sent(output, session, stream, draft, cap, {"entity": entity, "id": record_id})


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("entity")
@click.argument("record_id", metavar="ID")
@view_options
@output_options
@client_options
def get(output: Output, session: Session, stream: str, entity: str, record_id: str, view: View) -> None:
    """Print a record of STREAM, now or as of a moment."""
    from veen.overlays.crud import CrudFold

    folded = state_of(session, CrudFold(), [stream], view)
    record = folded.state.get(entity, {}).get(record_id)
    if record is None:
        raise absent(f"record {record_id!r} of {entity!r}", f"veen crud list {stream} {entity}")
    found = {"entity": entity, "id": record_id, **plain(record)}
    show_folded(output, folded, found, lambda: output.fields([("rev", found["rev"]), *found["fields"].items()]))


@click.command("list")
@click.argument("stream", type=STREAM)
@click.argument("entity", required=False)
@view_options
@output_options
@client_options
def list_(output: Output, session: Session, stream: str, entity: str | None, view: View) -> None:
    """The records of STREAM, or those of one ENTITY."""
    from veen.overlays.crud import CrudFold

    folded = state_of(session, CrudFold(), [stream], view)
    records = [
        {"entity": kind, "id": record_id, **plain(record)}
        for kind, found in folded.state.items()
        if entity in (None, kind)
        for record_id, record in found.items()
    ]
    rows = [(one["entity"], one["id"], one["rev"], one["fields"]) for one in records]
    show_folded(output, folded, {"records": records}, lambda: output.table(("entity", "id", "rev", "fields"), rows))
