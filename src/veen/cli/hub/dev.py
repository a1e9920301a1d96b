"""A hub for trying things: a permanent directory and port, and a context that is registered with its key."""

import errno
import os
import socket
from pathlib import Path
from typing import Any, Final

import click

from veen.cli.hub.common import holder_of
from veen.cli.shared.output import Output
from veen.io.local import OsFs

DEV_CONTEXT: Final = "dev"
_FIRST_PORT, _PORTS = 20_000, 10_000  # below those that systems hand out by themselves


def check_name(name: str) -> None:
    from veen.client.config.file import context_name

    try:
        context_name(name)
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc


def default_directory() -> Path:
    """Return the default directory of `veen hub start --dev`."""
    from veen.client.home import Home, PrivateFs

    home = Home.default()
    PrivateFs(home.data).make_dir("")
    return home.data / "dev-hub"


def port_of(output: Output, data_dir: Path, asked: str | None) -> int:
    """Return the port of a directory: the same each time, since it follows from the path; 0 if it is taken."""
    from veen.core.hashing import Ht

    if asked is not None:
        return 0  # --port outranks it
    place = os.path.realpath(data_dir)
    port = _FIRST_PORT + int.from_bytes(Ht("veen/dev-port", os.fsencode(place))[:8]) % _PORTS
    if data_dir.is_dir() and holder_of(OsFs(data_dir)) is not None:
        return port  # it runs already, which the hub will say itself
    if _is_free(port):
        return port
    output.note(f"port {port}, which belongs to {data_dir}, is taken by another program; the hub takes a free one")
    return 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as exc:
            if exc.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def register(output: Output, about: dict[str, Any], name: str) -> bool:
    """Name the hub, with its address and key, as a context that makes missing keys; False if the name is in use.

    The pin is what this very process has read from the hub's own files. A context of that name which somebody made for
    another hub stays as it is.
    """
    from veen.client.config.edit import change
    from veen.client.config.file import read
    from veen.client.home import Home
    from veen.client.identity.unlocking import make_passphrase_file

    home = Home.default()
    file = read(home.config_file)
    before = file.contexts.get(name)
    if before is not None and before.get("hub_pk") != about["pin"] and not before.get("make_keys"):
        output.note(
            f"the context {name!r} names another hub ({before.get('hub')}), so this one is not registered;"
            " choose a name: --context NAME"
        )
        return False
    values: dict[str, Any] = {"hub": about["url"], "hub_pk": about["pin"], "hub_id": about["hub_id"], "make_keys": True}
    if before is None:
        passphrase_file = home.config / f"{name}.passphrase"
        values |= {"identity": name}
        if not home.has_identity(name) or passphrase_file.exists():
            make_passphrase_file(passphrase_file)
            values |= {"passphrase_file": str(passphrase_file)}
    elif before.get("hub_pk") != about["pin"]:
        output.note(f"the context {name!r} now names this hub; the one before it had the key {before.get('hub_pk')}")
    if about["pin"].startswith("root:"):
        values["hub_id"] = None  # another one is another of its hubs
    changes = {f"context.{name}.{key}": value for key, value in values.items()}
    if "current_context" not in file.top:
        changes["current_context"] = name
    elif file.top["current_context"] != name:
        output.note(
            f"the context {file.top['current_context']!r} stays in use; to choose this hub: veen context use {name}"
        )
    change(home.config_file, changes)
    return True
