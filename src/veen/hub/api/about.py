"""Operations that describe the hub and read no entries (OBS0.3, spec §12, D-111)."""

from typing import Final

from veen.core.objects.tooling import (
    HealthResponse,
    IdentityResponse,
    ReadyResponse,
    StatusResponse,
    VersionRequest,
    VersionResponse,
)
from veen.core.wire import Wire
from veen.hub.api.access import Role
from veen.hub.api.calls import Call, LabelOrder
from veen.hub.api.operations import Api, Handler
from veen.hub.api.reply import JSON, Reply

API_VERSION: Final = "v1"
METRICS_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class About:
    """Health, readiness, version, metrics, status and identity."""

    def __init__(self, api: Api, order: LabelOrder) -> None:
        self._api, self._context, self._services, self._order = api, api.context, api.services, order
        self._profile_id = self._services.policy.profiles[0].profile_id()

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {
            "healthz": (Role.ANY, self._healthz),
            "readyz": (Role.ANY, self._readyz),
            "version": (Role.ANY, self._version),
            "metrics": (Role.METRICS, self._metrics),
            "openapi": (Role.ANY, self._openapi),
            "status": (Role.STATUS, self._status),
            "identity": (Role.ANY, self._identity),
        }

    def _ok(self, answer: Wire, call: Call, status: int = 200) -> Reply:
        return self._api.replies.ok(answer, call.answer, status=status)

    async def _healthz(self, call: Call) -> Reply:
        """Answer from memory: a slow disk must not make an orchestrator kill the hub."""
        if not self._shows_details(call):
            return self._ok(HealthResponse(ok=True), call)
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
        shown_reason = reason if self._shows_details(call) else None
        return self._ok(ReadyResponse(ready=reason is None, reason=shown_reason), call, 200 if reason is None else 503)

    def _shows_details(self, call: Call) -> bool:
        """Return True if the caller may see details. A probe without credentials learns only if the hub is alive and
        admits."""
        return self._services.access.check(Role.METRICS, call.principal) is None

    async def _version(self, call: Call) -> Reply:
        return self._ok(VersionResponse(server_version=self._services.server_version, api_version=API_VERSION), call)

    async def _metrics(self, call: Call) -> Reply:
        text = self._services.metrics_text()
        return Reply(200, text.encode() if isinstance(text, str) else text, METRICS_TEXT)

    async def _openapi(self, call: Call) -> Reply:
        from veen.hub.api.openapi import document_bytes  # imported on the first request for it

        return Reply(200, document_bytes(), JSON)

    async def _status(self, call: Call) -> Reply:
        self._check_empty(call)
        services = self._services
        policy, hub_ts = services.policy, services.sequencer.now()
        status = StatusResponse(
            hub_id=services.identity.hub_id,
            hub_pk=services.identity.signed_identity[0].signing_key_at(hub_ts).hub_pk,
            hub_ts=hub_ts,
            epoch=services.resolver.current_epoch(hub_ts),
            profiles=policy.profiles,
            stream_scope=policy.stream_scope,
            capability_gating=policy.capability_gating,
            pow_difficulty=policy.pow_difficulty,
            limits={**self._context.limits.to_json(), **policy.key_bounds()},
            server_version=services.server_version,
        )
        return self._ok(status, call)

    async def _identity(self, call: Call) -> Reply:
        self._check_empty(call)
        identity, signature = self._services.identity.signed_identity
        return self._ok(IdentityResponse.of(identity, signature, self._services.server_version), call)

    def _check_empty(self, call: Call) -> None:
        """Check that there is no body, or one with nothing but the version."""
        if call.body:
            self._context.read(call, VersionRequest)
