"""What does not fit is said in the layer's words, with the line that asked for it."""

import numpy as np
import pytest

import tempo as tp
from tempo import nn

CALLED = [
    (lambda net, x, t: net(x), nn.Linear(3, 4), "Linear: x has shape (2, 5), expected (..., 3)"),
    (lambda net, x, t: net(x), nn.RMSNorm(3), "RMSNorm: x has shape (2, 5), expected (..., 3)"),
    (lambda net, x, t: net(x), nn.LayerNorm((3, 5)), "LayerNorm: x has shape (2, 5), expected (..., 3, 5)"),
    (lambda net, x, t: net(x, t), nn.RoPE(4), "RoPE: x has shape (2, 5), expected (..., 4)"),
    (lambda net, x, t: net(x, (x, x)), nn.LSTMCell(3, 5), "LSTMCell: x has shape (2, 5), expected (..., 3)"),
    (lambda net, x, t: net(x, x), nn.GRUCell(5, 3), "GRUCell: x has shape (2, 5), expected (..., 3)"),
    (lambda net, x, t: net(x), nn.Conv1d(3, 4, 1), "Conv1d: x does not have 3 channels, followed by 1 axes of places"),
    (lambda net, x, t: net(x), nn.Conv2d(2, 4, 1), "Conv2d: x does not have 2 channels, followed by 2 axes of places"),
]

MADE = [
    (lambda: nn.RoPE(5), "RoPE: 5 features do not make pairs"),
    (lambda: nn.Attention(5, heads=2), "Attention: 5 features do not divide into 2 heads"),
    (lambda: nn.Attention(6, 3, kv_heads=2), "Attention: 3 heads do not divide into 2 groups"),
    (lambda: nn.Attention(6, 3, window=0), "Attention: 0 steps in the window"),
    (lambda: nn.Attention(6, 3, window=2.5), "Attention: 2.5 steps in the window"),
    (lambda: nn.Attention(6, 3, window=2, sinks=-1), "Attention: -1 sinks"),
    (lambda: nn.Attention(6, 0), "Attention: 0 heads"),
    (lambda: nn.Attention(6, 3, kv_heads=0), "Attention: 0 heads of keys and values"),
    (lambda: nn.Attention(6, 3, head_size=0), "Attention: 0 features of a head"),
    (lambda: nn.LSTMCell(3, 0), "LSTMCell: 0 hidden features"),
    (lambda: nn.MLP([3]), "MLP: the sizes [3]"),
    (lambda: nn.Conv1d(2, 3, 0), "Conv1d: 0 places in the window"),
    (lambda: nn.Attention(6, 3, sinks=1), "Attention: 1 sinks without a window"),
    (lambda: nn.Dropout(1.5), "Dropout: the rate 1.5 is not in [0, 1]"),
    (lambda: nn.Linear(0, 3), "Linear: 0 inputs"),
    (lambda: nn.Conv1d(2, 4, 2, groups=4), "Conv1d: 2 channels to 4 do not divide into 4 groups"),
    (lambda: nn.Conv2d(4, 3, 2, groups=2), "Conv2d: 4 channels to 3 do not divide into 2 groups"),
    (lambda: nn.Conv1d(2, None, 2), "Conv1d: None channels of outputs"),
    (lambda: nn.Linear(np.ones(2), 2), "Linear: array([1., 1.]) inputs"),
    (lambda: nn.Conv1d(2, 4, 2, groups=0), "Conv1d: 0 groups"),
    (
        lambda: nn.init.xavier_uniform()((3,), "float32"),
        "a parameter of shape (3,) has no inputs and outputs, by which its first value is to be scaled",
    ),
]


@pytest.mark.parametrize("call, model, message", CALLED, ids=lambda value: type(value).__name__)
def test_shapes(call, model, message):
    with tp.Program("mistake") as prog:
        t, _ = prog.dim("t")
        x = prog.input("x", (2, 5), domain=t)
        net = model.declare(prog)
        with pytest.raises(tp.errors.ShapeError) as caught:
            call(net, x, t)
    assert caught.value.message == message
    assert "here: test_mistakes.py:" in str(caught.value)


@pytest.mark.parametrize("make, message", MADE)
def test_sizes(make, message):
    with pytest.raises(tp.errors.ShapeError) as caught:
        make()
    assert caught.value.message == message


def test_attention_needs_the_dim_of_time():
    with tp.Program("mistake") as prog:
        s, _ = prog.dim("s")
        t, _ = prog.dim("t")
        x = prog.input("x", 4, domain=t)
        net = nn.Attention(4, 2).declare(prog)
        with pytest.raises(tp.errors.DomainError) as caught:
            net(x, s)
    assert str(caught.value).splitlines()[0::2] == [
        "Attention along s: x does not vary over it",
        "  hint: give the dim of time: attention(x, t)",
    ]
