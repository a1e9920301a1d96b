"""Files that hold secrets: who else may use them (keys, tokens, passphrases)."""

import os
import stat
from pathlib import Path
from typing import Final

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def exposed_mode(status: os.stat_result) -> int | None:
    """The mode of a file of ours that others may use as well; None if it is private.

    As ssh judges private keys. A file of another owner, such as a mounted Secret that belongs to root and is shared
    with us by its group, is that owner's to judge; a pipe has no readers but us.
    """
    mode = stat.S_IMODE(status.st_mode)
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
    return mode if is_ours and mode & _OTHERS else None


def mode_of(path: Path) -> int | None:
    """As `exposed_mode`, by path; None also where there is no such file."""
    try:
        return exposed_mode(path.stat())
    except FileNotFoundError:
        return None
