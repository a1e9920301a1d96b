"""`--where` and `--order` of `veen query`: short texts for conditions and orders of a descriptor."""

import re
import time
from typing import Any, Final

import click

from veen.client.moments import parse_moment

_EXPRESSION: Final = re.compile(r"\s*([^\s=<>^!~]+)(?:\s*(<=|>=|\^=|=|<|>)|\s+(in)\s)\s*(.*?)\s*", re.DOTALL)
_FIELD: Final = re.compile(r"[^*?!~|&%$+,;()\[\]{}<>=\"'`\\]+")  # other characters are operators of other languages
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_TEXT_FIELDS: Final = ("subject_id", "principal_id", "event_type", "origin", "stream", "receipt_id")
_ORDER: Final = re.compile(r"\s*(\S+)(?:\s+(asc|desc))?\s*")
_EXAMPLES: Final = "payload.level=error, payload.ms>=100, 'payload.user in alice,bob', origin^=gw-"


def condition_of(text: str) -> dict[str, Any]:
    """Parse `FIELD OP VALUE`. A value is a number, true, false, a JSON text in quotes, or else plain text."""
    match = _EXPRESSION.fullmatch(text)
    if match is None or match[4].startswith("=") or (match[3] and not match[4]):
        raise click.UsageError(f"--where {text!r} is not a condition such as {_EXAMPLES}; operators: = in < <= > >= ^=")
    field, op, value = match[1], match[2] or match[3], match[4]
    if _FIELD.fullmatch(field) is None:
        raise click.UsageError(
            f"--where {text!r}: no field is called {field!r}; operators: = in < <= > >= ^= (prefix), as in {_EXAMPLES}"
        )
    if op != "in":
        return {"field": field, "op": op, "value": _value(field, op, value)}
    if value.startswith("["):
        values = _json(value)
        return {"field": field, "op": op, "value": [_moment(field, op, element) for element in values]}
    return {"field": field, "op": op, "value": [_value(field, op, element.strip()) for element in value.split(",")]}


def _value(field: str, op: str, text: str) -> Any:
    if text.startswith('"'):
        return _moment(field, op, _json(text))
    if field in _TEXT_FIELDS or op == "^=":
        return text
    if text in ("true", "false"):
        return text == "true"
    if text == "null":
        raise click.UsageError(f'--where {field}: null fits no condition; write "null" in quotes for the text')
    return _moment(field, op, _json(text) if _NUMBER.fullmatch(text) and not _is_time(field) else text)


def _is_time(field: str) -> bool:
    from veen.lake.query.clauses import TIME_FIELDS

    return field in TIME_FIELDS


def _moment(field: str, op: str, value: Any) -> Any:
    """Normalise a time, in any form of --from, to that of descriptors."""
    if not _is_time(field) or op == "^=" or type(value) is not str:
        return value
    from veen.lake.query.fields import timestamp

    try:
        return timestamp(parse_moment(value, time.time()))
    except ValueError as exc:
        raise click.UsageError(f"--where {field}: {exc}") from exc


def _json(text: str) -> Any:
    from veen.core import canonical
    from veen.core.canonical import InvalidJson

    try:
        return canonical.parse(text)
    except InvalidJson as exc:
        raise click.UsageError(f"--where: {text[:80]!r}: {exc}") from exc


def order_of(text: str) -> dict[str, str]:
    """Parse `FIELD`, `FIELD asc` or `FIELD desc`."""
    match = _ORDER.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--order {text!r} is not an order such as payload.ms or 'payload.ms desc'")
    return {"field": match[1], "direction": match[2] or "asc"}
