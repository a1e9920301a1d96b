"""Policy views: what an external agent tells a hub about keys, capabilities and streams (D-51, 001 spec-2 §2, §4).

Revocations and label authority are published on encrypted streams, which a hub cannot read. An agent that can folds
them and hands the outcome over; the hub journals it and holds messages to it. The words of a revocation's reason stay
in the stream: what a hub stores is never plaintext of a payload.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from veen.core.hashing import Ht
from veen.core.wire import Fields, Form, Wire

__all__ = [
    "AUTHORITY_POLICIES",
    "FOREVER",
    "MAX_POLICY_ITEMS",
    "MULTI_PRIMARY",
    "REVOCATION_KINDS",
    "SINGLE_PRIMARY",
    "Authority",
    "PolicyAuthority",
    "PolicyRevocation",
    "Revocation",
    "realm_id_of",
]

REVOCATION_KINDS: Final = ("client-id", "auth-ref", "cap-token")
SINGLE_PRIMARY: Final = "single-primary"
MULTI_PRIMARY: Final = "multi-primary"
AUTHORITY_POLICIES: Final = (SINGLE_PRIMARY, MULTI_PRIMARY)
FOREVER: Final = 1 << 64  # behind every time that can be written
MAX_POLICY_ITEMS: Final = 256  # of one control record
_MAX_REPLICAS: Final = 16


def realm_id_of(name: str) -> bytes:
    """Ht("id/realm", name); names are UTF-8 (D-94)."""
    return Ht("id/realm", name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation(Wire):
    """`target` is a client_id, an auth_ref, or H(cap_token bytes); revoked in [ts, ts + ttl), or from ts on (§4.3)."""

    KIND: ClassVar[str] = "revocation"
    FORM: ClassVar[Form] = "map"

    kind: str
    target: bytes
    ts: int
    ttl: int | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            kind=f.choice("kind", REVOCATION_KINDS),
            target=f.bstr("target", 32),
            ts=f.uint("ts"),
            ttl=f.optional(f.uint, "ttl"),
        )

    def _write(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target, "ts": self.ts, "ttl": self.ttl}

    @property
    def until(self) -> int:
        """The first second in which it does not count any more."""
        return FOREVER if self.ttl is None else self.ts + self.ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority(Wire):
    """Which hub is the primary of a stream in [ts, ts + ttl) (§2.2)."""

    KIND: ClassVar[str] = "authority"
    FORM: ClassVar[Form] = "map"

    realm_id: bytes
    stream_id: bytes
    primary_hub: bytes
    replica_hubs: tuple[bytes, ...]
    policy: str
    ts: int
    ttl: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            realm_id=f.bstr("realm_id", 32),
            stream_id=f.bstr("stream_id", 32),
            primary_hub=f.bstr("primary_hub", 32),
            replica_hubs=f.bstrs("replica_hubs", 32, at_most=_MAX_REPLICAS),
            policy=f.choice("policy", AUTHORITY_POLICIES),
            ts=f.uint("ts"),
            ttl=f.uint("ttl"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "realm_id": self.realm_id,
            "stream_id": self.stream_id,
            "primary_hub": self.primary_hub,
            "replica_hubs": self.replica_hubs,
            "policy": self.policy,
            "ts": self.ts,
            "ttl": self.ttl,
        }

    @property
    def until(self) -> int:
        return self.ts + self.ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRevocation(Wire):
    """Revocations the hub did not know before; they count from the second after this record on (D-51, D-60)."""

    KIND: ClassVar[str] = "policy.revocation"
    FORM: ClassVar[Form] = "map"

    revocations: tuple[Revocation, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(revocations=f.objects("revocations", Revocation, at_least=1, at_most=MAX_POLICY_ITEMS))

    def _write(self) -> dict[str, Any]:
        return {"revocations": self.revocations}

    @property
    def until(self) -> int:
        return max(item.until for item in self.revocations)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAuthority(Wire):
    """Authority records the hub did not know before; they count from the second after this record on (FED1)."""

    KIND: ClassVar[str] = "policy.authority"
    FORM: ClassVar[Form] = "map"

    authorities: tuple[Authority, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(authorities=f.objects("authorities", Authority, at_least=1, at_most=MAX_POLICY_ITEMS))

    def _write(self) -> dict[str, Any]:
        return {"authorities": self.authorities}

    @property
    def until(self) -> int:
        return max(item.until for item in self.authorities)
