"""The example of a state-space model: it learns, and its training is that of the same mathematics in JAX."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tempo as tp

EXAMPLE = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[2] / "examples" / "selective_scan.py")))
ITERATIONS, COUNT, STEPS = 3, 2, 5


def loss_by_hand(p: dict[str, Any], x: Any, wanted: Any) -> Any:
    def linear(name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    h, said = jnp.zeros((len(x), *p["log_A"].shape)), []
    for t in range(x.shape[1]):
        delta = jax.nn.softplus(linear("delta", x[:, t]))
        written = jnp.einsum("bs,bn->bsn", delta * linear("u", x[:, t]), linear("B", x[:, t]))
        h = jnp.exp(-delta[:, :, None] * jnp.exp(p["log_A"])) * h + written
        said.append(linear("out", jnp.einsum("bsn,bn->bs", h, linear("C", x[:, t])))[:, 0])
    return jnp.mean((jnp.stack(said, axis=1) - wanted) ** 2)


def trained_by_hand(p: dict[str, Any], x: Any, wanted: Any, rate: float) -> tuple[list[float], dict[str, Any]]:
    """Adam with a rate that falls along half a wave, and gradients of a norm of at most 1."""
    mean, square = (jax.tree.map(jnp.zeros_like, p) for _ in range(2))
    losses = []
    for n in range(ITERATIONS):
        loss, gradients = jax.value_and_grad(loss_by_hand)(p, x, wanted)
        losses.append(float(loss))
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in gradients.values()))
        scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        now = rate * 0.5 * (1 + np.cos(np.pi * n / ITERATIONS))
        for name, gradient in gradients.items():
            mean[name] = 0.9 * mean[name] + 0.1 * scale * gradient
            square[name] = 0.999 * square[name] + 0.001 * (scale * gradient) ** 2
            size = jnp.sqrt(square[name] / (1 - 0.999 ** (n + 1))) + 1e-8
            p = {**p, name: p[name] - now * mean[name] / (1 - 0.9 ** (n + 1)) / size}
    return losses, p


@pytest.mark.parametrize("backend", ["interpreter", "numpy", "jax"])
def test_training(backend: str) -> None:
    prog, I, B, T = EXAMPLE.build(size=3, states=2, rate=0.1, init=False, dtype=tp.float64)
    rng = np.random.default_rng(1)
    shapes = EXAMPLE.SelectiveScan(2, 3, 2).parameters()
    start = {name: rng.normal(size=parameter.shape) for name, parameter in shapes.items()}
    x, wanted = EXAMPLE.sequences(COUNT, STEPS)
    bounds, inputs = {I: ITERATIONS, B: COUNT, T: STEPS}, {"x": x, "wanted": wanted, **start}
    found = prog.evaluate(bounds, **inputs) if backend == "interpreter" else prog.compile(bounds, backend)(**inputs)
    with jax.enable_x64(True):
        losses, parameters = trained_by_hand(start, x, wanted, rate=0.1)
    # Schedules are in single precision.
    np.testing.assert_allclose([record.value for record in found.emits["loss"]], losses, rtol=1e-6)
    for name, value in parameters.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_it_learns(capsys: pytest.CaptureFixture[str]) -> None:
    EXAMPLE.main(iterations=60, count=8, steps=6)
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d{4})", printed)]
    assert losses[-1] < 0.3 * losses[0]
    tree = printed[printed.index("for i") :]
    # In the loop over steps stands the recurrence with the outer product that it adds up.
    assert re.search(
        r"    for t in 0 \.\. 5:\n        einsum_\d+ = .*\n        h = recurrent\(\) \(case 2\)\n    einsum", tree
    )
