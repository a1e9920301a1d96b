"""Access rights of files with secrets: keys, tokens, passphrases."""

import os
import stat
from pathlib import Path
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def read_exposed_mode(status: os.stat_result) -> int | None:
    """Return the mode of a file of ours that other users can access; None if it is private.

    The rule is that of ssh for private keys. A file of another owner, such as a mounted Secret that belongs to root and
    is shared with us by its group, is the responsibility of that owner; a pipe has no other readers.
    """
    mode = stat.S_IMODE(status.st_mode)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return mode if is_ours and mode & _OTHERS else None


def mode_of(path: Path) -> int | None:
    """Return `read_exposed_mode` of a path; None if there is no such file."""
    try:
        return read_exposed_mode(path.stat())
    except FileNotFoundError:
        return None
