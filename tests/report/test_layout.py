"""Drawings in layers: boxes do not overlap, arrows go down unless they are part of a circle, and labels have room."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tempo.report.layout import LABEL_HEIGHT, MOST_IN_LAYER, Arrow, Box, Layout, find_upward, layout

BOX = Box(60.0, 30.0)


def overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    (left, top, width, height), (x, y, w, h) = a, b
    return left < x + w and x < left + width and top < y + h and y < top + height


def check(boxes: list[Box], arrows: list[Arrow], found: Layout) -> None:
    """What holds for all drawings."""
    areas = [(x, y, box.width, box.height) for (x, y), box in zip(found.corners, boxes, strict=True)]
    for arrow, (x, y) in zip(arrows, found.labels, strict=True):
        if arrow.label:
            areas.append((x - arrow.label / 2, y - LABEL_HEIGHT / 2, arrow.label, LABEL_HEIGHT))
    assert not any(overlap(a, b) for a, b in itertools.combinations(areas, 2))
    assert all(x >= -1e-6 and x + w <= found.width + 1e-6 and y >= 0 and y + h <= found.height for x, y, w, h in areas)
    for n, (arrow, way) in enumerate(zip(arrows, found.ways, strict=True)):
        heights = [y for _, y in way]
        up = n in found.upward
        assert heights == sorted(heights, reverse=up)
        start, end = (areas[box] for box in (arrow.start, arrow.end))
        # From one side of a box to the other box's side that is towards it.
        assert heights[0] == (start[1] if up else start[1] + start[3])
        assert heights[-1] == (end[1] + end[3] if up else end[1])
        assert start[0] <= way[0][0] <= start[0] + start[2]
        assert end[0] <= way[-1][0] <= end[0] + end[2]


def test_a_chain() -> None:
    boxes, arrows = [BOX] * 3, [Arrow(0, 1), Arrow(1, 2)]
    found = layout(boxes, arrows)
    check(boxes, arrows, found)
    assert [x for x, _ in found.corners] == [0, 0, 0]
    assert [y for _, y in found.corners] == [0, 60, 120]


def test_nothing() -> None:
    found = layout([], [])
    assert (found.width, found.height, found.corners) == (0, 0, [])


def test_of_a_circle_the_loose_arrow_goes_up() -> None:
    arrows = [Arrow(2, 0, 30.0, loose=True), Arrow(0, 1), Arrow(1, 2)]
    assert find_upward(3, arrows) == {0}
    check([BOX] * 3, arrows, layout([BOX] * 3, arrows))


def test_no_more_arrows_go_up_than_must() -> None:
    """The loose arrow from 0 to 2 is in a circle, which the other one closes."""
    assert find_upward(3, [Arrow(0, 1), Arrow(1, 2), Arrow(0, 2, loose=True), Arrow(2, 0, loose=True)]) == {3}


def test_arrows_that_need_not_cross_do_not() -> None:
    """Two pairs, given crosswise."""
    found = layout([BOX] * 4, [Arrow(0, 3), Arrow(1, 2)])
    (a, b, c, d) = (x for x, _ in found.corners)
    assert (a < b) == (d < c)


def test_what_comes_from_nowhere_is_above_its_reader() -> None:
    found = layout([BOX] * 4, [Arrow(0, 1), Arrow(1, 2), Arrow(3, 2)])
    assert found.corners[3][1] == found.corners[1][1]


def test_a_result_is_below_what_it_is() -> None:
    found = layout([BOX] * 4, [Arrow(0, 1), Arrow(1, 2), Arrow(0, 3)])
    assert found.corners[3][1] == found.corners[1][1]


def test_many_boxes_have_several_layers() -> None:
    boxes = [BOX] * (3 * MOST_IN_LAYER)
    arrows = [Arrow(n, 0) for n in range(1, len(boxes))]
    found = layout(boxes, arrows)
    check(boxes, arrows, found)
    layers = [y for _, y in found.corners]
    assert max(layers.count(y) for y in layers) == MOST_IN_LAYER


@st.composite
def drawings(draw: st.DrawFn) -> tuple[list[Box], list[Arrow]]:
    count = draw(st.integers(1, 14))
    sizes = st.builds(Box, st.floats(20, 200), st.sampled_from([20.0, 40.0]))
    ends = st.integers(0, count - 1)
    arrows = st.builds(Arrow, ends, ends, st.sampled_from([0.0, 25.0, 90.0]), st.booleans())
    boxes = draw(st.lists(sizes, min_size=count, max_size=count))
    return boxes, [arrow for arrow in draw(st.lists(arrows, max_size=30)) if arrow.start != arrow.end]


@given(drawings())
def test_all_drawings(drawn: tuple[list[Box], list[Arrow]]) -> None:
    boxes, arrows = drawn
    found = layout(boxes, arrows)
    check(boxes, arrows, found)
    # What goes down has no circles, and any arrow that goes up would close one.
    down = [arrow for n, arrow in enumerate(arrows) if n not in found.upward]
    assert not find_upward(len(boxes), down)
    assert all(find_upward(len(boxes), [*down, arrows[n]]) for n in found.upward)
    assert layout(boxes, arrows) == found
