"""The mark of a clone or fork that is not finished: no hub starts from it, and nothing verifies it.

The mark is durable before the first file of the copy and goes after the last one is durable. The identity and the keys
are written last, so a copy that is cut off has neither.
"""

import json
from typing import Literal

from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.storage import layout


class UnfinishedCopyError(StorageError, code="E.STORAGE.UNFINISHED"):
    """A clone or fork was cut off before this directory was complete."""


def begin_copy(fs: Fs, what: Literal["clone", "fork"]) -> None:
    fs.replace(layout.UNFINISHED, json.dumps({"copy": what, "ver": 1}).encode())


def finish_copy(fs: Fs) -> None:
    """Everything else must be durable."""
    fs.remove(layout.UNFINISHED)
    fs.sync_dir("")


def check_finished(fs: Fs, where: str = "") -> None:
    if fs.exists(layout.UNFINISHED):
        raise UnfinishedCopyError(f"{where or 'this directory'}: a clone or fork that was not finished")
