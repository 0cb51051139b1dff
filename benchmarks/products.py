"""Products of large matrices in single precision: feed-forward blocks, forward and with all gradients.

    python benchmarks/products.py [--quick] [--device cpu|gpu] [--only CASE]

A block is ``x + tanh(x @ up) @ down``; there are several with weights of their own, behind each other. ``tflops`` are
the products' operations in the time of a call. Systems: ``tempo``, ``jax`` with the precision "highest", and ``torch``,
which does not round numbers either by default. On a GPU also ``jax, three products``: XLA's own of matrix units, if it
is told to make them. ``jax, rounded`` is JAX's default, which on a GPU rounds numbers to 11 bits before they are
multiplied. ``error`` is the root mean square of the difference from the same in double precision, relative to the
result's; ``ratio`` is to the best of the others whose error is below 1e-5.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from common import Results, arguments, compile_tempo, interleaved, least, medians, table, use_device

import tempo as tp

Array = Any
TOLERANCE = 1e-5
"""What differs by more is another, less exact computation."""


@dataclass(frozen=True)
class Sizes:
    rows: int
    width: int
    hidden: int
    training: bool = False
    blocks: int = 4

    @property
    def operations(self) -> float:
        # A gradient takes two products of the same size for each, but for the first block's input.
        forward = 4.0 * self.rows * self.width * self.hidden * self.blocks
        return 3 * forward - 2.0 * self.rows * self.width * self.hidden if self.training else forward

    def __str__(self) -> str:
        return f"{self.blocks} blocks, {self.rows} rows, {self.width} wide, {self.hidden} hidden"


CASES = {
    "many rows": Sizes(8192, 768, 3072),
    "fewer rows": Sizes(2048, 768, 3072),
    "squares": Sizes(4096, 4096, 4096),
    "small squares": Sizes(1024, 1024, 1024),
    "training": Sizes(8192, 768, 3072, training=True),
}

Blocks = Callable[..., Any]


def arrays_of(s: Sizes) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (random.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)

    found = {"x": random.normal(size=(s.rows, s.width)).astype(np.float32)}
    for n in range(s.blocks):
        found |= {f"up{n}": normal(s.width, s.hidden), f"down{n}": normal(s.hidden, s.width)}
    return found


def program(s: Sizes) -> tuple[tp.Program, dict[Any, int]]:
    with tp.Program("blocks") as prog:
        b, B = prog.dim("b")
        x = y = prog.input("x", s.width, b)
        weights = {}
        for n in range(s.blocks):
            up, down = prog.input(f"up{n}", (s.width, s.hidden)), prog.input(f"down{n}", (s.hidden, s.width))
            y = y + tp.tanh(y @ up) @ down
            weights |= {f"up{n}": up, f"down{n}": down}
        if s.training:
            loss = tp.mean(tp.square(y - x)[0:B])
            for name, gradient in tp.grad(loss, weights).items():
                prog.output(name, gradient)
        else:
            prog.output("y", y)
    return prog, {B: s.rows}


def in_jax(s: Sizes, precision: Any) -> Blocks:
    def forward(weights: dict[str, Array], x: Array) -> Array:
        y = x
        for n in range(s.blocks):
            hidden = jnp.tanh(jnp.matmul(y, weights[f"up{n}"], precision=precision))
            y = y + jnp.matmul(hidden, weights[f"down{n}"], precision=precision)
        return y

    def loss(weights: dict[str, Array], x: Array) -> Array:
        return jnp.mean(jnp.square(forward(weights, x) - x))

    def run(x: Array, **weights: Array) -> dict[str, Array]:
        return jax.grad(loss)(weights, x) if s.training else {"y": forward(weights, x)}

    return run


def in_torch(s: Sizes, dtype: torch.dtype, device: str, arrays: dict[str, np.ndarray]) -> Callable[[], dict[str, Any]]:
    given = {name: torch.tensor(array, dtype=dtype, device=device) for name, array in arrays.items()}
    x = given.pop("x")

    def forward() -> torch.Tensor:
        y = x
        for n in range(s.blocks):
            y = y + torch.tanh(y @ given[f"up{n}"]) @ given[f"down{n}"]
        return y

    def run() -> dict[str, Any]:
        if s.training:
            loss = torch.mean(torch.square(forward() - x))
            return dict(zip(given, torch.autograd.grad(loss, list(given.values())), strict=True))
        with torch.no_grad():
            return {"y": forward()}

    for weight in given.values():
        weight.requires_grad_(s.training)
    return run


def error(found: dict[str, Any], exact: dict[str, Any]) -> float:
    worst = 0.0
    for name, array in exact.items():
        one = found[name]
        a = np.asarray(one.cpu() if isinstance(one, torch.Tensor) else one, np.float64)
        b = np.asarray(array.cpu())
        worst = max(worst, float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))))
    return worst


def compare(case: str, s: Sizes, quick: bool, device: Any, results: Results) -> None:
    arrays = arrays_of(s)
    there = {name: jax.device_put(array, device) for name, array in arrays.items()}
    kind = "cpu" if device.platform == "cpu" else "cuda"
    prog, bounds = program(s)
    ready = compile_tempo(prog, bounds, there, device)
    precisions: dict[str, Any] = {"jax": "highest", "jax, rounded": "default"}
    if kind == "cuda":  # a CPU has no such products
        precisions["jax, three products"] = jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    compiled = {name: jax.jit(in_jax(s, precision)) for name, precision in precisions.items()}
    by_torch = in_torch(s, torch.float32, kind, arrays)

    def torch_run() -> dict[str, Any]:
        found = by_torch()
        if kind == "cuda":
            torch.cuda.synchronize()
        return found

    runs: dict[str, Callable[[], dict[str, Any]]] = {"tempo": ready, "torch": torch_run}
    runs |= {name: lambda f=f: jax.block_until_ready(f(**there)) for name, f in compiled.items()}
    with torch.no_grad() if not s.training else torch.enable_grad():
        exact = in_torch(s, torch.float64, kind, arrays)()
    errors = {name: error(run(), exact) for name, run in runs.items()}
    for name in ("tempo", "jax", "torch"):
        if not errors[name] < TOLERANCE:
            raise ValueError(f"{case}: {name} differs by {errors[name]}")
    times = interleaved(runs, seconds=0.1 if quick else 2.0, least_rounds=3 if quick else 7)
    ms, shortest = medians(times), least(times)
    best = min(ms[name] for name in runs if name != "tempo" and errors[name] < TOLERANCE)
    for name in runs:
        figures = {"ratio": ms[name] / best, "bytes_xla": ready.figures["bytes_xla"]} if name == "tempo" else {}
        tflops = s.operations / ms[name] / 1e9
        results.add(
            case, name, ms=ms[name], ms_min=shortest[name], tflops=tflops, error=errors[name], **figures, size=str(s)
        )


def main() -> int:
    options = arguments("Products of large matrices in single precision.", tuple(CASES))
    device = use_device(options.device)
    results = Results("products", device=device.device_kind, quick=options.quick)
    for case in [options.only] if options.only else CASES:
        s = CASES[case]
        compare(case, replace(s, rows=64, width=32, hidden=48) if options.quick else s, options.quick, device, results)
    rows = [
        (r["case"], r["system"], r["ms"], r["tflops"], f"{r['error']:.0e}", r.get("ratio", "")) for r in results.records
    ]
    print(table(("case", "system", "ms", "TFLOP/s", "error", "ratio"), rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
