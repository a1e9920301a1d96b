"""Routes: the operation of each HTTP request, and the greatest size of its body (D-61)."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from veen.core import cbor
from veen.core.errors import ApiCode
from veen.core.limits import Limits
from veen.hub.api.attachments import TAG_BYTES
from veen.hub.api.calls import not_found
from veen.hub.api.pages import MAX_PAGE_BYTES
from veen.hub.api.reply import ApiError, Form

_SMALL: Final = 64 * 1024
_TOKEN: Final = 128 * 1024  # a token of 1,024 streams, in JSON
_SUBMIT_ENVELOPE: Final = 4
_JSON_ENVELOPE: Final = 4096  # names, brackets and numbers around the hex of a MSG
_MAX_URL: Final = 2048
_VERSIONED: Final = re.compile(r"/v[0-9]{1,9}(/|$)")
_ATTACHMENT: Final = "/tooling/attachment/"
_OUTER: Final = "/outer/"
_QUERY_API: Final = "/api/query/"


@dataclass(frozen=True, slots=True)
class Route:
    """One operation behind one method of one path."""

    operation: str
    max_body: Callable[[Limits, Form], int] = lambda limits, form: _SMALL
    answer: Form | None = None  # default form of the answer; None: that of the request
    large: bool = False  # its answer may exceed 64 KiB: not begun while too many bytes are unread


def _submit_bytes(limits: Limits, form: Form) -> int:
    maximum = limits.max_msg_bytes
    return maximum + _SUBMIT_ENVELOPE if form == "cbor" else 2 * maximum + _JSON_ENVELOPE


def _batch_bytes(limits: Limits, form: Form) -> int:
    return MAX_PAGE_BYTES if form == "cbor" else cbor.MAX_ITEM_BYTES


def _attachment_bytes(limits: Limits, form: Form) -> int:
    return limits.max_attachment_bytes + TAG_BYTES


SUBMIT: Final = Route("submit", _submit_bytes)
SUBMIT_BATCH: Final = Route("submit_batch", _batch_bytes, large=True)
_ATTACHMENTS: Final = {"GET": Route("attachment_get", large=True), "PUT": Route("attachment_put", _attachment_bytes)}

_OUTER_METHODS: Final = {"GET": Route("outer", answer="json", large=True)}

_ROUTES: Final[dict[str, dict[str, Route]]] = {
    "/v1/submit": {"POST": SUBMIT},
    "/v1/stream": {"POST": Route("stream", large=True)},
    "/v1/receipt": {"POST": Route("receipt")},
    "/v1/proof": {"POST": Route("proof")},
    "/v1/checkpoint": {"POST": Route("checkpoint")},
    "/tooling/submit_batch": {"POST": SUBMIT_BATCH},
    "/tooling/authorize": {"POST": Route("authorize", lambda limits, form: _TOKEN)},
    "/tooling/derive": {"POST": Route("derive", lambda limits, form: _TOKEN)},
    "/tooling/streams": {"POST": Route("streams"), "GET": Route("streams_list", answer="json")},
    "/tooling/policy": {
        "POST": Route("policy", lambda limits, form: _TOKEN),
        "GET": Route("policy_list", answer="json"),
    },
    "/tooling/anchor": {"POST": Route("anchor"), "GET": Route("anchor_list", answer="json")},
    "/tooling/stream": {"GET": Route("legacy_stream", large=True)},
    "/tooling/events": {"GET": Route("events", answer="json", large=True)},
    "/tooling/openapi.json": {"GET": Route("openapi", answer="json")},
    **{
        f"/tooling/{name}": {"POST": Route(name, large=name in ("attachments", "feed", "tail"))}
        for name in (
            "attachments",
            "cap_status",
            "client_cursor",
            "consistency",
            "feed",
            "fence",
            "inspect",
            "key_rotations",
            "promotion",
            "proof_at",
            "report_equivocation",
            "rotate_key",
            "tail",
        )
    },
    "/tooling/checkpoint_latest": {"POST": Route("checkpoint_latest"), "GET": Route("checkpoint_latest_get")},
    "/tooling/checkpoint_range": {
        "POST": Route("checkpoint_range", large=True),
        "GET": Route("checkpoint_range_get", large=True),
    },
    **{f"/tooling/{name}": {"POST": Route(name), "GET": Route(name, answer="json")} for name in ("status", "identity")},
    **{
        path: {"GET": Route(name, answer="json")}
        for name in ("healthz", "readyz", "version", "metrics")
        for path in (f"/{name}", f"/tooling/{name}")
    },
}


def find_route(method: str, url: str) -> tuple[Route, dict[str, str]]:
    """Return the operation and the parameters that a request line names; raise ApiError if it names none."""
    if len(url) > _MAX_URL:
        raise ApiError(ApiCode.LIMIT, "the URL is too long", status=414, detail={"max_allowed": _MAX_URL})
    path, _, query_text = url.partition("?")
    methods, query = _methods_at(path)
    if methods is None:
        if _VERSIONED.match(path) and not path.startswith("/v1/"):
            raise ApiError(ApiCode.VERSION, "this hub speaks /v1", detail={"field": "path", "expected": "v1"})
        raise no_such_path(path)
    route = methods.get("GET" if method == "HEAD" else method)
    if route is None:
        allow = methods_of(methods)
        raise ApiError(ApiCode.BAD_REQUEST, f"the path takes {allow}", status=405, headers=(("Allow", allow),))
    if query_text:
        query.update(parse_qsl(query_text, keep_blank_values=True, max_num_fields=16))
    return route, query


def no_such_path(path: str) -> ApiError:
    """Return the 404 of a path. It names the right path of an operation: 001 writes /submit and /anchor."""
    name = path.rstrip("/").rpartition("/")[2]
    if path.startswith(_QUERY_API):
        hint = "the query service answers it: veen query serve"
        return not_found(f"no such path; {hint}", hint=hint)
    for right in (f"/v1/{name}", f"/tooling/{name}"):
        if right in _ROUTES:
            hint = f"{name} is at {right} ({methods_of(_ROUTES[right])})"
            return not_found(f"no such path; {hint}", hint=hint)
    return not_found("no such path")


def _methods_at(path: str) -> tuple[dict[str, Route] | None, dict[str, str]]:
    if path.startswith(_ATTACHMENT):
        return _ATTACHMENTS, {"coid": path.removeprefix(_ATTACHMENT)}
    if path.startswith(_OUTER):
        return _OUTER_METHODS, {"path": path.removeprefix(_OUTER)}
    return _ROUTES.get(path), {}


def methods_of(methods: dict[str, Route]) -> str:
    """Return the value of an Allow header."""
    named = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
    return ", ".join(named)


def find_methods(url: str) -> str | None:
    """Return the methods of a path, None if there is no such path; "*" is the whole server."""
    path = url.partition("?")[0]
    if path == "*":
        return "GET, HEAD, OPTIONS, POST, PUT"
    methods, _ = _methods_at(path)
    return None if methods is None else methods_of(methods)
