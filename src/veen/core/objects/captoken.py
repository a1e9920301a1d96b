"""cap_token, the capability to write (spec §6).

The issuer signs what the subject may do; each further link of `sig_chain` is a re-signature by the same
issuer, which renews the token under a new auth_ref (D-44). `sig_chain` knows no delegation: all links verify under
`issuer_pk`. A hub with `principal_grants` also takes a token whose issuer is the subject of a token that it trusts:
so a principal lets each of its client keys write (D-179).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Final, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import CapabilityError, MalformedError
from veen.core.hashing import H, Ht
from veen.core.limits import MAX_CAP_CHAIN, MAX_CAP_STREAMS, Limits
from veen.core.wire import Bytes32, Bytes64, Length, Map, Part, Uint

_FIRST_PREV_SIG: Final = bytes(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Part, kind="rate"):
    """A token bucket: `per_sec` refilled each second of hub_ts, up to `burst`."""

    per_sec: Uint
    burst: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow(Part, kind="allow"):
    """Rights of a token: these streams, for `ttl` seconds after first use, at this rate."""

    stream_ids: Annotated[tuple[Bytes32, ...], Length(1, MAX_CAP_STREAMS)]  # ascending, no duplicates
    ttl: Uint
    rate: Rate | None = None

    def _check(self) -> None:
        if any(left >= right for left, right in pairwise(self.stream_ids)):
            raise MalformedError("stream ids must ascend without duplicates", "cap_token.allow.stream_ids")

    def bucket(self, limits: Limits) -> tuple[int, int]:
        """Return (per_sec, burst) as a hub enforces them: the limits of the hub, lowered by the token (D-50)."""
        if self.rate is None:
            return limits.max_cap_rate_per_sec, limits.max_cap_rate_burst
        return min(self.rate.per_sec, limits.max_cap_rate_per_sec), min(self.rate.burst, limits.max_cap_rate_burst)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapToken(Map, kind="cap_token"):
    """The issuer's permission for the subject to write. Hubs hold tokens by `auth_ref`."""

    issuer_pk: Bytes32
    subject_pk: Bytes32
    allow: Allow
    sig_chain: Annotated[tuple[Bytes64, ...], Length(1, MAX_CAP_CHAIN)]

    @classmethod
    def issue(
        cls,
        issuer: ed25519.SigningKey,
        subject_pk: bytes,
        stream_ids: Iterable[bytes],
        *,
        ttl: int,
        rate: Rate | None = None,
    ) -> Self:
        """Mint a token; equal inputs give equal bytes (spec §6.1)."""
        allow = Allow(stream_ids=tuple(sorted(set(stream_ids))), ttl=ttl, rate=rate)
        unsigned = cls(issuer_pk=issuer.public, subject_pk=subject_pk, allow=allow, sig_chain=())
        return unsigned.renew(issuer)

    def renew(self, issuer: ed25519.SigningKey) -> Self:
        """Append a re-signature: a new auth_ref, so a new issued_at and a full TTL (D-44)."""
        if issuer.public != self.issuer_pk:
            raise CapabilityError("only the issuer of a cap_token can renew it")
        if len(self.sig_chain) >= MAX_CAP_CHAIN:
            raise CapabilityError(f"a cap_token has at most {MAX_CAP_CHAIN} links: issue a new one")
        previous = self.sig_chain[-1] if self.sig_chain else _FIRST_PREV_SIG
        token = replace(self, sig_chain=(*self.sig_chain, issuer.sign(self._link_digest(previous))))
        token.to_bytes()  # refuse to hand out what no hub would accept
        return token

    def auth_ref(self) -> bytes:
        """Return the hash that MSG.auth_ref holds; it covers the exact bytes of the token."""
        return Ht("veen/cap", self.to_bytes())

    def revocable_as(self, data: bytes | None = None) -> tuple[bytes, ...]:
        """Return the targets of kind cap-token that revoke this token: H(its bytes), and H of each link signature
        (D-173).

        `data` are the bytes of the token, for callers that have them.
        """
        return (H(self.to_bytes() if data is None else data), *map(H, self.sig_chain))

    def _link_digest(self, prev_sig: bytes) -> bytes:
        tree = self.to_tree()
        del tree[5]  # the token without sig_chain (D-43)
        return Ht("veen/cap-link", cbor.encode(tree) + prev_sig)

    def verify(self) -> None:
        """Raise CapabilityError unless there is a chain and every link of it is the issuer's."""
        if not self.sig_chain:
            raise CapabilityError("cap_token: sig_chain is empty")
        previous = _FIRST_PREV_SIG
        for number, signature in enumerate(self.sig_chain, start=1):
            if not ed25519.verify(self.issuer_pk, self._link_digest(previous), signature):
                raise CapabilityError(f"cap_token: link {number} of sig_chain does not verify under issuer_pk")
            previous = signature

    def check_derived_from(self, parent: Self) -> None:
        """Raise CapabilityError unless the subject of `parent` issued this token, for no other streams (D-179)."""
        if self.issuer_pk != parent.subject_pk:
            raise CapabilityError("cap_token: its issuer is not the subject of the token that it is derived from")
        if not set(parent.allow.stream_ids).issuperset(self.allow.stream_ids):
            raise CapabilityError("cap_token: it is for streams that the token it is derived from does not allow")

    def is_live(self, *, issued_at: int, hub_ts: int) -> bool:
        """Return True within the TTL, inclusive: a token with ttl 0 is valid in the second it was issued in (D-48)."""
        return hub_ts <= issued_at + self.allow.ttl
