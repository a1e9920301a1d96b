"""Bodies as JSON text and names of schemas: the readable form of an opened entry."""

import json
from decimal import Decimal
from functools import cache
from typing import Any, Final, NoReturn

from veen.core import cbor
from veen.core.errors import VeenError

_MAX_DEPTH: Final = 64
_MAX_DIGITS: Final = 200  # before or behind the point: 1e999999999 must not become a gigabyte


def json_of(body: bytes) -> str | None:
    """Return a CBOR body as JSON: sorted keys, bytes as hex, bytes that hold a JSON object or array as that value.

    Numbers keep their digits. Return None for a body that is not CBOR, or that has no JSON form.
    """
    try:
        text = _to_json(cbor.decode(body), 0)
        text.encode()  # a lone surrogate has no UTF-8
    except (VeenError, ValueError, TypeError, RecursionError):
        return None
    return text


def _to_json(value: Any, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, bytes):
        return _bytes_to_json(value, depth)
    if isinstance(value, list | tuple):
        return f"[{','.join(_to_json(element, depth + 1) for element in value)}]"
    if isinstance(value, dict):
        members = sorted((_key(key), element) for key, element in value.items())
        return f"{{{','.join(f'{_quote(key)}:{_to_json(element, depth + 1)}' for key, element in members)}}}"
    if isinstance(value, Decimal):
        return _number_to_json(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _bytes_to_json(value: bytes, depth: int) -> str:
    if value[:1] in (b"{", b"["):
        try:
            return _to_json(json.loads(value, parse_float=Decimal, parse_constant=_refuse), depth)
        except (ValueError, RecursionError):
            pass
    return f'"{value.hex()}"'


def _number_to_json(value: Decimal) -> str:
    if abs(value.adjusted()) > _MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return format(value, "f")


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    return key.hex() if isinstance(key, bytes) else str(key)


@cache
def _names() -> dict[bytes, str]:
    from veen.overlays.framework.registry import BUILTIN  # every overlay: a task that names no schema does without

    registry = BUILTIN.with_installed()
    return {schema.id: schema.name for name in registry for schema in registry[name].schemas}


def schema_name(schema: bytes) -> str:
    """Return the name of a schema of an installed overlay, or its id in hex."""
    return _names().get(schema) or schema.hex()
