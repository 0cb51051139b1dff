"""Releases of JAX without the way by which our kernels are compiled."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["jax.experimental.pallas.triton"] = None  # importing it fails from now on
import jax
import numpy as np
import tempo as tp
from tempo.backends.jax.attention import Layout, attention

with tp.Program("sums") as prog:
    b, B = prog.dim("b")
    t, T = prog.dim("t")
    x = prog.input("x", domain=(b, t))
    y = prog.recurrent("y", domain=(b, t))
    y[b, 0] = x[b, 0]
    y[b, t] = tp.tanh(y[b, t - 1]) + x[b, t]
    prog.output("y", y)

data = np.arange(12.0).reshape(3, 4)
run = prog.compile({B: 3, T: 4}, plan=tp.Plan(kernels=True))
np.testing.assert_allclose(run(x=data).y, prog.evaluate({B: 3, T: 4}, x=data).y, rtol=1e-6)

one, steps = np.ones((1, 1, 8), np.float32), np.ones((4, 1, 8), np.float32)
layout = Layout(1.0, -1e9, False, False)
traced = jax.jit(lambda q, k, v: attention(q, k, v, 4, None, layout)).trace(one, steps, steps)
assert "dot_general" in traced.lower(lowering_platforms=("cuda",)).as_text()
"""


def test_programs_run_without_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
