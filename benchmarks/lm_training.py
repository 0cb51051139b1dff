"""A training step of a decoder in half precision: the loss and all gradients, against JAX by hand.

    python benchmarks/lm_training.py [--quick] [--device cpu|gpu] [--only CASE]

Four blocks of attention (16 heads of 64, four of them with the same keys) and an MLP, 1,024 wide, teacher forcing. JAX
has the same arithmetic, with attention as two products ("jax products") and by ``jax.nn.dot_product_attention`` with
cuDNN ("jax cudnn"); ours is what it chooses, and with attention left as two products ("tempo products").
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from common import (
    Ready,
    Results,
    arguments,
    compile_jax,
    compile_tempo,
    interleaved,
    medians,
    relative_error,
    table,
    use_device,
)

import tempo as tp
from tempo.passes import FUSE_ATTENTION_TO_PAST

Array = Any
BLOCKS = 4
EPSILON = 1e-6
# Of the largest number of a gradient; sums are in half precision and in another order.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Case:
    batch: int
    steps: int
    window: int | None
    width: int = 1024
    heads: int = 16
    groups: int = 4

    @property
    def size(self) -> int:
        return self.width // self.heads


CASES = {
    "512": Case(16, 512, None),
    "1k": Case(8, 1024, None),
    "4k": Case(2, 4096, None),
    "4k/window": Case(2, 4096, 512),
}
QUICK = {
    "512": Case(2, 64, None, 64, 8, 2),
    "1k": Case(2, 96, None, 64, 8, 2),
    "4k": Case(1, 128, None, 64, 8, 2),
    "4k/window": Case(1, 128, 24, 64, 8, 2),
}


class Block(tp.nn.Module):
    def __init__(self, case: Case) -> None:
        self.norm = tp.nn.RMSNorm(case.width, EPSILON)
        self.attention = tp.nn.Attention(case.width, case.heads, case.groups, window=case.window, fused=True)
        self.second = tp.nn.RMSNorm(case.width, EPSILON)
        self.mlp = tp.nn.SwiGLU(case.width, 3 * case.width)

    def __call__(self, x: tp.RecurrentTensor, t: tp.Dim) -> tp.RecurrentTensor:
        x = x + self.attention(self.norm(x), t)
        return x + self.mlp(self.second(x))


class Stack(tp.nn.Module):
    def __init__(self, case: Case) -> None:
        self.blocks = [Block(case) for _ in range(BLOCKS)]


def program(case: Case) -> tuple[tp.Program, dict[Any, int]]:
    with tp.Program("lm_training") as prog:
        b, B = prog.dim("b")
        t, T = prog.dim("t")
        x = prog.input("x", case.width, (b, t), dtype=tp.bfloat16)
        net = Stack(case).declare(prog, init=False, dtype=tp.bfloat16)
        y = x
        for block in net.blocks:
            y = block(y, t)
        error = (y - x[b, tp.max(0, t - 1)]).astype(tp.float32)
        loss = tp.mean((error * error)[0:B, 0:T])
        for name, gradient in tp.grad(loss, net.parameters()).items():
            prog.output(name, gradient)
        prog.output("loss", loss)
    return prog, {B: case.batch, T: case.steps}


def by_hand(case: Case, implementation: str | None) -> Any:
    heads, groups, size = case.heads, case.groups, case.size

    def norm(x: Array, weight: Array) -> Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + EPSILON)
        return (wide * scale).astype(x.dtype) * weight

    def products(q: Array, k: Array, v: Array) -> Array:
        grouped = q.reshape(*q.shape[:2], groups, -1, size)
        scores = jnp.einsum("btgmd,bsgd->bgmts", grouped, k, preferred_element_type=jnp.float32) * size**-0.5
        steps = jnp.arange(case.steps)
        back = steps[:, None] - steps
        seen = (back >= 0) & (back < (case.window or case.steps))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)).astype(v.dtype)
        return jnp.einsum("bgmts,bsgd->btgmd", weights, v).reshape(q.shape)

    def library(q: Array, k: Array, v: Array) -> Array:
        window = None if case.window is None else (case.window - 1, 0)
        return jax.nn.dot_product_attention(
            q, k, v, is_causal=True, local_window_size=window, implementation=implementation
        )

    attend = products if implementation is None else library

    def loss(parameters: dict[str, Array], x: Array) -> Array:
        y = x
        for n in range(BLOCKS):
            own = {name.removeprefix(f"blocks.{n}."): p for name, p in parameters.items()}
            qkv = norm(y, own["norm.weight"]) @ own["attention.qkv_proj.weight"].T
            qkv = qkv.reshape(*qkv.shape[:2], -1, size)
            q, k, v = jnp.split(qkv, [heads, heads + groups], axis=2)
            y = y + attend(q, k, v).reshape(y.shape) @ own["attention.o_proj.weight"].T
            z = norm(y, own["second.weight"])
            gate, up = z @ own["mlp.gate_proj.weight"].T, z @ own["mlp.up_proj.weight"].T
            y = y + (jax.nn.silu(gate) * up) @ own["mlp.down_proj.weight"].T
        before = jnp.concatenate([x[:, :1], x[:, :-1]], axis=1)
        return jnp.mean(((y - before).astype(jnp.float32)) ** 2)

    def step(x: Array, **parameters: Array) -> dict[str, Array]:
        value, gradients = jax.value_and_grad(loss)(parameters, x)
        return {**gradients, "loss": value}

    return step


def compare(name: str, case: Case, device: Any, seconds: float, results: Results) -> list[list[Any]]:
    prog, bounds = program(case)
    rng = np.random.default_rng(0)
    arrays = {}
    for given, node in prog.graph.inputs.items():
        steps = [d.bound.evaluate(bounds) for d in node.domain]
        scale = 1.0 if given == "x" else node.shape[-1] ** -0.5
        array = rng.normal(size=(*steps, *node.shape)) * scale if given == "x" or len(node.shape) > 1 else 1.0
        arrays[given] = jnp.full((*steps, *node.shape), array, tp.bfloat16)
    systems: dict[str, Ready] = {
        "tempo": compile_tempo(prog, bounds, arrays, device),
        "tempo products": compile_tempo(prog, bounds, arrays, device, skip=(FUSE_ATTENTION_TO_PAST,)),
        "jax products": compile_jax(by_hand(case, None), arrays),
    }
    if device.platform == "gpu":
        systems["jax cudnn"] = compile_jax(by_hand(case, "cudnn"), arrays)
    expected = systems["jax products"]()
    errors = {system: relative_error(run(), expected) for system, run in systems.items()}
    times = medians(interleaved(systems, seconds))
    best = min(ms for system, ms in times.items() if system.startswith("jax"))
    rows = []
    for system, run in systems.items():
        figures = {"ms": times[system], **run.figures, "error": errors[system]}
        if system.startswith("tempo"):
            figures["ratio"] = times[system] / best
        if errors[system] > TOLERANCE:
            figures["failed"] = f"its gradients differ by {errors[system]:.2g}"
        results.add(name, system, **figures)
        rows.append([name, system, times[system], figures.get("ratio", ""), run.figures["bytes_xla"] / 1e6])
    return rows


def main() -> int:
    options = arguments("A training step of a decoder in half precision, against JAX by hand.", tuple(CASES))
    device = use_device(options.device)
    jax.config.update("jax_default_matmul_precision", None)  # half precision is what both are given
    results = Results("lm_training", device=device.device_kind, quick=options.quick)
    rows = []
    for name, case in (QUICK if options.quick else CASES).items():
        if options.only in (None, name):
            rows += compare(name, case, device, 0.1 if options.quick else 2.0, results)
    print(table(["case", "system", "ms", "ratio", "MB XLA"], rows), file=sys.stderr)
    return 1 if any("failed" in record for record in results.records) else 0


if __name__ == "__main__":
    sys.exit(main())
