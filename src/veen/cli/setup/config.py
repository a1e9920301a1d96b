"""`veen config`: values in force, and their origins."""

from pathlib import Path
from typing import Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options, home_options
from veen.cli.shared.output import Fail, Output

config = LazyGroup(
    "config",
    help="""Show and change settings, and where each value comes from.

    A flag outranks a variable VEEN_*, that outranks ./veen.toml, that outranks your config.toml.
    """,
)


@config.verb("show", "Values in force, and their origins.")
@click.option("--origin", is_flag=True, help="Show the origin of each value.")
@client_options
def show(output: Output, session: CliSession, origin: bool) -> None:
    """Show the values in force for a command with the same options."""
    shown = list(session.settings.shown())
    data = {key: {"value": value, "origin": where} if origin else value for key, value, where in shown}
    if origin:
        output.result(data, lambda: output.table(("setting", "value", "origin"), shown))
    else:
        output.result(data)


@config.verb("set", "Change one value in your configuration.")
@click.argument("key")
@click.argument("value", required=False)
@click.option("--unset", is_flag=True, help="Remove the value.")
@home_options
def set_(output: Output, session: CliSession, key: str, value: str | None, unset: bool) -> None:
    """Set KEY to VALUE in your configuration. Comments in the file stay.

    \b
    veen config set identity alice
    veen config set mode light
    veen config set context.acme.ca_file ca.pem
    """
    from veen.client.config.file import check_key, check_value, read
    from veen.client.config.projects import change

    if (value is None) != unset:
        raise click.UsageError("give a VALUE or --unset")
    try:
        check_key(key)
        new = None if value is None else check_value(key, value)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    if new is not None and key.endswith(("ca_file", "token_file", "passphrase_file")):
        new = str(Path(new).expanduser().absolute())
    file = session.user_home.config_file
    changes: dict[str, object] = {key: new}
    if key.endswith(".hub_pk") and read(file).contexts.get(key.split(".")[1], {}).get("hub_pk") != new:
        changes[f"{key.removesuffix('hub_pk')}hub_id"] = None  # that of another key does not stay
    change(file, changes)
    output.result({"key": key, "value": new, "file": str(file)})


@config.verb("path", "Paths of the files.")
@home_options
def path(output: Output, session: CliSession) -> None:
    """Show the files and directories that commands use, and mark those that exist."""
    from veen.client.config.projects import place_of, store_of

    home = session.user_home
    places = {
        "project": place_of(Path.cwd()),
        "config": home.config_file,
        "trusted": store_of(home.config_file),
        "data": home.data,
        "state": home.state,
        "cache": home.cache,
    }
    data = {name: {"path": str(where), "exists": where.exists()} for name, where in places.items()}
    rows = [(name, where, where.exists()) for name, where in places.items()]
    output.result(data, lambda: output.table(("what", "path", "exists"), rows))


_PROJECT = click.argument("path", required=False, type=click.Path(path_type=Path))


@config.verb("trust", "Trust the veen.toml of a project to set hubs and pins.")
@_PROJECT
@click.option("--yes", is_flag=True, help=options.YES)
@home_options
def trust(output: Output, session: CliSession, path: Path | None, yes: bool) -> None:
    """Let the veen.toml in PATH (default: here) set hubs, pins and whatever else it holds. Shows all of it first.

    Without this a project file may only choose one of your contexts and identities. Trust is bound to the place of
    the file, to its content, and to the certificates and witness policies that it names: a file that is moved or
    changed must be trusted again.
    """
    from veen.client.config.file import read
    from veen.client.config.projects import place_of, shown, store_of, wishes
    from veen.client.config.projects import trust as remember

    place = place_of(path or Path.cwd())
    project = read(place, project=True)
    if not project.sha256:
        raise Fail("E.LOCAL", f"{place}: there is no such file", "a project file is named veen.toml", "give its PATH")
    wanted = wishes(project)
    if not yes and not output.may_ask:
        raise Fail(
            "E.LOCAL.INPUT",
            f"{place}: not trusted",
            f"it sets {shown(wanted) or 'nothing that needs trust'}; there is no terminal to confirm at",
            "read the file, then run: veen config trust --yes",
        )
    if not yes:
        _show_wishes(output, place, wanted)
        if not click.confirm("Trust this file as it is now?", default=False, err=True):
            raise Fail("E.LOCAL.UNTRUSTED", f"{place}: not trusted", "you did not agree", "remove the file")
    remember(store_of(session.user_home.config_file), project)
    data = {"path": str(place), "sha256": project.sha256, "sets": wanted}
    rows = [("path", str(place)), ("sha256", project.sha256), *wanted.items()]
    output.result(data, lambda: output.fields(rows))


def _show_wishes(output: Output, place: Path, wanted: dict[str, Any]) -> None:
    output.say(f"{place} sets:" if wanted else f"{place} sets nothing that needs trust.")
    for key, value in wanted.items():
        output.say(f"  {key} = {value}")
    if wanted:
        output.say("Messages are sealed for, and tokens are sent to, the hubs that it names.")


@config.verb("untrust", "Revoke the trust in a project file.")
@_PROJECT
@home_options
def untrust(output: Output, session: CliSession, path: Path | None) -> None:
    """Take back the trust in the veen.toml in PATH (default: here), whether it still exists or not."""
    from veen.client.config.projects import PROJECT_FILE, place_of, store_of
    from veen.client.config.projects import untrust as forget

    asked = path or Path.cwd()
    place = place_of(asked)
    store = store_of(session.user_home.config_file)
    # The directory may be gone with the file: PATH is then read both ways.
    if not forget(store, place) and not forget(store, place_of(asked / PROJECT_FILE)):
        raise Fail("E.LOCAL", f"{place}: was not trusted", "no trust is recorded for it", "veen config trusted")
    output.result({"path": str(place), "trusted": False}, lambda: output.line(f"{place} is not trusted any more"))


@config.verb("trusted", "The project files that are trusted.")
@home_options
def list_trusted(output: Output, session: CliSession) -> None:
    """List the trusted project files, and mark those that have changed."""
    from veen.client.config.file import read
    from veen.client.config.projects import digest_of, store_of
    from veen.client.config.projects import read_trusted as known
    from veen.client.errors import SettingsError

    def state_of(place: str, digest: str) -> str:
        try:
            now = digest_of(read(Path(place), project=True))
        except SettingsError:
            return "cannot be used"
        return "gone" if not now else "in force" if now == digest else "changed"

    rows = [
        (place, digest, state_of(place, digest))
        for place, digest in sorted(known(store_of(session.user_home.config_file)).items())
    ]
    columns = ("path", "sha256", "state")
    data = {"projects": [dict(zip(columns, row, strict=True)) for row in rows]}
    output.result(data, lambda: output.table(columns, rows))
