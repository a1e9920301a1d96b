"""Addresses of hubs: the form of the URL of each scheme. Nothing of a transport is loaded here."""

import re
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

SCHEMES: Final = ("http", "https", "file", "nats", "nats+tls", "quic")
_EXPECTED: Final = "http://…, https://…, file:///DIRECTORY, nats://HOST/?hub=HEX or quic://HOST:PORT"
_HUB_ID16: Final = re.compile(r"[0-9a-f]{16}")
_HOST: Final = re.compile(
    r"[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?(?:/[!-~]{0,200})?"
)  # an address whose scheme was left out


def check_hub_url(text: str) -> str:
    """Return `text` without a slash at its end. Raise ValueError with the expected form if it is not the address of
    a hub."""
    try:
        parts = urlsplit(text)
        port = parts.port
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError as exc:
        raise ValueError(f"expected a URL, found {text!r}") from exc
    if parts.username or parts.password:
        raise ValueError("a URL must not hold credentials; use token_file")
    if parts.scheme == "file":
        is_path = parts.path.startswith("/") and parts.path.strip("/") and not parts.query and not parts.fragment
        if parts.netloc not in ("", "localhost") or not is_path:
            raise ValueError(f"expected file:///DIRECTORY, found {text!r}")
    elif parts.scheme in ("nats", "nats+tls"):
        strange = parts.path.strip("/") or parts.fragment or not set(query) <= {"hub", "credentials"}
        if not parts.hostname or strange or not _HUB_ID16.fullmatch(query.get("hub", "")):
            raise ValueError(f"expected nats://HOST/?hub=HEX with the first 16 hex digits of hub_id, found {text!r}")
        return text
    elif parts.scheme == "quic":
        if not parts.hostname or port is None or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError(f"expected quic://HOST:PORT, found {text!r}")
    elif parts.scheme not in ("http", "https") or not parts.hostname:
        meant = f"; do you mean http://{text} or https://{text}?" if _HOST.fullmatch(text) else ""
        raise ValueError(f"expected {_EXPECTED}, found {text!r}{meant}")
    return text.rstrip("/")


def credentials_of(url: str) -> str | None:
    """Return the credentials file for a NATS server that an address names; None without one."""
    try:
        return dict(parse_qsl(urlsplit(url).query)).get("credentials")
    except ValueError:  # no URL at all
        return None


def without_credentials(url: str) -> str:
    """Return the address as it is passed to others: a file of this machine means nothing to them."""
    if credentials_of(url) is None:
        return url
    parts = urlsplit(url)
    return parts._replace(
        query=urlencode([pair for pair in parse_qsl(parts.query) if pair[0] != "credentials"])
    ).geturl()
