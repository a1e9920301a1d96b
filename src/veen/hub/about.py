"""What a hub says about itself, and attachments: operations that touch no log (OBS0.3, spec §12, D-15, D-111)."""

import asyncio
from typing import Final

from veen.core.errors import ApiCode, FormatError, Refusal, SignatureError
from veen.core.hashing import H
from veen.core.tooling import (
    AttachmentGrant,
    HealthResponse,
    HubKey,
    IdentityResponse,
    OkResponse,
    ReadyResponse,
    StatusResponse,
    VersionRequest,
    VersionResponse,
)
from veen.core.wire import Wire
from veen.hub.access import Role
from veen.hub.admission import Refuse, check_revocation
from veen.hub.api import Api, Handler
from veen.hub.calls import AttachmentStore, Call, not_found
from veen.hub.labelorder import LabelOrder
from veen.hub.query import hex_field
from veen.hub.reply import JSON, ApiError, Reply

__all__ = ["ATTACHMENT_TAG_BYTES", "GRANT_HEADER", "About"]

API_VERSION: Final = "v1"
METRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OCTETS: Final = "application/octet-stream"
GRANT_HEADER: Final = "VEEN-Cap"  # hex of CBOR AttachmentGrant
ATTACHMENT_TAG_BYTES: Final = 16  # a ciphertext is longer than its plaintext by the tag (D-16)


class About:
    """Health, readiness, version, metrics, status, identity, attachments."""

    def __init__(self, api: Api, order: LabelOrder) -> None:
        self._api, self._context, self._services, self._order = api, api.context, api.services, order
        self._profile_id = self._services.policy.profiles[0].profile_id()

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {
            "healthz": (Role.ANY, self._healthz),
            "readyz": (Role.ANY, self._readyz),
            "version": (Role.ANY, self._version),
            "metrics": (Role.ANY, self._metrics),
            "openapi": (Role.ANY, self._openapi),
            "status": (Role.ANY, self._status),
            "identity": (Role.ANY, self._identity),
            "attachment_get": (Role.READ, self._attachment_get),
            "attachment_put": (Role.ANY, self._attachment_put),
        }

    def _ok(self, answer: Wire, call: Call, status: int = 200) -> Reply:
        return self._api.replies.ok(answer, call.answer, status=status)

    async def _healthz(self, call: Call) -> Reply:
        """From memory: a slow disk must not make an orchestrator kill the hub."""
        last = self._order.last()
        health = HealthResponse(
            ok=True,
            profile_id=self._profile_id,
            peaks_count=len(last.peaks()) if last else 0,
            last_stream_seq=last.size if last else 0,
            last_mmr_root=last.root() if last and last.size else None,
        )
        return self._ok(health, call)

    async def _readyz(self, call: Call) -> Reply:
        reason = self._services.not_admitting or self._services.not_ready()
        return self._ok(ReadyResponse(ready=reason is None, reason=reason), call, 200 if reason is None else 503)

    async def _version(self, call: Call) -> Reply:
        return self._ok(VersionResponse(server_version=self._services.server_version, api_version=API_VERSION), call)

    async def _metrics(self, call: Call) -> Reply:
        text = self._services.metrics_text()
        return Reply(200, text.encode() if isinstance(text, str) else text, METRICS_TEXT)

    async def _openapi(self, call: Call) -> Reply:
        from veen.hub.openapi import document_bytes  # only for those who ask

        return Reply(200, document_bytes(), JSON)

    async def _status(self, call: Call) -> Reply:
        self._check_empty(call)
        services = self._services
        policy, hub_ts = services.policy, services.pipeline.now()
        status = StatusResponse(
            hub_id=services.identity.hub_id,
            hub_pk=services.identity.signing_key_at(hub_ts).public,
            hub_ts=hub_ts,
            epoch=services.resolver.current_epoch(hub_ts),
            profiles=policy.profiles,
            stream_scope=policy.stream_scope,
            capability_gating=policy.capability_gating,
            pow_difficulty=policy.pow_difficulty,
            limits=dict(self._context.store.state.limits.to_json()),
            server_version=services.server_version,
        )
        return self._ok(status, call)

    async def _identity(self, call: Call) -> Reply:
        self._check_empty(call)
        keys = tuple(
            HubKey(key_id=key.key_id, hub_pk=key.hub_pk, valid_from=key.valid_from, valid_until=key.valid_until)
            for key in self._services.identity.keys
        )
        answer = IdentityResponse(
            hub_id=self._services.identity.hub_id, hub_keys=keys, server_version=self._services.server_version
        )
        return self._ok(answer, call)

    def _check_empty(self, call: Call) -> None:
        """No body, or one that says nothing but the version."""
        if call.body:
            self._context.read(call, VersionRequest)

    # --- attachments -------------------------------------------------------------------------------------

    def _attachments(self) -> AttachmentStore:
        if self._services.attachments is None:
            raise not_found("this hub keeps no attachments")
        return self._services.attachments

    async def _attachment_get(self, call: Call) -> Reply:
        coid, store = hex_field(call.query, "coid", 32), self._attachments()
        data = await asyncio.get_running_loop().run_in_executor(None, store.get, coid)
        if data is None:
            raise not_found("no attachment has this coid")
        return Reply(200, data, OCTETS)

    async def _attachment_put(self, call: Call) -> Reply:
        coid, store = hex_field(call.query, "coid", 32), self._attachments()
        if (refuse := self._check_grant(call, coid)) is not None:
            return self._api.replies.refused(refuse, call.answer)
        maximum = self._context.store.state.limits.max_attachment_bytes + ATTACHMENT_TAG_BYTES
        if len(call.body) > maximum:
            detail = {"actual": len(call.body), "max_allowed": maximum}
            raise ApiError(ApiCode.LIMIT, "the attachment is too large", detail=detail)
        if H(call.body) != coid:
            raise ApiError(ApiCode.BAD_REQUEST, "the hash of the body is not the coid", detail={"field": "coid"})
        new = await asyncio.get_running_loop().run_in_executor(None, store.put, coid, call.body)
        return self._ok(OkResponse(ok=True), call, 201 if new else 200)

    def _check_grant(self, call: Call, coid: bytes) -> Refuse | None:
        """Whoever may write may attach: a live capability and its subject's signature over the coid (GEN-12)."""
        if call.cap_header is None and not self._services.policy.capability_gating:
            return None
        try:
            grant = AttachmentGrant.from_bytes(bytes.fromhex(call.cap_header or ""))
        except (ValueError, FormatError):
            return Refuse(Refusal.CAP_MISSING, {"field": GRANT_HEADER})
        cap = self._context.store.state.caps.get(grant.auth_ref)
        if cap is None:
            return Refuse(Refusal.CAP_MISSING, {"field": GRANT_HEADER})
        if not self._services.policy.trusts(cap.token):
            return Refuse(Refusal.CAP_INVALID, {"field": "issuer_pk"})
        try:
            grant.verify(cap.token.subject_pk, coid)
        except SignatureError:
            return Refuse(Refusal.AUTH_REF, {"field": "sig"})
        hub_ts = self._services.pipeline.now()
        if self._services.policy.kex1 is not None:
            state = self._context.store.state
            if refused := check_revocation(state, cap, cap.token.subject_pk, hub_ts):
                return refused
        if not cap.token.is_live(issued_at=cap.issued_at, hub_ts=hub_ts):
            return Refuse(Refusal.CAP_TTL)
        return None
