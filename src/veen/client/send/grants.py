"""Capabilities at a hub: authorise a token, and choose one for each stream (spec §6, D-46 … D-49, D-179).

A token names one client key, and client keys rotate. So an identity should get a token for its id_sign key, the
principal: from it the client derives a token for each of its client keys, at hubs that accept such tokens.
"""

import asyncio
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from veen.client.errors import HubRefused, ProofInvalid, TokenExpired, TokenMissing
from veen.client.identity.identity import Identity
from veen.client.send.captokens import HeldToken, TokenStore
from veen.client.session import HubSession
from veen.client.transport.calls import read, refusal_of
from veen.core.errors import FormatError, Refusal, VerifyError
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import CapAuthorize, CapDerive
from veen.core.objects.tooling import AuthorizeResponse, CapStatusRequest, CapStatusResponse, DeriveRequest

DERIVED_TTL_SEC: Final = 86_400  # of a token for one client key: no key signs for longer (KEX1+ §4.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """A token in the journal of a hub, and the time until which it is valid."""

    token: CapToken
    auth_ref: bytes
    issued_at: int
    expires_at: int


class Grants:
    """The capabilities of an identity at one hub, for the client key in use. Owned by the event loop's thread."""

    def __init__(
        self, session: HubSession, identity: Identity, tokens: TokenStore | None = None, *, issues: bool = False
    ) -> None:
        """Set up the lookup. `tokens` are those that the identity holds; without them only tokens from callers are
        used.

        With `issues` the identity issues a token itself if it has none. Otherwise it does so only for a client key
        that follows one with such a token.
        """
        self._session, self._identity, self._tokens = session, identity, tokens
        self._by_stream: dict[bytes, TokenGrant] = {}  # of the client key in use
        self._by_ref: dict[bytes, TokenGrant] = {}
        self._issues = issues
        self._self_issued: set[bytes] = set()  # streams with a token that the identity issued for its client key
        self._refused: set[bytes] = set()  # streams for which the hub refuses tokens that the identity issues
        self._finding = asyncio.Lock()  # one search at a time: two would derive two tokens

    def use(self, identity: Identity) -> None:
        """Continue with another client key of the identity."""
        self._identity = identity
        self._by_stream.clear()

    async def authorize(self, token: CapToken) -> TokenGrant:
        """Send a token to the hub. The signed record of its journal fixes the beginning of the token (D-47)."""
        token.verify()
        return await self._show("tooling/authorize", token.to_bytes(), token)

    async def derive(self, token: CapToken, parent_ref: bytes) -> TokenGrant:
        """Send the hub a token that the principal of the capability `parent_ref` issued for a client key (D-179)."""
        request = DeriveRequest(token=token, parent_ref=parent_ref)
        return await self._show("tooling/derive", request.to_bytes(), token)

    async def _show(self, operation: str, body: bytes, token: CapToken) -> TokenGrant:
        answer = await self._session.calls.send(operation, body)
        response = read(operation, answer.body, AuthorizeResponse)
        self._session.pin.check_control(response.record)
        record, last = response.record, response.record.hub_ts + token.allow.ttl
        try:
            is_ours = isinstance(record.body, CapAuthorize) and record.body.check() == token
            if not (is_ours and compare_digest(response.auth_ref, token.auth_ref())):
                raise VerifyError("the record is about another token")
            # A derived token ends with its parent, so perhaps earlier than by its own ttl.
            if response.expires_at > last or (response.expires_at < last and not isinstance(record.body, CapDerive)):
                raise VerifyError("the time of expiry does not follow from the record")
        except (FormatError, VerifyError) as exc:
            name = operation.removeprefix("tooling/")
            raise ProofInvalid(f"{name}: {exc}", found=response.auth_ref, expected=token.auth_ref()) from exc
        return self._note(token, record.hub_ts, response.expires_at)

    async def status(self, auth_ref: bytes) -> TokenGrant:
        """Return the state of a capability at the hub."""
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
        if token.subject_pk == self._identity.client_id:
            for stream_id in token.allow.stream_ids:
                self._by_stream[stream_id] = grant
                if token.issuer_pk == self._identity.id_sign_pk:
                    self._self_issued.add(stream_id)
        return grant

    async def auth_ref(self, stream_id: bytes, capability: CapToken | None = None) -> bytes | None:
        """Return the auth_ref for a message to this stream: that of the given token, or of the authorised one, or
        None."""
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

    async def current(self, stream_id: bytes, auth_ref: bytes | None) -> bytes | None:
        """Return the auth_ref for a message by the client key in use where `auth_ref` was requested.

        It is `auth_ref` itself, unless that is the token of a client key that was replaced since.
        """
        grant = None if auth_ref is None else self._by_ref.get(auth_ref)
        retired = {key.client_id for key in self._identity.client_keys[:-1]}
        if grant is None or grant.token.subject_pk not in retired:
            return auth_ref
        return (await self.token(stream_id)).auth_ref()

    # --- tokens that the identity holds ----------------------------------------------------------------

    async def token(self, stream_id: bytes) -> CapToken:
        """Return a token for the client key in use, known to the hub: held, derived, or issued by the identity.

        Raise TokenMissing or TokenExpired if there is none.
        """
        async with self._finding:
            cached = self._by_stream.get(stream_id)
            if cached is not None and self._session.hub_now() <= cached.expires_at:
                return cached.token
            grant = (
                await self._find_held(stream_id) or await self._derive_for(stream_id) or await self._issue(stream_id)
            )
            if grant is None:
                client_id, hub_id = self._identity.client_id, self._session.hub_id
                if self._tokens is not None:  # raises TokenExpired with the token that has ended, if there is one
                    await asyncio.to_thread(self._tokens.usable, hub_id, client_id, stream_id, self._session.hub_now())
                raise TokenMissing(
                    f"no token lets the client key {client_id.hex()[:16]}… write to stream {stream_id.hex()[:16]}…"
                )
            return grant.token

    async def _find_held(self, stream_id: bytes) -> TokenGrant | None:
        if self._tokens is None:
            return None
        now, hub_id = self._session.hub_now(), self._session.hub_id
        try:
            entry = await asyncio.to_thread(self._tokens.usable, hub_id, self._identity.client_id, stream_id, now)
        except (TokenMissing, TokenExpired):
            return None
        return await self._show_held(entry)

    async def _show_held(self, entry: HeldToken) -> TokenGrant:
        """Send the hub a held token, unless an earlier run did."""
        issued_at = entry.issued_at(self._session.hub_id)
        if issued_at is not None:
            return self._note(entry.token, issued_at, issued_at + entry.token.allow.ttl)
        return await self._remember(await self.authorize(entry.token))

    async def _remember(self, grant: TokenGrant) -> TokenGrant:
        """Note in the store that the hub knows a token."""
        if self._tokens is not None:
            await asyncio.to_thread(self._tokens.put, grant.token)
            await asyncio.to_thread(self._tokens.add_grant, grant.auth_ref, self._session.hub_id, grant.issued_at)
        return grant

    async def _derive_for(self, stream_id: bytes) -> TokenGrant | None:
        """Derive a token from that of the principal, for all its streams; None without one, or at an older hub."""
        parent = await self._parent(stream_id)
        if parent is None or self._tokens is None:
            return None
        principal, client_id = self._identity.id_sign, self._identity.client_id
        parent_grant, now = await self._show_held(parent), self._session.hub_now()
        ttl = min(DERIVED_TTL_SEC, max(parent_grant.expires_at - now, 0))  # it ends with its parent
        token = CapToken.issue(principal, client_id, parent.token.allow.stream_ids, ttl=ttl)
        await asyncio.to_thread(self._tokens.drop_ended, self._session.hub_id, principal.public, now)
        grant = await self.derive(token, parent.auth_ref)
        if grant.expires_at < now:  # equal bytes are an equal token: the hub had this one before
            grant = await self.derive(token.renew(principal), parent.auth_ref)
        return await self._remember(grant)

    async def _parent(self, stream_id: bytes) -> HeldToken | None:
        if self._tokens is None or not self._session.takes_derived:
            return None
        now, hub_id = self._session.hub_now(), self._session.hub_id
        return await asyncio.to_thread(self._tokens.parent, hub_id, self._identity.id_sign_pk, stream_id, now)

    async def _issue(self, stream_id: bytes) -> TokenGrant | None:
        """Issue a token, which the hub accepts if it trusts this identity as an issuer; None if it does not."""
        may_issue = self._issues or stream_id in self._self_issued
        if self._tokens is None or stream_id in self._refused or not may_issue:
            return None
        token = CapToken.issue(self._identity.id_sign, self._identity.client_id, [stream_id], ttl=DERIVED_TTL_SEC)
        try:
            return await self._remember(await self.authorize(token))
        except HubRefused as exc:
            if refusal_of(exc) is not Refusal.CAP_INVALID:
                raise
            self._refused.add(stream_id)
            return None

    async def may_follow(self, stream_id: bytes) -> bool:
        """Return True if the next client key could write to a stream: a token for it can be made."""
        if not self._session.status.capability_gating or await self._parent(stream_id) is not None:
            return True
        return stream_id in self._self_issued
