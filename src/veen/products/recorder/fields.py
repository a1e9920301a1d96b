"""Selection of the fields of an event from a record: fixed words, or dotted paths such as `.user.name`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from veen.core.canonical import Json

_NANOS: Final = 10**9
_LATEST: Final = 253_402_300_799


def value_at(value: Json, path: str) -> Json:
    """Return the member at a dotted path such as `.a.b`, or None. A name that contains dots is tried whole first."""
    name = path.removeprefix(".")
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        head, dot, rest = name.partition(".")
        if dot and head in value:
            return value_at(value[head], rest)
    return None


def words_of(value: Json) -> str | None:
    """Return a scalar as text; None for null, booleans, objects and lists."""
    if value is None or isinstance(value, (dict, list, bool)):
        return None
    return str(value)


def seconds_of(value: Json) -> tuple[int, str] | None:
    """Parse a time, ISO 8601 or a number in s, ms, µs or ns; return whole seconds and the text of the source."""
    if isinstance(value, str):
        text = value.strip()
        if text.lstrip("-").replace(".", "", 1).isdigit() and len(text) < 40:
            return _of_number(Decimal(text), value)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return _within_years(int(moment.timestamp() // 1), value)
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return _of_number(Decimal(str(value)), str(value))
    return None


def _of_number(number: Decimal, text: str) -> tuple[int, str] | None:
    if not number.is_finite():
        return None
    for unit in (1, 1_000, 1_000_000, _NANOS):
        if abs(number) < 10**11 * unit:  # seconds up to the year 5138; a larger number counts a smaller unit
            return _within_years(int(number // unit), text)
    return None


def _within_years(seconds: int, text: str) -> tuple[int, str] | None:
    return (seconds, text) if 0 <= seconds <= _LATEST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """Selectors of the four fields.

    A plain word is the value; `.path` reads a member, with the word after `|` as default.
    """

    subject: str = ".user|unknown"
    event_type: str = ".event|log"
    origin: str = ".origin|"
    time: str = ".time"

    def pick(self, selector: str, value: Json, default: str) -> str:
        for option in selector.split("|"):
            word = words_of(value_at(value, option)) if option.startswith(".") else option
            if word:
                return word
        return default

    def when(self, value: Json, now: int) -> tuple[int, str | None]:
        """Return event_time and the time as the source wrote it; `now` if there is no valid time."""
        stamp = value_at(value, self.time) if self.time.startswith(".") else self.time
        moment = seconds_of(stamp)
        return (now, words_of(stamp)) if moment is None else moment
