"""cap_token, the capability to write (spec §6).

The issuer signs what the subject may do; each further link of `sig_chain` is a re-signature by the same
issuer, which renews the token under a new auth_ref (D-44). v0.0.1 knows no delegation: all links verify under
`issuer_pk`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Final, Self

from veen.core import cbor, ed25519
from veen.core.errors import CapabilityError, MalformedError
from veen.core.hashing import Ht
from veen.core.limits import MAX_CAP_CHAIN, MAX_CAP_STREAMS, Limits
from veen.core.wire import Fields, Form, Wire

__all__ = ["Allow", "CapToken", "Rate"]

_FIRST_PREV_SIG: Final = bytes(64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Wire):
    """A token bucket: `per_sec` refilled each second of hub_ts, up to `burst`."""

    KIND: ClassVar[str] = "rate"
    FORM: ClassVar[Form] = "map"

    per_sec: int
    burst: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(per_sec=f.uint("per_sec"), burst=f.uint("burst"))

    def _write(self) -> dict[str, Any]:
        return {"per_sec": self.per_sec, "burst": self.burst}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allow(Wire):
    """What a token allows: these streams, for `ttl` seconds after first use, at this rate."""

    KIND: ClassVar[str] = "allow"
    FORM: ClassVar[Form] = "map"

    stream_ids: tuple[bytes, ...]  # ascending, no duplicates
    ttl: int
    rate: Rate | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        stream_ids = f.bstrs("stream_ids", 32, at_least=1, at_most=MAX_CAP_STREAMS)
        if any(left >= right for left, right in pairwise(stream_ids)):
            raise MalformedError("stream ids must ascend without duplicates", "cap_token.allow.stream_ids")
        return cls(stream_ids=stream_ids, ttl=f.uint("ttl"), rate=f.optional(f.object, "rate", Rate))

    def _write(self) -> dict[str, Any]:
        return {"stream_ids": self.stream_ids, "ttl": self.ttl, "rate": self.rate}

    def bucket(self, limits: Limits) -> tuple[int, int]:
        """(per_sec, burst) that a hub enforces: the registry's maxima, lowered by the token (D-50)."""
        if self.rate is None:
            return limits.max_cap_rate_per_sec, limits.max_cap_rate_burst
        return min(self.rate.per_sec, limits.max_cap_rate_per_sec), min(self.rate.burst, limits.max_cap_rate_burst)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapToken(Wire):
    """The subject may write, says the issuer. Hubs hold tokens by `auth_ref`."""

    KIND: ClassVar[str] = "cap_token"
    FORM: ClassVar[Form] = "map"

    issuer_pk: bytes
    subject_pk: bytes
    allow: Allow
    sig_chain: tuple[bytes, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            issuer_pk=f.bstr("issuer_pk", 32),
            subject_pk=f.bstr("subject_pk", 32),
            allow=f.object("allow", Allow),
            sig_chain=f.bstrs("sig_chain", 64, at_least=1, at_most=MAX_CAP_CHAIN),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "ver": 1,
            "issuer_pk": self.issuer_pk,
            "subject_pk": self.subject_pk,
            "allow": self.allow,
            "sig_chain": self.sig_chain,
        }

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
        """What MSG.auth_ref names: bound to the exact bytes of the token."""
        return Ht("veen/cap", self.to_bytes())

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

    def is_live(self, *, issued_at: int, hub_ts: int) -> bool:
        """TTL, inclusive: a token with ttl 0 lasts for the second it was issued in (D-48)."""
        return hub_ts <= issued_at + self.allow.ttl
