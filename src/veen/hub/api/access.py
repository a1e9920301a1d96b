"""Access of callers at the transport, beside the decisions of admission about messages (D-53, D-54).

A submit needs no role: its authority is the signature and the capability inside the message. Reading is open unless
the deployment names readers: a hub serves ciphertext only. Metrics, status and the details of health are open as
long as nobody is named for reading or for metrics. Administration is closed unless the deployment names
administrators (decisions.md 22). Holders are named by bearer token or by the name in a client certificate. A caller
at the local socket may do everything.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final, Self


class Role(Enum):
    """The role that an operation requires of its caller."""

    ANY = "any"
    STATUS = "status"  # the facts that a writer needs before its first message
    METRICS = "metrics"  # metrics and details of health
    READ = "read"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """The facts that the transport knows about a caller."""

    bearer: bytes | None = None  # the token of an Authorization header; empty if the header holds none
    names: tuple[str, ...] = ()  # in a client certificate that the transport verified
    denied: bool = False  # the static filter on addresses refuses it (001 SH1+ §5.1)
    local: bool = False  # came through the local socket, which only the hub's own user and root can open
    address: str = ""  # network of the caller (`network_of`); empty for a caller inside the process


ANYBODY: Final = Principal()


class Denied(Enum):
    """Reasons for which a caller is refused (D-163)."""

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
    """The access rules of a deployment. Only hashes of the tokens are kept."""

    readers: _Holders = field(default_factory=_Holders)
    admins: _Holders = field(default_factory=_Holders)
    watchers: _Holders = field(default_factory=_Holders)  # of metrics
    open_status: bool = False  # status is open although readers are named, for writers without a token
    read_bytes_per_second: int = 0  # for each reader; 0: no limit

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
        """Return None if `principal` has the role, else the reason. Readers may see metrics and status;
        administrators may read."""
        if principal.local or self._is_open(role) or any(holders.include(principal) for holders in self._holders(role)):
            return None
        if role is Role.ADMIN and not self.admins:
            return Denied.CLOSED
        if principal.bearer is not None:
            is_known = any(holders.has_token(principal.bearer) for holders in self._holders(Role.METRICS))
            return Denied.FORBIDDEN if is_known else Denied.UNKNOWN
        # A name comes from a certificate that the transport has verified, so the caller is known.
        return Denied.FORBIDDEN if principal.names else Denied.UNAUTHORIZED

    def _is_open(self, role: Role) -> bool:
        if role is Role.READ:
            return not self.readers
        if role is Role.STATUS and self.open_status:
            return True
        return role is Role.ANY or (role in (Role.STATUS, Role.METRICS) and not (self.readers or self.watchers))

    def _holders(self, role: Role) -> tuple[_Holders, ...]:
        """Return the holders of a role. The right to metrics is the least, so it includes all credentials."""
        if role is Role.ADMIN:
            return (self.admins,)
        return (self.admins, self.readers) if role is Role.READ else (self.admins, self.readers, self.watchers)

    def reader(self, principal: Principal) -> str:
        """Return the key under which reading is counted: the credentials that opened it, else the address; empty for
        a local call."""
        if principal.names:
            return f"names {principal.names}"
        if principal.bearer is not None and self.readers:  # without readers nobody has checked the token
            return f"token {sha256(principal.bearer).hexdigest()}"
        return principal.address
