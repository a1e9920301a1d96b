"""`veen crud`: records by entity and id, with revisions (spec §11.4, D-84)."""

from typing import TYPE_CHECKING, Final

from click import argument

from veen.cli.shared.as_of import View
from veen.cli.shared.command import CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, OneStream, index
from veen.cli.shared.overlay_commands import absent, show_folded, show_rows, state_of
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded

_NOUN: Final = "veen.overlays.crud:crud"

crud: Final = NounGroup("crud", index()[_NOUN]["about"], takes=[argument("stream", type=STREAM)])
crud.declare(_NOUN, OneStream)
_RECORD: Final = (argument("entity"), argument("record_id", metavar="ID"))


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
