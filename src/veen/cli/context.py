"""`veen context`: hubs by name, each with the key that is believed."""

from typing import Any, ClassVar

import click

from veen.cli.clictx import FILE, Session, home_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import CONTEXT, IDENTITY
from veen.cli.output import Exit, Fail, Output, output_options

__all__ = ["add", "context", "list_", "pin", "remove", "show", "use"]


class _ContextGroup(LazyGroup):
    table: ClassVar[Table] = {
        "add": ("veen.cli.context:add", "Name a hub and pin its key."),
        "list": ("veen.cli.context:list_", "The contexts that exist."),
        "pin": ("veen.cli.context:pin", "Pin the key of a context's hub."),
        "remove": ("veen.cli.context:remove", "Forget a context."),
        "show": ("veen.cli.context:show", "What a context says, and which one is used."),
        "use": ("veen.cli.context:use", "Choose the context for the commands to come."),
    }


@click.group(cls=_ContextGroup)
def context() -> None:
    """Name hubs, pin their keys, and choose one."""


def _checked(values: dict[str, str | None]) -> dict[str, Any]:
    from veen.cli.configfile import check_value

    try:
        return {key: check_value(key, text) for key, text in values.items() if text is not None}
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


@click.command()
@click.argument("name")
@click.option("--hub", required=True, help="The URL of the hub.")
@click.option("--pin", "hub_pk", help="The key of the hub, ed25519:HEX; asked for on a terminal if left out.")
@click.option("--profile", help="The profile to send with; default: the hub's first.")
@click.option("--identity", type=IDENTITY, help="Whose keys to use with this hub.")
@click.option("--ca-file", type=FILE, help="Certificates to trust instead of the system's (PEM).")
@click.option("--token-file", type=FILE, help="A file with the bearer token that the hub asks for.")
@click.option("--use/--no-use", "chosen", default=None, help="Choose it now; default: if none is chosen yet.")
@click.option("--replace", is_flag=True, help="Change a context that exists.")
@output_options
@home_options
def add(output: Output, session: Session, name: str, replace: bool, chosen: bool | None, **given: str | None) -> None:
    """Name a hub and pin its key, so that nothing signed by another key is believed.

    \b
    veen context add dev --hub http://127.0.0.1:37411 --pin ed25519:9f2c…
    """
    from pathlib import Path

    from veen.cli.configedit import change
    from veen.cli.configfile import read

    for key in ("ca_file", "token_file"):
        if (named := given[key]) is not None:
            given[key] = str(Path(named).absolute())
    values = _checked({f"context.{name}.{key}": text for key, text in given.items()})
    path = session.user_home.config_file
    file = read(path)
    if name in file.contexts and not replace:
        raise Fail(
            Exit.LOCAL,
            f"the context {name!r} exists",
            f"it names {file.contexts[name].get('hub')}",
            f"add --replace, or: veen context show {name}",
            "E.LOCAL.CONTEXT",
        )
    if f"context.{name}.hub_pk" not in values:
        values[f"context.{name}.hub_pk"] = _claimed(output, values[f"context.{name}.hub"], given)
    if chosen or (chosen is None and "current_context" not in file.top):
        values["current_context"] = name
    change(path, values)
    table = read(path).contexts[name]
    data = {"context": name, **table, "current": read(path).top.get("current_context") == name}
    output.result(data, lambda: output.fields(data.items()))
    output.next("veen hub status")


def _claimed(output: Output, url: str, given: dict[str, str | None]) -> str:
    from pathlib import Path

    from veen.cli.contact import ask, claimed, not_pinned

    ca_file, token_file = (Path(path) if (path := given[key]) else None for key in ("ca_file", "token_file"))
    if output.may_ask:
        claim = claimed(url, ca_file, token_file)
        if ask(output, url, claim):
            return claim.first_pk
    raise not_pinned(url)


