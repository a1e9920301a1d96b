"""`veen context`: hubs by name, each with its pinned key."""

from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import FILE, CliSession, home_options
from veen.cli.shared.names import CONTEXT, IDENTITY
from veen.cli.shared.output import Fail, Output

if TYPE_CHECKING:
    from veen.cli.shared.pinning import HubClaim

context = LazyGroup("context", help="Name hubs, pin their keys, and choose one.")


def _check_values(values: dict[str, str | None]) -> dict[str, Any]:
    from veen.client.config.file import check_value

    try:
        return {key: check_value(key, text) for key, text in values.items() if text is not None}
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


@context.verb("add", "Name a hub and pin its key.")
@click.argument("name")
@click.option("--hub", required=True, help=options.HUB)
@click.option(
    "--pin",
    "hub_pk",
    help=f"{options.PIN} Default: the key that you confirm on a terminal.",
)
@click.option("--hub-id", help="hub_id of the pinned key, in hex. Default: learned on the first connection.")
@click.option("--profile", help="Profile to send with. Default: the first one of the hub.")
@click.option("--identity", type=IDENTITY, help=options.IDENTITY)
@click.option("--ca-file", type=FILE, help=options.CA_FILE)
@click.option("--token-file", type=FILE, help=options.TOKEN_FILE)
@click.option(
    "--insecure-http",
    is_flag=True,
    flag_value="true",
    default=None,
    help=options.INSECURE_HTTP,
)
@click.option("--witness-policy", type=FILE, help=options.WITNESS_POLICY)
@click.option(
    "--witnesses",
    type=click.Choice(["require", "warn", "off"]),
    help="If the policy is not satisfied: refuse, warn, or nothing. Default: require.",
)
@click.option("--use/--no-use", "chosen", default=None, help=options.USE)
@click.option("--replace", is_flag=True, help=options.REPLACE)
@click.option(
    "--check/--no-check",
    default=True,
    envvar="VEEN_CHECK_PIN",
    help="Compare the pin with the hub, if it answers. [VEEN_CHECK_PIN]",
)
@home_options
def add(
    output: Output, session: CliSession, name: str, replace: bool, chosen: bool | None, check: bool, **given: str | None
) -> None:
    """Name a hub and pin its key, so that signatures of other keys are refused.

    If the hub answers and does not have the pinned key, nothing is saved. If it does not answer, the context is saved
    all the same, and the output says that the pin was not checked.

    \b
    veen context add dev --hub http://127.0.0.1:37411 --pin ed25519:9f2c…
    """
    from pathlib import Path

    from veen.client.config.file import read
    from veen.client.config.projects import change

    for key in ("ca_file", "token_file", "witness_policy"):
        if (named := given[key]) is not None:
            given[key] = str(Path(named).absolute())
    values = _check_values({f"context.{name}.{key}": text for key, text in given.items()})
    path = session.user_home.config_file
    file = read(path)
    if name in file.contexts and not replace:
        raise Fail(
            "E.LOCAL.CONTEXT",
            f"the context {name!r} exists",
            f"it names {file.contexts[name].get('hub')}",
            f"add --replace, or: veen context show {name}",
        )
    if f"context.{name}.hub_pk" not in values:
        claim = _confirm_claim(output, values[f"context.{name}.hub"], given)
        values |= {f"context.{name}.hub_pk": claim.first_pk, f"context.{name}.hub_id": claim.hub_id}
        pin_check = "the hub has this key"
    else:
        pin_check = _pin_check(values, name, given) if check else "not checked"
    if file.contexts.get(name, {}).get("hub_pk") != values[f"context.{name}.hub_pk"]:
        values.setdefault(f"context.{name}.hub_id", None)  # that of another key does not stay
    if chosen or (chosen is None and "current_context" not in file.top):
        values["current_context"] = name
    change(path, values)
    table = read(path).contexts[name]
    data = {"context": name, **table, "current": read(path).top.get("current_context") == name, "pin_check": pin_check}
    output.result(data)
    output.next("veen hub status")


def _pin_check(values: dict[str, Any], name: str, options: dict[str, Any]) -> str:
    from pathlib import Path

    from veen.cli.shared.pinning import check_pin

    ca_file, token_file = (Path(path) if (path := options.get(key)) else None for key in ("ca_file", "token_file"))
    url, pin = values[f"context.{name}.hub"], values[f"context.{name}.hub_pk"]
    return check_pin(url, pin, ca_file, token_file, insecure_http=bool(options.get("insecure_http")))


