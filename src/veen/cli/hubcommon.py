"""What the hub's commands share: where a data directory is, and who runs it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from veen.cli.output import Exit, Fail
from veen.storage.errors import LockedError, StorageError
from veen.storage.fs import OsFs

__all__ = ["DATA_DIR", "Holder", "existing", "holder_of"]

DATA_DIR: Final = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a data directory."""

    pid: int
    url: str | None


def existing(data_dir: Path) -> OsFs:
    """A data directory that must be there."""
    if not data_dir.is_dir():
        raise Fail(
            Exit.LOCAL,
            f"{data_dir}: not a data directory",
            "there is no such directory",
            "give the directory that `veen hub start` was given",
            "E.LOCAL",
        )
    return OsFs(data_dir)


def holder_of(fs: OsFs) -> Holder | None:
    """Who runs this directory; None if nobody does. The lock tells, not the process id in its file."""
    try:
        with fs.lock():
            return None
    except LockedError as exc:
        words = exc.holder.split()
        if len(words) < 2 or words[0] != "pid" or not words[1].isdecimal():
            raise StorageError(f"{fs.root}: in use, but it does not say by whom") from exc
        return Holder(int(words[1]), words[2] if len(words) > 2 else None)
