"""Parameter types: times, spans, sizes, ranges, rates.

Pure apart from the clock that a relative time is counted from; nothing here loads cryptography, as TAB must stay fast.
"""

import re
import time
from typing import Final

import click

from veen.client.moments import parse_moment, parse_span

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
        try:
            return parse_span(value)
        except ValueError as exc:
            raise click.BadParameter(str(exc), ctx=ctx, param=param) from exc


class _Moment(click.ParamType[int]):
    """Seconds since 1970: a number, ISO 8601 (UTC unless it says otherwise), or `-15m` for a quarter of an hour ago."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_moment(value, time.time())
        except ValueError as exc:
            raise click.BadParameter(str(exc), ctx=ctx, param=param) from exc


class _Size(click.ParamType[int]):
    """Bytes: `512`, `64KiB`, `1MiB`."""

    name = "size"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value)
        if match and match[2] in _SIZES:
            return int(match[1]) * _SIZES[match[2]]
        raise click.BadParameter(f"{value!r} is not a size such as 512, 64KiB or 1MiB", ctx=ctx, param=param)


class _Range(click.ParamType[tuple[int | None, int | None]]):
    """`10..20`, both included; either end may be left open; `10` is one entry."""

    name = "range"

    def convert(
        self, value: str | tuple[int | None, int | None], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        if isinstance(value, tuple):
            return value
        match = _RANGE.fullmatch(f"{value}..{value}" if value.isascii() and value.isdecimal() else value)
        if match is None or not (match[1] or match[2]):
            raise click.BadParameter(f"{value!r} is not a range such as 10..20", ctx=ctx, param=param)
        first, last = (int(end) if end else None for end in match.groups())
        if first is not None and last is not None and last < first:
            raise click.BadParameter(f"{value!r} ends before it begins", ctx=ctx, param=param)
        return first, last


class _Rate(click.ParamType[tuple[int, int]]):
    """`PER_SEC,BURST`: messages a second, and at once."""

    name = "rate"

    def convert(
        self, value: str | tuple[int, int], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        if match := _RATE.fullmatch(value):
            return int(match[1]), int(match[2])
        raise click.BadParameter(f"{value!r} is not a rate such as 100,200 (a second, at once)", ctx=ctx, param=param)


SPAN: Final = _Span()
MOMENT: Final = _Moment()
SIZE: Final = _Size()
RANGE: Final = _Range()
RATE: Final = _Rate()
