"""Linear maps, embeddings and feed-forward networks give PyTorch's numbers."""

import numpy as np
import pytest

import tempo as tp
from tempo import nn
from tests.nn.checks import B, T, agree, functional, numbers, torch


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    agree(nn.Linear(3, 4, bias), functional(torch.nn.Linear(3, 4, bias)), numbers(B, T, 3))


def test_linear_acts_on_the_last_axis():
    agree(nn.Linear(3, 4), functional(torch.nn.Linear(3, 4)), numbers(B, T, 2, 5, 3))


def test_embedding():
    tokens = np.random.default_rng(0).integers(0, 6, (B, T), np.int32)
    agree(nn.Embedding(6, 3), functional(torch.nn.Embedding(6, 3)), tokens)
    agree(nn.Embedding(6, 3), functional(torch.nn.Embedding(6, 3)), np.stack([tokens, tokens[::-1]], axis=-1))


def test_tied_embedding():
    agree(nn.Embedding(6, 3), lambda x, weight: x @ weight.T, numbers(B, T, 3), call=lambda net, t, x: net.attend(x))


def test_mlp():
    class Reference(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 5), torch.nn.Linear(5, 4), torch.nn.Linear(4, 2)])

        def forward(self, x):
            first, second, last = self.layers
            return last(torch.tanh(second(torch.tanh(first(x)))))

    agree(nn.MLP([3, 5, 4, 2], tp.tanh), functional(Reference()), numbers(B, T, 3))


def test_swiglu():
    class Reference(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj = torch.nn.Linear(3, 5, bias=False)
            self.up_proj = torch.nn.Linear(3, 5, bias=False)
            self.down_proj = torch.nn.Linear(5, 3, bias=False)

        def forward(self, x):
            return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    agree(nn.SwiGLU(3, 5), functional(Reference()), numbers(B, T, 3))


def test_swiglu_in_one_product():
    def reference(x, **weights):
        gate, up = (x @ weights["gate_up_proj.weight"].T + weights["gate_up_proj.bias"]).split(5, -1)
        return (torch.nn.functional.silu(gate) * up) @ weights["down_proj.weight"].T + weights["down_proj.bias"]

    agree(nn.SwiGLU(3, 5, bias=True, fused=True), reference, numbers(B, T, 3))
