"""Admission of requests: Host header, token or login, origin of forms, and the headers of every answer.

On loopback a URL has a token once. The browser that presents it gets a session cookie, and the token becomes void. The
answer is a page with a link, not a redirect: a browser sends a SameSite=Strict cookie only on navigation from our own
page. With a password file there is no token: people log in, and each login is a separate session.
"""

import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from veen.products.console.errors import (
    BrowserTokenRefused,
    ConsoleError,
    CrossSiteRequest,
    HostRefused,
    LoginRefused,
    TooManyAttempts,
)
from veen.products.console.passwords import PasswordFile

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
STATIC: Final = "/static/"
LOGIN: Final = "/login"
_MAX_QUERY_BYTES: Final = 4096
_MAX_SESSIONS: Final = 64  # the oldest one ends when there is one more
_SESSION_SECONDS: Final = 12 * 3600  # of a login
_SESSION: Final = "veen.console.session"  # in the scope of a request
_HOST: Final = re.compile(r"([a-z0-9._-]{1,255}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
_SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms. Nothing is told to other sites.
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Refuse = Callable[[Request, ConsoleError, int], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """An admitted browser: by the token (no name), or by a login."""

    digest: bytes  # of the secret in its cookie
    name: str | None = None
    ends_at: float = float("inf")  # by the clock of the admission


class AttemptLimit:
    """Limits failed logins, per address and in total, within a time window. Used on one loop only."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        seconds: float = 300,
        each: int = 5,
        total: int = 50,
    ) -> None:
        self._clock, self._seconds, self._each, self._total = clock, seconds, each, total
        self._failures: list[tuple[float, str]] = []  # at most `total`, the oldest first

    def begin(self, address: str) -> None:
        """Count an attempt before it is checked, so that parallel ones count, too. Raise TooManyAttempts at the
        limit.
        """
        now, who = self._clock(), _network_of(address)
        self._failures = [(at, other) for at, other in self._failures if now - at < self._seconds]
        mine = [at for at, other in self._failures if other == who]
        if len(mine) >= self._each or len(self._failures) >= self._total:
            first = mine[0] if len(mine) >= self._each else self._failures[0][0]
            seconds = max(1, round(first + self._seconds - now))
            raise TooManyAttempts(f"too many logins failed: try again in {seconds} s", seconds)
        self._failures.append((now, who))

    def forgive(self, address: str) -> None:
        """Remove the last attempt of an address: it succeeded."""
        who = _network_of(address)
        for number in range(len(self._failures) - 1, -1, -1):
            if self._failures[number][1] == who:
                del self._failures[number]
                return


def _network_of(address: str) -> str:
    """Return the network of an address: the /64 of an IPv6 address, whose owner has all of it."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    return str(int(parsed) >> 64) if isinstance(parsed, IPv6Address) else address


class BrowserAdmission:
    """The token and the sessions of one console. `names` are the accepted host names.

    Used on the loop of the console only. With `passwords` there is no token.
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        secure: bool = False,
        root_path: str = "",
        passwords: PasswordFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.token: str | None = secrets.token_urlsafe(32) if passwords is None else None
        self.names = LOOPBACK_NAMES | {name.lower() for name in names}
        self.secure = secure
        self.root_path = root_path  # the prefix of all paths, "" or as "/veen"
        self.passwords = passwords
        self.attempts = AttemptLimit(clock)
        self._clock = clock
        self._sessions: dict[bytes, BrowserSession] = {}  # by the digest of the secret, the oldest first
        self._form_key = secrets.token_bytes(32)
        self._form_serial = 0
        # Cookies do not know ports: two consoles on one machine must not overwrite each other's.
        self.cookie = f"veen_console_{secrets.token_hex(4)}"

    # --- admission -----------------------------------------------------------------------------------------------

    def check_host(self, request: Request) -> None:
        values = request.headers.getlist("host")
        match = _HOST.fullmatch(values[0].lower()) if len(values) == 1 else None
        if match is None or match[1] not in self.names:
            raise HostRefused("the Host header of the request names none of the hosts of this console")

    def check_origin(self, request: Request, *, required: bool = False) -> None:
        """Raise CrossSiteRequest if the browser reports that another site sent the form.

        The Host header is checked before.
        """
        site = request.headers.get("sec-fetch-site")
        origins = request.headers.getlist("origin")
        if site not in (None, "same-origin") or len(origins) > 1:
            raise CrossSiteRequest("the browser says that a page of another site sent the form")
        if not origins:
            if required:
                raise CrossSiteRequest("the request does not say which site sent the form")
            return
        # A proxy may add TLS in front of plain HTTP; a console with TLS has one scheme.
        schemes = ("https",) if self.secure else ("http", "https")
        host = request.headers["host"].lower()
        if origins[0].lower() not in [f"{scheme}://{host}" for scheme in schemes]:
            raise CrossSiteRequest("the browser says that a page of another site sent the form")

    def session_for(self, request: Request) -> BrowserSession | None:
        """Return the session of the cookie, unless it has ended."""
        digest = sha256(request.cookies.get(self.cookie, "").encode("utf-8", "replace")).digest()
        session = self._sessions.get(digest)
        if session is not None and session.ends_at <= self._clock():
            del self._sessions[digest]
            return None
        return session

    # --- sessions ------------------------------------------------------------------------------------------------

    def redeem(self, token: str) -> None:
        """Use up the token. Raise BrowserTokenRefused if it is wrong, or was used before."""
        if self.token is None or not compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            raise BrowserTokenRefused(
                "the token in the address is not the token of this console, or it was used before"
            )
        self.token = None

    def begin_session(self, response: Response, name: str | None = None) -> None:
        """Begin a session; its secret is only in the cookie of the answer."""
        secret = secrets.token_urlsafe(32)
        digest = sha256(secret.encode()).digest()
        ends_at = float("inf") if name is None else self._clock() + _SESSION_SECONDS
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[digest] = BrowserSession(digest, name, ends_at)
        response.set_cookie(
            self.cookie,
            secret,
            path=self.root_path or "/",
            httponly=True,
            samesite="strict",
            secure=self.secure,
            max_age=None if name is None else _SESSION_SECONDS,
        )

    def end_session(self, session: BrowserSession, response: Response) -> None:
        """End a session: its cookie is no longer accepted."""
        self._sessions.pop(session.digest, None)
        response.delete_cookie(
            self.cookie, path=self.root_path or "/", httponly=True, samesite="strict", secure=self.secure
        )

    # --- forms ---------------------------------------------------------------------------------------------------

    def form_token(self, session: BrowserSession, purpose: str) -> str:
        """Return the hidden field of one form of one session. Its number tells a repeated form from two forms."""
        self._form_serial += 1
        return f"{self._form_serial}.{self._form_mac(session, purpose, self._form_serial)}"

    def form_serial(self, session: BrowserSession, purpose: str, token: str) -> int:
        """Return the number of a form that this session was given. Raise CrossSiteRequest for any other token."""
        number, _, mac = token[:128].partition(".")
        serial = int(number) if re.fullmatch(r"[1-9][0-9]{0,17}", number, re.ASCII) else 0
        expected = self._form_mac(session, purpose, serial)
        if not compare_digest(mac.encode("utf-8", "replace"), expected.encode()):
            raise CrossSiteRequest("the form is not one that this console gave to this session")
        return serial

    def _form_mac(self, session: BrowserSession, purpose: str, serial: int) -> str:
        message = session.digest + serial.to_bytes(8, "big") + purpose.encode()
        return hmac.new(self._form_key, message, sha256).hexdigest()


def session_of(request: Request) -> BrowserSession | None:
    """Return the session of a request that the guard admitted."""
    session = request.scope.get(_SESSION)
    return session if isinstance(session, BrowserSession) else None


class Guard:
    """ASGI middleware: nothing behind it runs for a request that is not admitted."""

    def __init__(
        self, app: ASGIApp, admission: BrowserAdmission, refuse: Refuse, entrance: Callable[[], Response]
    ) -> None:
        self._app, self._admission, self._refuse, self._entrance = app, admission, refuse, entrance

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *ours]}
            await send(message)

        request = Request(scope, receive)
        answer = await self._refuse_or_admit(request)
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    async def _refuse_or_admit(self, request: Request) -> Response | None:
        """Return the answer to a refused request; None for an admitted one."""
        admission = self._admission
        try:
            admission.check_host(request)
            if request.method not in _SAFE_METHODS:
                admission.check_origin(request)
        except HostRefused as exc:
            return await self._refuse(request, exc, 421)
        except CrossSiteRequest as exc:
            return await self._refuse(request, exc, 403)
        path = request.url.path.removeprefix(admission.root_path)
        if path.startswith(STATIC):
            return None  # our own files, the same for everybody
        session = admission.session_for(request)
        if session is not None:
            request.scope[_SESSION] = session
            return None
        if admission.passwords is not None:
            if path == LOGIN:
                return None
            return await self._refuse(request, LoginRefused("this browser is not logged in"), 401)
        try:
            if (token := _token_of(request)) is None:
                raise BrowserTokenRefused("this browser has not shown the token of the console")
            admission.redeem(token)
        except BrowserTokenRefused as exc:
            return await self._refuse(request, exc, 401)
        response = self._entrance()
        admission.begin_session(response)
        return response


def _token_of(request: Request) -> str | None:
    query = request.scope["query_string"]
    if len(query) > _MAX_QUERY_BYTES:
        return None
    values = [value for name, value in parse_qsl(query.decode("ascii", "replace")) if name == "token"]
    return values[0] if len(values) == 1 else None
