"""The query API over HTTP: routes, authentication, limits. Every answer is JSON, every error `{error_code, message}`.

`/api/query/…` and `/api/v1/query/…` have the same handlers (QRY-31). Rows are written in canonical JSON, so that a
client can hash them. A bearer token identifies the caller, or the names in a client certificate, which the server of
`serving` has verified; a request with both must name one principal.
"""

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from veen.core import canonical
from veen.core.canonical import InvalidJson, Json
from veen.core.errors import VeenError
from veen.hub.process.logs import LineBudget
from veen.io.asgi_server import certificate_of
from veen.io.metrics_text import CONTENT_TYPE
from veen.lake.query.descriptor import MAX_BYTES
from veen.lake.query.errors import (
    QUERY_REFUSALS,
    InvalidDescriptor,
    QueryError,
    QueryNotFound,
    http_status_of,
    to_json,
)
from veen.lake.query.store import DEFAULT_LIMIT, MAX_LIMIT
from veen.products.queryservice.observe import line
from veen.products.queryservice.openapi import document_bytes
from veen.products.queryservice.principals import Principals, QueryPrincipal
from veen.products.queryservice.service import QueryService, Unavailable

_log = logging.getLogger(__name__)
PREFIXES: Final = ("/api/query", "/api/v1/query")
_MAX_OFFSET: Final = 10**15
_RETRY_SECONDS: Final = 5
_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

Handler = Callable[[QueryService, QueryPrincipal, Request], Awaitable[tuple[int, Json]]]


class Unauthorized(QueryError):
    """The request has neither a known bearer token nor a known client certificate."""

    error_code = "unauthorized"


def make_app(open_service: Callable[[], Awaitable[QueryService]]) -> Starlette:
    """Build the application. `open_service` is called at start, before the server listens."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = await open_service()
        try:
            yield
        finally:
            await app.state.service.aclose()

    budget = LineBudget()
    routes = [
        Route(prefix + path, _endpoint(handler, budget), methods=[method])
        for prefix in PREFIXES
        for method, path, handler in _ROUTES
    ]
    routes += [Route("/healthz", _health), Route("/metrics", _metrics), Route("/openapi.json", _openapi)]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _http_error})


def _endpoint(handler: Handler, budget: LineBudget) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        service: QueryService = request.app.state.service

        def refuse(status: int, error_code: str) -> None:
            service.metrics.count_refusal(error_code)
            if budget.allows_refusal(error_code, request.client.host if request.client is not None else ""):
                line(_log, "request", "request failed", request=handler.__name__[1:], code=error_code, status=status)

        try:
            principal = authenticate(request, service.principals)
            status, value = await handler(service, principal, request)
            return _json(status, value)
        except QUERY_REFUSALS as exc:
            refuse(http_status_of(exc), exc.error_code)
            return _error(exc)
        except VeenError as exc:
            refuse(500, "execution_failed")
            return _json(500, {"error_code": "execution_failed", "message": str(exc)})
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone

    return endpoint


def authenticate(request: Request, principals: Principals) -> QueryPrincipal:
    """Return the principal of a request. Raise Unauthorized if it is unknown, or token and certificate disagree."""
    certificate, header = certificate_of(request.scope), request.headers.get("authorization")
    certified = None
    if certificate is not None:
        if certificate.expires_at <= time.time():  # the connection was opened before that
            raise Unauthorized("the client certificate has expired: connect again with a new one")
        certified = principals.by_certificate(certificate.names)
    if header is None:
        if certified is None:
            raise Unauthorized(
                "a bearer token or a client certificate of this service is needed"
                if certificate is None
                else "no name in the client certificate is that of a principal, or two principals have one"
            )
        return certified
    scheme, _, token = header.partition(" ")
    principal = principals.by_token(token.strip().encode()) if scheme.lower() == "bearer" and token.strip() else None
    if principal is None:
        raise Unauthorized("the bearer token is not one of this service")
    if certified not in (None, principal):
        raise Unauthorized("the bearer token and the client certificate are of two principals")
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


async def _cancel(service: QueryService, principal: QueryPrincipal, request: Request) -> tuple[int, Json]:
    return 200, (await service.cancel(principal, _id(request))).to_json()


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
    ("POST", "/cancel/{id}", _cancel),
    ("GET", "/result/{id}", _result),
    ("GET", "/coverage/{id}", _coverage),
    ("GET", "/descriptor/{id}", _descriptor),
)


def _id(request: Request) -> str:
    """Return the id in the path. Raise QueryNotFound for an impossible one."""
    text = str(request.path_params["id"])
    if len(text) > 128 or not text.isascii():
        raise QueryNotFound("no query or result has this id")
    return text


async def _body(request: Request) -> bytes:
    """Read the body, at most MAX_BYTES."""
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


def _error(exc: QueryError | InvalidJson) -> Response:
    headers = dict(_HEADERS)
    if isinstance(exc, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(exc, Unavailable):
        headers["Retry-After"] = str(_RETRY_SECONDS)
    return _json(http_status_of(exc), to_json(exc), headers)


async def _http_error(_: Request, exc: Exception) -> Response:
    """Answer unknown paths and methods."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    error_code = "query_not_found" if status == 404 else "invalid_request"
    headers = {**_HEADERS, **(getattr(exc, "headers", None) or {})}
    return _json(status, {"error_code": error_code, "message": "there is no such path or method"}, headers)


async def _health(request: Request) -> Response:
    return _json(200, {"ok": True})


async def _openapi(request: Request) -> Response:
    return Response(document_bytes(), 200, dict(_HEADERS), "application/json")


async def _metrics(request: Request) -> Response:
    """Return counters only: no name of a stream, query or principal."""
    service: QueryService = request.app.state.service
    text = service.metrics.text(service.running, service.retention, service.erased)
    return Response(text, 200, dict(_HEADERS), CONTENT_TYPE)
