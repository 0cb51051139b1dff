"""Learning curves, of one training or of several with other seeds."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tempo as tp
from tempo.rl.training.logs import CSV_NAME

Array = np.ndarray[Any, Any]
PathLike = str | os.PathLike[str]


def read_log(directory: PathLike) -> dict[str, Array]:
    """What a training in this directory has logged: columns by name, one number for every iteration."""
    with open(Path(directory) / CSV_NAME, newline="") as file:
        names, *rows = csv.reader(file)
    return {name: np.array([float(row[n]) for row in rows]) for n, name in enumerate(names)}


def plot_curves(
    path: PathLike, curves: Mapping[str, Sequence[Mapping[str, Any]]], column: str = "episode_return", smooth: int = 10
) -> None:
    """Write a PNG with one panel for every name in ``curves``: the logs of its trainings, by steps.

    Of several trainings it is the mean, and the spread from the lowest to the highest. Each is the mean over the
    last ``smooth`` iterations in which episodes ended.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise tp.errors.PackageError(
            "learning curves need the package matplotlib", hint="pip install 'tempo-compiler[report]'"
        ) from error
    figure = Figure(figsize=(3.2 * max(len(curves), 1) + 0.4, 2.6), dpi=90, layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(1, max(len(curves), 1), squeeze=False)
    for panel, (name, logs) in zip(panels[0], curves.items(), strict=False):
        steps = np.asarray(min((log["steps"] for log in logs), key=len)) / 1000
        values = np.stack([_smoothed(np.asarray(log[column], float), smooth)[: len(steps)] for log in logs])
        line = panel.plot(steps, values.mean(0), linewidth=1.2)[0]
        if len(logs) > 1:
            panel.fill_between(steps, values.min(0), values.max(0), color=line.get_color(), alpha=0.25, linewidth=0)
        panel.set_title(name, fontsize=9)
        panel.set_xlabel("thousand steps", fontsize=8)
        panel.tick_params(labelsize=7)
    panels[0][0].set_ylabel(column.replace("_", " "), fontsize=8)
    unfinished = Path(path).with_name(f".{Path(path).name}")
    figure.savefig(unfinished, format="png")
    os.replace(unfinished, path)


def _smoothed(values: Array, last: int) -> Array:
    """The mean of the last numbers up to each, of those that are numbers; before the first one, that one."""
    found = np.full(len(values), np.nan)
    recent: list[float] = []
    for n, value in enumerate(values):
        if not np.isnan(value):
            recent = [*recent, float(value)][-last:]
        if recent:
            found[n] = np.mean(recent)
    known = found[~np.isnan(found)]
    return np.where(np.isnan(found), known[0] if len(known) else np.nan, found)
