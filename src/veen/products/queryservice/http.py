"""The query API over HTTP: routes, authentication, bounds. Every answer is JSON, every error `{error_code, message}`.

`/api/query/…` and `/api/v1/query/…` are the same handlers (QRY-31). Rows are written in canonical JSON, so that a
client can hash what it received.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from veen.core.errors import VeenError
from veen.products.queryservice.openapi import document_bytes
from veen.products.queryservice.principals import Principals, QueryPrincipal
from veen.products.queryservice.service import QueryService, Unavailable
from veen.query import canonical
from veen.query.canonical import Json
from veen.query.descriptor import MAX_BYTES
from veen.query.errors import InvalidDescriptor, InvalidJson, QueryError, QueryNotFound
from veen.query.store import DEFAULT_LIMIT, MAX_LIMIT

PREFIXES: Final = ("/api/query", "/api/v1/query")
_MAX_OFFSET: Final = 10**15
_RETRY_SECONDS: Final = 5
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Handler = Callable[[QueryService, QueryPrincipal, Request], Awaitable[tuple[int, Json]]]


class Unauthorized(QueryError):
    """No bearer token, or one that the service does not know."""

    error_code = "unauthorized"


def make_app(
    open_service: Callable[[], Awaitable[QueryService]], principals: Principals, *, ready: asyncio.Event | None = None
) -> Starlette:
    """The application. `open_service` is called when the server starts; before it ended, everything answers 503."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = await open_service()
        if ready is not None:
            ready.set()
        try:
            yield
        finally:
            await app.state.service.aclose()

    routes = [
        Route(prefix + path, _endpoint(handler, principals), methods=[method])
        for prefix in PREFIXES
        for method, path, handler in _ROUTES
    ]
    routes += [Route("/healthz", _health), Route("/metrics", _metrics), Route("/openapi.json", _openapi)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_error})


def _endpoint(handler: Handler, principals: Principals) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            principal = _authenticated(request, principals)
            status, value = await handler(request.app.state.service, principal, request)
            return _json(status, value)
        except QueryError as exc:
            return _error(exc)
        except VeenError as exc:
            return _json(500, {"error_code": "execution_failed", "message": str(exc)})
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it

    return endpoint


def _authenticated(request: Request, principals: Principals) -> QueryPrincipal:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    principal = principals.by_token(token.strip().encode()) if scheme.lower() == "bearer" and token.strip() else None
    if principal is None:
        raise Unauthorized("a bearer token of this service is needed")
    return principal


# --- handlers ----------------------------------------------------------------------------------------------------


async def _submit(service: QueryService, principal: QueryPrincipal, request: Request) -> tuple[int, Json]:
    submission = await service.submit(principal, await _body(request))
    if submission.digest is not None:
        return 200, {"result_digest": submission.digest.to_json(), "rows": list(submission.rows)}
    status = submission.status
    return 202, {"query_id": status.query_id, "result_id": status.result_id, "status": status.state}


async def _status(service: QueryService, principal: QueryPrincipal, request: Request) -> tuple[int, Json]:
    return 200, service.status(principal, _id(request)).to_json()


async def _result(service: QueryService, principal: QueryPrincipal, request: Request) -> tuple[int, Json]:
    offset = _number(request, "offset", 0, 0, _MAX_OFFSET)
    limit = _number(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    return 200, await service.result(principal, _id(request), offset, limit)


async def _coverage(service: QueryService, principal: QueryPrincipal, request: Request) -> tuple[int, Json]:
    return 200, service.coverage(principal, _id(request))


async def _descriptor(service: QueryService, principal: QueryPrincipal, request: Request) -> tuple[int, Json]:
    return 200, service.descriptor(principal, _id(request))


_ROUTES: Final[tuple[tuple[str, str, Handler], ...]] = (
    ("POST", "/submit", _submit),
    ("GET", "/status/{id}", _status),
    ("GET", "/result/{id}", _result),
    ("GET", "/coverage/{id}", _coverage),
    ("GET", "/descriptor/{id}", _descriptor),
)


def _id(request: Request) -> str:
    """An id that cannot be one names nothing."""
    text = str(request.path_params["id"])
    if len(text) > 128 or not text.isascii():
        raise QueryNotFound("there is no query or result of this id")
    return text


async def _body(request: Request) -> bytes:
    """At most MAX_BYTES; what comes behind them is not read."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BYTES:
            raise InvalidJson(f"a descriptor has at most {MAX_BYTES} bytes")
    return bytes(body)


def _number(request: Request, name: str, default: int, least: int, most: int) -> int:
    values = request.query_params.getlist(name)
    if not values:
        return default
    text = values[0]
    if len(values) > 1 or not text.isascii() or not text.isdigit() or len(text) > 16 or not least <= int(text) <= most:
        raise InvalidDescriptor(name, f"expected a whole number from {least} to {most}, once")
    return int(text)


# --- answers -----------------------------------------------------------------------------------------------------


def _json(status: int, value: Json, headers: Mapping[str, str] = _HEADERS) -> Response:
    return Response(canonical.encode(value), status, dict(headers), "application/json")


def _error(exc: QueryError) -> Response:
    headers = dict(_HEADERS)
    if isinstance(exc, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(exc, Unavailable):
        headers["Retry-After"] = str(_RETRY_SECONDS)
    return _json(exc.status, exc.to_json(), headers)


async def _http_error(_: Request, exc: Exception) -> Response:
    """Paths and methods that there are not."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    error_code = "query_not_found" if status == 404 else "invalid_request"
    headers = {**_HEADERS, **(getattr(exc, "headers", None) or {})}
    return _json(status, {"error_code": error_code, "message": "there is no such path or method"}, headers)


async def _health(request: Request) -> Response:
    return _json(200, {"ok": True})


async def _openapi(request: Request) -> Response:
    return Response(document_bytes(), 200, dict(_HEADERS), "application/json")


async def _metrics(request: Request) -> Response:
    """Counts only: no name of a stream, query or principal."""
    service: QueryService = request.app.state.service
    lines = ["# TYPE veen_query_running gauge", f"veen_query_running {service.running}"]
    for name, count in service.counts.items():
        lines += [f"# TYPE veen_query_{name}_total counter", f"veen_query_{name}_total {count}"]
    return PlainTextResponse("\n".join(lines) + "\n", headers=_HEADERS)
