"""Selection of chunks by the filters of a query."""

from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from veen.lake.log.slices import Selection


def narrow_selection(selection: Selection, condition: Filter) -> Selection:
    """Narrow a selection by a filter on label, stream, position or time; ignore other filters."""
    attribute: tuple[str, ...] = getattr(condition, "attribute", ())
    value: Any = getattr(condition, "value", None)
    if len(attribute) != 1 or value is None:
        return selection
    name = attribute[0]
    if name in ("label", "stream_id") and isinstance(condition, (EqualTo, In)):
        values = [value] if isinstance(condition, EqualTo) else [element for element in value if element is not None]
        named = [bytes(element) for element in values]
        return selection.narrow(labels=named) if name == "label" else selection.narrow(streams=named)
    if name not in ("stream_seq", "hub_ts"):
        return selection
    if isinstance(condition, EqualTo):
        return _narrow_bounds(selection, name, value, value)
    if isinstance(condition, (GreaterThan, GreaterThanOrEqual)):
        return _narrow_bounds(selection, name, value + isinstance(condition, GreaterThan), None)
    if isinstance(condition, (LessThan, LessThanOrEqual)):
        return _narrow_bounds(selection, name, None, value - isinstance(condition, LessThan))
    return selection


def _narrow_bounds(selection: Selection, name: str, first: int | None, last: int | None) -> Selection:
    if name == "stream_seq":
        return selection.narrow(first_seq=first, last_seq=last)
    return selection.narrow(first_ts=first, last_ts=last)
