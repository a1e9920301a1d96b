"""Pictures of numbers: true to them, harmless whatever the names are, and the same every time."""

from xml.etree import ElementTree

import pytest

from veen.lake.log.charts import bars
from veen.lake.log.errors import OptionError


def parsed(chart):
    return ElementTree.fromstring(chart.svg)  # noqa: S314 - our own picture


SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_as_long_as_their_counts_and_in_the_order_given():
    chart = bars("doors", {"b": 4, "a": 2, "c": 0})
    root = parsed(chart)
    widths = [int(rect.get("width", "")) for rect in root.iter(f"{SVG}rect")]
    assert widths[0] == 2 * widths[1] > 0 == widths[2]
    assert chart == bars("doors", {"b": 4, "a": 2, "c": 0})
    assert chart._repr_html_() == str(chart) == chart.svg


def test_a_name_that_would_be_markup_is_not():
    chart = bars("<script>'\"&", {"<b>'": 1}, marked=frozenset({"<b>'"}))
    root = parsed(chart)
    assert root.get("aria-label") == "<script>'\"&"
    assert "<script" not in chart.svg
    assert "◀" in chart.svg


def test_nothing_is_a_picture_too_and_too_much_is_refused():
    assert parsed(bars("empty", {})) is not None
    assert parsed(bars("zero", {"a": 0})) is not None
    with pytest.raises(OptionError, match="room"):
        bars("many", {str(n): n for n in range(100)})
    with pytest.raises(OptionError, match="negative"):
        bars("less", {"a": -1})
