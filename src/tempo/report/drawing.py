"""The dependence graph of a program as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from tempo.report.dependences import Dependences, Tensor
from tempo.report.layout import LABEL_HEIGHT, Arrow, Box, Point, layout
from tempo.report.marks import Marks
from tempo.report.markup import Markup, joined, tag

# Of the font that names are written in, and of the smaller one of types and labels.
TITLE_WIDTH = 7.25
TEXT_WIDTH = 6.1
LINE_HEIGHT = 15.0
PADDING = 9.0
MARGIN = 14.0

# Longer texts are cut.
MOST_LETTERS = 34

# What a box has beside it that reads itself.
LOOP_WIDTH = 26.0


def drawing(found: Dependences, marks: Marks) -> Markup:
    """An SVG image, with what a script needs to know."""
    circles = {read.start: read.index for read in found.reads if read.start == read.end}
    reads = [read for read in found.reads if read.start != read.end]
    boxes = [_box(tensor, circles.get(n)) for n, tensor in enumerate(found.tensors)]
    # What is read at another step is what goes back in time.
    arrows = [Arrow(r.start, r.end, _width(r.index), loose=bool(r.index)) for r in reads]
    placed = layout(boxes, arrows)
    parts = []
    for n, (read, way) in enumerate(zip(reads, placed.ways, strict=True)):
        ends = {"data_from": read.start, "data_to": read.end}
        kind = "back" if n in placed.upward else "shift" if read.index else "here"
        title = f"{found.tensors[read.end].title} reads {found.tensors[read.start].title}"
        title += f" at {read.index}" if read.index else ""
        line = tag("path", d=_curve(way), marker_end=f"url(#tip-{kind})")
        label = joined()
        if read.index:
            (x, y), width = placed.labels[n], _width(read.index)
            ground = tag("rect", x=x - width / 2, y=y - LABEL_HEIGHT / 2, width=width, height=LABEL_HEIGHT)
            label = joined(ground, tag("text", _cut(read.index), class_="index", x=x, y=y + 4))
        parts.append(tag("g", tag("title", title), line, label, class_=f"arrow {kind}", **ends))
    for n, (tensor, corner) in enumerate(zip(found.tensors, placed.corners, strict=True)):
        parts.append(_drawn(n, tensor, corner, circles.get(n), marks))
    width, height = placed.width + 2 * MARGIN, placed.height + 2 * MARGIN
    return tag(
        "svg",
        _tips(),
        *parts,
        class_="graph",
        viewBox=f"{-MARGIN:.0f} {-MARGIN:.0f} {width:.0f} {height:.0f}",
        width=round(width),
        height=round(height),
        role="img",
        aria_label="who reads whom, and at which step",
    )


def _tips() -> Markup:
    """The heads of arrows, which take the colours of their classes."""
    shape = tag("path", d="M0,0 L8,4 L0,8 z")
    where = {"viewBox": "0 0 8 8", "refX": 7, "refY": 4, "markerWidth": 7, "markerHeight": 7, "orient": "auto"}
    return tag("defs", *(tag("marker", shape, id=name, **where) for name in ("tip-here", "tip-shift", "tip-back")))


def _lines(tensor: Tensor) -> list[str]:
    return [_cut(text) for text in (tensor.title, tensor.type) if text]


def _box(tensor: Tensor, circle: str | None) -> Box:
    title, *rest = _lines(tensor)
    width = max(TITLE_WIDTH * len(title), *(TEXT_WIDTH * len(text) for text in rest), 24) + 2 * PADDING
    # On both sides, so that the box stays in the middle.
    beside = 0.0 if circle is None else 2 * (LOOP_WIDTH + _width(circle))
    return Box(width + beside, LINE_HEIGHT * (1 + len(rest)) + 10)


def _drawn(number: int, tensor: Tensor, corner: Point, circle: str | None, marks: Marks) -> Markup:
    own, whole = _box(tensor, None), _box(tensor, circle)
    x, y = corner[0] + (whole.width - own.width) / 2, corner[1]
    title, *rest = _lines(tensor)
    middle = x + own.width / 2
    radius = own.height / 2 if tensor.kind == "result" else 5.0
    parts = [
        tag("title", tensor.definition),
        tag("rect", x=x, y=y, width=own.width, height=own.height, rx=radius),
        tag("text", title, class_="name", x=middle, y=y + LINE_HEIGHT + 1),
        *(tag("text", text, class_="type", x=middle, y=y + 2 * LINE_HEIGHT + 1) for text in rest),
    ]
    if circle is not None:
        right, reach = x + own.width, LOOP_WIDTH
        way = (
            f"M{right:.1f},{y + own.height - 8:.1f} c{reach},6 {reach},{-own.height + 10:.1f} 2,{-own.height + 16:.1f}"
        )
        loop = tag("path", d=way, marker_end="url(#tip-back)")
        text = tag("text", _cut(circle), class_="index beside", x=right + reach - 4, y=y + own.height / 2 + 4)
        parts.append(tag("g", loop, text, class_="arrow back", data_from=number, data_to=number))
    mark = None if tensor.node is None else marks.of(tensor.node)
    return tag("g", *parts, class_=f"tensor {tensor.kind}", data_n=number, data_k=mark)


def _curve(way: Sequence[Point]) -> str:
    """A smooth line through some points, which goes up or down in all of them."""
    (x, y), *rest = way
    text = [f"M{x:.1f},{y:.1f}"]
    for a, b in rest:
        middle = (y + b) / 2
        text.append(f"V{b:.1f}" if a == x else f"C{x:.1f},{middle:.1f} {a:.1f},{middle:.1f} {a:.1f},{b:.1f}")
        x, y = a, b
    return " ".join(text)


def _width(index: str) -> float:
    return TEXT_WIDTH * len(_cut(index)) + 4 if index else 0.0


def _cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
