"""Data directories and their holders, for the commands of `veen hub`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.shared.output import Fail
from veen.io.errors import LockedError, StorageError
from veen.io.local import OsFs
from veen.storage.copies.unfinished import check_finished

if TYPE_CHECKING:
    from veen.core.objects.identity import HubIdentity
    from veen.core.pin_text import PinnedKey

DATA_DIR: Final = click.Path(file_okay=False, path_type=Path)
ACCEPT_CLOCK: Final = click.option(
    "--accept-clock", is_flag=True, help="Accept the clock, however far it is ahead of the log."
)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a data directory."""

    pid: int
    url: str | None


def open_directory(data_dir: Path) -> OsFs:
    """Open an existing data directory. Raise Fail for a missing one, or an unfinished clone or fork."""
    if not data_dir.is_dir():
        raise Fail(
            "E.LOCAL",
            f"{data_dir}: not a data directory",
            "there is no such directory",
            "give the directory that `veen hub start` was given",
        )
    fs = OsFs(data_dir)
    check_finished(fs, str(data_dir))
    return fs


def holder_of(fs: OsFs) -> Holder | None:
    """Return the process that runs this directory; None if there is none.

    The lock shows this, not the process id in its file.
    """
    try:
        with fs.lock():
            return None
    except LockedError as exc:
        words = exc.holder.split()
        if len(words) < 2 or words[0] != "pid" or not words[1].isdecimal():
            raise StorageError(f"{fs.root}: in use, but it does not say by whom") from exc
        return Holder(int(words[1]), words[2] if len(words) > 2 else None)


def pin_for_clients(identity: "HubIdentity", root_pk: bytes | None) -> "PinnedKey":
    """Return the pin for clients: the hub's first key, which leads to later ones, or the root of an ephemeral hub.

    A later key would verify nothing that was signed before it (`HubPin.of_key`).
    """
    from veen.core.pin_text import PinnedKey

    return PinnedKey(identity.keys[0].hub_pk) if root_pk is None else PinnedKey(root_pk, is_root=True)