def _confirm_claim(output: Output, url: str, options: dict[str, Any]) -> "HubClaim":
    from pathlib import Path

    from veen.cli.shared.pinning import ask, not_pinned, read_claim

    ca_file, token_file = (Path(path) if (path := options.get(key)) else None for key in ("ca_file", "token_file"))
    if output.may_ask:
        claim = read_claim(url, ca_file, token_file, insecure_http=bool(options.get("insecure_http")))
        if ask(output, url, claim):
            return claim
    raise not_pinned(url)


@context.verb("list", "The contexts that exist.")
@home_options
def list_(output: Output, session: CliSession) -> None:
    """List the contexts of the user and of ./veen.toml; the one in use is marked."""
    from pathlib import Path

    from veen.client.config.projects import read_both

    current = session.settings.context.value
    project, user = read_both(Path.cwd(), session.user_home.config_file)
    entries: dict[str, dict[str, Any]] = {
        name: {"context": name, "current": name == current, **table, "file": str(file.path)}
        for file in (user, project)
        for name, table in sorted(file.contexts.items())
    }
    columns = ("current", "context", "hub", "hub_pk", "identity")
    rows = [
        ("*" if entry["current"] else "", *(entry.get(column) for column in columns[1:])) for entry in entries.values()
    ]
    output.result({"contexts": list(entries.values())}, lambda: output.table(columns, rows))
    if not entries:
        output.next("veen context add NAME --hub URL --pin ed25519:HEX")


@context.verb("show", "Values of a context.")
@click.argument("name", type=CONTEXT, required=False)
@home_options
def show(output: Output, session: CliSession, name: str | None) -> None:
    """Show the context NAME; without a name, the one in use and the origin of each value."""
    if name is None:
        shown = [(key, value, origin) for key, value, origin in session.settings.shown() if value is not None]
        data = {key: {"value": value, "origin": origin} for key, value, origin in shown}
        output.result(data, lambda: output.table(("setting", "value", "origin"), shown))
        return
    table = _table(session, name)
    output.result({"context": name, **table})


def _table(session: CliSession, name: str) -> dict[str, Any]:
    from veen.client.config.file import read
    from veen.client.config.settings import no_context

    path = session.user_home.config_file
    contexts = read(path).contexts
    if name not in contexts:
        raise no_context(name, "the command line")
    return dict(contexts[name])


@context.verb("use", "Set the current context.")
@click.argument("name", type=CONTEXT)
@home_options
def use(output: Output, session: CliSession, name: str) -> None:
    """Choose NAME for the commands to come."""
    from veen.client.config.projects import change

    table = _table(session, name)
    change(session.user_home.config_file, {"current_context": name})
    output.result({"context": name, **table})


@context.verb("remove", "Forget a context.")
@click.argument("name", type=CONTEXT)
@home_options
def remove(output: Output, session: CliSession, name: str) -> None:
    """Forget NAME and its pin. Keys, state and messages stay."""
    from veen.client.config.projects import remove_context

    _table(session, name)
    remove_context(session.user_home.config_file, name)
    output.result({"removed": name}, lambda: output.line(f"removed the context {name}"))


@context.verb("pin", "Pin the key of a context's hub.")
@click.argument("name", type=CONTEXT)
@click.argument("hub_pk", required=False)
@click.option("--replace", is_flag=True, help=options.REPLACE)
@home_options
def pin(output: Output, session: CliSession, name: str, hub_pk: str | None, replace: bool) -> None:
    """Pin HUB_PK as the key of the hub of NAME; without it, ask the hub and then you.

    HUB_PK is ed25519:HEX, or root:ed25519:HEX for the root key of ephemeral hubs.
    """
    from veen.client.config.projects import change

    table = _table(session, name)
    hub_id = None
    if hub_pk is None:
        claim = _confirm_claim(output, table["hub"], table)
        hub_pk, hub_id = claim.first_pk, claim.hub_id
    (new,) = _check_values({f"context.{name}.hub_pk": hub_pk}).values()
    old = table.get("hub_pk")
    if old not in (None, new) and not replace:
        raise Fail(
            "E.LOCAL.PIN",
            f"the context {name!r} has another pin",
            f"it is {old}",
            f"if the operator confirms the new key: veen context pin {name} {new} --replace",
        )
    changes: dict[str, Any] = {f"context.{name}.hub_pk": new}
    if old != new:
        changes[f"context.{name}.hub_id"] = hub_id  # learned on the next connection if nobody said it yet
    change(session.user_home.config_file, changes)
    output.result({"context": name, "hub_pk": new, "replaced": old if old != new else None})
