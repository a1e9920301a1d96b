"""A group that knows its commands by name and imports one only when it is called: help and TAB stay fast."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["LazyGroup", "Table"]

Table = Mapping[str, tuple[str, str]]  # name -> (module:attribute, short help)


class LazyGroup(click.Group):
    """A group of commands: those of its own module by `verb`, those of other modules by a row of `table`.

    Every row has the short help of its command, so that listing imports nothing. `sections` are the headings of the
    help; without them all commands stand under one.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        table: Table | None = None,
        sections: Sequence[tuple[str, Sequence[str]]] = (),
        **attributes: Any,
    ) -> None:
        super().__init__(name, **attributes)
        self.table: dict[str, tuple[str, str]] = dict(table or {})
        self.sections = sections

    def verb(
        self, name: str, short: str, cls: type[click.Command] = click.Command
    ) -> Callable[[Callable[..., Any]], click.Command]:
        """Make a function a command of this group."""

        def add(function: Callable[..., Any]) -> click.Command:
            self.table[name] = ("", short)
            self.commands[name] = click.command(name, cls=cls)(function)
            return self.commands[name]

        return add

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self.table:
            return self.commands.get(cmd_name)
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is not a command"  # noqa: S101 - our own table
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            ctx.fail(self._unknown(ctx, args[0]))
        return super().resolve_command(ctx, args)

    def _unknown(self, ctx: click.Context, name: str) -> str:
        from difflib import get_close_matches

        near = get_close_matches(name, self.table, n=3)
        meant = f" Did you mean {' or '.join(f'{ctx.command_path} {word}' for word in near)}?" if near else ""
        return f"there is no command {name!r}.{meant}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self.sections or (("Commands", self.list_commands(ctx)),):
            if rows := [(name, self.table[name][1]) for name in names if name in self.table]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """The names in the table; click's own way would import every command to ask for its help."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=self.table[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]
