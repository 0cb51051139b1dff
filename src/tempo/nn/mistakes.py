"""What layers say when they are made or called with what does not fit."""

from __future__ import annotations

import operator
from typing import Any

import tempo as tp


def wrong(layer: object, problem: str, hint: str = "") -> tp.errors.ShapeError:
    return tp.errors.ShapeError(
        f"{type(layer).__name__}: {problem}", places=[("here", tp.errors.user_line())], hint=hint
    )


def at_least(least: int, layer: object, value: Any, what: str) -> None:
    """Raise an error unless there are so many of something, which is divided by or counted with."""
    try:
        enough = operator.index(value) >= least
    except TypeError:
        enough = False
    if not enough:
        raise wrong(layer, f"{value!r} {what}", f"expected an integer, {least} or more")


def expect(layer: object, x: Any, *sizes: int) -> Any:
    """x, which may be a list of numbers; raise an error unless its last axes have these sizes."""
    x = x if hasattr(x, "shape") else tp.constant(x)
    if tuple(x.shape[-len(sizes) :]) != sizes:
        found = "(" + ", ".join(map(str, x.shape)) + ("," if x.ndim == 1 else "") + ")"
        raise wrong(layer, f"{x} has shape {found}, expected (..., {', '.join(map(str, sizes))})")
    return x
