"""`veen explain CODE`."""

from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.output import Output, output_options
from veen.core.catalogue import ErrorRow, catalogue, details_of, row_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Code(click.ParamType[str]):
    name = "code"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        wanted = incomplete.upper()
        return [CompletionItem(code) for code in catalogue() if code.startswith(wanted)]


@click.command()
@click.argument("code", type=_Code(), required=False)
@output_options
def explain(output: Output, code: str | None) -> None:
    """Explain CODE: its meaning, the clause of the specification, and what to do. Without a code list all of them.

    \b
    veen explain E.SEQ
    veen explain CLIENT_SEQ
    """
    if code is None:
        rows = list(catalogue().values())
        output.result(
            {"codes": [_data(row) for row in rows]},
            lambda: output.table(("code", "means"), [(row.code, row.means) for row in rows]),
        )
        return
    row = row_of(code)
    if row is None:
        raise click.UsageError(f"{code!r} is not a code that VEEN uses.{_near(code)}")
    output.result(_data(row), lambda: _show(output, row))


def _show(output: Output, row: ErrorRow) -> None:
    output.line(f"{row.code}: {row.means}", "head")
    if row.part_of:
        output.line(f"  a detail of {row.part_of}")
    output.line(f"  {row.because}")
    output.line(f"  see {row.spec}")
    output.line("what to do")
    for fix in row.fixes:
        output.line(f"  - {fix}")
    if details := details_of(row.code):
        output.line("details")
        output.fields((detail.code, detail.means) for detail in details)


def _data(row: ErrorRow) -> dict[str, Any]:
    return {
        "code": row.code,
        "means": row.means,
        "because": row.because,
        "spec": row.spec,
        "fixes": list(row.fixes),
        "part_of": row.part_of,
        "details": [detail.code for detail in details_of(row.code)],
    }


def _near(code: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(code.upper(), catalogue(), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
