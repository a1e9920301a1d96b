"""The data directory of a command: DIR as an argument, or --data-dir."""

from typing import Any, Final

import click

DIR_ARGUMENT: Final = "dir_argument"
_META: Final = "veen.cli.directory"


def accept_directory(command: click.Command) -> None:
    """Let a command with --data-dir and without arguments take DIR instead."""
    if any(isinstance(parameter, click.Argument) for parameter in command.params):
        return
    option = next((parameter for parameter in command.params if "--data-dir" in parameter.opts), None)
    if option is None:
        return
    usual = option.default

    def directory() -> Any:
        """Return the argument as the default of the option."""
        named = click.get_current_context().meta.get(_META)
        if named is not None:
            return named
        return usual() if callable(usual) else usual

    option.default = directory
    if isinstance(option, click.Option):
        option.show_default = False
    argument = click.Argument(
        [DIR_ARGUMENT],
        required=False,
        type=option.type,
        is_eager=True,
        expose_value=False,
        metavar="[DIR]",
        callback=_remember,
    )
    check = option.callback

    def given_once(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
        source = ctx.get_parameter_source(parameter.name or "")
        if ctx.meta.get(_META) is not None and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("give the directory once: DIR, or --data-dir", ctx)
        return value if check is None else check(ctx, parameter, value)

    option.callback = given_once
    command.params.append(argument)


def _remember(ctx: click.Context, _: click.Parameter, value: Any) -> None:
    ctx.meta[_META] = value
