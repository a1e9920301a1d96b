"""Times, spans, sizes, ranges and rates as people write them."""

import contextlib
import time

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.cli.shared.values import MOMENT, RANGE, RATE, SIZE, SPAN

GOOD = [
    (SPAN, "600", 600),
    (SPAN, "90s", 90),
    (SPAN, "10m", 600),
    (SPAN, "2h", 7200),
    (SPAN, "7d", 604_800),
    (SIZE, "512", 512),
    (SIZE, "64KiB", 65_536),
    (SIZE, "1MiB", 1_048_576),
    (SIZE, "1kB", 1000),
    (RANGE, "10..20", (10, 20)),
    (RANGE, "10..", (10, None)),
    (RANGE, "..20", (None, 20)),
    (RANGE, "7", (7, 7)),
    (RATE, "100,200", (100, 200)),
    (MOMENT, "1700000000", 1_700_000_000),
    (MOMENT, "2026-11-16T10:00:00Z", 1_794_823_200),
    (MOMENT, "2026-11-16T10:00:00", 1_794_823_200),
    (MOMENT, "2026-11-16T11:00:00+01:00", 1_794_823_200),
    (MOMENT, "2026-11-16", 1_794_787_200),
    (MOMENT, "1900-01-01", 0),
]
BAD = [
    (SPAN, ["", "10x", "-1", "1.5h", "٣m"]),
    (SIZE, ["", "1XB", "-1", "1 MiB"]),
    (RANGE, ["", "..", "20..10", "1-2", "a..b"]),
    (RATE, ["", "1", "1,2,3", "1;2"]),
    (MOMENT, ["", "soon", "-", "-15x", "2026-13-01", "99999-01-01", "٣"]),
]


@pytest.mark.parametrize(("kind", "text", "value"), GOOD, ids=[f"{kind.name} {text}" for kind, text, _ in GOOD])
def test_what_people_write_is_understood(kind, text, value):
    assert kind.convert(text, None, None) == value
    assert kind.convert(value, None, None) == value


def test_a_time_may_be_relative_to_now():
    now = time.time()
    assert now - 901 <= MOMENT.convert("-15m", None, None) <= now - 898
    assert now + 598 <= MOMENT.convert("+10m", None, None) <= now + 602


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in BAD for text in texts])
def test_what_cannot_be_meant_is_refused(kind, text):
    with pytest.raises(click.BadParameter):
        kind.convert(text, None, None)


@given(st.sampled_from([SPAN, SIZE, RANGE, RATE, MOMENT]), st.text(max_size=40))
def test_no_text_ends_in_another_error(kind, text):
    with contextlib.suppress(click.BadParameter):
        kind.convert(text, None, None)
