"""Gradients through recurrences that look back in unusual ways: every adjoint needs later ones only, so that one loop
backwards is enough, however many steps there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tempo as tp
from tempo import nn

Read = Callable[[Any, Any], tp.RecurrentTensor]

READS: dict[str, Read] = {
    "clamped": lambda y, t: y[tp.max(0, t - 1)],
    "clamped two steps back": lambda y, t: y[tp.max(0, t - 2)],
    "clamped to a step before the first": lambda y, t: y[tp.max(-1, t - 2)],
    "clamped beside a shift": lambda y, t: y[t - 1] + y[tp.max(0, t - 2)],
    "clamped from above": lambda y, t: y[tp.min(t - 1, 5)],
    "clamped from both sides": lambda y, t: y[tp.max(0, tp.min(t - 1, 5))],
    "the first of a pair": lambda y, t: y[tp.max(0, t - 1 - t % 2)],
    "before a block of three": lambda y, t: y[tp.max(0, (t // 3) * 3 - 1)],
    "one step": lambda y, t: y[0] * y[t - 1],
    "a window": lambda y, t: tp.sum(y[tp.max(0, t - 3) : t]),
    "the first few": lambda y, t: tp.sum(y[0 : tp.min(t, 3)]),
    "the first few, later": lambda y, t: y[t - 1] + tp.sum(y[0 : tp.max(0, tp.min(t - 4, 3))]),
}


@pytest.mark.parametrize("backend", ["numpy", "jax"])
@pytest.mark.parametrize("read", READS)
def test_one_loop_backwards(read: str, backend: str) -> None:
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", domain=t)
        y = prog.recurrent("y", domain=t)
        y[-1] = 0.3
        y[0] = x[0]
        y[t] = tp.tanh(READS[read](y, t) + x)
        prog.output("g", tp.grad(y[T - 1], x))
    data = np.random.default_rng(0).normal(size=20)
    run = prog.compile({T: 20}, backend)
    assert sum(line.endswith("backwards:") for line in run.loop_tree().splitlines()) == 1
    np.testing.assert_allclose(run(x=data).g, prog.evaluate({T: 20}, x=data).g, rtol=1e-4, atol=1e-6)


def test_attention_that_feeds_itself() -> None:
    """With sinks, whose adjoints are sums over all later steps."""
    with tp.Program() as prog:
        t, T = prog.dim("t")
        x = prog.input("x", 2)
        h = prog.recurrent("h", 2, t)
        attention = nn.Attention(2, 1, window=4, sinks=3).declare(prog, "attention")
        h[0] = x
        h[t + 1] = tp.tanh(h + attention(h, t))
        prog.output("g", tp.grad(tp.sum(h[T]), x))
    found, expected = prog.compile({T: 12})(x=[0.3, -0.2]), prog.evaluate({T: 12}, x=[0.3, -0.2])
    np.testing.assert_allclose(found.g, expected.g, rtol=1e-4)
