"""The options of an audit, and its context: the one value by which every worker checks entries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

from veen.core.errors import StatedError
from veen.core.hashing import H, tag_prefix, u64be
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.identity import HubIdentity
from veen.core.objects.profile import PRESETS, Profile
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.tlog.policy import WitnessPolicy
from veen.core.verdict import Signatures
from veen.storage.control_state import ControlFold, OpenedLabel


class AuditOptionError(StatedError):
    """An unknown level or sample of an audit."""

    hint = "docs/audit.md lists the levels and what each of them checks."


Level = Literal["full", "sampled", "structure"]
LEVELS: Final[tuple[Level, ...]] = ("full", "sampled", "structure")
SIGNATURES: Final[Mapping[str, Signatures]] = {
    "full": Signatures.ALL,
    "sampled": Signatures.SAMPLED,
    "structure": Signatures.NONE,
}

_SAMPLE_TAG: Final = tag_prefix("veen/audit-sample")
_SCALE: Final = 1 << 64


def list_profiles(profiles: tuple[Profile, ...] | None) -> dict[bytes, int]:
    """Return epoch_sec by profile_id, of the given profiles or of the presets."""
    return {profile.profile_id(): profile.epoch_sec for profile in profiles or tuple(PRESETS.values())}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options of an audit."""

    level: Level = "full"
    sample_per_million: int = 62_500  # one in sixteen
    seed: str = ""  # chooses another sample, which nobody can foresee who does not know it
    labels: frozenset[bytes] | None = None
    profiles: tuple[Profile, ...] | None = None  # None: those that have a name, and others are only a warning
    identity: HubIdentity | None = None  # known from elsewhere (HID-01)
    root_pk: bytes | None = None
    pin: TrustedKeys | None = None  # keys known from elsewhere: those of the directory must follow from them
    chunks_only: bool = False  # a place that was given nothing but chunks: neither control journal nor seals
    policy: WitnessPolicy | None = None  # of witnesses that must have cosigned the newest published note

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise AuditOptionError(f"level is {self.level!r}; it may be {', '.join(LEVELS)}")
        if not 0 <= self.sample_per_million <= 1_000_000:
            raise AuditOptionError("a sample is between 0 and 1,000,000 entries of a million")

    @property
    def inputs(self) -> dict[str, Any]:
        """Return all options that the state of an audited label depends on, as one JSON value."""
        sampled = self.level == "sampled"
        profiles = None if self.profiles is None else sorted(profile.profile_id().hex() for profile in self.profiles)
        return {
            "level": self.level,
            "sample_per_million": self.sample_per_million if sampled else None,
            "seed": self.seed if sampled else None,
            "profiles": profiles,
            "identity": None if self.identity is None else H(self.identity.to_bytes()).hex(),
            "root_pk": None if self.root_pk is None else self.root_pk.hex(),
            "pin": None if self.pin is None else self.pin.to_text(),
            "chunks_only": self.chunks_only,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditContext:
    """The properties of the hub that entries depend on. Pickled to executors; contains no secret."""

    uri: str
    level: Level
    sample_per_million: int
    seed: str
    identity: HubIdentity | None
    control: ControlFold
    control_whole: bool  # whether a record that is not there never was
    chunks_only: bool
    profiles: Mapping[bytes, int]
    profiles_given: bool
    _limits: dict[int, tuple[Limits, ...]] = field(default_factory=dict, compare=False, repr=False)

    def find_opening(self, label: bytes) -> OpenedLabel | None:
        return self.control.labels.get(label)

    def limits_at(self, hub_ts: int) -> tuple[Limits, ...]:
        """Return the limits that may have applied in this second; the defaults if no record sets any."""
        in_force = self._limits.get(hub_ts)
        if in_force is None:
            if len(self._limits) > 1024:
                self._limits.clear()
            between = self.control.limits_between(hub_ts, hub_ts)
            in_force = self._limits[hub_ts] = tuple(dict.fromkeys(limits or DEFAULT_LIMITS for limits in between))
        return in_force

    def checks_signatures_of(self, label: bytes, stream_seq: int, end_seq: int) -> bool:
        """Return True if the signatures of an entry are verified at this level.

        A sample is a function of the position and the seed. It always includes the last entry of a chunk: the root in
        its receipt covers all before it.
        """
        if self.level != "sampled":
            return self.level == "full"
        if stream_seq == end_seq:
            return True
        digest = sha256(_SAMPLE_TAG + self.seed.encode() + b"\0" + label + u64be(stream_seq)).digest()
        return int.from_bytes(digest[:8], "big") * 1_000_000 < self.sample_per_million * _SCALE
