"""What the tests of the layers share: compare a module over (b, t) with PyTorch's, value and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tempo as tp
from tempo import nn

Array = np.ndarray[Any, Any]

B, T = 2, 5


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def agree(
    model: nn.Module,
    expected: Callable[..., Any],
    *arrays: Array,
    call: Callable[..., tp.RecurrentTensor] = lambda net, t, *xs: net(*xs),
    tolerance: float = 1e-9,
) -> None:
    """``call(net, t, *xs)`` at every point of (b, t) is what ``expected(*xs, **weights)`` is for arrays (B, T, ...),
    and so are the gradients of a weighted sum of it by all float inputs and parameters; on the reference
    interpreter, and compiled."""
    weights = {name: 0.5 * numbers(*p.shape, seed=n) for n, (name, p) in enumerate(model.parameters().items())}
    floats = [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
    with tp.Program("agree") as prog:
        b, B_ = prog.dim("b")
        t, T_ = prog.dim("t")
        net = model.declare(prog, init=False, dtype=tp.float64)
        xs = [prog.input(f"x{n}", a.shape[2:], (b, t), a.dtype) for n, a in enumerate(arrays)]
        y = call(net, t, *xs)
        share = prog.input("share", y.shape, (b, t), tp.float64)
        loss = tp.sum((y * share)[0:B_, 0:T_])
        wrt = {**{f"x{n}": xs[n] for n in floats}, **net.parameters()}
        prog.output("y", y)
        for name, gradient in tp.grad(loss, wrt).items():
            prog.output(f"d {name}", gradient)

    tensors = {f"x{n}": torch.from_numpy(a).requires_grad_(n in floats) for n, a in enumerate(arrays)}
    ws = {name: torch.from_numpy(w).requires_grad_() for name, w in weights.items()}
    wanted = expected(*tensors.values(), **ws)
    shares = numbers(*wanted.shape, seed=99)
    leaves = {name: leaf for name, leaf in {**tensors, **ws}.items() if leaf.requires_grad}
    slopes = torch.autograd.grad((wanted * torch.from_numpy(shares)).sum(), list(leaves.values()))

    bounds = {B_: arrays[0].shape[0], T_: arrays[0].shape[1]}
    given = {**{f"x{n}": a for n, a in enumerate(arrays)}, **weights, "share": shares}
    for result in (prog.evaluate(bounds, **given), prog.compile(bounds)(**given)):
        same(result.y, wanted, tolerance, "y")
        for name, slope in zip(leaves, slopes, strict=True):
            same(result[f"d {name}"], slope, tolerance, f"gradient of {name}")


def same(found: Any, expected: Any, tolerance: float, what: str) -> None:
    expected = expected.detach().numpy()
    assert found.shape == expected.shape, what
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=what)


def functional(module: Any) -> Callable[..., Any]:
    """PyTorch's module as a function of its input and its parameters by name."""
    module = module.double()
    return lambda *xs, **weights: torch.func.functional_call(module, weights, xs)
