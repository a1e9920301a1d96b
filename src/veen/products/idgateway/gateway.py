"""The gateway: from a login at the provider to a link in the log and a session (001 ID §10.2).

    begin   draw state, nonce and PKCE verifier; store them for ten minutes
    finish  code -> tokens -> ID token validated -> account found or created -> link in the log, receipt -> session

A session begins only when the link has a verified receipt. Logins are processed one after another and each reads the
log first, so a repeated login, also after a crash, writes no second link. Links are in one stream, and the gateway has
a key and a token for no other.

A session ends when it expires, at `end`, when the provider reports its access token as inactive, and when the account
is revoked in a stream that the gateway reads. Sessions are in memory: after a restart people log in again.

    ID.SESSION   the session does not exist, or it has ended
    ID.STATE     the answer of the provider belongs to no login that this browser began
"""

import asyncio
import hashlib
import secrets
import time
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import StatedError
from veen.core.event import Event
from veen.overlays.id.fold import IdFold
from veen.overlays.id.gateway import LoginRefused, OidcIdentity, TokenRefused, check_token, custodial_principal, login
from veen.overlays.id.state import IdState
from veen.products.idgateway.provider import ProviderClient

LOGIN_SEC: Final = 600
SESSION_SEC: Final = 8 * 3600
_MAX_PENDING: Final = 10_000
_MAX_SESSIONS: Final = 100_000
_CHECK_SEC: Final = 30.0  # between two questions about one session
_KEY_BYTES: Final = 32


class StateUnknown(StatedError, code="ID.STATE"):
    """The answer belongs to no login that this browser began within the last ten minutes."""


