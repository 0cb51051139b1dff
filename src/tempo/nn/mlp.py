"""Feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import tempo as tp
from tempo.nn.linear import Linear
from tempo.nn.mistakes import wrong
from tempo.nn.module import Module


class MLP(Module):
    """Linear layers with an activation between them: from shape (..., sizes[0]) to (..., sizes[-1]).

    Parameters: those of ``layers``, ``Linear(sizes[n], sizes[n + 1])``.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: Callable[[tp.RecurrentTensor], tp.RecurrentTensor] = tp.relu,
        bias: bool = True,
    ) -> None:
        if len(sizes) < 2:
            raise wrong(
                self, f"the sizes {[*sizes]}", "give the size of the input, those between, and that of the result"
            )
        self.activation = activation
        self.layers = [Linear(inputs, outputs, bias) for inputs, outputs in pairwise(sizes)]

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class SwiGLU(Module):
    """``down(activation(gate(x)) * up(x))``, the feed-forward part of Llama: shape (..., size), kept.

    Parameters: those of gate_proj and up_proj, ``Linear(size, hidden)``, and of down_proj, ``Linear(hidden, size)``.
    With ``fused``, the first two are gate_up_proj, ``Linear(size, 2 * hidden)``: one product in place of two.
    """

    def __init__(
        self,
        size: int,
        hidden: int,
        bias: bool = False,
        activation: Callable[[tp.RecurrentTensor], tp.RecurrentTensor] = tp.silu,
        fused: bool = False,
    ) -> None:
        self.hidden = hidden
        self.activation = activation
        self.fused = fused
        if fused:
            self.gate_up_proj = Linear(size, 2 * hidden, bias)
        else:
            self.gate_proj = Linear(size, hidden, bias)
            self.up_proj = Linear(size, hidden, bias)
        self.down_proj = Linear(hidden, size, bias)

    def __call__(self, x: tp.RecurrentTensor) -> tp.RecurrentTensor:
        if self.fused:
            both = self.gate_up_proj(x)
            gate, up = both.space[..., : self.hidden], both.space[..., self.hidden :]
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(self.activation(gate) * up)
