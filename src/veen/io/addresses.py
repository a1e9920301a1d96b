"""Addresses of hosts and callers."""

from ipaddress import IPv6Address, IPv6Network, ip_address


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
