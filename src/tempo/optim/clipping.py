"""Gradients that are not too long."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

import tempo as tp
from tempo.nn.precision import wide

Tensor = tp.RecurrentTensor


def global_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """The Euclidean norm of all gradients as one vector: shape ()."""
    by_name("gradients", gradients)
    if not gradients:
        return tp.constant(0.0)
    return tp.sqrt(reduce(tp.add, (tp.sum(tp.square(wide(g))) for g in gradients.values())))


def clip_by_global_norm(gradients: Mapping[str, Tensor], most: float | Tensor) -> dict[str, Tensor]:
    """The gradients, all made shorter by the same factor where their ``global_norm`` is more than ``most``."""
    by_name("gradients", gradients)
    if not isinstance(most, Tensor) and not (isinstance(most, int | float | np.number) and most >= 0):
        raise tp.errors.ProgramError(
            f"clip_by_global_norm: no gradient is as short as {most}",
            places=[("here", tp.errors.user_line())],
            hint="the greatest norm is a number from 0 on, often 0.5 or 1.0",
        )
    if not gradients:
        return {}
    scale = tp.minimum(1.0, most / (global_norm(gradients) + 1e-6))
    return {name: (wide(g) * scale).astype(g.dtype) for name, g in gradients.items()}


def by_name(what: str, given: Any) -> None:
    """Check that these are by name, as ``tp.grad(loss, parameters)`` gives them for a dict of parameters."""
    if not isinstance(given, Mapping):
        kind = "a tensor" if isinstance(given, Tensor) else f"a {type(given).__name__}"
        raise tp.errors.ProgramError(
            f"the {what} are {kind}, not a dict by name",
            places=[("here", tp.errors.user_line())],
            hint='parameters = net.parameters(), or {"w": w}; gradients = tp.grad(loss, parameters)',
        )
