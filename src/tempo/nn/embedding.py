"""Embeddings: rows of a table, chosen by integers."""

from __future__ import annotations

from typing import Any

import tempo as tp
from tempo.nn import init
from tempo.nn.mistakes import expect
from tempo.nn.module import Module, Parameter


class Embedding(Module):
    """The table's rows at integers below ``count``: from shape (...) to (..., size).

    Parameters: weight (count, size), at first normal.
    """

    weight: Any

    def __init__(self, count: int, size: int) -> None:
        self.weight = Parameter((count, size), init.normal())

    def __call__(self, indices: tp.RecurrentTensor) -> tp.RecurrentTensor:
        return tp.take(self.weight, indices)

    def attend(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        """The product of x with every row, from shape (..., size) to (..., count): logits from tied weights."""
        return tp.einsum("...i,ni->...n", expect(self, x, *self.weight.shape[1:]), self.weight)
