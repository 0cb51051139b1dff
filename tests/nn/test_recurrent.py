"""Recurrent cells give PyTorch's numbers: one step, and back-propagation through all of them."""

import pytest

import tempo as tp
from tempo import nn
from tests.nn.checks import B, T, agree, functional, numbers, torch


def batched(cell):
    """PyTorch's cell for arrays (B, T, ...)."""

    def expected(x, h, *c, **weights):
        flat = [y.flatten(0, 1) for y in (x, h, *c)]
        y = functional(cell)(flat[0], tuple(flat[1:]) if c else flat[1], **weights)
        return torch.cat(y if c else (y,), dim=-1).unflatten(0, (B, T))

    return expected


@pytest.mark.parametrize("bias", [True, False])
def test_lstm_cell(bias):
    agree(
        nn.LSTMCell(3, 4, bias),
        batched(torch.nn.LSTMCell(3, 4, bias)),
        numbers(B, T, 3),
        numbers(B, T, 4),
        numbers(B, T, 4, seed=1),
        call=lambda net, t, x, h, c: tp.concatenate(net(x, (h, c))),
    )


@pytest.mark.parametrize("bias", [True, False])
def test_gru_cell(bias):
    agree(nn.GRUCell(3, 4, bias), batched(torch.nn.GRUCell(3, 4, bias)), numbers(B, T, 3), numbers(B, T, 4))


def unrolled(cell):
    """The outputs of PyTorch's layer with the same parameters."""

    def expected(x, **weights):
        return functional(cell)(x, **{f"{name}_l0": w for name, w in weights.items()})[0]

    return expected


def test_lstm_over_time():
    def run(net, t, x):
        prog, (b, _) = x.program, x.domain
        h, c = (prog.recurrent(name, 4, (b, t), "float64") for name in "hc")
        h[b, -1], c[b, -1] = 0, 0
        h[b, t], c[b, t] = net(x, (h[b, t - 1], c[b, t - 1]))
        return tp.copy(h)  # without the step before the first

    agree(nn.LSTMCell(3, 4), unrolled(torch.nn.LSTM(3, 4, batch_first=True)), numbers(B, T, 3), call=run)


def test_gru_over_time():
    def run(net, t, x):
        prog, (b, _) = x.program, x.domain
        h = prog.recurrent("h", 4, (b, t), "float64")
        h[b, -1] = 0
        h[b, t] = net(x, h[b, t - 1])
        return tp.copy(h)  # without the step before the first

    agree(nn.GRUCell(3, 4), unrolled(torch.nn.GRU(3, 4, batch_first=True)), numbers(B, T, 3), call=run)