class SessionEnded(StatedError, code="ID.SESSION"):
    """The session does not exist, or it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PendingLogin:
    """A login in progress."""

    nonce: str
    verifier: str
    until: float


@dataclass(slots=True, kw_only=True, repr=False)
class Session:
    """The session of a logged-in person."""

    ctx_id: bytes
    provider: str
    access_token: str | None
    until: float
    checked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """The result of a login."""

    session: str
    ctx_id: bytes
    created: bool
    written: int  # messages


class IdGateway:
    """One provider and one realm. Used from one event loop."""

    def __init__(
        self,
        authority: TokenAuthority,
        provider: ProviderClient,
        *,
        stream_id: bytes,
        realm_id: bytes,
        secret: bytes,
        redirect_uri: str,
        gateways: Collection[bytes] = (),
        also: Sequence[bytes] = (),
        trusted_orgs: Collection[bytes] = (),
        session_sec: int = SESSION_SEC,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set up the gateway. `gateways`: client_ids whose links count, too; `also`: streams with revocations."""
        self._authority, self._provider, self._clock = authority, provider, clock
        self._stream_id, self._realm_id, self._secret = stream_id, realm_id, secret
        self._redirect_uri, self._gateways, self._also = redirect_uri, frozenset(gateways), tuple(also)
        self._trusted_orgs, self._session_sec = frozenset(trusted_orgs), session_sec
        self._fold = IdFold(merged=[stream_id])
        self._events: dict[bytes, list[Event]] = {}
        self._next: dict[bytes, int] = {}
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._pending: OrderedDict[str, PendingLogin] = OrderedDict()
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    @property
    def _client(self) -> Client:
        return self._authority.client

    def begin(self) -> tuple[str, str]:
        """Return a new state and the URL at the provider."""
        now = self._clock()
        while self._pending and (len(self._pending) >= _MAX_PENDING or next(iter(self._pending.values())).until <= now):
            self._pending.popitem(last=False)
        state, nonce, verifier = (secrets.token_urlsafe(_KEY_BYTES) for _ in range(3))
        self._pending[state] = PendingLogin(nonce=nonce, verifier=verifier, until=now + LOGIN_SEC)
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        url = self._provider.login_url(redirect_uri=self._redirect_uri, state=state, nonce=nonce, challenge=challenge)
        return state, url

    async def finish(self, *, code: str, state: str, browser_state: str) -> Entered:
        """Complete a login. Raise TokenRefused, LoginRefused, ProviderFailed or StateUnknown with the reason otherwise.

        `browser_state` is the state given to this browser: the answer to another browser's login is refused.
        """
        pending = self._pending.pop(state, None) if compare_digest(state, browser_state) else None
        if pending is None or pending.until <= self._clock():
            raise StateUnknown("no login was begun with this state by this browser, or too long ago: log in again")
        tokens = await self._provider.exchange(code=code, redirect_uri=self._redirect_uri, verifier=pending.verifier)
        identity = await self._check_token(tokens.id_token, pending.nonce)
        principal = self._principal(identity)
        async with self._writing:
            state_now = await self._state()
            now = int(self._clock())
            entered = login(
                state_now,
                tokens.id_token,
                self._provider.provider,
                realm_id=self._realm_id,
                writers=self._gateways | self._client.client_ids,
                now=now,
                principal_pk=principal.public,
                nonce=pending.nonce,
                trusted_orgs=self._trusted_orgs,
            )
            for message in entered.messages:
                await self._authority.send(self._stream_id, message.draft)
        session = self._begin_session(entered.ctx_id, tokens.access_token)
        return Entered(session=session, ctx_id=entered.ctx_id, created=entered.created, written=len(entered.messages))

    async def _check_token(self, id_token: str, nonce: str) -> OidcIdentity:
        """Validate a token; if it names an unknown key, read the keys again once."""
        now = int(self._clock())
        try:
            return check_token(id_token, self._provider.provider, now=now, nonce=nonce)
        except TokenRefused as exc:
            if exc.code != "ID.JWT_KEY" or not await self._provider.read_keys():
                raise
        return check_token(id_token, self._provider.provider, now=now, nonce=nonce)

    def _principal(self, identity: OidcIdentity) -> SigningKey:
        return custodial_principal(
            self._secret, realm_id=self._realm_id, provider=identity.provider, external_sub=identity.external_sub
        )

    # --- sessions ------------------------------------------------------------------------------------------------

    def _begin_session(self, ctx_id: bytes, access_token: str | None) -> str:
        key, now = secrets.token_urlsafe(_KEY_BYTES), self._clock()
        while self._sessions and (
            len(self._sessions) >= _MAX_SESSIONS or next(iter(self._sessions.values())).until <= now
        ):
            self._sessions.popitem(last=False)
        self._sessions[_hash(key)] = Session(
            ctx_id=ctx_id,
            provider=self._provider.settings.name,
            access_token=access_token,
            until=now + self._session_sec,
            checked_at=now,
        )
        return key

    async def session(self, key: str) -> Session:
        """Return a valid session; raise SessionEnded otherwise. Provider and log are asked twice a minute."""
        session = self._sessions.get(_hash(key))
        now = self._clock()
        if session is None or session.until <= now:
            self.end(key)
            raise SessionEnded("there is no such session, or it has ended: log in again")
        if now - session.checked_at >= _CHECK_SEC:
            session.checked_at = now
            if not await self._counts(session):
                self.end(key)
                raise SessionEnded("the provider or the realm has ended this session: log in again")
        return session

    async def _counts(self, session: Session) -> bool:
        state = await self._state()
        revoked = state.ctx_revocation(
            session.ctx_id, self._realm_id, int(self._clock()), trusted_orgs=self._trusted_orgs
        )
        if revoked is not None:
            return False
        if session.access_token is None or not self._provider.introspects:
            return True
        return await self._provider.is_active(session.access_token)

    def end(self, key: str) -> None:
        """End a session; do nothing if it does not exist."""
        self._sessions.pop(_hash(key), None)

    # --- the log -------------------------------------------------------------------------------------------------

    async def _state(self) -> IdState:
        """Read new entries of the streams, verified, and fold them."""
        async with self._reading:
            for stream_id in (self._stream_id, *self._also):
                events = self._events.setdefault(stream_id, [])
                first = self._next.get(stream_id, 1)
                if not await self._client.has_entries(stream_id):
                    continue
                async for entry in self._client.read(stream_id, from_seq=first):
                    self._next[stream_id] = entry.seq + 1
                    if entry.event is not None:
                        events.append(entry.event)
            schemas = frozenset(self._fold.schemas)
            id_events = (event for events in self._events.values() for event in events if event.hdr.schema in schemas)
            return self._fold.view(self._fold.summarize(id_events), int(self._clock()))


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


__all__ = [
    "Entered",
    "IdGateway",
    "LoginRefused",
    "Session",
    "SessionEnded",
    "StateUnknown",
    "TokenRefused",
]
