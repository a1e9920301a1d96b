"""Results that come one by one, written as they come, in every form."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.text import cell, compact

if TYPE_CHECKING:
    from veen.cli.shared.output import Output

__all__ = ["RecordWriter", "aligned"]


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table; what is wider than its column is not cut."""
    return "  ".join(f"{text:<{width}}" for text, width in zip(cells, widths, strict=True)).rstrip()


class RecordWriter:
    """Writes each record as it comes: a row, a line of JSON, or an element of the one object."""

    def __init__(self, output: "Output", name: str, columns: Sequence[str], widths: Sequence[int] = ()) -> None:
        self._output, self._name, self._columns = output, name, columns
        wanted = dict(zip(columns, widths, strict=False))
        self._widths = [max(len(column), wanted.get(column, 0)) for column in columns]
        self._count = 0
        self._summary: Mapping[str, Any] = {}

    def add(self, data: Mapping[str, Any], cells: Sequence[Any]) -> None:
        """`data` for programs; `cells`, in the order of the columns, for people and pipes."""
        mode = self._output.mode.value
        if mode == "ndjson":
            click.echo(compact(data))
        elif mode == "json":
            click.echo((",\n" if self._count else self._open()) + compact(data), nl=False)
        else:
            human = mode == "human"
            if human and not self._count:
                click.echo(self._output.styled(aligned(self._columns, self._widths), "head"))
            row = [*map(cell, cells)]
            click.echo(aligned(row, self._widths) if human else "\t".join(row))
        self._count += 1

    def summary(self, data: Mapping[str, Any]) -> None:
        """Members that the one object of `--json` gets beside its list, such as how far the list goes."""
        self._summary = data

    def close(self) -> None:
        if self._output.mode.value == "json":  # a whole object, also if the command failed half way
            click.echo(("" if self._count else self._open()) + "\n]" + self._tail())

    def _open(self) -> str:
        return f"{{{compact(self._name)}:[\n"

    def _tail(self) -> str:
        return "".join(f",{compact(name)}:{compact(value)}" for name, value in self._summary.items()) + "}"
