"""Compiled programs on a GPU (``make test-gpu``)."""

import numpy as np
import pytest

import tempo as tp


@pytest.mark.gpu
def test_a_training_on_the_gpu_gives_the_oracles_values() -> None:
    """Forward and backward loops, unrolled there, with a length that the unrolling does not divide."""
    with tp.Program("rnn") as prog:
        i, I = prog.dim("i")
        t, T = prog.dim("t")
        x = prog.input("x", shape=(3,), domain=t)
        w = prog.state("w", 0.3 * np.eye(3), over=i)
        h = prog.recurrent("h", shape=(3,), domain=(i, t))
        h[i, -1] = 0.0
        h[i, t] = tp.tanh(h[i, t - 1] @ w + x[t])
        loss = tp.sum(h[i, T - 1] * h[i, T - 1])
        w.next = w - 0.1 * tp.grad(loss, w)
        prog.output("loss", loss)
        prog.output("w", w)
    inputs = {"x": np.random.default_rng(0).normal(size=(11, 3))}
    expected = prog.evaluate({I: 3, T: 11}, **inputs)
    found = prog.compile({I: 3, T: 11}, device="gpu")(**inputs)
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-4)
    np.testing.assert_allclose(found.w, expected.w, rtol=1e-4, atol=1e-5)
