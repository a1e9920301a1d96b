"""The routes of the console. Each page has a twin of the same path with `.json`; every answer passes the guard."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from veen import __version__
from veen.cli.shared.entries import when
from veen.cli.shared.text import compact, pretty, safe
from veen.client.errors import HubRefused, NetworkError, UnknownStream
from veen.client.evidence_file import NoEntries
from veen.client.transport.calls import is_not_found
from veen.console.errors import BadAddress, ConsoleError, UploadInvalid
from veen.console.guard import STATIC, BrowserAdmission, Guard
from veen.console.pages.anchors import anchors
from veen.console.pages.audit import audit
from veen.console.pages.bridge import bridge
from veen.console.pages.capabilities import capabilities
from veen.console.pages.discovery import discovery
from veen.console.pages.equivocation import equivocation
from veen.console.pages.identity import identity
from veen.console.pages.operations import operations
from veen.console.pages.query import query
from veen.console.pages.recorder import recorder
from veen.console.pages.settings import settings
from veen.console.pages.wallet import wallet
from veen.console.report import DigestCell, LinkCell, MarkCell, MomentCell
from veen.console.uploads import MAX_UPLOAD_BYTES, judge, read_form
from veen.console.views import CONSOLE, Console, PageView, Query, diverged, fault_of
from veen.core.errors import VeenError

__all__ = ["make_app"]

_MAX_PATH_DIGITS: Final = 19
_FILES: Final = {
    "console.css": ("veen.console", "static/console.css", "text/css; charset=utf-8"),
    "console.js": ("veen.console", "static/console.js", "text/javascript; charset=utf-8"),
    "veen-objects.js": ("veen.console", "static/veen-objects.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("veen.console", "static/icon.svg", "image/svg+xml"),
    # The audited verifier, as it is: the same bytes as in evidence.html.
    "veen-verify.js": ("veen.client.evidence_page", "veen-verify.js", "text/javascript; charset=utf-8"),
}
_NAVIGATION: Final = (
    ("/overview", "Overview"),
    ("/streams", "Streams"),
    ("/checkpoints", "Checkpoints"),
    ("/anchors", "Anchors"),
    ("/recorder", "Recorder"),
    ("/bridge", "Bridge"),
    ("/query", "Query"),
    ("/identity", "Identity"),
    ("/wallet", "Wallet"),
    ("/capabilities", "Capabilities"),
    ("/operations", "Operations"),
    ("/discovery", "Discovery"),
    ("/audit", "Audit"),
    ("/equivocation", "Equivocation"),
    ("/verify", "Verify"),
    ("/settings", "Settings"),
    ("/help", "Help"),
)
_REPORTS: Final = {
    "/anchors": anchors,
    "/recorder": recorder,
    "/bridge": bridge,
    "/query": query,
    "/identity": identity,
    "/wallet": wallet,
    "/capabilities": capabilities,
    "/operations": operations,
    "/discovery": discovery,
    "/audit": audit,
    "/equivocation": equivocation,
    "/settings": settings,
}

View = Callable[[Request], Awaitable[PageView]]
Report = Callable[[Console, Query], Awaitable[PageView]]


def make_app(console: Console, admission: BrowserAdmission) -> Starlette:
    """The application over a connected console."""
    base = admission.root_path
    pages = _Pages(console, base)
    routes = [Route(f"{base}/", lambda _: RedirectResponse(f"{base}/overview", 303))]
    for path, view in pages.table():
        methods = ["GET", "POST"] if path == "/verify" else ["GET"]
        routes.append(Route(f"{base}{path}.json", pages.answering(view, as_json=True), methods=methods))
        routes.append(Route(f"{base}{path}", pages.answering(view, as_json=False), methods=methods))
    routes.append(Route(f"{base}{STATIC}{{name}}", _static))
    guard = Middleware(Guard, admission=admission, refuse=pages.refuse, entrance=pages.entrance)
    return Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: pages.http_error})


class _Pages:
    """Turns views into answers, and errors into pages that name them."""

    def __init__(self, console: Console, base: str) -> None:
        self._console, self._base = console, base
        self._templates = Environment(
            loader=PackageLoader("veen.console"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_inert,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters["short"] = _short
        self._templates.filters["lines"] = _lines
        self._templates.filters["stream"] = _stream_name
        self._templates.filters["when"] = when
        self._templates.filters["cell"] = self._cell
        self._templates.filters["svg"] = Markup  # pictures are made here, and what comes from outside is escaped there
        self._templates.globals["base"] = base

    def table(self) -> tuple[tuple[str, View], ...]:
        return (
            ("/overview", lambda request: self._console.overview(request.query_params)),
            ("/streams", lambda request: self._console.streams(request.query_params)),
            ("/checkpoints", lambda request: self._console.checkpoints(request.query_params)),
            ("/verify", self._verify),
            ("/help", _help),
            *((path, self._report(report)) for path, report in _REPORTS.items()),
            ("/stream/{stream}/{seq}/proof", self._proof),
            ("/stream/{stream}/{seq}", self._message),
            ("/stream/{stream}", self._stream),
        )

    def _report(self, report: Report) -> View:
        return lambda request: report(self._console, request.query_params)

    async def _stream(self, request: Request) -> PageView:
        return await self._console.stream(request.path_params["stream"], request.query_params)

    async def _message(self, request: Request) -> PageView:
        return await self._console.message(request.path_params["stream"], _seq(request), request.query_params)

    async def _proof(self, request: Request) -> PageView:
        return await self._console.proof(request.path_params["stream"], _seq(request), request.query_params)

    async def _verify(self, request: Request) -> PageView:
        verdict = None
        if request.method == "POST":
            upload = await read_form(request)
            verdict = await asyncio.to_thread(judge, upload, self._console.pin)
        return PageView(
            template="verify.html",
            title="Verify a file",
            command="veen verify FILE",
            data={
                "verdict": verdict,
                "max_bytes": MAX_UPLOAD_BYTES,
                "hub_pks": [key.hub_pk.hex() for key in self._console.pin.keys],
            },
            verified_by=CONSOLE if verdict and verdict["verdict"] == "verified" else None,
        )

    # --- answers -------------------------------------------------------------------------------------------------

    def answering(self, view: View, *, as_json: bool) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                shown = await view(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except VeenError as exc:
                self._console.note_failure(exc, request.url.path)
                return self._failed(request, exc, _status_of(exc), as_json=as_json)
            status = 502 if shown.failed or _has_failed(shown.data) else 200
            if as_json:
                about = {"page": shown.title, "verified_by": shown.verified_by or "nobody", "command": shown.command}
                return _json(status, {**about, **shown.data, "failures": list(self._console.failures)})
            pictures = {name: Markup(svg) for name, svg in shown.pictures.items()}  # noqa: S704 - made here, escaped
            return self._html(request, status, shown.template, shown=shown, pictures=pictures, **shown.data)

        return endpoint

    def _html(self, request: Request, status: int, template: str, **facts: Any) -> Response:
        path = request.url.path
        arguments = request.scope["query_string"].decode("ascii", "replace")
        text = self._templates.get_template(template).render(
            navigation=_NAVIGATION,
            path=path.removeprefix(self._base),
            twin=f"{path}.json" + (f"?{arguments}" if arguments else ""),
            failures=list(self._console.failures),
            now=when(int(time.time())),
            version=__version__,
            **facts,
        )
        return HTMLResponse(text, status)

    def _cell(self, value: Any) -> Any:
        """A value of a section for people."""
        match value:
            case None:
                return Markup('<span class="muted">–</span>')
            case DigestCell(digits):
                return _short(digits)
            case MomentCell(seconds):
                return Markup('<span class="nowrap">{}</span>').format(when(seconds))
            case LinkCell(text, path):
                return Markup('<a class="name" href="{}{}">{}</a>').format(self._base, path, _stream_name(text))
            case MarkCell(text, kind):
                return Markup('<span class="state {}">{}</span>').format(kind, _inert(text))
            case bool():
                return "yes" if value else "no"
            case list() | dict():
                return compact(value)
            case _:
                return value

    def _failed(self, request: Request, exc: Exception, status: int, *, as_json: bool) -> Response:
        fault = fault_of(exc)
        if as_json:
            return _json(status, {"verified_by": "nobody", "error": fault, "failures": list(self._console.failures)})
        return self._html(request, status, "error.html", fault=fault)

    async def refuse(self, request: Request, exc: ConsoleError, status: int) -> Response:
        """A request that was not admitted: no fact of the log, the hub or the keys is in the answer."""
        fault = fault_of(exc)
        if request.url.path.endswith(".json"):
            return _json(status, {"verified_by": "nobody", "error": fault})
        text = self._templates.get_template("refused.html").render(fault=fault)
        return HTMLResponse(text, status)

    def entrance(self) -> Response:
        return HTMLResponse(self._templates.get_template("entrance.html").render())

    async def http_error(self, request: Request, exc: Exception) -> Response:
        """Paths and methods that there are not."""
        status = exc.status_code if isinstance(exc, HTTPException) else 500
        error = BadAddress("the console has no page of this address, or not for this method")
        return self._failed(request, error, status, as_json=request.url.path.endswith(".json"))


async def _help(request: Request) -> PageView:
    return PageView(
        template="help.html",
        title="Help",
        command="veen help",
        data={"pages": [{"path": path, "title": title} for path, title in _NAVIGATION]},
        verified_by=None,
    )


async def _static(request: Request) -> Response:
    try:
        package, path, kind = _FILES[request.path_params["name"]]
    except KeyError:
        raise HTTPException(404) from None
    return Response(files(package).joinpath(path).read_bytes(), media_type=kind)


def _seq(request: Request) -> int:
    text = str(request.path_params["seq"])
    if not text.isascii() or not text.isdigit() or len(text) > _MAX_PATH_DIGITS or not 1 <= int(text) < 2**63:
        raise BadAddress("the number of an entry is a whole number from 1 on")
    return int(text)


def _status_of(exc: VeenError) -> int:
    if diverged(exc):
        return 502
    if isinstance(exc, (BadAddress, UploadInvalid)):
        return 400
    if isinstance(exc, (UnknownStream, NoEntries)) or (isinstance(exc, HubRefused) and is_not_found(exc)):
        return 404
    return 503 if isinstance(exc, (NetworkError, HubRefused)) else 500


def _has_failed(data: dict[str, Any]) -> bool:
    """Whether a part of the page did not verify."""
    parts = [*data.get("streams", ()), *data.get("checkpoints", ())]
    if isinstance(data.get("hub"), dict):
        parts.append(data["hub"])
    errors = [part.get("error") for part in parts if isinstance(part, dict)]
    return any(error is not None and error["diverged"] for error in errors)


def _json(status: int, value: dict[str, Any]) -> Response:
    return Response(pretty(value) + "\n", status, media_type="application/json")


# --- text ------------------------------------------------------------------------------------------------------------


def _inert(value: Any) -> Any:
    """Every value that a template prints: characters that steer text are spelled out, then Jinja escapes it."""
    return safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(text: str) -> Markup:
    """A body: line feeds and tabs stay, everything else as above."""
    return escape(safe(text, keep="\n\t"))


def _stream_name(name: Any) -> Any:
    """A stream for people: one without a name by the ends of its id."""
    if not isinstance(name, str) or not name.startswith("hex:") or len(name) < 64:
        return _inert(name)
    return Markup('<span title="{}">hex:{}…{}</span>').format(name, name[4:12], name[-4:])


def _short(digits: str) -> Markup:
    """A hash for people; all of it is in the title, and in the twin."""
    if len(digits) <= 16:
        return Markup("<code>{}</code>").format(digits)
    return Markup('<code class="short" title="{}">{}…{}</code>').format(digits, digits[:8], digits[-4:])
