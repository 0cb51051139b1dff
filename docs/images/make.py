"""Draws the pictures of the documents: ``python docs/images/make.py`` (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

HERE = Path(__file__).parent
STEPS = 5
INPUT, VALUE, QUIET, STRONG = "#E7E7E7", "#CFE3F3", "#A9BFD0", "#D55E00"
MONOSPACE = {"family": "DejaVu Sans Mono"}


def row(axes: Axes, height: float, name: str, colour: str, strong: int | None = None) -> None:
    """One tensor: a circle for its value at every step."""
    for t in range(STEPS):
        edge = STRONG if t == strong else "#444444"
        axes.plot(t, height, "o", markersize=25, markerfacecolor=colour, markeredgecolor=edge, markeredgewidth=1.4)
        axes.text(t, height, f"{name}{t}", ha="center", va="center", fontsize=10, **MONOSPACE)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], strong: bool) -> None:
    """A value at ``start`` that is read to compute the one at ``end``."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=12,
            shrinkA=13,
            shrinkB=13,
            color=STRONG if strong else QUIET,
            linewidth=1.8 if strong else 1.2,
            zorder=1 if strong else 0,
        )
    )


def panel(axes: Axes, title: str, definition: str) -> None:
    axes.set_title(title, fontsize=13, fontweight="bold", pad=24)
    axes.text(0.5, 1.03, definition, transform=axes.transAxes, ha="center", fontsize=10, **MONOSPACE)
    axes.annotate(
        "",
        xy=(STEPS - 0.45, -0.5),
        xytext=(-0.45, -0.5),
        arrowprops={"arrowstyle": "->", "color": "#777777"},
    )
    axes.text(STEPS - 0.5, -0.58, "time t", ha="right", va="top", fontsize=10, color="#555555")
    axes.set(xlim=(-0.6, STEPS - 0.4), ylim=(-0.85, 1.3))
    axes.axis("off")


def dependences(path: Path) -> None:
    figure, (past, window, future) = pyplot.subplots(1, 3, figsize=(11, 3.3), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)

    panel(past, "the step before", "y[t] = 0.9 * y[t-1] + 0.1 * x[t]")
    row(past, 0, "x", INPUT)
    row(past, 1, "y", VALUE, strong=3)
    for t in range(STEPS):
        arrow(past, (t, 0), (t, 1), strong=t == 3)
        if t:
            arrow(past, (t - 1, 1), (t, 1), strong=t == 3)

    panel(window, "everything so far", "o[t] = attend(q[t], k[0:t+1], v[0:t+1])")
    row(window, 0, "k", INPUT)
    row(window, 1, "o", VALUE, strong=3)
    for t in range(STEPS):
        for s in range(t + 1):
            arrow(window, (s, 0), (t, 1), strong=t == 3)

    panel(future, "the future", "g[t] = r[t] + 0.99 * g[t+1]")
    row(future, 0, "r", INPUT)
    row(future, 1, "g", VALUE, strong=3)
    for t in range(STEPS):
        arrow(future, (t, 0), (t, 1), strong=t == 3)
        if t + 1 < STEPS:
            arrow(future, (t + 1, 1), (t, 1), strong=t == 3)

    figure.savefig(path, metadata={"Date": None, "Creator": None}, facecolor="white")
    pyplot.close(figure)


if __name__ == "__main__":
    # The same bytes on every run: no date, and ids from a fixed salt.
    pyplot.rcParams["svg.hashsalt"] = "tempo"
    dependences(HERE / "dependences.svg")
