"""Client of an OpenID Connect provider: discovery, keys, exchange, introspection (OIDC Core, RFC 7662).

Every answer is bounded in size and time, and redirects are not followed. Keys are read again when a token names an
unknown one, at most once a minute, so forged tokens cause no traffic.
"""

import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import httpx2

from veen.core.errors import StatedError
from veen.overlays.id.oidc import KeySet, Provider

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
