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

Client of an OpenID Connect provider: discovery, keys, exchange, introspection (OIDC Core, RFC 7662).

Every answer is bounded in size and time, and redirects are not followed. Keys are read again when a token names an
unknown one, at most once a minute, so forged tokens cause no traffic.
"""

import asyncio
import hashlib
import secrets
import time
from base64 import b64encode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httpx2

from veen.api.token_authority import TokenAuthority
from veen.client.client import Client
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import StatedError
from veen.core.event import Event
from veen.overlays.id.fold import IdFold
from veen.overlays.id.gateway import (
    KeySet,
    LoginRefused,
    OidcIdentity,
    Provider,
    TokenRefused,
    check_token,
    custodial_principal,
    login,
)
from veen.overlays.id.state import IdState

__all__ = [
    "SCOPE",
    "Entered",
    "IdGateway",
    "LoginRefused",
    "ProviderClient",
    "ProviderFailed",
    "ProviderSettings",
    "ProviderTokens",
    "Session",
    "SessionEnded",
    "StateUnknown",
    "TokenRefused",
    "check_url",
]


_SECONDS: Final = 10.0
_MAX_BYTES: Final = 256 * 1024
_KEYS_AGAIN_SEC: Final = 60.0
_LOOPBACK: Final = frozenset(("127.0.0.1", "::1", "localhost"))
SCOPE: Final = "openid"


class ProviderFailed(StatedError, code="ID.PROVIDER"):
    """The provider cannot be reached, or its answer is unusable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """Settings of a trusted provider, from the deployment."""

    name: str
    issuer: str
    client_id: str
    client_secret: str
    scope: str = SCOPE
    mirror: tuple[str, ...] = ()
    display_name: str | None = None
    introspection_url: str | None = None  # for providers whose metadata do not name it

    def __post_init__(self) -> None:
        check_url(self.issuer, "issuer")

    def __repr__(self) -> str:
        return f"ProviderSettings({self.name!r}, {self.issuer!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTokens:
    """The answer of the token endpoint. Its repr shows neither token."""

    id_token: str
    access_token: str | None

    def __repr__(self) -> str:
        return "ProviderTokens()"


def check_url(url: str, what: str) -> str:
    """Return a URL that tokens may be sent to: https, or http on this machine. Raise ProviderFailed otherwise."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        return url
    raise ProviderFailed(f"{what} {url!r}: only https is used, and http on this machine")


class ProviderClient:
    """The connection to one provider. Used from one event loop."""

    def __init__(
        self,
        settings: ProviderSettings,
        http: httpx2.AsyncClient,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self._http, self._clock = settings, http, clock
        self._metadata: Mapping[str, Any] = {}
        self._provider: Provider | None = None
        self._keys_read = float("-inf")

    @property
    def provider(self) -> Provider:
        """The provider with its current keys, for `check_token`."""
        if self._provider is None:
            raise ProviderFailed(f"{self.settings.name}: its keys were not read yet")
        return self._provider

    async def open(self) -> None:
        """Read metadata and keys. The metadata must name the trusted issuer (OIDC Discovery §4.3)."""
        settings = self.settings
        metadata = await self._json("GET", f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration")
        if metadata.get("issuer") != settings.issuer:
            raise ProviderFailed(f"{settings.name}: its metadata is of another issuer than {settings.issuer}")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            check_url(str(metadata.get(name)), name)
        introspection = settings.introspection_url or metadata.get("introspection_endpoint")
        if introspection is not None:
            check_url(str(introspection), "introspection_endpoint")
        self._metadata = {**metadata, "introspection_endpoint": introspection}
        await self.read_keys()

    async def read_keys(self) -> bool:
        """Read the keys again; False if that was done within the last minute."""
        now = self._clock()
        if now - self._keys_read < _KEYS_AGAIN_SEC:
            return False
        self._keys_read = now
        settings = self.settings
        keys = KeySet.from_json(await self._body("GET", str(self._metadata["jwks_uri"])))
        if self._provider is None:
            self._provider = Provider(
                name=settings.name,
                issuer=settings.issuer,
                audience=settings.client_id,
                keys=keys,
                mirror=settings.mirror,
                display_name=settings.display_name,
            )
        else:
            self._provider = replace(self._provider, keys=keys)
        return True

    @property
    def introspects(self) -> bool:
        """True if the provider has an introspection endpoint."""
        return self._metadata.get("introspection_endpoint") is not None

    def login_url(self, *, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
        """Return where a browser logs in; `challenge` is that of PKCE (RFC 7636, S256)."""
        query = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": self.settings.scope,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = str(self._metadata["authorization_endpoint"])
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"

    async def exchange(self, *, code: str, redirect_uri: str, verifier: str) -> ProviderTokens:
        """Return the tokens for a code; ProviderFailed if the provider refuses it."""
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier,
        }  # fmt: skip
        answer = await self._json("POST", str(self._metadata["token_endpoint"]), form)
        id_token, access_token = answer.get("id_token"), answer.get("access_token")
        if type(id_token) is not str:
            raise ProviderFailed(f"{self.settings.name}: its answer has no ID token")
        return ProviderTokens(id_token=id_token, access_token=access_token if type(access_token) is str else None)

    async def is_active(self, access_token: str) -> bool:
        """Return True if the provider reports a token as active (RFC 7662)."""
        answer = await self._json("POST", str(self._metadata["introspection_endpoint"]), {"token": access_token})
        return answer.get("active") is True

    async def _json(self, method: str, url: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        import json

        try:
            answer = json.loads(await self._body(method, url, form))
        except (ValueError, RecursionError) as exc:
            raise ProviderFailed(f"{self.settings.name}: {urlsplit(url).path} answers no JSON") from exc
        if type(answer) is not dict:
            raise ProviderFailed(f"{self.settings.name}: {urlsplit(url).path} answers no JSON object")
        return answer

    async def _body(self, method: str, url: str, form: Mapping[str, str] | None = None) -> bytes:
        settings, headers = self.settings, {"Accept": "application/json"}
        if form is not None:
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        path, data = urlsplit(url).path, bytearray()
        try:
            async with self._http.stream(
                method, url, data=form, headers=headers, timeout=_SECONDS, follow_redirects=False
            ) as answer:
                async for chunk in answer.aiter_bytes():
                    data += chunk
                    if len(data) > _MAX_BYTES:
                        raise ProviderFailed(f"{settings.name}: {path} answers more than {_MAX_BYTES} bytes")
                if answer.status_code != 200:
                    raise ProviderFailed(f"{settings.name}: {path} answers {answer.status_code}")
        except httpx2.HTTPError as exc:
            raise ProviderFailed(f"{settings.name}: {path}: {type(exc).__name__}") from exc
        return bytes(data)


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
