"""`veen inspect`: the contents of a wire object, without keys."""

from pathlib import Path
from typing import Any

import click

from veen.cli.shared.files import OBJECT_FILE, read_object
from veen.cli.shared.output import Exit, Output, output_options


@click.command()
@click.argument("file", type=OBJECT_FILE)
@output_options
def inspect(output: Output, file: Path) -> None:
    """Show the fields of the wire object in FILE, and what can be computed from them without keys.

    FILE holds CBOR, its JSON form, or hex; "-" reads standard input.
    """
    from veen.cli.shared.wire_tree import derive_fields, fields_of

    data, recognised = read_object(file, exit_code=Exit.USAGE)
    derived = derive_fields(recognised.obj)
    document: dict[str, Any] = {
        "kind": recognised.obj.KIND,
        "encoding": recognised.encoding,
        "bytes": len(data),
        "also_fits": list(recognised.also),
        "object": recognised.obj.to_json(),
        "fields": dict(fields_of(recognised.obj)),
        "derived": derived,
    }

    def human() -> None:
        also = f" (same shape: {', '.join(recognised.also)})" if recognised.also else ""
        output.line(f"{recognised.obj.KIND}{also}, {len(data)} bytes as {recognised.encoding.upper()}")
        output.fields(fields_of(recognised.obj))
        if derived:
            output.line("computed from these")
            output.fields(derived.items())

    output.result(document, human)
