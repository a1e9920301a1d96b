"""Values on the command line that mean more than a word: times, spans, sizes, ranges, rates.

Pure apart from the clock that a relative time is counted from; nothing here loads cryptography, as TAB must stay fast.
"""

import re
import time
from datetime import UTC, datetime
from typing import Final

import click

__all__ = ["MOMENT", "RANGE", "RATE", "SIZE", "SPAN"]

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN: Final = re.compile(r"(\d{1,12})([smhdw]?)", re.ASCII)
_SIZES: Final = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "kB": 1000, "MB": 1000**2}
_SIZE: Final = re.compile(r"(\d{1,12})([A-Za-z]*)", re.ASCII)
_RANGE: Final = re.compile(r"(\d{0,18})\.\.(\d{0,18})", re.ASCII)
_RATE: Final = re.compile(r"(\d{1,12}),(\d{1,12})", re.ASCII)


class _Span(click.ParamType[int]):
    """Seconds: `600`, `90s`, `10m`, `2h`, `7d`."""

    name = "span"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if match := _SPAN.fullmatch(value):
            return int(match[1]) * _UNITS[match[2] or "s"]
        raise click.BadParameter(f"{value!r} is no span of time such as 90s, 10m, 2h or 7d", ctx=ctx, param=param)


class _Moment(click.ParamType[int]):
    """Seconds since 1970: a number, ISO 8601 (UTC unless it says otherwise), or `-15m` for a quarter of an hour ago."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.isascii() and value.isdecimal() and len(value) <= 12:
            return int(value)
        sign, span = value[:1], _SPAN.fullmatch(value[1:])
        if sign in ("-", "+") and span:
            seconds = int(span[1]) * _UNITS[span[2] or "s"]
            return max(int(time.time()) + (seconds if sign == "+" else -seconds), 0)
        try:
            parsed = datetime.fromisoformat(value)
            return max(int((parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()), 0)
        except (ValueError, OverflowError) as exc:
            problem = f"{value!r} is no time such as 2026-11-16T10:00:00Z or -15m"
            raise click.BadParameter(problem, ctx=ctx, param=param) from exc


class _Size(click.ParamType[int]):
    """Bytes: `512`, `64KiB`, `1MiB`."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value)
        if match and match[2] in _SIZES:
            return int(match[1]) * _SIZES[match[2]]
        raise click.BadParameter(f"{value!r} is no size such as 512, 64KiB or 1MiB", ctx=ctx, param=param)


class _Range(click.ParamType[tuple[int | None, int | None]]):
    """`10..20`, both included; either end may be left open."""

    name = "range"

    def convert(
        self, value: str | tuple[int | None, int | None], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        if isinstance(value, tuple):
            return value
        match = _RANGE.fullmatch(value)
        if match is None or not (match[1] or match[2]):
            raise click.BadParameter(f"{value!r} is no range such as 10..20", ctx=ctx, param=param)
        first, last = (int(end) if end else None for end in match.groups())
        if first is not None and last is not None and last < first:
            raise click.BadParameter(f"{value!r} ends before it begins", ctx=ctx, param=param)
        return first, last


class _Rate(click.ParamType[tuple[int, int]]):
    """`PER_SEC,BURST`: so many messages a second, and so many at once."""

    name = "rate"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        if match := _RATE.fullmatch(value):
            return int(match[1]), int(match[2])
        raise click.BadParameter(f"{value!r} is no rate such as 100,200 (a second, at once)", ctx=ctx, param=param)


SPAN: Final = _Span()
MOMENT: Final = _Moment()
SIZE: Final = _Size()
RANGE: Final = _Range()
RATE: Final = _Rate()
