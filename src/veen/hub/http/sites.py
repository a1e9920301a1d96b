"""Refusal of requests that a web page had a browser send, because the page may be anybody's (cross-site request
forgery).

A browser sends a POST without a content type, or with a plain one, to any address before it asks the server, even to
a hub on the user's own machine or with the user's client certificate. Browsers mark such requests by
`Sec-Fetch-Site`, older ones by `Origin`; no other client sends these headers. A hub serves no pages, so it loses no
request of its own.

A name that an attacker points at loopback (DNS rebinding) makes such a page look like the hub's own; only the Host
header shows it. A hub for trials, which admits anybody's messages, therefore answers only to names of loopback
(decisions.md 68).
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from veen.core.errors import ApiCode
from veen.hub.api.reply import ApiError
from veen.io.addresses import is_loopback

_SAFE: Final = frozenset((b"GET", b"HEAD", b"OPTIONS"))  # these change nothing, and the page cannot read the answer
_OWN: Final = frozenset((b"same-origin", b"none"))  # none: typed into the address bar


def check_site(method: bytes, headers: Mapping[bytes, bytes], *, loopback_only: bool) -> None:
    """Raise ApiError if a page of another site sent this, or if `loopback_only` and the hub is called by another
    name."""
    host = headers.get(b"host")
    if loopback_only and host is not None and not _is_loopback_name(host):
        raise _refusal("this hub is for trials and answers only to names of loopback", "Host")
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
    """Compare origin and host without the scheme: the owner of a host and port by http is its owner by https."""
    _, separator, place = origin.strip().lower().partition(b"://")
    return bool(separator) and host is not None and place == host.strip().lower()


def _refusal(message: str, field: str) -> ApiError:
    return ApiError(ApiCode.FORBIDDEN, message, detail={"field": field})
