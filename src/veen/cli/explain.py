"""`veen explain CODE`."""

from typing import TYPE_CHECKING, Any

import click

from veen.cli.explaining import Explanation, explanation_of, explanations, part_of
from veen.cli.output import Output, output_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["explain"]


class _Code(click.ParamType[str]):
    name = "code"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        wanted = incomplete.upper()
        return [CompletionItem(code) for code in explanations() if code.startswith(wanted)]


@click.command()
@click.argument("code", type=_Code(), required=False)
@output_options
def explain(output: Output, code: str | None) -> None:
    """What CODE means, where the spec says so, and what to do. Without a code: all of them.

    \b
    veen explain E.SEQ
    veen explain CLIENT_SEQ
    """
    if code is None:
        found = list(explanations().values())
        output.result(
            {"codes": [_data(entry) for entry in found]},
            lambda: output.table(("code", "means"), [(entry.code, entry.means) for entry in found]),
        )
        return
    entry = explanation_of(code)
    if entry is None:
        raise click.UsageError(f"{code!r} is not a code that VEEN uses.{_near(code)}")
    output.result(_data(entry), lambda: _show(output, entry))


def _show(output: Output, entry: Explanation) -> None:
    output.line(f"{entry.code}: {entry.means}", "head")
    if entry.part_of:
        output.line(f"  a detail of {entry.part_of}")
    output.line(f"  {entry.because}")
    output.line(f"  see {entry.spec}")
    output.line("what to do")
    for fix in entry.fixes:
        output.line(f"  - {fix}")
    if details := part_of(entry.code):
        output.line("details")
        output.fields((detail.code, detail.means) for detail in details)


def _data(entry: Explanation) -> dict[str, Any]:
    return {
        "code": entry.code,
        "means": entry.means,
        "because": entry.because,
        "spec": entry.spec,
        "fixes": list(entry.fixes),
        "part_of": entry.part_of,
        "details": [detail.code for detail in part_of(entry.code)],
    }


def _near(code: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(code.upper(), explanations(), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""
