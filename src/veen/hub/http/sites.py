"""Requests that a web page had a browser send: refused, as the page may be anybody's (cross-site request forgery).

A browser sends a POST without a content type, or with a plain one, to any address before it asks the server, also to a
hub on the user's own machine or with the user's client certificate. It says so: `Sec-Fetch-Site`, and `Origin` in older
ones. No other client sends these headers. A hub serves no pages, so nothing of ours is lost.

A name that an attacker points at loopback (DNS rebinding) makes such a page look like the hub's own; only the Host
header tells. A hub for trying things, which admits anybody's messages, therefore answers to its own names alone.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from veen.core.errors import ApiCode
from veen.hub.api.reply import ApiError
from veen.io.addresses import is_loopback

_SAFE: Final = frozenset((b"GET", b"HEAD", b"OPTIONS"))  # they change nothing, and the page cannot read the answer
_OWN: Final = frozenset((b"same-origin", b"none"))  # none: typed into the address bar


def check_site(method: bytes, headers: Mapping[bytes, bytes], *, loopback_only: bool) -> None:
    """Raise ApiError if the page of another site sent this, or if `loopback_only` and the hub is called otherwise."""
    host = headers.get(b"host")
    if loopback_only and host is not None and not _is_loopback_name(host):
        raise _refusal("this hub is for trying things and answers to names of loopback only", "Host")
    if method in _SAFE:
        return
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None and site.strip().lower() not in _OWN:
        raise _refusal("a web page of another site sent this request", "Sec-Fetch-Site")
    if site is None and origin is not None and not _is_same(origin, host):
        raise _refusal("a web page of another site sent this request", "Origin")


def _is_loopback_name(host: bytes) -> bool:
    try:
        name = (urlsplit(b"//" + host.strip()).hostname or b"").decode("ascii").rstrip(".").lower()
    except ValueError:  # not ASCII, or brackets that do not match
        return False
    return is_loopback(name) or name.endswith(".localhost")


def _is_same(origin: bytes, host: bytes | None) -> bool:
    """Compared without the scheme: whoever speaks for a host and port by http speaks for them by https."""
    _, separator, place = origin.strip().lower().partition(b"://")
    return bool(separator) and host is not None and place == host.strip().lower()


def _refusal(message: str, field: str) -> ApiError:
    return ApiError(ApiCode.FORBIDDEN, message, detail={"field": field})
