"""A hub as a policy agent uses it: pinned, sent new records, asked for its records (D-51).

The hub proves journaled records by its signature. An answer that its key did not sign is an error, so no other hub can
pretend to enforce the policy.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from veen.client.errors import BadAnswer, ClientError, HubRefused
from veen.client.pinned_hub import PinnedHub
from veen.client.session import HubSession
from veen.client.transport.calls import Retry
from veen.core.errors import ApiCode
from veen.core.objects.control import ControlRecord, PolicyAuthority, PolicyRevocation
from veen.core.objects.policies import MAX_POLICY_ITEMS, POLICY_BODIES, Authority, Revocation
from veen.core.objects.tooling import PolicyRecordsResponse, PolicyRequest, PolicyResponse
from veen.core.policy_state import PolicyView
from veen.overlays.federation.policy import RealmPolicy

_OPERATION: Final = "tooling/policy"
_MAX_PAGES: Final = 100_000  # of control records; a longer list is a fault of the hub

OpenHub = Callable[[], AbstractAsyncContextManager["PolicyLink"]]


@asynccontextmanager
async def policy_link(hub: PinnedHub, retry: Retry | None = None) -> AsyncIterator["PolicyLink"]:
    """Connect and check the pin."""
    async with hub.session(retry) as session:
        yield PolicyLink(session)


class PolicyNotEnforced(ClientError, code="POLICY.NOT_ENFORCED"):
    """A hub does not enforce one of the two views, so it accepts no records of it."""


@dataclass(frozen=True, slots=True)
class PushedPolicy:
    """Number of records that a hub journaled because of a push; zeros if it had them all."""

    revocations: int = 0
    authorities: int = 0

    def __add__(self, other: "PushedPolicy") -> "PushedPolicy":
        return PushedPolicy(self.revocations + other.revocations, self.authorities + other.authorities)


@dataclass(frozen=True, slots=True)
class ReportedPolicy:
    """The policy that a hub enforces, by records that it signed."""

    kex1_plus: bool
    auth1: bool
    view: PolicyView
    records: int

    def missing(self, policy: RealmPolicy, at: int) -> RealmPolicy:
        """Return the part of a policy that would be new to this hub at `at`."""
        return RealmPolicy(
            tuple(item for item in policy.authorities if self.view.is_news(item, at)),
            tuple(item for item in policy.revocations if self.view.is_news(item, at)),
            policy.unresolved,
        )


class PolicyLink:
    """An open connection to one pinned hub."""

    def __init__(self, session: HubSession) -> None:
        self._session = session

    @property
    def hub_id(self) -> bytes:
        return self._session.hub_id

    async def push(self, policy: RealmPolicy) -> PushedPolicy:
        """Send the policy, in records of at most MAX_POLICY_ITEMS; the hub does not journal again what it has.

        Revocations come first. Raise PolicyNotEnforced if the hub ignores one of the two views; the other one is sent.
        """
        pushed, refused = PushedPolicy(), []
        for batch in _batches(policy.revocations):
            try:
                pushed += await self._push(PolicyRequest(revocations=tuple(batch)))
            except PolicyNotEnforced as exc:
                refused.append(exc)
                break
        for authorities in _batches(policy.authorities):
            try:
                pushed += await self._push(PolicyRequest(authorities=tuple(authorities)))
            except PolicyNotEnforced as exc:
                refused.append(exc)
                break
        if refused:
            raise refused[0]
        return pushed

    async def _push(self, request: PolicyRequest) -> PushedPolicy:
        try:
            answer = await self._session.calls.ask(_OPERATION, request, PolicyResponse)
        except HubRefused as exc:
            if exc.code == ApiCode.CONFLICT.code:
                raise PolicyNotEnforced(str(exc)) from exc
            raise
        pushed = PushedPolicy()
        asked_revocations = set(request.revocations or ())
        asked_authorities = set(request.authorities or ())
        for record in answer.records:
            self._session.pin.check_control(record)
            body = record.body
            if isinstance(body, PolicyRevocation) and asked_revocations.issuperset(body.revocations):
                pushed += PushedPolicy(revocations=len(body.revocations))
            elif isinstance(body, PolicyAuthority) and asked_authorities.issuperset(body.authorities):
                pushed += PushedPolicy(authorities=len(body.authorities))
            else:
                raise BadAnswer(f"{_OPERATION}: a record of something else than what was handed over")
        return pushed

    async def report(self) -> ReportedPolicy:
        """Return all policy records of the hub, each verified."""
        view, count = PolicyView(), 0
        kex1_plus = auth1 = False
        async for page in self._pages():
            for record in page.records:
                self._session.pin.check_control(record)
                if not isinstance(record.body, POLICY_BODIES):
                    raise BadAnswer(f"{_OPERATION}: a record that is no policy")
                view.add(record.body, record.hub_ts)
                count += 1
            kex1_plus, auth1 = page.kex1_plus, page.auth1
        return ReportedPolicy(kex1_plus, auth1, view, count)

    async def _pages(self) -> AsyncIterator[PolicyRecordsResponse]:
        after = 0
        for _ in range(_MAX_PAGES):
            page = await self._session.calls.ask(f"{_OPERATION}?after={after}", None, PolicyRecordsResponse)
            if page.records and _seq(page.records[0]) <= after:
                raise BadAnswer(f"{_OPERATION}: records that do not ascend")
            yield page
            if not page.more:
                return
            if not page.records:
                raise BadAnswer(f"{_OPERATION}: the list goes on, and no record is listed")
            after = _seq(page.records[-1])
        raise BadAnswer(f"{_OPERATION}: the list does not end")


def _seq(record: ControlRecord) -> int:
    return record.seq


def _batches(items: Sequence[Revocation] | Sequence[Authority]) -> Iterable[Sequence]:  # type: ignore[type-arg]  # of either
    for start in range(0, len(items), MAX_POLICY_ITEMS):
        yield items[start : start + MAX_POLICY_ITEMS]
