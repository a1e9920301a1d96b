"""Routes for browsers and applications: /login, /callback, /session, /logout, /healthz.

Callers are not authenticated. So a login stores one bounded entry only, each address has a budget of logins, and
refusals have a code but no detail of a token.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from veen.core.errors import VeenError
from veen.products.idgateway.gateway import (
    LOGIN_SEC,
    IdGateway,
    LoginRefused,
    ProviderFailed,
    SessionEnded,
    StateUnknown,
    TokenRefused,
)

_log: Final = logging.getLogger(__name__)
LOGIN_COOKIE: Final = "veen_login"
SESSION_COOKIE: Final = "veen_session"
_MAX_PARAMETER: Final = 4_096
_PER_MINUTE: Final = 30  # logins that one address may begin
_ADDRESSES: Final = 10_000
_MAX_FINISHING: Final = 16  # logins that are carried out at once
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
}


class Budget:
    """Counts calls per address within a minute; the oldest addresses are dropped."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._calls: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def take(self, address: str) -> bool:
        """Return True if the address may call once more."""
        now = self._clock()
        since, count = self._calls.pop(address, (now, 0))
        if now - since >= 60:
            since, count = now, 0
        self._calls[address] = since, count + 1
        if len(self._calls) > _ADDRESSES:
            self._calls.popitem(last=False)
        return count < self._per_minute


def make_app(gateway: IdGateway, *, is_tls: bool, clock: Callable[[], float] = time.monotonic) -> Starlette:
    """Return the application. `is_tls`: cookies go over TLS only."""
    budget, finishing = Budget(_PER_MINUTE, clock), asyncio.Semaphore(_MAX_FINISHING)
    cookie: dict[str, Any] = {"httponly": True, "secure": is_tls, "samesite": "lax", "path": "/"}

    async def begin(request: Request) -> Response:
        if not budget.take(request.client.host if request.client else ""):
            return _refusal(429, "ID.BUSY", "too many logins from this address: wait a minute")
        state, url = gateway.begin()
        answer = RedirectResponse(url, status_code=303, headers=_HEADERS)
        answer.set_cookie(LOGIN_COOKIE, state, max_age=LOGIN_SEC, **cookie)
        return answer

    async def callback(request: Request) -> Response:
        code, state = (request.query_params.get(name, "") for name in ("code", "state"))
        browser_state = request.cookies.get(LOGIN_COOKIE, "")
        if not code or not state or max(map(len, (code, state, browser_state))) > _MAX_PARAMETER:
            return _refusal(400, "ID.STATE", "the provider did not log anybody in")
        if finishing.locked():
            return _refusal(503, "ID.BUSY", "too many logins at once: try again")
        try:
            async with finishing:
                entered = await gateway.finish(code=code, state=state, browser_state=browser_state)
        except (TokenRefused, LoginRefused, StateUnknown) as exc:
            _log.info("login refused: %s", exc.code)
            return _refusal(403, exc.code, "this login was refused")
        except ProviderFailed as exc:
            _log.warning("%s", exc)
            return _refusal(502, exc.code, "the provider did not confirm this login")
        except VeenError as exc:
            _log.warning("the link was not written: %s", exc)
            return _refusal(503, "ID.LOG", "the login was not recorded: try again")
        body = {"ctx_id": entered.ctx_id.hex(), "created": entered.created, "written": entered.written}
        answer = JSONResponse(body, headers=_HEADERS)
        answer.set_cookie(SESSION_COOKIE, entered.session, **cookie)
        answer.delete_cookie(LOGIN_COOKIE, path="/")
        return answer

    async def session(request: Request) -> Response:
        try:
            current = await gateway.session(_session_key(request))
        except SessionEnded as exc:
            return _refusal(401, exc.code, str(exc))
        except VeenError as exc:
            _log.warning("a session could not be checked: %s", exc)
            return _refusal(503, "ID.CHECK", "the session could not be checked: try again")
        body = {"ctx_id": current.ctx_id.hex(), "provider": current.provider, "expires_at": int(current.until)}
        return JSONResponse(body, headers=_HEADERS)

    async def logout(request: Request) -> Response:
        gateway.end(_session_key(request))
        answer = Response(status_code=204, headers=_HEADERS)
        answer.delete_cookie(SESSION_COOKIE, path="/")
        return answer

    async def health(_: Request) -> Response:
        return JSONResponse({"ok": True}, headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/login", begin, methods=["GET"]),
            Route("/callback", callback, methods=["GET"]),
            Route("/session", session, methods=["GET"]),
            Route("/logout", logout, methods=["POST"]),
            Route("/healthz", health, methods=["GET"]),
        ]
    )


def _session_key(request: Request) -> str:
    """Return the key of a session: a bearer token of an application, or the cookie of a browser."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return value.strip() if kind.lower() == "bearer" else request.cookies.get(SESSION_COOKIE, "")


def _refusal(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"code": code, "message": message}, status_code=status, headers=_HEADERS)
