"""Unix sockets in directories whose path exceeds the length of a socket address."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MAX_ADDRESS_BYTES: Final = 100  # 108 on Linux, 104 elsewhere


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield a name of `path` that fits into a socket address, valid inside the block; on Linux any path has one."""
    if len(os.fsencode(path)) <= _MAX_ADDRESS_BYTES or sys.platform != "linux":
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
