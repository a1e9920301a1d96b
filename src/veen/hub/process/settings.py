"""Kinds of configuration values: the values that a key may hold, and the words for what was expected.

A kind reads the native values of a TOML or YAML file and, with `text`, the words of an environment variable or a
flag. It raises ValueError with a reason that names the expectation; the caller knows file and key.
"""

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from veen.core.errors import VeenError
from veen.core.labels import stream_id_of
from veen.core.objects.policies import realm_id_of
from veen.core.objects.profile import PRESETS, Profile

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of value. `read(value, text, base)`: `base` is the directory that relative paths start from."""

    expects: str
    read: Callable[[Any, bool, Path], Any]


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer whose tokens count, and for which streams. Without a key: anybody. Without streams: all of them
    (D-45)."""

    issuer_pk: bytes | None
    streams: tuple[bytes, ...] | None = None


def _fail(expects: str, value: Any) -> ValueError:
    return ValueError(f"expected {expects}, found {value!r}")


def _text(value: Any, text: bool, base: Path) -> str:
    if type(value) is not str:
        raise _fail(TEXT.expects, value)
    return value


def _path(value: Any, text: bool, base: Path) -> Path | None:
    if type(value) is not str:
        raise _fail(PATH.expects, value)
    return base / Path(value).expanduser() if value else None


def _boolean(value: Any, text: bool, base: Path) -> bool:
    if text:
        value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(
            value.lower(), value
        )
    if type(value) is not bool:
        raise _fail(BOOLEAN.expects, value)
    return value


def integer(low: int, high: int) -> Kind:
    expects = f"a whole number from {low} to {high}"

    def read(value: Any, text: bool, base: Path) -> int:
        number = int(value) if text and re.fullmatch(r"[0-9]{1,19}", value) else value
        if type(number) is not int or not low <= number <= high:
            raise _fail(expects, value)
        return number

    return Kind(expects, read)


def _with_units(expects: str, units: Mapping[str, int]) -> Kind:
    """Return the kind of a number, bare or with a unit: `"64MiB"`, `"30d"`."""

    def read(value: Any, text: bool, base: Path) -> int:
        if type(value) is str and (match := re.fullmatch(r"([0-9]{1,18})([A-Za-z]*)", value)) and match[2] in units:
            value = int(match[1]) * units[match[2]]
        if type(value) is not int or not 0 <= value < 2**63:
            raise _fail(expects, value)
        return value

    return Kind(expects, read)


def choice(*options: str, **aliases: str) -> Kind:
    expects = f"one of {', '.join(options)}"

    def read(value: Any, text: bool, base: Path) -> str:
        if type(value) is str and aliases.get(value, value) in options:
            return aliases.get(value, value)
        raise _fail(expects, value)

    return Kind(expects, read)


def list_of(kind: Kind) -> Kind:
    """Return the kind of a list of values; in text, elements are separated by commas."""
    expects = f"a list, each {kind.expects}"

    def read(value: Any, text: bool, base: Path) -> tuple[Any, ...]:
        return tuple(kind.read(element, text, base) for element in _elements(value, text, expects))

    return Kind(expects, read)


def _elements(value: Any, text: bool, expects: str) -> Sequence[Any]:
    if text:
        return [element.strip() for element in value.split(",") if element.strip()]
    if type(value) is not list:
        raise _fail(expects, value)
    return value


def _hex32(value: Any, text: bool, base: Path) -> bytes:
    if type(value) is str and re.fullmatch(r"(ed25519:)?[0-9a-fA-F]{64}", value):
        return bytes.fromhex(value.removeprefix("ed25519:"))
    raise _fail(HEX32.expects, value)


def _stream(value: Any, text: bool, base: Path) -> bytes:
    if type(value) is not str:
        raise _fail(STREAM.expects, value)
    try:
        return stream_id_of(value)
    except VeenError as exc:
        raise ValueError(str(exc)) from exc


def _metric_streams(value: Any, text: bool, base: Path) -> tuple[str, ...]:
    """Read streams as written: the names of the series are those that the operator chose."""
    streams = tuple(_elements(value, text, WATCHED_STREAMS.expects))
    if len(streams) > _MAX_WATCHED_STREAMS:
        raise ValueError(f"{len(streams)} streams, and at most {_MAX_WATCHED_STREAMS} may be named")
    if len({_stream(stream, text, base) for stream in streams}) < len(streams):
        raise ValueError("a stream is named twice")
    return streams


