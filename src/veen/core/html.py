"""HTML table of a wire object, for notebooks: names of the spec, short hashes, everything escaped.

`repr=False` on a class or a field marks a secret, and it is hidden here too: notebooks are saved and shared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from veen.core.wire import Wire

_MAX_ELEMENTS: Final = 16
_MAX_CHARS: Final = 200
_STYLE: Final = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0"
_CAPTION: Final = "text-align:left;font-weight:bold;padding:.2em 0"
_TIMES: Final = ("_ts", "_at", "valid_from", "valid_until")  # how the names of fields end that hold seconds since 1970
_LATEST: Final = 253_402_300_799  # the last second of the year 9999


def table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names, which are escaped, and values, which are HTML already."""
    lines = (
        f'<tr><th style="{_STYLE}">{escape(name)}</th><td style="{_STYLE}">{html}</td></tr>' for name, html in rows
    )
    return f'<table class="veen"><caption style="{_CAPTION}">{escape(title)}</caption>{"".join(lines)}</table>'


def of_wire(obj: Wire) -> str:
    """Return the fields of `obj` by name, or its `repr` if it hides them."""
    parameters = getattr(type(obj), "__dataclass_params__", None)
    if parameters is None or not parameters.repr:
        return f"<code>{escape(repr(obj))}</code>"
    hidden = {field.name for field in fields(obj) if not field.repr}  # type: ignore[arg-type]  # every one is a dataclass
    return table(
        obj.KIND, [(name, field_html(name, value)) for name, value in obj.present_fields() if name not in hidden]
    )


def field_html(name: str, value: Any) -> str:
    """Return the value of a field as HTML; a time as a date, with the seconds in its title."""
    if type(value) is int and name.endswith(_TIMES) and 0 < value <= _LATEST:
        return f'<span title="{value}">{datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")}</span>'
    return shown(value)


def shown(value: Any) -> str:
    """Return one value as HTML. A hash is shortened; its title has all digits."""
    if isinstance(value, Wire):
        return of_wire(value)
    if isinstance(value, bytes):
        digits = value.hex()
        if len(digits) <= 16:
            return f"<code>{digits}</code>"
        size = "" if len(value) in (32, 64) else f" ({len(value)} bytes)"
        title = digits if len(value) <= 64 else f"{digits[:128]}…"
        return f'<code title="{title}">{digits[:4]}…{digits[-4:]}</code>{size}'
    if isinstance(value, Mapping):
        return table("", [(str(name), shown(element)) for name, element in value.items()])
    if isinstance(value, (list, tuple)):
        parts = [shown(element) for element in value[:_MAX_ELEMENTS]]
        more = len(value) - len(parts)
        return "<br>".join(parts + ([f"… {more} more"] if more else [])) or "none"
    if value is None:
        return "none"
    text = str(value)
    return escape(text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}… ({len(text)} characters)")
