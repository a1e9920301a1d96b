"""Timestamps of the Query API: whole seconds of UTC, `2025-11-19T03:20:00Z`, and no other form (QRY-04, D-108)."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

_FORM: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)


def seconds_of(text: str) -> int:
    """Parse a timestamp into seconds since 1970. Raise ValueError for fractions, other zones and invalid dates."""
    if _FORM.fullmatch(text) is None:
        raise ValueError("expected YYYY-MM-DDTHH:MM:SSZ, without fractions of a second")
    try:
        moment = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError as exc:
        raise ValueError("no such time") from exc
    return (moment - _EPOCH) // _SECOND


def timestamp(seconds: int) -> str:
    """Format seconds since 1970. Raise ValueError outside of the years 1 to 9999."""
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError as exc:
        raise ValueError(f"{seconds} s is not in a year of four digits") from exc
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%SZ}"
