"""Who may call what at the transport, besides what admission decides about messages (D-53, D-54).

Three roles. A submit needs none: its authority is the signature and the capability inside the message. Reading is
open unless the deployment names readers: what a hub serves is ciphertext. Administration is closed unless the
deployment names administrators, by bearer token or by the name in a client certificate.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final, Self

__all__ = ["ANYBODY", "Access", "Denied", "Principal", "Role", "network_of"]


class Role(Enum):
    """What an operation asks of its caller."""

    ANY = "any"
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """What the transport knows about a caller."""

    bearer: bytes | None = None  # the token of an Authorization header
    names: tuple[str, ...] = ()  # in a client certificate that the transport verified
    denied: bool = False  # the static filter on addresses refuses it (001 SH1+ §5.1)
    address: str = ""  # that it calls from (`network_of`); nothing for a caller inside the process


ANYBODY: Final = Principal()


def network_of(peer: object) -> str:
    """What tells callers apart by the address of a socket: of IPv6 the first half, as one host has all of the rest."""
    if not isinstance(peer, tuple):
        return ""
    address = ip_address(str(peer[0]).partition("%")[0])
    if isinstance(address, IPv6Address):
        return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


class Denied(Enum):
    """Why not. The names are those of the API codes."""

    UNAUTHORIZED = "credentials are needed"
    FORBIDDEN = "these credentials do not suffice"
    CLOSED = "no credentials are configured that would open this"


@dataclass(frozen=True, slots=True)
class _Holders:
    digests: frozenset[bytes] = frozenset()
    names: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.digests or self.names)

    def include(self, principal: Principal) -> bool:
        if not self.names.isdisjoint(principal.names):
            return True
        if principal.bearer is None:
            return False
        digest = sha256(principal.bearer).digest()
        return any(hmac.compare_digest(digest, known) for known in self.digests)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of a deployment. Only hashes of the tokens are kept."""

    readers: _Holders = field(default_factory=_Holders)
    admins: _Holders = field(default_factory=_Holders)
    read_bytes_per_second: int = 0  # for each reader; 0: as fast as it goes

    @classmethod
    def of(
        cls,
        *,
        read_tokens: Iterable[bytes] = (),
        admin_tokens: Iterable[bytes] = (),
        read_names: Iterable[str] = (),
        admin_names: Iterable[str] = (),
        read_bytes_per_second: int = 0,
    ) -> Self:
        def holders(tokens: Iterable[bytes], names: Iterable[str]) -> _Holders:
            return _Holders(frozenset(sha256(token).digest() for token in tokens), frozenset(names))

        readers, admins = holders(read_tokens, read_names), holders(admin_tokens, admin_names)
        return cls(readers, admins, read_bytes_per_second)

    def check(self, role: Role, principal: Principal) -> Denied | None:
        """None if `principal` has the role; an administrator may read as well."""
        if role is Role.ANY or (role is Role.READ and not self.readers):
            return None
        if self.admins.include(principal) or (role is Role.READ and self.readers.include(principal)):
            return None
        if role is Role.ADMIN and not self.admins:
            return Denied.CLOSED
        return Denied.UNAUTHORIZED if principal.bearer is None and not principal.names else Denied.FORBIDDEN

    def reader(self, principal: Principal) -> str:
        """Whom reading is counted for: the credentials that opened it, or else the address; nobody for a local call."""
        if principal.names:
            return f"names {principal.names}"
        if principal.bearer is not None and self.readers:  # otherwise nobody has checked it: any would do
            return f"token {sha256(principal.bearer).hexdigest()}"
        return principal.address
