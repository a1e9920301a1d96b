"""The policy views of a hub: revocations and authority."""

from dataclasses import dataclass
from typing import Annotated

from veen.core.objects.control import ControlRecord
from veen.core.objects.policies import MAX_POLICY_ITEMS, Authority, Revocation, SizeBound
from veen.core.objects.tooling.base import MAX_LISTED
from veen.core.wire import Length, Map


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest(Map, kind="policy request"):
    """Policy that an agent folded from the administrative streams of a realm (D-51)."""

    revocations: Annotated[tuple[Revocation, ...], Length(0, MAX_POLICY_ITEMS)] | None = None
    authorities: Annotated[tuple[Authority, ...], Length(0, MAX_POLICY_ITEMS)] | None = None
    bounds: Annotated[tuple[SizeBound, ...], Length(0, MAX_POLICY_ITEMS)] | None = None  # not folded: of the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResponse(Map, kind="policy response"):
    """The records that were appended; none for items that the hub had already, or that have expired."""

    records: Annotated[tuple[ControlRecord, ...], Length(0, 3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecordsResponse(Map, kind="policy records response"):
    """The enforced policies, and the policy records of the journal; `more` is true if the list is not complete."""

    kex1_plus: bool
    auth1: bool
    records: Annotated[tuple[ControlRecord, ...], Length(0, MAX_LISTED)]
    more: bool
