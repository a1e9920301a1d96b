"""The capability tokens that a role writes with at a hub, chosen once per stream and sent to the hub at their first
use."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from veen.client.client import Client
from veen.client.errors import TokenExpired, TokenMissing
from veen.client.send.captokens import HeldToken, TokenStore
from veen.client.send.grants import TokenGrant
from veen.client.send.writing import Sent
from veen.core.objects.captoken import CapToken
from veen.overlays.framework.schema import Draft

# Between two searches for a renewed or new token: a search reads and verifies all of them.
_LOOK_AGAIN_SEC: Final = 60.0


class TokenAuthority:
    """One client and the tokens of its identity. Used by one task at a time."""

    def __init__(self, client: Client, tokens: TokenStore, *, clock: Callable[[], float] = time.time) -> None:
        self.client = client
        self._tokens, self._clock = tokens, clock
        self._gated: bool | None = None  # None: not requested from the hub yet
        self._chosen: dict[bytes, tuple[float, HeldToken]] = {}  # by stream: time of the choice, and the token

    async def is_gated(self) -> bool:
        """Return True if the hub refuses messages without a capability."""
        if self._gated is None:
            self._gated = (await self.client.status()).capability_gating
        return self._gated

    async def capability(self, stream_id: bytes) -> CapToken | None:
        """Return the token for a stream, None if the hub requires none. Raise TokenMissing or TokenExpired if there
        is none."""
        if not await self.is_gated():
            return None
        client = self.client
        try:
            token = self._usable(stream_id)
        except (TokenMissing, TokenExpired):
            return await client.token(stream_id)  # derived from the token of the identity
        issued_at = token.issued_at(client.hub_id)
        if issued_at is None:
            grant = await client.authorize(token.token)
            self._tokens.add_grant(grant.auth_ref, client.hub_id, grant.issued_at)
        else:
            expires_at = issued_at + token.token.allow.ttl
            grant = TokenGrant(token=token.token, auth_ref=token.auth_ref, issued_at=issued_at, expires_at=expires_at)
            client.grants.remember(grant)
        return token.token

    def _usable(self, stream_id: bytes) -> HeldToken:
        now, client = self._clock(), self.client
        since, token = self._chosen.get(stream_id, (0.0, None))
        is_recent = 0 <= now - since < _LOOK_AGAIN_SEC  # false if the clock went back
        if token is None or not is_recent or not token.is_live(client.hub_id, int(now)):
            token = self._tokens.usable(client.hub_id, client.client_id, stream_id, int(now))
            if token.issued_at(client.hub_id) is not None:  # before that its end is not known
                self._chosen[stream_id] = (now, token)
        return token

    async def may_follow(self, streams: Iterable[bytes]) -> bool:
        """Return True if a token for the next client key can be derived for all of these streams."""
        return all([await self.client.grants.may_follow(stream_id) for stream_id in streams])

    def may_write(self, client_id: bytes, streams: Iterable[bytes]) -> bool:
        """Return True if there are live tokens of another client key for all of these streams."""
        now = int(self._clock())
        live = [token for token in self._tokens.all() if token.is_live(self.client.hub_id, now)]
        return all(any(token.allows(client_id, stream_id) for token in live) for stream_id in streams)

    async def send(self, stream_id: bytes, draft: Draft) -> Sent:
        """Send one record and return with its verified receipt."""
        return await self.client.send(
            stream_id,
            draft.body,
            schema=draft.schema,
            parent=draft.parent_id,
            expires_at=draft.expires_at,
            capability=await self.capability(stream_id),
        )
