"""Counters and histograms with fixed buckets, and their text format for Prometheus.

Small because they are on the path of every message: an observation is one bisection and two additions, without a lock.
No label has unbounded values, so memory is fixed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Value = int | float


class Histogram:
    """Counts of values between fixed bounds. One thread observes, any thread reads."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: Final = tuple(bounds)
        self.counts: Final = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def samples(self, name: str, scale: int = 1) -> Iterator[tuple[str, Value]]:
        """Yield the lines of one histogram; `scale` 1000 converts seconds to milliseconds."""
        total = 0
        for bound, count in zip((*self.bounds, None), list(self.counts), strict=True):
            total += count
            edge = "+Inf" if bound is None else repr(round(bound * scale, 9))
            yield f'{name}_bucket{{le="{edge}"}}', total
        yield f"{name}_sum", self.sum * scale
        yield f"{name}_count", total


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples, ready to be written."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    samples: Sequence[tuple[str, Value]]

    @classmethod
    def single(cls, name: str, kind: Literal["counter", "gauge"], about: str, value: Value) -> "Family":
        return cls(name, kind, about, [(name, value)])

    @classmethod
    def by(
        cls, name: str, kind: Literal["counter", "gauge"], about: str, label: str, values: Mapping[str, Value]
    ) -> "Family":
        """Return one sample for each value of one label, in a stable order."""
        return cls(name, kind, about, [(f'{name}{{{label}="{_escape(key)}"}}', values[key]) for key in sorted(values)])

    @classmethod
    def of(cls, name: str, about: str, histogram: Histogram, scale: int = 1) -> "Family":
        return cls(name, "histogram", about, list(histogram.samples(name, scale)))


def _escape(value: str) -> str:
    """Escape the value of a label for the text format."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def exposition(families: Iterable[Family], *, openmetrics: bool = False) -> bytes:
    """Return the text format; OpenMetrics names a counter without `_total` and ends with a mark."""
    lines: list[str] = []
    for family in families:
        name = family.name.removesuffix("_total") if openmetrics and family.kind == "counter" else family.name
        lines.append(f"# HELP {name} {family.about}")
        lines.append(f"# TYPE {name} {family.kind}")
        lines += [f"{sample} {value}" for sample, value in family.samples]
    if openmetrics:
        lines.append("# EOF")
    return "\n".join([*lines, ""]).encode()
