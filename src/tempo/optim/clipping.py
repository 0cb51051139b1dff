"""Gradients that are not too long."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import tempo as tp
from tempo.nn.precision import wide

Tensor = tp.RecurrentTensor


def global_norm(gradients: Mapping[str, Tensor]) -> Tensor:
    """The Euclidean norm of all gradients as one vector: shape ()."""
    return tp.sqrt(reduce(tp.add, (tp.sum(tp.square(wide(g))) for g in gradients.values())))


def clip_by_global_norm(gradients: Mapping[str, Tensor], most: float) -> dict[str, Tensor]:
    """The gradients, all made shorter by the same factor where their ``global_norm`` is more than ``most``."""
    if not gradients:
        return {}
    scale = tp.minimum(1.0, most / (global_norm(gradients) + 1e-6))
    return {name: (wide(g) * scale).astype(g.dtype) for name, g in gradients.items()}
