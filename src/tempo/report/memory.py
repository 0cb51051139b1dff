"""Where the memory of a program goes: its stores, and how much is taken from statement to statement."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tempo.report.markup import Markup, joined, tag
from tempo.schedule.looptree import Loop, Tree, computes, heading, statement
from tempo.schedule.planning import show_bytes
from tempo.schedule.storage import Storage, Store

# Of the chart.
WIDTH = 920.0
HEIGHT = 180.0
LEFT = 78.0
TOP = 16.0
BAND = 17.0
MOST_TICKS = 5
MOST_MOMENTS = 460

# How wide a letter is.
LETTER = 6.4

# So many stores, the largest, are there without a click.
MOST_SHOWN = 40


def chart(trees: Sequence[Tree], taken: Sequence[int], peak: int) -> Markup:
    """The bytes that are ``taken`` on the device while each statement runs, with the loops around it below."""
    statements = [statement(c) for c in computes(trees)]
    if not statements:
        return tag("p", f"Nothing is computed; inputs and outputs take {show_bytes(peak)}.")
    ticks = _ticks(peak)
    step = WIDTH / len(statements)
    right = LEFT + WIDTH

    def y(size: int) -> float:
        return TOP + HEIGHT * (1 - size / ticks[-1])

    grid, curve, moments = [], [f"M{LEFT:.1f},{y(0):.1f}"], []
    for size in ticks:
        grid.append(tag("line", x1=LEFT, x2=right, y1=y(size), y2=y(size), class_="grid"))
        grid.append(tag("text", show_bytes(size), x=LEFT - 6, y=y(size) + 4, class_="tick"))
    for first, last, size in _moments(taken):
        x, width = LEFT + first * step, (last + 1 - first) * step
        curve.append(f"V{y(size):.1f} H{x + width:.1f}")
        until = f" to {statements[last]}" if last > first else ""
        title = tag("title", f"{show_bytes(size)}: {statements[first]}{until}")
        moments.append(tag("g", title, tag("rect", x=x, y=TOP, width=width, height=HEIGHT, class_="moment")))
    curve.append(f"V{y(0):.1f} z")
    bands = [*_bands(trees, 0, 0, step)]
    height = max((bottom for bottom, _ in bands), default=TOP + HEIGHT) + 6
    return tag(
        "svg",
        *grid,
        tag("path", d=" ".join(curve), class_="taken"),
        tag("line", x1=LEFT, x2=right, y1=y(peak), y2=y(peak), class_="peak"),
        *(band for _, band in bands),
        *moments,
        class_="chart",
        viewBox=f"0 0 {right + 10:.0f} {height:.0f}",
        role="img",
        aria_label="bytes on the device while each statement runs",
    )


def _bands(trees: Sequence[Tree], first: int, depth: int, step: float) -> Iterator[tuple[float, Markup]]:
    """For every loop a band below its statements, of which the first has this number, and where the band ends."""
    for tree in trees:
        count = sum(1 for _ in computes((tree,)))
        if isinstance(tree, Loop):
            text = heading(tree).removesuffix(":")
            x, y, width = LEFT + first * step, TOP + HEIGHT + 6 + BAND * depth, count * step
            band = tag("rect", x=x + 0.5, y=y, width=max(width - 1, 0.5), height=BAND - 3, rx=3.0)
            label = tag("text", _fitting(text, width - 8), x=x + 4, y=y + 11)
            yield y + BAND, tag("g", tag("title", text), band, label, class_="band")
            yield from _bands(tree.body, first, depth + 1, step)
        first += count


def _moments(taken: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The first and the last of statements that take so many bytes; of several that are too close to each other to be
    seen, the most that one of them takes."""
    together = -(-len(taken) // MOST_MOMENTS)
    most = [max(taken[at : at + together]) for at in range(0, len(taken), together)]
    first = 0
    for size, same in itertools.groupby(most):
        last = min(first + together * len([*same]), len(taken)) - 1
        yield first, last, size
        first = last + 1


def _fitting(text: str, width: float) -> str:
    """As much of a text as there is room for."""
    letters = max(int(width / LETTER), 0)
    return text if len(text) <= letters else f"{text[: letters - 1]}…" if letters > 3 else ""


def _ticks(size: int) -> range:
    """Round numbers of bytes, up to one that is large enough."""
    unit = 1
    while size > MOST_TICKS * unit:
        unit *= 2
    return range(0, max(-(-size // unit), 1) * unit + 1, unit)


def stores(storage: Storage) -> Markup:
    """All stores, the largest first."""
    found = sorted(storage.stores.values(), key=lambda store: -store.bytes)
    largest = found[0].bytes if found else 1
    shown = _table(found[:MOST_SHOWN], largest)
    if len(found) <= MOST_SHOWN:
        return shown
    rest = found[MOST_SHOWN:]
    size = show_bytes(sum(store.bytes for store in rest))
    more = tag("summary", f"{len(rest)} smaller stores, {size} together")
    return joined(shown, tag("details", more, tag("pre", "\n".join(map(str, rest)))))


def _table(found: Sequence[Store], largest: int) -> Markup:
    classes = {"tensor": None, "array": None, "bytes": "number sorted", "": None, "kept": None, "where": None}
    head = tag("thead", tag("tr", *(tag("th", name, class_=kind) for name, kind in classes.items())))
    return tag("table", head, tag("tbody", *(_row(store, largest) for store in found)), class_="stores")


def _row(store: Store, largest: int) -> Markup:
    kept = ", ".join(f"{d.name}: {k}" for d, k in store.dims.items()) or "no dims"
    bar = tag("div", class_="bar", style=f"width:{100 * store.bytes / max(largest, 1):.1f}%")
    return tag(
        "tr",
        tag("td", tag("code", store.node.label)),
        tag("td", f"{store.node.dtype.name}{list(store.shape)}"),
        tag("td", f"{store.bytes:,}", class_="number"),
        tag("td", bar, class_="bars"),
        tag("td", kept),
        tag("td", f"host, as {store.host}" if store.host else "device"),
    )
