"""Policy views: revocations and authority, handed to a hub by an external agent (D-51, 001 spec-2 §2, §4).

Revocations and label authority are published on encrypted streams, which a hub cannot read. An agent that can read them
folds them and hands over the result; the hub journals it and enforces it. The reason of a revocation stays in the
stream: a hub never stores plaintext of a payload.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from veen.core.hashing import Ht
from veen.core.wire import Bytes32, Choice, Length, Part, Uint

REVOCATION_KINDS: Final = ("client-id", "auth-ref", "cap-token")
SINGLE_PRIMARY: Final = "single-primary"
MULTI_PRIMARY: Final = "multi-primary"
AUTHORITY_POLICIES: Final = (SINGLE_PRIMARY, MULTI_PRIMARY)
BOUND_KINDS: Final = ("label", "stream")
FOREVER: Final = 1 << 64  # behind every time that can be written
MAX_POLICY_ITEMS: Final = 256  # of one control record
_MAX_REPLICAS: Final = 16


def realm_id_of(name: str) -> bytes:
    """Return Ht("id/realm", name); names are UTF-8 (D-94)."""
    return Ht("id/realm", name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation(Part, kind="revocation"):
    """`target` is a client_id, an auth_ref, or H(cap_token bytes); revoked in [ts, ts + ttl), or from ts on (§4.3)."""

    kind: Annotated[str, Choice(*REVOCATION_KINDS)]
    target: Bytes32  # of a cap-token also H of a link signature (D-173)
    ts: Uint
    ttl: Uint | None = None

    @property
    def until(self) -> int:
        """The first second in which it has ended."""
        return FOREVER if self.ttl is None else self.ts + self.ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority(Part, kind="authority"):
    """The primary hub of a stream in [ts, ts + ttl) (§2.2)."""

    realm_id: Bytes32
    stream_id: Bytes32
    primary_hub: Bytes32
    replica_hubs: Annotated[tuple[Bytes32, ...], Length(0, _MAX_REPLICAS)]
    policy: Annotated[str, Choice(*AUTHORITY_POLICIES)]
    ts: Uint
    ttl: Uint

    @property
    def until(self) -> int:
        return self.ts + self.ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRevocation(Part, kind="policy.revocation"):
    """Revocations that were new to the hub; effective from the second after this record on (D-51, D-60)."""

    revocations: Annotated[tuple[Revocation, ...], Length(1, MAX_POLICY_ITEMS)]

    @property
    def until(self) -> int:
        return max(item.until for item in self.revocations)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAuthority(Part, kind="policy.authority"):
    """Authority records that were new to the hub; effective from the second after this record on (FED1)."""

    authorities: Annotated[tuple[Authority, ...], Length(1, MAX_POLICY_ITEMS)]

    @property
    def until(self) -> int:
        return max(item.until for item in self.authorities)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBound(Part, kind="size bound"):
    """The largest MSG of a label, or of any label of a stream (D-127). 0 lifts the bound."""

    kind: Annotated[str, Choice(*BOUND_KINDS)]
    target: Bytes32  # a label, or a stream_id
    max_msg_bytes: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBounds(Part, kind="policy.bounds"):
    """Bounds that were new to the hub; effective from the second after this record on (D-127)."""

    bounds: Annotated[tuple[SizeBound, ...], Length(1, MAX_POLICY_ITEMS)]

    @property
    def until(self) -> int:
        return FOREVER


PolicyBody = PolicyRevocation | PolicyAuthority | PolicyBounds
POLICY_BODIES: Final = (PolicyRevocation, PolicyAuthority, PolicyBounds)
