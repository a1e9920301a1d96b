"""The mark of an unfinished clone or fork: no hub starts from it, and it is never verified.

The mark is durable before the first file of the copy and is removed after the last one is durable. The identity and the
keys are written last, so an interrupted copy has neither.
"""

import json
from typing import Literal

from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.storage import layout


class UnfinishedCopyError(StorageError, code="E.STORAGE.UNFINISHED"):
    """A clone or fork was interrupted before this directory was complete."""


def begin_copy(fs: Fs, what: Literal["clone", "fork"]) -> None:
    fs.replace(layout.UNFINISHED, json.dumps({"copy": what, "ver": 1}).encode())


def finish_copy(fs: Fs) -> None:
    """Remove the mark; everything else must be durable."""
    fs.remove(layout.UNFINISHED)
    fs.sync_dir("")


def check_finished(fs: Fs, where: str = "") -> None:
    if fs.exists(layout.UNFINISHED):
        raise UnfinishedCopyError(f"{where or 'this directory'}: a clone or fork that was not finished")
