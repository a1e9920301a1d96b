"""`veen config`: what is in force, and why."""

from pathlib import Path
from typing import ClassVar

import click

from veen.cli.clictx import Session, client_options, home_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.output import Output, output_options

__all__ = ["config", "path", "set_", "show"]


class _ConfigGroup(LazyGroup):
    table: ClassVar[Table] = {
        "path": ("veen.cli.config:path", "Where the files are."),
        "set": ("veen.cli.config:set_", "Change one value in your configuration."),
        "show": ("veen.cli.config:show", "The values in force, and where each comes from."),
    }


@click.group(cls=_ConfigGroup)
def config() -> None:
    """Show and change settings, and where each value comes from.

    A flag outranks a variable VEEN_*, that outranks ./veen.toml, that outranks your config.toml.
    """


@click.command()
@click.option("--origin", is_flag=True, help="Tell where each value comes from.")
@output_options
@client_options
def show(output: Output, session: Session, origin: bool) -> None:
    """The values in force for a command with the same options."""
    shown = list(session.settings.shown())
    data = {key: {"value": value, "origin": where} if origin else value for key, value, where in shown}
    if origin:
        output.result(data, lambda: output.table(("setting", "value", "origin"), shown))
    else:
        output.result(data, lambda: output.fields(data.items()))


@click.command("set")
@click.argument("key")
@click.argument("value", required=False)
@click.option("--unset", is_flag=True, help="Take the value out instead.")
@output_options
@home_options
def set_(output: Output, session: Session, key: str, value: str | None, unset: bool) -> None:
    """Set KEY to VALUE in your configuration. Comments in the file stay.

    \b
    veen config set identity alice
    veen config set mode light
    veen config set context.acme.ca_file ca.pem
    """
    from veen.cli.configedit import change
    from veen.cli.configfile import check_key, check_value

    if (value is None) != unset:
        raise click.UsageError("give a VALUE or --unset")
    try:
        check_key(key)
        new = None if value is None else check_value(key, value)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if new is not None and key.endswith(("ca_file", "token_file")):
        new = str(Path(new).expanduser().absolute())
    file = session.user_home.config_file
    change(file, {key: new})
    data = {"key": key, "value": new, "file": str(file)}
    output.result(data, lambda: output.fields(data.items()))


@click.command()
@output_options
@home_options
def path(output: Output, session: Session) -> None:
    """The files and directories that commands use, and whether they exist."""
    from veen.cli.settings import PROJECT_FILE

    home = session.user_home
    found = {
        "project": Path.cwd() / PROJECT_FILE,
        "config": home.config_file,
        "data": home.data,
        "state": home.state,
        "cache": home.cache,
    }
    data = {name: {"path": str(where), "exists": where.exists()} for name, where in found.items()}
    rows = [(name, where, where.exists()) for name, where in found.items()]
    output.result(data, lambda: output.table(("what", "path", "exists"), rows))
