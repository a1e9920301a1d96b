"""Aggregates: exact, and independent of the division of the log (QRY-10, D-120).

`Partial` is a monoid: `add` a record, `absorb` another partial. Sums are exact decimals; `avg` is the exact quotient if
it has at most 18 decimal places, else it is rounded to 18, half to even. null and missing values are ignored, as in
SQL. A value that a function cannot take (text in `sum`, an object in `min`) is ignored, too, and the result has the
number of such values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact
from hashlib import sha256
from typing import Any, Final, Self

from veen.core import canonical
from veen.core.canonical import Json, exact
from veen.core.hashing import tag_prefix
from veen.lake.query.descriptor import Aggregate
from veen.lake.query.fields import FieldPath, RecordedEvent

AVG_DIGITS: Final = 18
_EXACT: Final = Context(prec=100_000, traps=[Inexact])  # wide enough for any sum of numbers of 200 digits
_RANKS: Final = {bool: 0, int: 1, Decimal: 1, str: 2}  # mixed types have an order too: false, numbers, texts


def group_key(group_by: tuple[FieldPath, ...], record: RecordedEvent) -> bytes:
    """Return the canonical group key. Rows of an aggregate are sorted by these bytes (D-108)."""
    return canonical.encode([field.value(record) for field in group_by])


@dataclass(slots=True)
class _Cell:
    """State of one metric of a group."""

    value: Json = None
    count: int = 0  # values that counted, for avg
    ignored: int = 0  # values that the function cannot take

    def add(self, function: str, value: Json) -> None:
        if value is None:
            return
        kind = type(value)
        if kind not in _RANKS or (function in ("sum", "avg") and kind not in (int, Decimal)):
            self.ignored += 1
            return
        self._take(function, value)
        self.count += 1

    def absorb(self, function: str, other: "_Cell") -> None:
        if other.count:
            self._take(function, other.value)
        self.count += other.count
        self.ignored += other.ignored

    def _take(self, function: str, value: Json) -> None:
        if not self.count:
            self.value = value
        elif function in ("sum", "avg"):
            self.value = _sum(self.value, value)
        else:
            both = (self.value, value)
            self.value = (min if function == "min" else max)(both, key=_sort_key)

    def result(self, function: str) -> Json:
        value = _quotient(self.value, self.count) if function == "avg" and self.count else self.value
        return exact(value) if type(value) in (int, Decimal) else value


def _sum(a: int | Decimal, b: int | Decimal) -> int | Decimal:
    if type(a) is int and type(b) is int:
        return a + b
    return _EXACT.add(Decimal(a), Decimal(b))


def _quotient(total: int | Decimal, count: int) -> Decimal:
    """Divide exactly and round once, so that no intermediate result loses a digit."""
    over, under = Decimal(total).as_integer_ratio()
    scaled, rest = divmod(abs(over) * 10**AVG_DIGITS, under * count)
    twice = 2 * rest - under * count
    if twice > 0 or (twice == 0 and scaled & 1):
        scaled += 1
    return Decimal(-scaled if over < 0 else scaled).scaleb(-AVG_DIGITS, context=_EXACT)


def _sort_key(value: Json) -> tuple[int, Any]:
    return _RANKS[type(value)], value  # texts by code point, which is the order of their UTF-8 bytes


@dataclass(slots=True)
class Partial:
    """State of one group over some part of the log."""

    cells: list[_Cell]
    count: int = 0

    @classmethod
    def empty(cls, aggregate: Aggregate) -> Self:
        return cls([_Cell() for _ in aggregate.metrics])

    def add(self, aggregate: Aggregate, record: RecordedEvent) -> None:
        self.count += 1
        for cell, metric in zip(self.cells, aggregate.metrics, strict=True):
            if metric.field is not None:
                cell.add(metric.function, metric.field.value(record))

    def absorb(self, aggregate: Aggregate, other: "Partial") -> None:
        self.count += other.count
        for cell, more, metric in zip(self.cells, other.cells, aggregate.metrics, strict=True):
            cell.absorb(metric.function, more)

    def count_ignored(self, aggregate: Aggregate) -> dict[str, int]:
        """Return the number of values that each metric could not take; leave out metrics without any."""
        pairs = zip(aggregate.metrics, self.cells, strict=True)
        return {metric.name: cell.ignored for metric, cell in pairs if cell.ignored}

    def to_bytes(self) -> bytes:
        """Encode for transport between tasks; sums as text, since they may have more digits than our JSON allows."""
        return canonical.encode([self.count, *([_number_to_text(c.value), c.count, c.ignored] for c in self.cells)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        count, *cells = canonical.parse(data)
        return cls([_Cell(_text_to_number(value), number, ignored) for value, number, ignored in cells], count)


def _number_to_text(value: Json) -> Json:
    return {"n": format(value, "f" if type(value) is Decimal else "d")} if type(value) in (int, Decimal) else value


def _text_to_number(value: Json) -> Json:
    if type(value) is not dict:
        return value
    text: str = value["n"]
    return Decimal(text) if "." in text else int(text)


def row_of(aggregate: Aggregate, key: bytes, partial: Partial, receipts: str | None) -> dict[str, Json]:
    """Return the row of a group: its keys and metrics under their own names, and the id of its receipts."""
    values = canonical.parse(key)
    row: dict[str, Json] = {path.name: value for path, value in zip(aggregate.group_by, values, strict=True)}
    for metric, cell in zip(aggregate.metrics, partial.cells, strict=True):
        row[metric.name] = partial.count if metric.field is None else cell.result(metric.function)
    if receipts is not None:
        row["receipt_id"] = receipts
    return row


_GROUP_TAG: Final = tag_prefix("veen/query-group")


@dataclass(slots=True)
class GroupReceipts:
    """The receipt_id of aggregate rows: Ht("veen/query-group", leaf hashes of the events in logical order)."""

    _digests: dict[bytes, Any] = field(default_factory=dict)

    def add(self, key: bytes, leaf_hash: bytes) -> None:
        digest = self._digests.get(key)
        if digest is None:
            digest = self._digests[key] = sha256(_GROUP_TAG)
        digest.update(leaf_hash)

    def receipt_id(self, key: bytes) -> str:
        digest = self._digests.get(key) or sha256(_GROUP_TAG)
        return f"rcpt-{digest.hexdigest()}"


def total_ignored(aggregate: Aggregate, groups: Mapping[bytes, Partial]) -> dict[str, int]:
    """Return by metric the number of values that it could not take, over all groups."""
    totals: dict[str, int] = {}
    for partial in groups.values():
        for name, count in partial.count_ignored(aggregate).items():
            totals[name] = totals.get(name, 0) + count
    return totals
