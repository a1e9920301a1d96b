"""The routes of the console. Each page has a twin of the same path with `.json`; every answer passes the guard."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from hashlib import sha256
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
from veen.core.errors import VeenError
from veen.products import load_products
from veen.products.console.errors import (
    BadAddress,
    ConsoleError,
    ConsoleReadOnly,
    CrossSiteRequest,
    FormInvalid,
    LoginRefused,
    TooManyAttempts,
    UploadInvalid,
)
from veen.products.console.guard import LOGIN, STATIC, BrowserAdmission, Guard, session_of
from veen.products.console.pages import Page, PageWrite, Report, load_pages
from veen.products.console.pages.audit import audit, equivocation, settings
from veen.products.console.pages.identity import capabilities, identity, revoke_token
from veen.products.console.pages.operations import discovery, operations, wallet
from veen.products.console.views import (
    CONSOLE,
    Console,
    DigestCell,
    LinkCell,
    MarkCell,
    MomentCell,
    PageView,
    fault_of,
    is_divergence,
)
from veen.products.console.writes import MAX_UPLOAD_BYTES, ConsoleWriter, WriteOutcome, judge, read_fields, read_form

_PATHS: Final = (("/overview", "Overview"), ("/streams", "Streams"), ("/checkpoints", "Checkpoints"))
_REPORTS: Final = (
    *(page for product in load_products() if product.pages is not None for page in load_pages(product.pages)),
    Page(path="/identity", title="Identity", report=identity),
    Page(path="/wallet", title="Wallet", report=wallet),
    Page(
        path="/capabilities", title="Capabilities", report=capabilities, writes={"/capabilities/revoke": revoke_token}
    ),
    Page(path="/operations", title="Operations", report=operations),
    Page(path="/discovery", title="Discovery", report=discovery),
    Page(path="/audit", title="Audit", report=audit),
    Page(path="/equivocation", title="Equivocation", report=equivocation),
)
_SETTINGS: Final = Page(path="/settings", title="Settings", report=settings)
_NAVIGATION: Final = (
    *_PATHS,
    *((page.path, page.title) for page in _REPORTS),
    ("/verify", "Verify"),
    (_SETTINGS.path, _SETTINGS.title),
    ("/help", "Help"),
)
_MAX_PATH_DIGITS: Final = 19
_MAX_LOGIN_BYTES: Final = 8192
_LOGINS_AT_ONCE: Final = 2  # each takes the memory of one argon2id
LOGOUT: Final = "/logout"
_FILES: Final = {
    "console.css": ("veen.products.console", "static/console.css", "text/css; charset=utf-8"),
    "console.js": ("veen.products.console", "static/console.js", "text/javascript; charset=utf-8"),
    "veen-objects.js": ("veen.products.console", "static/veen-objects.js", "text/javascript; charset=utf-8"),
    "icon.svg": ("veen.products.console", "static/icon.svg", "image/svg+xml"),
    # The audited verifier, unchanged: the same bytes as in evidence.html.
    "veen-verify.js": ("veen.client.evidence_page", "veen-verify.js", "text/javascript; charset=utf-8"),
}

View = Callable[[Request], Awaitable[PageView]]
Write = Callable[[ConsoleWriter, Request, dict[str, str]], Awaitable[WriteOutcome]]


def make_app(console: Console, admission: BrowserAdmission) -> Starlette:
    """Build the application over a connected console."""
    base = admission.root_path
    pages = _Pages(console, admission)
    routes = [Route(f"{base}/", lambda _: RedirectResponse(f"{base}/overview", 303))]
    for path, view in pages.table():
        methods = ["GET", "POST"] if path == "/verify" else ["GET"]
        routes.append(Route(f"{base}{path}.json", pages.answer_with(view, as_json=True), methods=methods))
        routes.append(Route(f"{base}{path}", pages.answer_with(view, as_json=False), methods=methods))
    for path, write in pages.writes():
        routes.append(Route(f"{base}{path}", pages.write_with(write), methods=["POST"]))
    routes.append(Route(f"{base}{LOGIN}", pages.login, methods=["GET", "POST"]))
    routes.append(Route(f"{base}{LOGOUT}", pages.logout, methods=["POST"]))
    routes.append(Route(f"{base}{STATIC}{{name}}", _static))
    guard = Middleware(Guard, admission=admission, refuse=pages.refuse, entrance=pages.entrance)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with console.rates.sampling():
            yield

    return Starlette(
        routes=routes, middleware=[guard], exception_handlers={HTTPException: pages.http_error}, lifespan=lifespan
    )


class _Pages:
    """Turns views into answers, and errors into error pages."""

    def __init__(self, console: Console, admission: BrowserAdmission) -> None:
        self._console, self._admission, self._base = console, admission, admission.root_path
        self._logins = asyncio.Semaphore(_LOGINS_AT_ONCE)
        self._templates = Environment(
            loader=PackageLoader("veen.products.console"),
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
        self._templates.filters["svg"] = Markup  # pictures are drawn by `charts`, which escapes foreign text
        self._templates.globals["base"] = self._base

    def table(self) -> tuple[tuple[str, View], ...]:
        return (
            ("/overview", lambda request: self._console.overview(request.query_params)),
            ("/streams", lambda request: self._console.streams(request.query_params)),
            ("/checkpoints", lambda request: self._console.checkpoints(request.query_params)),
            ("/verify", self._verify),
            ("/help", _help),
            *((page.path, self._report(page.report)) for page in (*_REPORTS, _SETTINGS)),
            ("/stream/{stream}/{seq}/proof", self._proof),
            ("/stream/{stream}/{seq}", self._message),
            ("/stream/{stream}", self._stream),
        )

    def writes(self) -> tuple[tuple[str, Write], ...]:
        """Return the writes of a console with --allow-write. The path is also the purpose of the form's token."""
        return (
            ("/stream/{stream}/send", self._send),
            *((path, self._write(write)) for page in _REPORTS for path, write in page.writes.items()),
        )

    async def _send(self, writer: ConsoleWriter, request: Request, fields: dict[str, str]) -> WriteOutcome:
        text = fields.get("body", "").replace("\r\n", "\n")  # forms send the line ends of text as CRLF
        if not text:
            raise FormInvalid("the form has no text to send")
        return await self._console.send(writer, request.path_params["stream"], text.encode())

    def _write(self, write: PageWrite) -> Write:
        return lambda writer, _, fields: write(self._console, writer, fields)

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

    def answer_with(self, view: View, *, as_json: bool) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                shown = await view(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except VeenError as exc:
                self._console.note_failure(exc, request.url.path)
                return self._error_page(request, exc, _status_of(exc), as_json=as_json)
            status = 502 if shown.failed or _has_failed(shown.data) else 200
            if as_json:
                about = {"page": shown.title, "verified_by": shown.verified_by or "nobody", "command": shown.command}
                return _json(status, {**about, **shown.data, "failures": list(self._console.failures)})
            pictures = {name: Markup(svg) for name, svg in shown.pictures.items()}  # noqa: S704 - made here, escaped
            return self._html(request, status, shown.template, shown=shown, pictures=pictures, **shown.data)

        return endpoint

    # --- writes and logins ---------------------------------------------------------------------------------------

    def write_with(self, write: Write) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint that carries out a form once, then redirects to the resulting page: a reload sends
        nothing.
        """

        async def endpoint(request: Request) -> Response:
            console, session = self._console, session_of(request)
            try:
                if console.writer is None:
                    raise ConsoleReadOnly("this console was started without --allow-write")
                self._admission.check_origin(request, required=True)
                fields = await read_fields(request)
                path = request.url.path.removeprefix(self._base)
                if session is None:
                    raise CrossSiteRequest("the form has no session")
                writer, serial = console.writer, self._admission.form_serial(session, path, fields.pop("form", ""))
                content = sha256(repr(sorted(fields.items())).encode("utf-8", "surrogatepass")).digest()
                outcome = await console.writes.once(serial, content, lambda: write(writer, request, fields))
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it
            except VeenError as exc:
                console.note_failure(exc, request.url.path)
                return self._error_page(request, exc, _status_of(exc), as_json=False)
            mark = "&" if "?" in outcome.path else "?"
            return RedirectResponse(f"{self._base}{outcome.path}{mark}done={serial}", 303)

        return endpoint

    async def login(self, request: Request) -> Response:
        """Show the login form and handle it. Name and password appear in no address, log or error."""
        passwords = self._admission.passwords
        if passwords is None or session_of(request) is not None:
            return RedirectResponse(f"{self._base}/overview", 303)
        if request.method != "POST":
            return self._login_page(None, 200)
        address = "" if request.client is None else request.client.host
        try:
            self._admission.check_origin(request, required=True)
            fields = await read_fields(request, most=_MAX_LOGIN_BYTES)
            name = fields.get("name", "")[:64]
            async with self._logins:
                self._admission.attempts.begin(address)
                await asyncio.to_thread(passwords.check, name, fields.get("password", ""))
                self._admission.attempts.forgive(address)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except TooManyAttempts as exc:
            response = self._login_page(fault_of(exc), 429)
            response.headers["Retry-After"] = str(exc.seconds)
            return response
        except ConsoleError as exc:
            return self._login_page(fault_of(exc), _status_of(exc))
        response = RedirectResponse(f"{self._base}/overview", 303)
        self._admission.begin_session(response, name)
        return response

    async def logout(self, request: Request) -> Response:
        session = session_of(request)
        try:
            self._admission.check_origin(request, required=True)
            fields = await read_fields(request, most=_MAX_LOGIN_BYTES)
            if session is None:
                raise CrossSiteRequest("the form has no session")
            self._admission.form_serial(session, LOGOUT, fields.get("form", ""))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except ConsoleError as exc:
            return self._error_page(request, exc, _status_of(exc), as_json=False)
        response = HTMLResponse(self._templates.get_template("farewell.html").render(
            has_login=self._admission.passwords is not None
        ))  # fmt: skip
        self._admission.end_session(session, response)
        return response

    def _login_page(self, fault: dict[str, Any] | None, status: int) -> Response:
        return HTMLResponse(self._templates.get_template("login.html").render(fault=fault), status)

    def _outcome(self, request: Request) -> WriteOutcome | None:
        """Return the outcome of the form that led to this page, or None."""
        number = request.query_params.get("done", "")
        if not number.isascii() or not number.isdigit() or len(number) > _MAX_PATH_DIGITS:
            return None
        outcome = self._console.writes.outcome(int(number))
        path = request.url.path.removeprefix(self._base)
        return outcome if outcome is not None and outcome.path.partition("?")[0] == path else None

    # --- HTML ----------------------------------------------------------------------------------------------------

    def _html(self, request: Request, status: int, template: str, **facts: Any) -> Response:
        path = request.url.path
        session = session_of(request)
        arguments = request.scope["query_string"].decode("ascii", "replace")
        text = self._templates.get_template(template).render(
            navigation=_NAVIGATION,
            path=path.removeprefix(self._base),
            twin=f"{path}.json" + (f"?{arguments}" if arguments else ""),
            failures=list(self._console.failures),
            now=when(int(time.time())),
            version=__version__,
            may_write=self._console.writer is not None,
            outcome=self._outcome(request),
            user=None if session is None else session.name,
            form_token=lambda purpose: "" if session is None else self._admission.form_token(session, purpose),
            **facts,
        )
        return HTMLResponse(text, status)

    def _cell(self, value: Any) -> Any:
        """Render a value of a section."""
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

    def _error_page(self, request: Request, exc: Exception, status: int, *, as_json: bool) -> Response:
        fault = fault_of(exc)
        if as_json:
            return _json(status, {"verified_by": "nobody", "error": fault, "failures": list(self._console.failures)})
        return self._html(request, status, "error.html", fault=fault)

    async def refuse(self, request: Request, exc: ConsoleError, status: int) -> Response:
        """Answer a request that was not admitted, without any fact of the log, the hub or the keys."""
        fault = fault_of(exc)
        if request.url.path.endswith(".json"):
            return _json(status, {"verified_by": "nobody", "error": fault})
        if isinstance(exc, LoginRefused):
            return self._login_page(fault, status)
        text = self._templates.get_template("refused.html").render(fault=fault)
        return HTMLResponse(text, status)

    def entrance(self) -> Response:
        return HTMLResponse(self._templates.get_template("entrance.html").render())

    async def http_error(self, request: Request, exc: Exception) -> Response:
        """Answer unknown paths and methods."""
        status = exc.status_code if isinstance(exc, HTTPException) else 500
        error = BadAddress("the console has no page of this address, or not for this method")
        return self._error_page(request, error, status, as_json=request.url.path.endswith(".json"))


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
    if is_divergence(exc):
        return 502
    if isinstance(exc, (BadAddress, UploadInvalid, FormInvalid)):
        return 400
    if isinstance(exc, LoginRefused):
        return 401
    if isinstance(exc, (CrossSiteRequest, ConsoleReadOnly)):
        return 403
    if isinstance(exc, (UnknownStream, NoEntries)) or (isinstance(exc, HubRefused) and is_not_found(exc)):
        return 404
    return 503 if isinstance(exc, (NetworkError, HubRefused)) else 500


def _has_failed(data: dict[str, Any]) -> bool:
    """Return True if a part of the page did not verify."""
    parts = [*data.get("streams", ()), *data.get("checkpoints", ())]
    if isinstance(data.get("hub"), dict):
        parts.append(data["hub"])
    errors = [part.get("error") for part in parts if isinstance(part, dict)]
    return any(error is not None and error["diverged"] for error in errors)


def _json(status: int, value: dict[str, Any]) -> Response:
    return Response(pretty(value) + "\n", status, media_type="application/json")


# --- text ------------------------------------------------------------------------------------------------------------


def _inert(value: Any) -> Any:
    """Return a value for a template: control characters are spelled out, then Jinja escapes it."""
    return safe(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(text: str) -> Markup:
    """Escape a body; line feeds and tabs stay."""
    return escape(safe(text, keep="\n\t"))


def _stream_name(name: Any) -> Any:
    """Render the name of a stream; one without a name by the ends of its id."""
    if not isinstance(name, str) or not name.startswith("hex:") or len(name) < 64:
        return _inert(name)
    return Markup('<span title="{}">hex:{}…{}</span>').format(name, name[4:12], name[-4:])


def _short(digits: str) -> Markup:
    """Render a hash shortened; the title and the twin have all of it."""
    if len(digits) <= 16:
        return Markup("<code>{}</code>").format(digits)
    return Markup('<code class="short" title="{}">{}…{}</code>').format(digits, digits[:8], digits[-4:])
