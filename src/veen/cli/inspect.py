"""`veen inspect`: what is in this object? No keys needed."""

from pathlib import Path
from typing import Any

import click

from veen.cli.files import OBJECT_FILE, read_object
from veen.cli.output import Exit, Output, output_options

__all__ = ["inspect"]


@click.command()
@click.argument("file", type=OBJECT_FILE)
@output_options
def inspect(output: Output, file: Path) -> None:
    """Show the fields of the wire object in FILE, and what can be computed from them without keys.

    FILE holds CBOR, its JSON form, or hex; "-" reads standard input.
    """
    from veen.cli.anatomy import derived_of, fields_of

    data, found = read_object(file, exit_code=Exit.USAGE)
    derived = derived_of(found.obj)
    document: dict[str, Any] = {
        "kind": found.obj.KIND,
        "encoding": found.encoding,
        "bytes": len(data),
        "also_fits": list(found.also),
        "object": found.obj.to_json(),
        "fields": dict(fields_of(found.obj)),
        "derived": derived,
    }

    def human() -> None:
        also = f" (same shape: {', '.join(found.also)})" if found.also else ""
        click.echo(f"{found.obj.KIND}{also}, {len(data)} bytes as {found.encoding.upper()}")
        output.fields(fields_of(found.obj))
        if derived:
            click.echo("computed from these")
            output.fields(derived.items())

    output.result(document, human)