def _realm(value: Any, text: bool, base: Path) -> bytes:
    if type(value) is not str or not value:
        raise _fail(REALM.expects, value)
    return bytes.fromhex(value) if re.fullmatch(r"[0-9a-fA-F]{64}", value) else realm_id_of(value)


def _profiles(value: Any, text: bool, base: Path) -> tuple[Profile, ...]:
    profiles = tuple(_profile(element) for element in _elements(value, text, PROFILES.expects))
    if not profiles:
        raise _fail(PROFILES.expects, value)
    return profiles


def _profile(value: Any) -> Profile:
    if type(value) is str and value in PRESETS:
        return PRESETS[value]
    numbers = value if type(value) is dict and set(value) == {"epoch_sec", "pad_block"} else {}
    if not numbers or any(type(number) is not int or number < 0 for number in numbers.values()):
        raise _fail(PROFILES.expects, value)
    return Profile(epoch_sec=numbers["epoch_sec"], pad_block=numbers["pad_block"])


def _issuers(value: Any, text: bool, base: Path) -> tuple[Issuer, ...]:
    return tuple(_issuer(element, base) for element in _elements(value, text, ISSUERS.expects))


def _issuer(value: Any, base: Path) -> Issuer:
    if value == "*":
        return Issuer(None)
    if type(value) is str:
        return Issuer(_hex32(value, False, base))
    if type(value) is dict and set(value) == {"issuer", "streams"} and type(value["streams"]) is list:
        issuer_pk = None if value["issuer"] == "*" else _hex32(value["issuer"], False, base)
        return Issuer(issuer_pk, tuple(_stream(stream, False, base) for stream in value["streams"]))
    raise _fail(ISSUERS.expects, value)


def _network(value: Any, text: bool, base: Path) -> Network:
    try:
        return ipaddress.ip_network(value) if type(value) is str else ipaddress.ip_network("")
    except ValueError as exc:
        raise _fail(NETWORK.expects, value) from exc


def _address(value: Any, text: bool, base: Path) -> str:
    """Read the address of a hub. Refuse here an address that could never answer."""
    try:
        parts = urlsplit(value) if type(value) is str else urlsplit("")
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or not re.fullmatch(r"[!#-&(-;=?-\[\]-z|~]+", value):  # printable, without quotes and brackets of lists
        raise _fail(ADDRESS.expects, value)
    return str(value)


def _workers(value: Any, text: bool, base: Path) -> int | None:
    return None if value == "auto" else int(_COUNT.read(value, text, base))


TEXT: Final = Kind("text", _text)
PATH: Final = Kind("the path of a file or directory", _path)
BOOLEAN: Final = Kind("true or false", _boolean)
SIZE: Final = _with_units(
    "a number of bytes, such as 1048576 or 64MiB", {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
)
DURATION: Final = _with_units(
    "a duration, such as 90s, 15m, 12h or 30d", {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
)
HEX32: Final = Kind("a public key of 64 hex digits", _hex32)
STREAM: Final = Kind("the name of a stream, or its id in 64 hex digits", _stream)
_MAX_WATCHED_STREAMS: Final = 100  # series of one metric
WATCHED_STREAMS: Final = Kind(
    f"a list of at most {_MAX_WATCHED_STREAMS} streams, each a name or an id in 64 hex digits", _metric_streams
)
REALM: Final = Kind("the name of a realm, or its id in 64 hex digits", _realm)
PROFILES: Final = Kind(f"a list of {', '.join(PRESETS)} or {{epoch_sec, pad_block}}", _profiles)
ISSUERS: Final = Kind('a list of public keys in hex, {issuer, streams}, or "*"', _issuers)
ADDRESS: Final = Kind("the address of a hub, http://HOST:PORT or https://HOST:PORT", _address)
NETWORK: Final = Kind("a network, such as 192.0.2.0/24", _network)
_COUNT: Final = integer(0, 256)
WORKERS: Final = Kind(f"auto or {_COUNT.expects}", _workers)
