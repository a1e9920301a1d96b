"""What the hub's commands share: where a data directory is, who runs it, and how its faults are told."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from veen.cli.output import Exit, Fail
from veen.core.errors import VeenError, VerifyError
from veen.storage.errors import LockedError, StorageError
from veen.storage.fs import OsFs

__all__ = ["DATA_DIR", "Holder", "existing", "holder_of", "told"]

DATA_DIR: Final = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that runs a data directory."""

    pid: int
    url: str | None


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Turn errors of ours into the three parts of a message; bad evidence alone is exit code 1."""
    from veen.hub.config import ConfigError

    try:
        yield
    except ConfigError as exc:
        raise Fail(Exit.LOCAL, what, str(exc), exc.remedy, "E.CONFIG") from exc
    except LockedError as exc:
        raise Fail(Exit.LOCAL, what, str(exc), exc.hint, "E.LOCKED") from exc
    except VerifyError as exc:
        raise Fail(Exit.BAD_EVIDENCE, what, str(exc), exc.hint, "E.VERIFY") from exc
    except StorageError as exc:
        raise Fail(Exit.LOCAL, what, str(exc), exc.hint, "E.STORAGE") from exc
    except VeenError as exc:
        raise Fail(Exit.LOCAL, what, str(exc), exc.hint, "E.LOCAL") from exc
    except OSError as exc:
        cause = f"{exc.filename}: {exc.strerror}" if exc.filename else str(exc.strerror or exc)
        raise Fail(Exit.LOCAL, what, cause, "check the path, its permissions and the free space", "E.LOCAL") from exc


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
