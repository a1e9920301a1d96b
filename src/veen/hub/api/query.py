"""Parameters of GET requests: few, short and strict."""

from collections.abc import Mapping
from typing import Final

from veen.hub.api.calls import bad_request

_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}
_U64_DIGITS: Final = 20


def hex_field(query: Mapping[str, str], name: str, size: int) -> bytes:
    text = query.get(name, "")
    if len(text) == 2 * size and text == text.lower():
        try:
            value = bytes.fromhex(text)
        except ValueError:
            value = b""
        if len(value) == size:  # fromhex also skips white space
            return value
    raise bad_request(f"expected {size} bytes in lower-case hex", name)


def uint_field(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _U64_DIGITS and int(text) < 2**64):
        raise bad_request("expected an unsigned 64-bit integer", name)
    return int(text)


def flag_field(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "0")
    if text not in _FLAGS:
        raise bad_request("expected 1 or 0", name)
    return _FLAGS[text]
