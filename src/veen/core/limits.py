"""The limit registry: every size and rate bound of a deployment, fixed for the life of a process (spec §14).

A registry is configuration, never derived from load or memory. Deployments may lower the maxima of spec §14
and must not raise them: a hub with raised limits would accept what others refuse.
"""

from dataclasses import dataclass, fields
from typing import Any, Final, Self

from veen.core.errors import LimitError, MalformedError

# Bounds of single objects that no deployment configures (spec §14, D-37, D-49).
MAX_PROOF_PATH: Final = 64
MAX_CAP_CHAIN: Final = 8
MAX_CAP_STREAMS: Final = 1_024
MAX_DERIVED_PER_DAY: Final = 1_024  # new tokens that one token may lead to, as its subject issues them (D-179)
MAX_WITNESSES: Final = 16

_CEILINGS: Final = {
    "max_msg_bytes": 1_048_576,
    "max_hdr_bytes": 16_384,
    "max_body_bytes": 1_048_320,
    "max_attachments_per_msg": 1_024,
}
_FRAME_OVERHEAD: Final = 512  # frame header and RECEIPT around a MSG, rounded up
COMPRESSIONS: Final = ("none", "zlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a deployment; the defaults are those of D-75. Values that spec §14 does not allow are refused."""

    max_msg_bytes: int = 1_048_576
    max_hdr_bytes: int = 16_384
    max_body_bytes: int = 1_048_320
    max_attachments_per_msg: int = 1_024
    max_attachment_bytes: int = 1_048_320
    max_chunk_bytes: int = 67_108_864
    max_checkpoint_interval: int = 1_024
    max_cap_rate_per_sec: int = 10_000
    max_cap_rate_burst: int = 20_000
    max_epoch_skew_sec: int = 60
    compression: str = "none"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "compression":
                if value not in COMPRESSIONS:
                    raise MalformedError(f"expected one of {', '.join(COMPRESSIONS)}, found {value!r}", "compression")
            elif type(value) is not int or value < 0:
                raise MalformedError(f"expected an unsigned integer, found {value!r}", field.name)
            elif value == 0 and field.name in ("max_msg_bytes", "max_chunk_bytes", "max_checkpoint_interval"):
                raise MalformedError("must be at least 1", field.name)
            elif value > _CEILINGS.get(field.name, value):
                raise LimitError(field.name, value, _CEILINGS[field.name])
            elif value >= 2**63:  # no index and no table has a wider integer (D-07)
                raise MalformedError("must be below 2^63", field.name)
        if self.max_chunk_bytes < self.max_msg_bytes + _FRAME_OVERHEAD:
            # A chunk never exceeds its bound (spec §4.8.2), so the largest legal entry must fit into one.
            raise MalformedError(f"must be at least max_msg_bytes + {_FRAME_OVERHEAD}", "max_chunk_bytes")

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read the object in `limits.json`; absent members take their default, unknown ones are refused."""
        if type(value) is not dict:
            raise MalformedError("expected an object", "limits")
        names = {field.name for field in fields(cls)}
        for name in value:
            if name not in names:
                raise MalformedError(f"unknown limit {name!r}", "limits")
        return cls(**value)

    def to_json(self) -> dict[str, int | str]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


DEFAULT_LIMITS: Final = Limits()
