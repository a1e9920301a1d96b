"""Conditions on any field: `filter.where` of a descriptor, a list of {field, op, value} that must all hold.

A condition compares values of one kind: false and true, exact numbers, texts by code point. A value of another kind,
null and a missing value match no condition. `^=` is the prefix of a text. Times are texts of one form, so their order
is that of the texts.

Conditions that the older members of a filter can express (`subject_id`, `event_type`, `time`) become these members: the
same question has the same bytes, however it was spelled, and a time of the hub selects chunks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import eq, ge, gt, le, lt
from typing import Any, Final, NamedTuple, Self

from veen.core import canonical
from veen.core.canonical import Json
from veen.lake.query.errors import InvalidDescriptor
from veen.lake.query.fields import FieldPath, RecordedEvent
from veen.lake.query.times import seconds_of, timestamp

MAX_CONDITIONS: Final = 64
_MAX_VALUES: Final = 1024
_MAX_TEXT: Final = 4096
TIME_FIELDS: Final = ("event_time", "hub_commit_time")
COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"<": lt, "<=": le, "=": eq, ">": gt, ">=": ge}
OPERATORS: Final = ("=", "in", "<", "<=", ">", ">=", "^=")
_KINDS: Final[Mapping[type, int]] = {bool: 0, int: 1, Decimal: 1, str: 2}  # as min and max know them


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """One condition; `value` is a tuple of sorted scalars for `in`, else a scalar."""

    field: FieldPath
    op: str
    value: Any

    def fits(self, record: RecordedEvent) -> bool:
        actual = self.field.value(record)
        kind = _KINDS.get(type(actual))
        if kind is None:
            return False
        if self.op == "in":
            return any(_KINDS[type(value)] == kind and value == actual for value in self.value)
        if _KINDS[type(self.value)] != kind:
            return False
        return actual.startswith(self.value) if self.op == "^=" else COMPARE[self.op](actual, self.value)

    def to_json(self) -> Json:
        value = list(self.value) if self.op == "in" else self.value
        return {"field": self.field.name, "op": self.op, "value": value}

    def to_bytes(self) -> bytes:
        return canonical.encode(self.to_json())

    @classmethod
    def of(cls, given: Json, where: str) -> Self:
        """Parse a condition. Raise InvalidDescriptor if it is invalid."""
        if type(given) is not dict:
            raise InvalidDescriptor(where, "expected an object of field, op and value")
        for name in ("field", "op", "value"):
            if name not in given:
                raise InvalidDescriptor(f"{where}.{name}", "is missing")
        if extra := sorted(given.keys() - {"field", "op", "value"}):
            raise InvalidDescriptor(f"{where}.{extra[0]}", "there is no such member")
        name, op, value = given["field"], given["op"], given["value"]
        if type(op) is not str or op not in OPERATORS:
            raise InvalidDescriptor(f"{where}.op", f"there is no such operator; there are {' '.join(OPERATORS)}")
        try:
            field = FieldPath.of(name if type(name) is str else "")
        except ValueError as exc:
            raise InvalidDescriptor(f"{where}.field", str(exc)) from exc
        if op != "in":
            return cls(field, op, _check_value(value, field, op, f"{where}.value"))
        if type(value) is not list or not value or len(value) > _MAX_VALUES:
            raise InvalidDescriptor(f"{where}.value", f"expected an array of 1 to {_MAX_VALUES} values")
        values = {canonical.encode(scalar): _check_value(scalar, field, op, f"{where}.value") for scalar in value}
        ordered = tuple(values[key] for key in sorted(values))
        return cls(field, "=", ordered[0]) if len(ordered) == 1 else cls(field, op, ordered)


def _check_value(value: Json, field: FieldPath, op: str, where: str) -> Json:
    if type(value) not in _KINDS:
        raise InvalidDescriptor(where, "expected a text, a number, true or false")
    if type(value) is str and len(value) > _MAX_TEXT:
        raise InvalidDescriptor(where, f"a text has more than {_MAX_TEXT} characters")
    if op == "^=":
        if type(value) is not str:
            raise InvalidDescriptor(where, "a prefix is a text")
    elif field.name in TIME_FIELDS:
        try:
            seconds_of(value if type(value) is str else "")
        except ValueError as exc:
            raise InvalidDescriptor(where, str(exc)) from exc
    return value


def conditions_of(given: Json, where: str) -> tuple[FieldCondition, ...]:
    """Parse conditions; return each once, sorted by canonical bytes."""
    if type(given) is not list or len(given) > MAX_CONDITIONS:
        raise InvalidDescriptor(where, f"expected an array of at most {MAX_CONDITIONS} conditions")
    conditions = [FieldCondition.of(value, f"{where}.{at}") for at, value in enumerate(given)]
    return _sort_unique(conditions)


def _sort_unique(conditions: Sequence[FieldCondition]) -> tuple[FieldCondition, ...]:
    by_bytes = {condition.to_bytes(): condition for condition in conditions}
    return tuple(by_bytes[key] for key in sorted(by_bytes))


class Chosen(NamedTuple):
    """The older members of a filter."""

    subject_id: str | None
    event_type: tuple[str, ...] | None
    first_ts: int | None
    last_ts: int | None


def absorb_conditions(
    chosen: Chosen, conditions: Sequence[FieldCondition]
) -> tuple[Chosen, tuple[FieldCondition, ...]]:
    """Move conditions that the older members can express into them; keep contradicting ones as conditions."""
    remaining = []
    for condition in conditions:
        narrowed = _narrow(chosen, condition)
        if narrowed is None:
            remaining.append(condition)
        else:
            chosen = narrowed
    return chosen, _sort_unique(remaining)


def _narrow(chosen: Chosen, condition: FieldCondition) -> Chosen | None:
    """Return the members with the condition added; None if they cannot express it."""
    name, op, value = condition.field.name, condition.op, condition.value
    if name == "subject_id" and op == "=" and type(value) is str and value and chosen.subject_id in (None, value):
        return chosen._replace(subject_id=value)
    if name == "event_type" and op in ("=", "in"):
        values = value if op == "in" else (value,)
        if not all(type(text) is str and text for text in values):
            return None
        common = sorted(set(values) if chosen.event_type is None else set(values) & set(chosen.event_type))
        return chosen._replace(event_type=tuple(common)) if common else None
    if name == "hub_commit_time" and op in COMPARE:
        return _within(chosen, op, seconds_of(value))
    return None


def _within(chosen: Chosen, op: str, seconds: int) -> Chosen | None:
    first, last = chosen.first_ts, chosen.last_ts
    if op in ("=", ">=", ">"):
        begin = seconds + (op == ">")
        first = begin if first is None else max(first, begin)
    if op in ("=", "<=", "<"):
        end = seconds - (op == "<")
        last = end if last is None else min(last, end)
    if first is not None and last is not None and first > last:
        return None
    try:
        for bound in (first, last):
            if bound is not None:
                timestamp(bound)
    except ValueError:
        return None  # before the year 1 or behind 9999: no text has this bound
    return chosen._replace(first_ts=first, last_ts=last)
