"""`veen schema`: ids of payload schemas, and the registry of payload schemas (META0+, 001 spec-2 §7)."""

import time
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from veen.cli.label.realm import MAKE_KEYS, AdminRealm, realm_options
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import NounGroup, Outgoing
from veen.cli.shared.output import Fail, Output, output_options
from veen.cli.shared.overlay_commands import HEX32, absent, make_keys, show_folded, state_of
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.overlays.naming.schema_registry import SchemaRegistryFold

schema: Final = NounGroup(
    "schema",
    "Payload schemas: their ids, and what the registry of a realm says of them (META0+).",
    writes=[realm_options],
    reads=[realm_options, view_options],
    others={
        "check": ("veen.cli.label.schemas:check", "Schemas that streams use and nobody registered."),
        "id": ("veen.cli.label.schemas:id_", "The id of a schema, from its name."),
    },
)
_SEALED: Final = bytes(32)  # in place of the schema of an entry that the keys do not open


def _fold(session: CliSession, realm: AdminRealm) -> "SchemaRegistryFold":
    from veen.overlays.naming.schema_registry import SchemaRegistryFold

    return SchemaRegistryFold(realm.realm_id, **realm.rule(session, realm.schema_stream()))


def _row(schema_id: bytes, entry: Any) -> dict[str, Any]:
    return {"schema_id": schema_id.hex(), **plain(entry)}


def _marks(row: dict[str, Any]) -> str:
    return " ".join(mark for mark in ("unbound", "contested") if row[mark])


@schema.write(
    "register",
    "Register a schema: its name, version and documentation.",
    argument("name"),
    option("--version", "version", help="Version. Default: the end of the name, such as v1."),
    option("--schema-id", type=HEX32, help="Schema id, in hex. Default: the hash of the name."),
    option("--doc-url", help="URL of the documentation."),
    option("--owner", type=HEX32, help="Key of the organization or principal that controls it, in hex."),
    MAKE_KEYS,
)
def _register(
    session: CliSession,
    name: str,
    version: str | None,
    schema_id: bytes | None,
    doc_url: str | None,
    owner: bytes | None,
    keys: bool,
    realm: AdminRealm,
) -> Outgoing:
    """Register the schema NAME in a realm.

    \b
    veen schema register example.thing.v1 --doc-url https://example.com/thing --make-keys
    """
    from veen.core.labels import schema_id as id_of
    from veen.overlays.naming.schema_registry import register

    ident = id_of(name) if schema_id is None else schema_id
    number = version or name.rpartition(".")[2]
    stream = realm.schema_stream()
    if keys:
        make_keys(session, stream)  # before the identity is in use for reading the hub
    realm.announce(session, stream)
    return Outgoing(
        stream,
        lambda: register(ident, name, number, ts=int(time.time()), doc_url=doc_url, owner=owner),
        {"schema_id": ident, "name": name, "version": number, "stream": stream},
        fold=lambda: _fold(session, realm),
    )


@schema.read(
    "list", "List the schemas of a realm.", option("--emit-docs", is_flag=True, help="Print a Markdown table instead.")
)
def _list(session: CliSession, emit_docs: bool, realm: AdminRealm, view: View) -> None:
    """List the schemas registered in a realm."""
    folded = state_of(session, _fold(session, realm), [realm.schema_stream()], view)
    rows = [_row(schema_id, entry) for schema_id, entry in folded.state.schemas.items()]
    output = session.output

    def human() -> None:
        if emit_docs:
            output.line("| schema | version | id | documentation |\n|---|---|---|---|")
            for row in rows:
                output.line(f"| {row['name']} | {row['version']} | `{row['schema_id']}` | {row['doc_url'] or ''} |")
            return
        cells = [(row["name"], row["version"], row["schema_id"], _marks(row)) for row in rows]
        output.table(("name", "version", "schema_id", "marks"), cells)

    show_folded(session, folded, {"schemas": rows}, human)


@schema.read("show", "Print one schema, by name or id.", argument("schema"))
def _show(session: CliSession, schema: str, realm: AdminRealm, view: View) -> None:
    """Print the registry's entry of SCHEMA, a name or an id of 64 hex digits."""
    from veen.core.labels import schema_id as id_of

    folded = state_of(session, _fold(session, realm), [realm.schema_stream()], view)
    ident = id_of(schema)
    entry = folded.state.schemas.get(ident)
    if entry is None:
        raise absent(f"schema {schema!r} in the registry", "veen schema list")
    row = _row(ident, entry)
    show_folded(session, folded, row, lambda: session.output.fields(row.items()))


@click.command("id")
@click.argument("name")
@output_options
def id_(output: Output, name: str) -> None:
    """Print the id of the schema NAME in payload headers: its hash (spec §4.5, §4.7)."""
    from veen.core.labels import schema_id

    output.result({"schema": name, "schema_id": schema_id(name).hex()})


@click.command()
@click.argument("streams", type=STREAM, nargs=-1, required=True)
@realm_options
@client_options
def check(output: Output, session: CliSession, streams: tuple[str, ...], realm: AdminRealm) -> None:
    """List the schemas that messages of STREAMS use and nobody registered. Exit code 6 if there are any.

    \b
    veen schema check orders shop
    """
    from veen.cli.shared.folding import events_of, fold_streams

    registry = fold_streams(session, _fold(session, realm), [realm.schema_stream()]).state
    used: dict[bytes, int] = {}
    with output.progress("reading"):
        for event in events_of(session, streams):
            if event.hdr.schema != _SEALED:
                used[event.hdr.schema] = used.get(event.hdr.schema, 0) + 1
    unregistered = registry.find_unregistered(used)
    unbound = sorted(ident for ident in used if ident in registry.schemas and registry.schemas[ident].unbound)
    rows = [
        {
            "schema_id": ident.hex(),
            "messages": count,
            "name": _name(registry, ident),
            "registered": ident in registry.schemas,
        }
        for ident, count in sorted(used.items())
    ]
    data = {"schemas": rows, "unregistered": plain(unregistered), "unbound": plain(unbound)}
    cells = [(row["schema_id"], row["name"] or "", row["messages"], row["registered"]) for row in rows]
    output.result(data, lambda: output.table(("schema_id", "name", "messages", "registered"), cells))
    if unregistered:
        raise Fail(
            "E.SCHEMA",
            f"{len(unregistered)} schemas are used but not registered",
            f"the first is {unregistered[0].hex()}",
            "register it by its name: veen schema register NAME",
        )


def _name(registry: Any, ident: bytes) -> str | None:
    """Return the name of a schema from the registry, else from this installation."""
    from veen.overlays.framework.registry import BUILTIN

    if ident in registry.schemas:
        name: str = registry.schemas[ident].name
        return name
    builtin = BUILTIN.schemas.get(ident)
    return None if builtin is None else builtin.name
