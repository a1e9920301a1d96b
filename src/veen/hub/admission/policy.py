"""Policy of admission: configured, never derived from load (spec §3.5, §8)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from veen.core.errors import MalformedError
from veen.core.limits import MAX_DERIVED_PER_DAY
from veen.core.objects.captoken import CapToken
from veen.core.objects.profile import PRESETS, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth1:
    """Enforcement of the authority view: only the primary of a stream admits to it (001 spec-2 §3)."""

    hub_id: bytes
    realm_id: bytes  # of every label: a hub serves one realm
    accept_unspecified: bool = True  # accept streams without an active record (D-101)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kex1:
    """Enforcement of revocations, and of lifetime and number of messages of client keys (001 spec-2 §4)."""

    max_client_id_lifetime_sec: int = 86_400
    max_msgs_per_client_id_per_label: int = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy of one hub. Fixed for the life of a process, but for an explicit reload."""

    profiles: tuple[Profile, ...] = (PRESETS["messaging"], PRESETS["bulk"])
    capability_gating: bool = True  # D-52
    stream_scope: Literal["enforced", "open"] = "enforced"  # D-24
    # Trusted issuers (D-45): issuer key -> the streams it may grant, None for all.
    trusted_issuers: Mapping[bytes, frozenset[bytes] | None] = field(default_factory=dict)
    trust_any_issuer: bool = False
    principal_grants: bool = True  # the subject of a trusted token may let its client keys write (D-179)
    preloaded: Mapping[bytes, CapToken] = field(default_factory=dict)  # by auth_ref
    streams: frozenset[bytes] = frozenset()  # registered by configuration, besides those in the control journal
    denied_clients: frozenset[bytes] = frozenset()
    pow_difficulty: int = 0  # leading zero bits; 0: no proof of work (D-58)
    auth1: Auth1 | None = None  # None: authority records are not enforced
    kex1: Kex1 | None = None  # None: the core hub, without revocations (D-51)

    def __post_init__(self) -> None:
        if len({profile.epoch_sec for profile in self.profiles}) != 1:
            raise MalformedError("the supported profiles must share one epoch_sec (D-25)", "profiles")
        for token in self.preloaded.values():
            token.verify()  # once, here: admission relies on it, as it relies on `authorize` for the others
        if self.stream_scope == "open" and self.epoch_sec:
            raise MalformedError("open stream scope needs profiles that do not rotate labels (D-24)", "stream_scope")

    @property
    def epoch_sec(self) -> int:
        return self.profiles[0].epoch_sec

    def key_bounds(self) -> dict[str, int]:
        """Return the limits that `status` adds: the bounds of client keys, and of tokens derived for them.

        They become members of `limits`, which is free-form: clients of earlier releases refuse a status with members
        that they do not know, and skip limits that they do not know.
        """
        bounds = {}
        if self.kex1 is not None:
            bounds["max_client_id_lifetime_sec"] = self.kex1.max_client_id_lifetime_sec
            bounds["max_msgs_per_client_id_per_label"] = self.kex1.max_msgs_per_client_id_per_label
        if self.capability_gating and self.principal_grants:
            bounds["max_derived_per_day"] = MAX_DERIVED_PER_DAY
        return bounds

    def trusts(self, token: CapToken) -> bool:
        """Return True if the issuer of a token may grant the streams that it lists."""
        if self.trust_any_issuer:
            return True
        if token.issuer_pk not in self.trusted_issuers:
            return False
        allowed = self.trusted_issuers[token.issuer_pk]
        return allowed is None or allowed.issuperset(token.allow.stream_ids)
