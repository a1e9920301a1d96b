"""The policy views of a hub: revocations and authority."""

from dataclasses import dataclass
from typing import ClassVar, Self

from veen.core.control import ControlRecord
from veen.core.policies import MAX_POLICY_ITEMS, Authority, Revocation
from veen.core.tooling.base import MAX_LISTED, Map
from veen.core.wire import Fields

__all__ = ["PolicyRecordsResponse", "PolicyRequest", "PolicyResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest(Map):
    """What an agent folded from the administrative streams of a realm (D-51)."""

    KIND: ClassVar[str] = "policy request"

    revocations: tuple[Revocation, ...] | None = None
    authorities: tuple[Authority, ...] | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            revocations=f.optional(f.objects, "revocations", Revocation, at_most=MAX_POLICY_ITEMS),
            authorities=f.optional(f.objects, "authorities", Authority, at_most=MAX_POLICY_ITEMS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResponse(Map):
    """The records that were appended; none where the hub knew everything already, or it is over."""

    KIND: ClassVar[str] = "policy response"

    records: tuple[ControlRecord, ...]

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(records=f.objects("records", ControlRecord, at_most=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecordsResponse(Map):
    """What is enforced, and the policy records of the control journal; `more` says that the list goes on."""

    KIND: ClassVar[str] = "policy records response"

    kex1_plus: bool
    auth1: bool
    records: tuple[ControlRecord, ...]
    more: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(
            kex1_plus=f.flag("kex1_plus"),
            auth1=f.flag("auth1"),
            records=f.objects("records", ControlRecord, at_most=MAX_LISTED),
            more=f.flag("more"),
        )
