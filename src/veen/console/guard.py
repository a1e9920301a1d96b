"""Who gets an answer: the Host header, the token, and the headers that every answer carries.

The token stands in a URL once. Whoever shows it gets a session cookie, and the token is void. The answer is a page that
leads on, not a redirect: a browser sends a SameSite=Strict cookie only where our own page was the start.
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from veen.console.errors import BrowserTokenRefused, ConsoleError, HostRefused

__all__ = ["HEADERS", "LOOPBACK_NAMES", "STATIC", "BrowserAdmission", "Guard"]

LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})
STATIC: Final = "/static/"
_MAX_QUERY_BYTES: Final = 4096
_HOST: Final = re.compile(r"([a-z0-9._-]{1,255}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Refuse = Callable[[Request, ConsoleError, int], Awaitable[Response]]


class BrowserAdmission:
    """The token and the session of one console. `names` are the host names that may stand in a request."""

    def __init__(self, names: Iterable[str] = (), *, secure: bool = False, root_path: str = "") -> None:
        self.token: str | None = secrets.token_urlsafe(32)
        self.names = LOOPBACK_NAMES | {name.lower() for name in names}
        self.secure = secure
        self.root_path = root_path  # the prefix of all paths, "" or as "/veen"
        self._session = secrets.token_urlsafe(32)
        # Cookies do not know ports: two consoles on one machine must not overwrite each other's.
        self.cookie = f"veen_console_{sha256(self._session.encode()).hexdigest()[:8]}"

    def check_host(self, request: Request) -> None:
        values = request.headers.getlist("host")
        match = _HOST.fullmatch(values[0].lower()) if len(values) == 1 else None
        if match is None or match[1] not in self.names:
            raise HostRefused("the Host header of the request names none of the hosts of this console")

    def is_open_to(self, request: Request) -> bool:
        return compare_digest(request.cookies.get(self.cookie, "").encode(), self._session.encode())

    def redeem(self, token: str) -> None:
        """Use the token up; BrowserTokenRefused if it is another one, or was used before."""
        if self.token is None or not compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            raise BrowserTokenRefused(
                "the token in the address is not the token of this console, or it was used before"
            )
        self.token = None

    def set_cookie(self, response: Response) -> None:
        response.set_cookie(
            self.cookie,
            self._session,
            path=self.root_path or "/",
            httponly=True,
            samesite="strict",
            secure=self.secure,
        )


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
        answer = await self._judged(request)
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    async def _judged(self, request: Request) -> Response | None:
        """The answer to a request that goes no further; None for one that is admitted."""
        try:
            self._admission.check_host(request)
        except HostRefused as exc:
            return await self._refuse(request, exc, 421)
        if request.url.path.startswith(self._admission.root_path + STATIC):
            return None  # our own files, the same for everybody
        try:
            if (token := _token_of(request)) is not None and not self._admission.is_open_to(request):
                self._admission.redeem(token)
                response = self._entrance()
                self._admission.set_cookie(response)
                return response
            if not self._admission.is_open_to(request):
                raise BrowserTokenRefused("this browser has not shown the token of the console")
        except BrowserTokenRefused as exc:
            return await self._refuse(request, exc, 401)
        return None


def _token_of(request: Request) -> str | None:
    query = request.scope["query_string"]
    if len(query) > _MAX_QUERY_BYTES:
        return None
    values = [value for name, value in parse_qsl(query.decode("ascii", "replace")) if name == "token"]
    return values[0] if len(values) == 1 else None
