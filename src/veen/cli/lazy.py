"""A group that knows its commands by name and imports one only when it is called: help and TAB stay fast."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Table = Mapping[str, tuple[str, str]]  # name -> (module:attribute, short help)
_FEW: Final = 10  # commands of a group, which an error then lists
_DRESSED: Final[set[click.Command]] = set()  # commands that were given what all commands have


def load(target: str) -> Any:
    """Return the attribute that "module:attribute" names; its module is imported."""
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


class GuessedCommand(click.UsageError):
    """A name that is no command; `hint` is the command that does what it suggests."""

    def __init__(self, message: str, ctx: click.Context, hint: str) -> None:
        super().__init__(message, ctx)
        self.hint = hint


class LazyGroup(click.Group):
    """A group of commands: those of its own module by `verb`, those of other modules by a row of `table`.

    Every row has the short help of its command, so that listing imports nothing. `sections` are the headings of the
    help; without them all commands stand under one. `guesses` answer names that have another one here. `find` is asked
    for a name that the table does not have.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        table: Table | None = None,
        sections: Sequence[tuple[str, Sequence[str]]] = (),
        detailed: int | None = None,
        guesses: Mapping[str, tuple[str, str]] | None = None,
        find: str | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(name, **attributes)
        self.table: dict[str, tuple[str, str]] = dict(table or {})
        self.sections = sections
        self.detailed = detailed  # how many sections describe their commands; the others list them
        self.guesses = dict(guesses or {})
        self._find = find

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
        command = self.commands.get(cmd_name)
        if command is None:
            if cmd_name not in self.table and self._find is None:
                return None
            command = load(self.table[cmd_name][0]) if cmd_name in self.table else load(str(self._find))(cmd_name)
            if command is None:
                return None
            if not isinstance(command, click.Command):  # a Product
                command = load(command.commands[cmd_name])
            assert isinstance(command, click.Command), f"{cmd_name} is not a command"  # noqa: S101 - our own table
        if not isinstance(command, click.Group):
            from veen.cli.directories import accept_directory
            from veen.cli.examples import epilog_of

            if command not in _DRESSED:
                _DRESSED.add(command)
                accept_directory(command)
            path = [*ctx.command_path.split()[1:], cmd_name]  # without the name of the program
            command.epilog = command.epilog or epilog_of(" ".join(path))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        is_name = bool(args) and not args[0].startswith("-")
        if is_name and args[0] not in self.table and self.get_command(ctx, args[0]) is None:
            raise self._unknown(ctx, args)
        return super().resolve_command(ctx, args)

    def _unknown(self, ctx: click.Context, args: Sequence[str]) -> click.UsageError:
        from difflib import get_close_matches

        from veen.cli.guesses import group_guess

        name, path = args[0], " ".join(ctx.command_path.split()[1:])
        guess = self.guesses.get(name) or (group_guess(path, name, self.table) if path else None)
        if guess is not None:
            command, what = guess
            return GuessedCommand(f"there is no command {name!r}; {command}: {what}", ctx, command)
        near = get_close_matches(name, self.table, n=3)
        verb = next((verb for verb in ("show", "get") if verb in self.table), None)
        if not near and verb is not None and len(args) > 1:  # `veen proof orders 3`: the verb was left out
            meant = shlex.join([*ctx.command_path.split(), verb, *args])
            return GuessedCommand(f"there is no command {name!r}. Did you mean {meant}?", ctx, meant)
        if not near and len(self.table) <= _FEW:
            return click.UsageError(f"there is no command {name!r}; there are {', '.join(sorted(self.table))}", ctx)
        meant = f" Did you mean {' or '.join(f'{ctx.command_path} {word}' for word in near)}?" if near else ""
        return click.UsageError(f"there is no command {name!r}.{meant}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = self.sections or (("Commands", self.list_commands(ctx)),)
        detailed = len(sections) if self.detailed is None else self.detailed
        for title, names in sections[:detailed]:
            if rows := [(name, self.table[name][1]) for name in names if name in self.table]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if rest := [(title, [name for name in names if name in self.table]) for title, names in sections[detailed:]]:
            with formatter.section("More, described by `veen help commands`"):
                formatter.write_dl([(title, ", ".join(names)) for title, names in rest if names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the names in the table; click itself would import every command for its help."""
        from click.shell_completion import CompletionItem

        items = [
            CompletionItem(name, help=self.table[name][1])
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]
