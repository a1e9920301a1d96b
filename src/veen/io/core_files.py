"""Core files: memory dumps of a crashed program, with the private keys that it had loaded."""

import contextlib
import ctypes
import os
import resource
import sys
from typing import Final

SWITCH: Final = "VEEN_CORE_FILES"  # set to 1 by developers who want a core file of a crash
_PR_SET_DUMPABLE: Final = 4


def forbid_core_files() -> None:
    """Disable core files of this process, and reading of its memory by other processes of the user.

    For programs only, not for a library: the limit holds for the rest of the process and for its children.
    """
    if os.environ.get(SWITCH) == "1":
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # a core file that goes to a program (core_pattern) is not bound by the limit
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
