"""Capabilities at a hub: authorise a token, know which one to use for which stream (spec §6, D-46 … D-49)."""

from dataclasses import dataclass
from hmac import compare_digest

from veen.client.errors import ProofInvalid, TokenExpired, TokenMissing
from veen.client.session import HubSession
from veen.client.transport.calls import read
from veen.core.errors import FormatError, VerifyError
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import CapAuthorize
from veen.core.objects.tooling import AuthorizeResponse, CapStatusRequest, CapStatusResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """A token that the hub has taken into its journal, and until when it counts."""

    token: CapToken
    auth_ref: bytes
    issued_at: int
    expires_at: int


class Grants:
    """The capabilities of one client key at one hub."""

    def __init__(self, session: HubSession, client_id: bytes) -> None:
        self._session, self._client_id = session, client_id
        self._by_stream: dict[bytes, TokenGrant] = {}
        self._by_ref: dict[bytes, TokenGrant] = {}

    async def authorize(self, token: CapToken) -> TokenGrant:
        """Hand a token to the hub. The signed record of its journal fixes when the token began to count (D-47)."""
        token.verify()
        answer = await self._session.calls.send("tooling/authorize", token.to_bytes())
        response = read("tooling/authorize", answer.body, AuthorizeResponse)
        self._session.pin.check_control(response.record)
        body = response.record.body
        try:
            is_ours = isinstance(body, CapAuthorize) and body.check() == token
            if not (is_ours and compare_digest(response.auth_ref, token.auth_ref())):
                raise VerifyError("the record is about another token")
            if response.expires_at != response.record.hub_ts + token.allow.ttl:
                raise VerifyError("the time of expiry does not follow from the record")
        except (FormatError, VerifyError) as exc:
            raise ProofInvalid(f"authorize: {exc}", found=response.auth_ref, expected=token.auth_ref()) from exc
        return self._note(token, response.record.hub_ts, response.expires_at)

    async def status(self, auth_ref: bytes) -> TokenGrant:
        """What the hub knows about a capability."""
        response = await self._session.calls.ask(
            "tooling/cap_status", CapStatusRequest(auth_ref=auth_ref), CapStatusResponse
        )
        try:
            token = CapToken.from_bytes(response.token)
            token.verify()
            if not compare_digest(token.auth_ref(), auth_ref):
                raise VerifyError("the hub answers with another token")
        except (FormatError, VerifyError) as exc:
            raise ProofInvalid(f"cap_status: {exc}", expected=auth_ref) from exc
        return TokenGrant(token=token, auth_ref=auth_ref, issued_at=response.issued_at, expires_at=response.expires_at)

    def remember(self, grant: TokenGrant) -> None:
        """Use a grant from an earlier run."""
        self._note(grant.token, grant.issued_at, grant.expires_at)

    def _note(self, token: CapToken, issued_at: int, expires_at: int) -> TokenGrant:
        grant = TokenGrant(token=token, auth_ref=token.auth_ref(), issued_at=issued_at, expires_at=expires_at)
        self._by_ref[grant.auth_ref] = grant
        if token.subject_pk == self._client_id:
            for stream_id in token.allow.stream_ids:
                self._by_stream[stream_id] = grant
        return grant

    async def auth_ref(self, stream_id: bytes, capability: CapToken | None = None) -> bytes | None:
        """What a message to this stream names: the given token, or the one that was authorised, or nothing."""
        if capability is not None:
            grant = self._by_ref.get(capability.auth_ref()) or await self.authorize(capability)
            if stream_id not in capability.allow.stream_ids:
                raise TokenMissing("the capability token is for other streams")
        elif (cached := self._by_stream.get(stream_id)) is not None:
            grant = cached
        else:
            return None
        if self._session.hub_now() > grant.expires_at:  # inclusive (D-48)
            raise TokenExpired(grant.auth_ref, grant.expires_at)
        return grant.auth_ref
