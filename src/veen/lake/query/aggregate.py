"""Aggregates: exact, and the same however the log is divided (QRY-10, D-120).

`Partial` is a monoid: `add` a record, `absorb` another partial. Sums are exact decimals; `avg` is the exact quotient if
it has at most 18 digits behind the point, else it is rounded to 18, half to even. null and missing values do not
count, as in SQL. A value that a function cannot take (text in `sum`, an object in `min`) does not count either, but
the result says how many there were.
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
    """The canonical group key: rows of an aggregate are sorted by these bytes (D-108)."""
    return canonical.encode([field.value(record) for field in group_by])


@dataclass(slots=True)
class _Cell:
    """What one metric knows so far."""

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
    """Rounded once, from the exact fraction: no intermediate result loses a digit."""
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
    """One group, as far as some part of the log knows it."""

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

    def ignored(self, aggregate: Aggregate) -> dict[str, int]:
        """How many values each metric could not take; those without any are left out."""
        pairs = zip(aggregate.metrics, self.cells, strict=True)
        return {metric.name: cell.ignored for metric, cell in pairs if cell.ignored}

    def to_bytes(self) -> bytes:
        """For the way between tasks. Sums may have more digits than JSON of ours: they travel as text."""
        return canonical.encode([self.count, *([_carried(c.value), c.count, c.ignored] for c in self.cells)])

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        count, *cells = canonical.parse(data)
        return cls([_Cell(_uncarried(value), number, ignored) for value, number, ignored in cells], count)


def _carried(value: Json) -> Json:
    return {"n": format(value, "f" if type(value) is Decimal else "d")} if type(value) in (int, Decimal) else value


def _uncarried(value: Json) -> Json:
    if type(value) is not dict:
        return value
    text: str = value["n"]
    return Decimal(text) if "." in text else int(text)


def row_of(aggregate: Aggregate, key: bytes, partial: Partial, receipts: str | None) -> dict[str, Json]:
    """The row of a group: its keys and its metrics under their own names, and what stands for its receipts."""
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
    """The receipt_id of an aggregate row: Ht("veen/query-group", leaf hashes of its events in logical order)."""

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
    """Over all groups: what the metrics could not take."""
    totals: dict[str, int] = {}
    for partial in groups.values():
        for name, count in partial.ignored(aggregate).items():
            totals[name] = totals.get(name, 0) + count
    return totals