@click.command("list")
@output_options
@home_options
def list_(output: Output, session: Session) -> None:
    """The contexts of the user and of ./veen.toml; the one in use is marked."""
    from pathlib import Path

    from veen.cli.configfile import read
    from veen.cli.settings import PROJECT_FILE

    current = session.settings.context.value
    project = read(Path.cwd() / PROJECT_FILE, project=True)
    user = read(session.user_home.config_file)
    found: dict[str, dict[str, Any]] = {
        name: {"context": name, "current": name == current, **table, "file": str(file.path)}
        for file in (user, project)
        for name, table in sorted(file.contexts.items())
    }
    columns = ("current", "context", "hub", "hub_pk", "identity")
    rows = [("*" if one["current"] else "", *(one.get(column) for column in columns[1:])) for one in found.values()]
    output.result({"contexts": list(found.values())}, lambda: output.table(columns, rows))
    if not found:
        output.next("veen context add NAME --hub URL --pin ed25519:HEX")


@click.command()
@click.argument("name", type=CONTEXT, required=False)
@output_options
@home_options
def show(output: Output, session: Session, name: str | None) -> None:
    """What the context NAME says; without a name, the one in use and where each value comes from."""
    if name is None:
        shown = [(key, value, origin) for key, value, origin in session.settings.shown() if value is not None]
        data = {key: {"value": value, "origin": origin} for key, value, origin in shown}
        output.result(data, lambda: output.table(("setting", "value", "origin"), shown))
        return
    table = _table(session, name)
    about = {"context": name, **table}
    output.result(about, lambda: output.fields(about.items()))


def _table(session: Session, name: str) -> dict[str, Any]:
    from veen.cli.configfile import read
    from veen.cli.settings import no_context

    path = session.user_home.config_file
    contexts = read(path).contexts
    if name not in contexts:
        raise no_context(name, "the command line")
    return dict(contexts[name])


@click.command()
@click.argument("name", type=CONTEXT)
@output_options
@home_options
def use(output: Output, session: Session, name: str) -> None:
    """Choose NAME for the commands to come."""
    from veen.cli.configedit import change

    table = _table(session, name)
    change(session.user_home.config_file, {"current_context": name})
    data = {"context": name, **table}
    output.result(data, lambda: output.fields(data.items()))


@click.command()
@click.argument("name", type=CONTEXT)
@output_options
@home_options
def remove(output: Output, session: Session, name: str) -> None:
    """Forget NAME and its pin. Keys, state and messages stay."""
    from veen.cli.configedit import remove_context

    _table(session, name)
    remove_context(session.user_home.config_file, name)
    output.result({"removed": name}, lambda: output.line(f"removed the context {name}"))


@click.command()
@click.argument("name", type=CONTEXT)
@click.argument("hub_pk", required=False)
@click.option("--replace", is_flag=True, help="Another key is pinned, and the operator confirmed the new one.")
@output_options
@home_options
def pin(output: Output, session: Session, name: str, hub_pk: str | None, replace: bool) -> None:
    """Pin HUB_PK (ed25519:HEX) as the key of the hub of NAME; without it, ask the hub and then you."""
    from veen.cli.configedit import change

    table = _table(session, name)
    if hub_pk is None:
        hub_pk = _claimed(
            output, table["hub"], {"ca_file": table.get("ca_file"), "token_file": table.get("token_file")}
        )
    (new,) = _checked({f"context.{name}.hub_pk": hub_pk}).values()
    old = table.get("hub_pk")
    if old not in (None, new) and not replace:
        raise Fail(
            Exit.LOCAL,
            f"the context {name!r} has another pin",
            f"it is {old}",
            f"if the operator confirms the new key: veen context pin {name} {new} --replace",
            "E.LOCAL.PIN",
        )
    change(session.user_home.config_file, {f"context.{name}.hub_pk": new})
    data = {"context": name, "hub_pk": new, "replaced": old if old != new else None}
    output.result(data, lambda: output.fields(data.items()))
