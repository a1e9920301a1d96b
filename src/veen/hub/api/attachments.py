"""Attachments by coid: a client that may write may attach, at the rate of its capability and within a quota (D-15,
GEN-12).

An upload costs one token for each `bytes_per_token` bytes begun, from a bucket with the rate and burst of the
capability. It is not the bucket of messages, which is a function of accepted messages alone (D-50) and must stay so.
An upload that costs more than the burst needs a full bucket and leaves a debt, so the rate holds in the long run for
any sizes. Uploads without a capability, where gating is off, share one bucket and one quota.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.core.errors import ApiCode, FormatError, Refusal, SignatureError
from veen.core.hashing import H
from veen.core.limits import Limits
from veen.core.objects.tooling import (
    AttachedEntry,
    AttachmentGrant,
    AttachmentsRequest,
    AttachmentsResponse,
    OkResponse,
    StoredAttachment,
)
from veen.hub.admission.decide import Refuse, check_issuer, check_live, check_revocation
from veen.hub.api.access import Role
from veen.hub.api.calls import AttachmentStore, Call, bad_request, hex_field, not_found, uint_field
from veen.hub.api.operations import Api, Handler
from veen.hub.api.reply import ApiError, Reply
from veen.hub.process.config import AttachmentPolicy
from veen.hub.sequencer.sequencer import NotPrimary
from veen.storage.attachments import EntryRef, QuotaError
from veen.storage.state import Cap

GRANT_HEADER: Final = "VEEN-Cap"  # hex of CBOR AttachmentGrant
OCTETS: Final = "application/octet-stream"
TAG_BYTES: Final = 16  # a ciphertext is longer than its plaintext by the tag (D-16)
_MAX_SEQ: Final = 2**63 - 1  # the greatest number that the index can hold
_LISTED: Final = 256  # attachments in one answer
_MAX_BUCKETS: Final = 4_096  # beyond this number, full buckets are dropped
_ENTRY: Final = ("label", "client_id", "client_seq")


@dataclass(slots=True)
class _Bucket:
    tokens: int  # below 0: a debt
    ts: int
    per_sec: int
    burst: int

    def available(self, hub_ts: int) -> int:
        return min(self.burst, self.tokens + self.per_sec * max(hub_ts - self.ts, 0))


class Buckets:
    """The rate of uploads by auth_ref, in whole seconds of hub_ts. Owned by the event loop's thread; only in memory."""

    def __init__(self) -> None:
        self._buckets: dict[bytes, _Bucket] = {}

    def take(self, name: bytes, rate: tuple[int, int], cost: int, hub_ts: int) -> Refuse | None:
        """Take `cost` tokens. A refusal has the seconds until there are enough."""
        per_sec, burst = rate
        bucket = self._buckets.get(name) or _Bucket(burst, hub_ts, per_sec, burst)
        bucket.per_sec, bucket.burst = rate
        available, needed = bucket.available(hub_ts), min(cost, burst)
        if not burst or available < needed:
            wait = -((available - needed) // per_sec) if per_sec and burst else None
            return Refuse(Refusal.CAP_RATE, {"field": "attachment", "expected": needed, "actual": available}, wait)
        bucket.tokens, bucket.ts = available - cost, hub_ts
        self._buckets[name] = bucket
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets = {
                key: entry for key, entry in self._buckets.items() if entry.available(hub_ts) < entry.burst
            }
        return None


class AttachmentOperations:
    """The operations that store and serve attachments; `operations` goes to `Api.add`."""

    def __init__(self, api: Api) -> None:
        self._api, self._context, self._services = api, api.context, api.services
        self._buckets = Buckets()

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {
            "attachment_get": (Role.READ, self._get),
            "attachment_put": (Role.ANY, self._upload),
            "attachments": (Role.READ, self._list),
        }

    def _store(self) -> AttachmentStore:
        if self._services.attachments is None:
            raise not_found("this hub keeps no attachments")
        return self._services.attachments

    async def _get(self, call: Call) -> Reply:
        coid, store = hex_field(call.query, "coid", 32), self._store()
        data = await asyncio.get_running_loop().run_in_executor(None, store.get, coid)
        if data is None:
            raise not_found("no attachment has this coid")
        return Reply(200, data, OCTETS)

    async def _list(self, call: Call) -> Reply:
        """Answer with attachments that came or changed, for a replica: the log does not list them."""
        request, store = self._context.read(call, AttachmentsRequest), self._store()
        if request.after > _MAX_SEQ:
            raise bad_request("no change has such a number", "after", max_allowed=_MAX_SEQ, actual=request.after)
        part = await asyncio.get_running_loop().run_in_executor(
            None, store.changes_after, request.instance, request.after, _LISTED
        )
        attachments = tuple(
            StoredAttachment(
                number=number,
                coid=record.coid,
                size=record.size,
                owner=record.owner,
                pinned=record.pinned,
                entries=tuple(AttachedEntry(**entry._asdict()) for entry in record.entries),
            )
            for number, record in part.records
        )
        answer = AttachmentsResponse(instance=part.instance, last=part.last, attachments=attachments)
        return self._api.replies.ok(answer, call.answer)

    async def _upload(self, call: Call) -> Reply:
        if (role := self._services.sequencer.not_primary) is not None:
            raise NotPrimary(role)
        coid, store = hex_field(call.query, "coid", 32), self._store()
        entry = _entry_of(call.query)
        cap = self._check_grant(call, coid)
        if isinstance(cap, Refuse):
            return self._refuse(cap, call)
        if cap is not None and entry is not None and entry.client_id != cap.token.subject_pk:
            return self._refuse(Refuse(Refusal.AUTH_REF, {"field": "client_id"}), call)
        limits, policy = self._context.limits, self._services.attachment_policy
        maximum = limits.max_attachment_bytes + TAG_BYTES
        if len(call.body) > maximum:
            detail = {"actual": len(call.body), "max_allowed": maximum}
            raise ApiError(ApiCode.LIMIT, "the attachment is too large", detail=detail)
        if refuse := self._charge(cap, limits, len(call.body), policy):
            return self._refuse(refuse, call)
        owner, quota = b"", policy.open_bytes
        if cap is not None:  # of all keys of a principal together: its quota does not grow with their number
            payer = self._context.store.state.payers(cap.auth_ref)[-1]
            owner, quota = payer.token.subject_pk, policy.client_bytes

        def store_checked() -> bool | None:
            if H(call.body) != coid:
                return None
            return store.put(coid, call.body, owner=owner, max_bytes=quota, entry=entry)

        try:
            new = await asyncio.get_running_loop().run_in_executor(None, store_checked)
        except QuotaError as exc:
            raise _over_quota(exc) from exc
        if new is None:
            raise ApiError(ApiCode.BAD_REQUEST, "the coid is not the hash of the body", detail={"field": "coid"})
        return self._api.replies.ok(OkResponse(ok=True), call.answer, status=201 if new else 200)

    def _refuse(self, refuse: Refuse, call: Call) -> Reply:
        self._services.observer.on_refused(refuse, len(call.body), address=call.principal.address)
        return self._api.replies.of_refusal(refuse, call.answer)

    def _charge(self, cap: Cap | None, limits: Limits, size: int, policy: AttachmentPolicy) -> Refuse | None:
        """Charge the upload to its sender, even if the bytes turn out to be wrong or present: they cost the hub the
        same."""
        if not policy.bytes_per_token:
            return None
        cost = max(1, -(-size // policy.bytes_per_token))
        payer = None if cap is None else self._context.store.state.payers(cap.auth_ref)[-1]
        rate = payer.token.allow.bucket(limits) if payer else (limits.max_cap_rate_per_sec, limits.max_cap_rate_burst)
        return self._buckets.take(payer.auth_ref if payer else b"", rate, cost, self._services.sequencer.now())

    def _check_grant(self, call: Call, coid: bytes) -> Cap | Refuse | None:
        """Return the live capability whose subject signed the coid, or a refusal; None where no grant is needed
        (GEN-12)."""
        if call.cap_header is None and not self._services.policy.capability_gating:
            return None
        try:
            grant = AttachmentGrant.from_bytes(bytes.fromhex(call.cap_header or ""))
        except (ValueError, FormatError):
            return Refuse(Refusal.CAP_MISSING, {"field": GRANT_HEADER})
        cap = self._context.store.state.caps.get(grant.auth_ref)
        if cap is None:
            return Refuse(Refusal.CAP_MISSING, {"field": GRANT_HEADER})
        if refused := check_issuer(self._context.store.state, self._services.policy, cap):
            return refused
        try:
            grant.verify(cap.token.subject_pk, coid)
        except SignatureError:
            return Refuse(Refusal.AUTH_REF, {"field": "sig"})
        hub_ts = self._services.sequencer.now()
        if self._services.policy.kex1 is not None:
            state = self._context.store.state
            if refused := check_revocation(state, cap, cap.token.subject_pk, hub_ts):
                return refused
        return check_live(self._context.store.state, cap, hub_ts) or cap


def _entry_of(query: Mapping[str, str]) -> EntryRef | None:
    """Return the entry of the attachment, which all three parameters name together; None if none is given."""
    present = [name for name in _ENTRY if name in query]
    if not present:
        return None
    client_seq = uint_field(query, "client_seq", 0)
    if not 1 <= client_seq <= _MAX_SEQ:
        raise bad_request("numbers of messages begin with 1", "client_seq")
    return EntryRef(hex_field(query, "label", 32), hex_field(query, "client_id", 32), client_seq)


def _over_quota(exc: QuotaError) -> ApiError:
    detail: dict[str, Any] = {
        "stage": "attachment",
        "detail_enum": "ATTACHMENT_QUOTA",
        "used": exc.used,
        "actual": exc.used + exc.size,
        "max_allowed": exc.maximum,
    }
    return ApiError(ApiCode.LIMIT, "the quota of attachments is used up", detail=detail)
