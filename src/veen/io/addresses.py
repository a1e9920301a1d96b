"""Addresses of hosts and callers.

Unix sockets in directories whose path exceeds the length of a socket address.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final


def is_loopback(host: str) -> bool:
    """Return True if only this machine can connect to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def network_of(peer: object) -> str:
    """Return the key of a caller for limits: the IPv4 address, or the /64 network of an IPv6 address."""
    if not isinstance(peer, tuple):
        return ""
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


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
