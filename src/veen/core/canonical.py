"""Canonical JSON: one value, one sequence of bytes (QRY-03, D-107).

Keys are sorted by their UTF-8 bytes, no white space separates tokens, escapes are minimal, characters beyond ASCII are
literal. Numbers are exact: decimal text is kept digit for digit and never passes through binary floating point. It is
written without exponent, superfluous zeros or a sign on zero, so 1.0 is 1.

A value is None, bool, int, Decimal, str, list or dict with text keys. `parse` returns no other types, and an integral
number always as int: equal values have equal bytes, and equal bytes equal values.
"""

import json
from decimal import Decimal
from typing import Any, Final

from veen.core.errors import StatedError

Json = Any  # of the types above


class InvalidJson(StatedError, code="E.USAGE"):
    """Text that is not JSON, or that has no single meaning."""

    error_code = "invalid_json"  # of the Query API


MAX_DEPTH: Final = 128
MAX_DIGITS: Final = 200  # on either side of the point: 1e999999999 must not become a gigabyte


def encode(value: Json) -> bytes:
    """Return the one encoding of `value`; raise InvalidJson if it has none."""
    parts: list[str] = []
    _write(value, parts, 0)
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError as exc:
        raise InvalidJson("text contains a lone surrogate") from exc


def _write(value: Json, parts: list[str], depth: int) -> None:
    kind = type(value)
    if kind is str:
        parts.append(_quote(value))
    elif value is None or value is True or value is False:
        parts.append("null" if value is None else "true" if value else "false")
    elif kind is int or kind is Decimal or kind is float:
        number = exact(value)
        parts.append(format(number, "f") if type(number) is Decimal else str(number))
    elif kind is list or kind is tuple:
        _check_depth(depth)
        parts.append("[")
        for at, element in enumerate(value):
            if at:
                parts.append(",")
            _write(element, parts, depth + 1)
        parts.append("]")
    elif kind is dict:
        _check_depth(depth)
        parts.append("{")
        if not all(type(key) is str for key in value):
            raise InvalidJson("an object has a member whose name is not text")
        for at, key in enumerate(sorted(value)):  # by code point, which is the order of the UTF-8 bytes
            parts.append(f",{_quote(key)}:" if at else f"{_quote(key)}:")
            _write(value[key], parts, depth + 1)
        parts.append("}")
    else:
        raise InvalidJson(f"JSON has no form for {kind.__name__}")


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _check_depth(depth: int, max_depth: int = MAX_DEPTH) -> None:
    if depth >= max_depth:
        raise InvalidJson(f"nested deeper than {max_depth}")


def exact(number: int | float | Decimal, *, max_digits: int = MAX_DIGITS) -> int | Decimal:
    """Return the number as int if it is integral, else as the Decimal with the fewest digits.

    A float is the shortest decimal text that reads back as the same float (D-107). NaN and infinities are refused.
    """
    if type(number) is int:
        if abs(number) >= 10**max_digits:
            raise InvalidJson(f"a number has more than {max_digits} digits before the point")
        return number
    if type(number) is bool:
        raise InvalidJson("true and false are not numbers")
    decimal = Decimal(repr(number)) if type(number) is float else Decimal(number)
    sign, digits, exponent = decimal.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidJson("NaN and Infinity are not JSON numbers")
    while len(digits) > 1 and digits[-1] == 0:
        digits, exponent = digits[:-1], exponent + 1
    if digits == (0,) or not digits:
        return 0
    if len(digits) + exponent > max_digits or -exponent > max_digits:
        raise InvalidJson(f"a number has more than {max_digits} digits before or after the point")
    if exponent >= 0:
        whole = int("".join(map(str, digits)) + "0" * exponent)
        return -whole if sign else whole
    return Decimal((sign, digits, exponent))


def parse(
    data: bytes | str,
    *,
    max_bytes: int = 16 * 1024 * 1024,
    max_depth: int = MAX_DEPTH,
    max_digits: int = MAX_DIGITS,
) -> Json:
    """Parse one JSON value strictly: UTF-8, no repeated names, no NaN, no lone surrogates, bounded depth and size."""

    def integer(found: str) -> int:
        if len(found) > max_digits + 1:  # before int(), whose cost grows with the square
            raise InvalidJson(f"a number has more than {max_digits} digits before the point")
        return int(exact(int(found), max_digits=max_digits))

    if len(data) > max_bytes:
        raise InvalidJson(f"{len(data)} bytes are more than the limit of {max_bytes}")
    try:
        text = data if isinstance(data, str) else data.decode()
        value = json.loads(
            text,
            parse_int=integer,
            parse_float=lambda found: exact(Decimal(found), max_digits=max_digits),
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as exc:
        raise InvalidJson("not UTF-8") from exc
    except RecursionError as exc:
        raise InvalidJson(f"nested deeper than {max_depth}") from exc
    except json.JSONDecodeError as exc:
        raise InvalidJson(f"not JSON: {exc.msg} at character {exc.pos}") from exc
    _check_value(value, 0, max_depth)
    return value


def parse_canonical(data: bytes, *, max_depth: int = MAX_DEPTH, max_digits: int = MAX_DIGITS) -> Json:
    """Return the value whose encoding is exactly `data`; raise InvalidJson for any other bytes."""
    value = parse(data, max_depth=max_depth, max_digits=max_digits)
    if encode(value) != data:
        raise InvalidJson("not the canonical form: sorted names, no spaces, minimal numbers and escapes (D-107)")
    return value


def _constant(text: str) -> Json:
    raise InvalidJson(f"{text} is not a JSON number")


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidJson(f"duplicate name {twice!r} in an object")
    return members


def _check_value(value: Json, depth: int, max_depth: int) -> None:
    if type(value) is str:
        if not value.isascii():
            _check_text(value)
    elif type(value) is list or type(value) is dict:
        _check_depth(depth, max_depth)
        if type(value) is dict:
            for key in value:
                _check_text(key)
            value = value.values()
        for element in value:
            _check_value(element, depth + 1, max_depth)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidJson("text contains a lone surrogate") from exc
