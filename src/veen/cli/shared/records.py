"""Records of a result, written one by one, in every form."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from veen.cli.shared.text import cell, compact, cut, pad, width_of

if TYPE_CHECKING:
    from veen.cli.shared.output import Output


def align(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line of a table, in columns of a terminal; do not cut cells that are wider than their column."""
    return "  ".join(pad(text, width) for text, width in zip(cells, widths, strict=True)).rstrip()


_SHORTEST: Final = 24  # columns that a cut cell has at least
_WIDEST: Final = 48  # columns that one long cell gives to all rows
_HELD: Final = 64  # rows that decide how wide the columns are


class RecordWriter:
    """Writer of records one by one: a row, a line of JSON, or an element of the one object.

    For people the first rows are collected, so that the columns fit them; `live` writes each at once.
    """

    def __init__(
        self,
        output: "Output",
        name: str,
        columns: Sequence[str],
        widths: Sequence[int] = (),
        *,
        live: bool = False,
        room: int | None = None,
    ) -> None:
        self._output, self._name, self._columns, self._room = output, name, columns, room
        wanted = dict(zip(columns, widths, strict=False))
        self._widths = [max(width_of(column), wanted.get(column, 0)) for column in columns]
        self._count = 0
        self._summary: Mapping[str, Any] = {}
        self._rows: list[list[str]] | None = [] if output.mode.value == "human" and not live else None
        self._has_head = False
        self.is_cut = False  # whether a row did not fit the terminal

    @property
    def count(self) -> int:
        return self._count

    def add(self, data: Mapping[str, Any], cells: Sequence[Any]) -> None:
        """Write one record: `data` for programs; `cells`, in the order of the columns, for people and pipes."""
        mode, output = self._output.mode.value, self._output
        if mode == "ndjson":
            output.echo(compact(data))
        elif mode == "json":
            output.echo((",\n" if self._count else self._open()) + compact(data), nl=False)
        elif mode == "plain":
            output.echo("\t".join(map(cell, cells)))
        elif self._rows is None:
            self._write([*map(cell, cells)])
        else:
            self._rows.append([*map(cell, cells)])
            if len(self._rows) >= _HELD:
                self._release()
        self._count += 1

    def _release(self) -> None:
        """Write the collected rows, in columns that fit them; later rows are written at once."""
        rows, self._rows = self._rows or [], None
        for row in rows:
            self._widths = [
                max(width, min(width_of(text), _WIDEST)) for width, text in zip(self._widths, row, strict=True)
            ]
        for row in rows:
            self._write(row)

    def _write(self, row: list[str]) -> None:
        if not self._has_head:
            self._output.echo(self._output.style(align(self._columns, self._widths), "head"))
            self._has_head = True
        if self._room is not None and row:
            before = sum(max(width, width_of(text)) + 2 for width, text in zip(self._widths, row[:-1], strict=False))
            last = cut(row[-1], max(self._room - before, _SHORTEST))
            self.is_cut |= last != row[-1]
            row = [*row[:-1], last]
        self._output.echo(align(row, self._widths))

    def summary(self, data: Mapping[str, Any]) -> None:
        """Set further members of the one object of `--json`, beside its list."""
        self._summary = data

    def close(self) -> None:
        if self._rows is not None:
            self._release()
        if self._output.is_log:
            self._output.echo(compact({"summary": self._summary, "of": self._name}))
        elif self._output.mode.value == "json":  # a whole object, also if the command failed half way
            self._output.echo(("" if self._count else self._open()) + "\n]" + self._tail())

    def _open(self) -> str:
        return f"{{{compact(self._name)}:[\n"

    def _tail(self) -> str:
        return "".join(f",{compact(name)}:{compact(value)}" for name, value in self._summary.items()) + "}"
