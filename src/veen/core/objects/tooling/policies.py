"""The policy views of a hub: revocations and authority."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from veen.core.objects.control import ControlRecord
from veen.core.objects.policies import MAX_POLICY_ITEMS, Authority, Revocation
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.wire import Length, Map

__all__ = ["PolicyRecordsResponse", "PolicyRequest", "PolicyResponse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest(Map):
    """What an agent folded from the administrative streams of a realm (D-51)."""

    KIND: ClassVar[str] = "policy request"

    revocations: Annotated[tuple[Revocation, ...], Length(0, MAX_POLICY_ITEMS)] | None = None
    authorities: Annotated[tuple[Authority, ...], Length(0, MAX_POLICY_ITEMS)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResponse(Map):
    """The records that were appended; none where the hub knew everything already, or it is over."""

    KIND: ClassVar[str] = "policy response"

    records: Annotated[tuple[ControlRecord, ...], Length(0, 2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecordsResponse(Map):
    """What is enforced, and the policy records of the control journal; `more` says that the list goes on."""

    KIND: ClassVar[str] = "policy records response"

    kex1_plus: bool
    auth1: bool
    records: Annotated[tuple[ControlRecord, ...], Length(0, MAX_LISTED)]
    more: bool
