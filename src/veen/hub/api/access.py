"""Who may call what at the transport, besides what admission decides about messages (D-53, D-54).

A submit needs no role: its authority is the signature and the capability inside the message. Reading is open unless
the deployment names readers: what a hub serves is ciphertext. Metrics, status and the details of health are open as
long as nobody is named for reading or for metrics. Administration is closed unless the deployment names
administrators. Holders are named by bearer token or by the name in a client certificate. Who comes through the local
door may do everything.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final, Self


class Role(Enum):
    """What an operation asks of its caller."""

    ANY = "any"
    STATUS = "status"  # what a writer must know of a hub before its first message
    METRICS = "metrics"  # how much a hub does, and how it is
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """What the transport knows about a caller."""

    bearer: bytes | None = None  # the token of an Authorization header; empty if the header holds none
    names: tuple[str, ...] = ()  # in a client certificate that the transport verified
    denied: bool = False  # the static filter on addresses refuses it (001 SH1+ §5.1)
    local: bool = False  # came through the local door, which only the hub's own user and root can open
    address: str = ""  # that it calls from (`network_of`); nothing for a caller inside the process


ANYBODY: Final = Principal()


class Denied(Enum):
    """Why not (D-163)."""

    UNAUTHORIZED = "credentials are needed"
    UNKNOWN = "these credentials are not known here"
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
        return self.has_token(principal.bearer)

    def has_token(self, bearer: bytes) -> bool:
        digest = sha256(bearer).digest()
        return any(hmac.compare_digest(digest, expected) for expected in self.digests)


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of a deployment. Only hashes of the tokens are kept."""

    readers: _Holders = field(default_factory=_Holders)
    admins: _Holders = field(default_factory=_Holders)
    watchers: _Holders = field(default_factory=_Holders)  # of metrics
    open_status: bool = False  # whoever wants to write may ask how, although readers are named
    read_bytes_per_second: int = 0  # for each reader; 0: as fast as it goes

    @classmethod
    def of(
        cls,
        *,
        read_tokens: Iterable[bytes] = (),
        admin_tokens: Iterable[bytes] = (),
        metrics_tokens: Iterable[bytes] = (),
        read_names: Iterable[str] = (),
        admin_names: Iterable[str] = (),
        metrics_names: Iterable[str] = (),
        open_status: bool = False,
        read_bytes_per_second: int = 0,
    ) -> Self:
        def holders(tokens: Iterable[bytes], names: Iterable[str]) -> _Holders:
            return _Holders(frozenset(sha256(token).digest() for token in tokens), frozenset(names))

        return cls(
            readers=holders(read_tokens, read_names),
            admins=holders(admin_tokens, admin_names),
            watchers=holders(metrics_tokens, metrics_names),
            open_status=open_status,
            read_bytes_per_second=read_bytes_per_second,
        )

    def check(self, role: Role, principal: Principal) -> Denied | None:
        """None if `principal` has the role. A reader may look at metrics and status, an administrator may read."""
        if principal.local or self._is_open(role) or any(holders.include(principal) for holders in self._holders(role)):
            return None
        if role is Role.ADMIN and not self.admins:
            return Denied.CLOSED
        if principal.bearer is not None:
            is_known = any(holders.has_token(principal.bearer) for holders in self._holders(Role.METRICS))
            return Denied.FORBIDDEN if is_known else Denied.UNKNOWN
        # A name comes from a certificate that the transport has verified: whose it is is known.
        return Denied.FORBIDDEN if principal.names else Denied.UNAUTHORIZED

    def _is_open(self, role: Role) -> bool:
        if role is Role.READ:
            return not self.readers
        if role is Role.STATUS and self.open_status:
            return True
        return role is Role.ANY or (role in (Role.STATUS, Role.METRICS) and not (self.readers or self.watchers))

    def _holders(self, role: Role) -> tuple[_Holders, ...]:
        """Those who have a role; the right to look at metrics is the least, so all credentials are among these."""
        if role is Role.ADMIN:
            return (self.admins,)
        return (self.admins, self.readers) if role is Role.READ else (self.admins, self.readers, self.watchers)

    def reader(self, principal: Principal) -> str:
        """Whom reading is counted for: the credentials that opened it, or else the address; nobody for a local call."""
        if principal.names:
            return f"names {principal.names}"
        if principal.bearer is not None and self.readers:  # otherwise nobody has checked it: any would do
            return f"token {sha256(principal.bearer).hexdigest()}"
        return principal.address
