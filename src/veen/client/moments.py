"""Times as people write them: a number of seconds, ISO 8601, or a span before or after now such as `-15m`.

Imports only the standard library: the completion of the shell uses this module.
"""

import re
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN: Final = re.compile(r"(\d{1,12})([smhdw]?)", re.ASCII)


def parse_span(text: str) -> int:
    """Return the seconds of `600`, `90s`, `10m`, `2h` or `7d`; raise ValueError for other text."""
    if match := _SPAN.fullmatch(text):
        return int(match[1]) * _UNITS[match[2] or "s"]
    raise ValueError(f"{text!r} is no span of time such as 90s, 10m, 2h or 7d")


def parse_moment(text: str, now: float) -> int:
    """Return the seconds since 1970 of a number, ISO 8601 (UTC by default), or `-15m` for fifteen minutes ago."""
    if text.isascii() and text.isdecimal() and len(text) <= 12:
        return int(text)
    if text[:1] in ("-", "+") and _SPAN.fullmatch(text[1:]):
        seconds = parse_span(text[1:])
        return max(int(now) + (seconds if text[0] == "+" else -seconds), 0)
    try:
        parsed = datetime.fromisoformat(text)
        return max(int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()), 0)
    except (ValueError, OverflowError) as exc:
        meant = f"; do you mean -{text}, that long ago?" if _SPAN.fullmatch(text) else ""
        raise ValueError(f"{text!r} is no time such as 2026-11-16T10:00:00Z or -15m{meant}") from exc
