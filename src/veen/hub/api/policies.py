"""The policy view: taken from an agent, and listed for administrators (D-51, D-101).

Both operations require an administrator: a caller that may revoke keys decides who may write. The hub refuses
records that it would not enforce, so that nobody believes a key to be revoked that is not.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from veen.core.errors import ApiCode
from veen.core.objects.control import ControlRecord, PolicyAuthority, PolicyBounds, PolicyRevocation
from veen.core.objects.policies import Authority, Revocation, SizeBound
from veen.core.objects.tooling import MAX_LISTED, PolicyRecordsResponse, PolicyRequest, PolicyResponse
from veen.core.wire import Wire
from veen.hub.api.access import Role
from veen.hub.api.calls import Call, bad_request, uint_field
from veen.hub.api.operations import Api, Handler
from veen.hub.api.reply import ApiError, Reply

_MAX_ITEMS: Final = 16_384  # of CBOR: the greatest number of revocations and authorities
_PAGE_BYTES: Final = 256 * 1024


class Policies:
    """The operation `policy`, by POST and by GET."""

    def __init__(self, api: Api) -> None:
        self._api, self._context, self._services = api, api.context, api.services

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {"policy": (Role.ADMIN, self._take), "policy_list": (Role.ADMIN, self._list)}

    async def _take(self, call: Call) -> Reply:
        """Journal new items; repeating a view changes nothing."""
        request = self._context.read(call, PolicyRequest, _MAX_ITEMS)
        self._check(request)
        records = []
        if request.revocations:
            record = await self._context.journal(self._make_revocation(request.revocations))
            records.append(record)
            if record is not None and isinstance(record.body, PolicyRevocation):
                for revocation in record.body.revocations:  # one that is dated ahead has no lag
                    self._services.observer.on_revoked(max(0, record.hub_ts - revocation.ts))
        if request.authorities:
            records.append(await self._context.journal(self._make_authority(request.authorities)))
        if request.bounds:
            records.append(await self._context.journal(self._make_bounds(request.bounds)))
        journaled = tuple(record for record in records if record is not None)
        return self._api.replies.ok(PolicyResponse(records=journaled), call.answer)

    def _check(self, request: PolicyRequest) -> None:
        policy = self._services.policy
        if request.revocations and policy.kex1 is None:
            raise _not_enforced("revocations", "admission.kex1_plus")
        if request.authorities and policy.auth1 is None:
            raise _not_enforced("authorities", "admission.auth1")
        for authority in request.authorities or ():
            if policy.auth1 is not None and authority.realm_id != policy.auth1.realm_id:
                expected = policy.auth1.realm_id.hex()
                raise bad_request("the authority is of another realm", "realm_id", expected=expected)

    def _make_revocation(self, given: Iterable[Revocation]) -> Callable[[int], Wire | None]:
        def make(hub_ts: int) -> Wire | None:
            new = self._new_items(given, hub_ts)
            return PolicyRevocation(revocations=new) if new else None

        return make

    def _make_authority(self, given: Iterable[Authority]) -> Callable[[int], Wire | None]:
        def make(hub_ts: int) -> Wire | None:
            new = self._new_items(given, hub_ts)
            return PolicyAuthority(authorities=new) if new else None

        return make

    def _make_bounds(self, given: Iterable[SizeBound]) -> Callable[[int], Wire | None]:
        """Return the maker of a bounds record. Of two bounds of one target the last counts. Every hub enforces
        bounds."""
        last = {(bound.kind, bound.target): bound for bound in given}

        def make(hub_ts: int) -> Wire | None:
            new = self._new_items(last.values(), hub_ts)
            return PolicyBounds(bounds=new) if new else None

        return make

    def _new_items(self, given: Iterable[Any], hub_ts: int) -> tuple[Any, ...]:
        view = self._context.store.state.policies
        return tuple(item for item in dict.fromkeys(given) if view.is_news(item, hub_ts))

    async def _list(self, call: Call) -> Reply:
        """Answer GET after: the records after a seq of the control journal, one page at a time."""
        after, size, more = uint_field(call.query, "after", 0), 0, False
        records: list[ControlRecord] = []
        for record in self._context.control.policies(after, MAX_LISTED + 1):
            size += len(record.to_bytes())
            if records and (size > _PAGE_BYTES or len(records) == MAX_LISTED):
                more = True
                break
            records.append(record)
        policy = self._services.policy
        answer = PolicyRecordsResponse(
            kex1_plus=policy.kex1 is not None, auth1=policy.auth1 is not None, records=tuple(records), more=more
        )
        return self._api.replies.ok(answer, call.answer)


def _not_enforced(field: str, setting: str) -> ApiError:
    message = f"this hub does not enforce {field}: {setting} is off"
    return ApiError(ApiCode.CONFLICT, message, detail={"field": field, "setting": setting})
