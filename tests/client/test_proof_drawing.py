"""The drawing of a proof: title, verdict and legend; no two texts overlap; light and dark."""

import re
from itertools import combinations

import pytest
from tests.client.test_picture import picture_of

from veen.client.read.picture import _WORDS, TREE_MAX, _draw_ladder, _draw_tree, to_svg

SIZES = [(1, 1), (2, 1), (5, 3), (7, 7), (31, 7), (32, 1), (65, 65), (65, 12), (63, 40), (1003, 700), (4095, 4095)]


def boxes(picture):
    """Where the words of each mark stand: left, top, right, bottom."""
    drawing = _draw_tree(picture) if picture.tree_size <= TREE_MAX else _draw_ladder(picture)
    for mark in drawing.marks:
        anchor, x, first, second = _WORDS[mark.side]
        for text, y in ((mark.name, first), ("0123…4567", second)):
            wide = 7.3 * len(text)
            left = mark.x + x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
            yield (mark.name, left, mark.y + y - 10, left + wide, mark.y + y + 2)


@pytest.mark.parametrize(("size", "seq"), SIZES)
def test_no_two_texts_overlap(size, seq):
    """At 65 entries the words of a peak stood on those of a sibling."""
    _, picture = picture_of(size, seq)
    for box, other in combinations(boxes(picture), 2):
        apart = box[3] <= other[1] or other[3] <= box[1] or box[4] <= other[2] or other[4] <= box[2]
        assert apart or box[0] == other[0], (box, other)


@pytest.mark.parametrize(("size", "seq"), SIZES)
def test_everything_is_inside_the_frame(size, seq):
    _, picture = picture_of(size, seq)
    frame = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', to_svg(picture))
    assert frame is not None
    width, height = map(float, frame.groups())
    for _, left, _, right, bottom in boxes(picture):
        assert left >= 0
        assert right <= width
        assert bottom <= height


def test_a_drawing_has_a_title_a_verdict_a_legend_and_both_themes():
    _, picture = picture_of(5, 3)
    svg = to_svg(picture, signed_by="hub <x>")
    assert "Message 3 of 5</text>" in svg
    assert "verified: 3 hashes lead from the message to root a5f0…1904, signed by hub &lt;x&gt;" in svg
    for words in ("the message", "a hash from the proof", "a peak from the proof", "computed on the way", "the root"):
        assert f">{words}</text>" in svg
    assert "prefers-color-scheme:dark" in svg
    assert "signed by" not in to_svg(picture)  # no claim that was not verified


def test_shapes_are_filled_with_the_background():
    svg = to_svg(picture_of(5, 3)[1])
    assert re.search(r"\.veen \.sibling path,.*\{fill:var\(--paper\)\}", svg)
    assert '<rect class="paper"' in svg
