"""Attention of a few queries to many steps, as when decoding: our kernel, two products by XLA, and cuDNN.

    python benchmarks/attention.py [--quick] [--device cpu|gpu] [--only CASE]

``ms`` is one call within a loop of many on the device, each with the keys and values of another layer: those of one
might stay in a GPU's own memory. ``gb_s`` is how fast keys and values are read by that. Our kernel is for GPUs; on a
CPU, only the products run, which is what programs use there. ``ratio`` is to the best of the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from common import Results, arguments, interleaved, least, medians, table, use_device
from jax import lax

from tempo.backends.jax.attention import Layout, kernel, products

Array = Any
TOLERANCES = {"bfloat16": 0.05, "float32": 1e-4}


@dataclass(frozen=True)
class Sizes:
    batch: int
    steps: int
    heads: int
    queries: int
    size: int
    dtype: str

    @property
    def layout(self) -> Layout:
        return Layout(self.size**-0.5, 0.0, keys_inside=False, values_inside=False)

    def __str__(self) -> str:
        heads = f"{self.heads} x {self.queries} heads of {self.size}"
        return f"batch {self.batch}, {self.steps} steps, {heads}, {self.dtype}"


LAYERS, TURNS = 4, 20

CASES = {
    "one sequence": Sizes(1, 4096, 8, 3, 128, "bfloat16"),
    "small batch": Sizes(4, 4096, 8, 3, 128, "bfloat16"),
    "medium batch": Sizes(16, 2048, 8, 3, 128, "bfloat16"),
    "long context": Sizes(16, 8192, 8, 3, 128, "bfloat16"),
    "large batch": Sizes(64, 2048, 8, 3, 128, "bfloat16"),
    "single precision": Sizes(64, 1024, 12, 1, 64, "float32"),
}


class Given(NamedTuple):
    """What attention is computed of."""

    q: Array
    layers: list[tuple[Array, Array]]
    """Keys and values of each."""
    length: Array
    seen: Array

    @classmethod
    def of(cls, s: Sizes) -> Given:
        def normal(number: int, *shape: int) -> Array:
            return jax.random.normal(jax.random.fold_in(jax.random.key(0), number), shape, s.dtype)

        cache = s.batch, s.steps, s.heads, s.size
        layers = [(normal(2 * n + 1, *cache), normal(2 * n + 2, *cache)) for n in range(LAYERS)]
        everything = jnp.full(s.batch, s.steps, jnp.int32), jnp.ones((s.batch, s.steps), jnp.int32)
        return cls(normal(0, s.batch, s.heads, s.queries, s.size), layers, *everything)


def cudnn(s: Sizes, q: Array, keys: Array, values: Array, length: Array, seen: Array) -> Array:
    found = jax.nn.dot_product_attention(
        q.reshape(s.batch, 1, -1, s.size),
        keys,
        values,
        key_value_seq_lengths=length,
        scale=s.layout.scale,
        implementation="cudnn",
    )
    return found.reshape(q.shape)


def repeated(system: Callable[..., Array], given: Given, turns: int) -> Callable[[], Any]:
    """So many calls for every layer, each with what the one before has made of the queries: hardly anything."""

    def run(given: Given) -> Array:
        def turn(_: Array, q: Array) -> Array:
            for keys, values in given.layers:
                q = q + 1e-6 * system(q, keys, values, given.length, given.seen)
            return q

        return lax.fori_loop(0, turns, turn, given.q)

    compiled = jax.jit(run).lower(given).compile()
    return lambda: jax.block_until_ready(compiled(given))


def compare(case: str, s: Sizes, quick: bool, on_gpu: bool, results: Results) -> None:
    given = Given.of(s)
    systems: dict[str, Callable[..., Array]] = {"products": partial(products, layout=s.layout)}
    if on_gpu:
        systems["tempo"] = partial(kernel, layout=s.layout)
        if s.dtype == "bfloat16":  # it has no other precision
            systems["cudnn"] = partial(cudnn, s)
    first = (given.q, *given.layers[0], given.length, given.seen)
    expected = systems["products"](*first).astype(jnp.float32)
    for name, system in systems.items():
        error = float(jnp.max(jnp.abs(system(*first).astype(jnp.float32) - expected)))
        if not error < TOLERANCES[s.dtype]:
            raise ValueError(f"{case}: {name} differs by {error}")
    turns = 1 if quick else TURNS
    runs = {name: repeated(system, given, turns) for name, system in systems.items()}
    times = interleaved(runs, seconds=0.1 if quick else 2.0, least_rounds=3)
    ms = {name: value / turns / LAYERS for name, value in medians(times).items()}
    shortest = {name: value / turns / LAYERS for name, value in least(times).items()}
    size = sum(array.nbytes for array in given.layers[0])
    for name in systems:
        others = [value for other, value in ms.items() if other != name]
        ratio = {"ratio": ms[name] / min(others)} if name == "tempo" else {}
        results.add(case, name, ms=ms[name], ms_min=shortest[name], gb_s=size / ms[name] / 1e6, **ratio, size=str(s))


def main() -> int:
    options = arguments("Attention of a few queries: our kernel, products, cuDNN.", tuple(CASES))
    device = use_device(options.device)
    results = Results("attention", device=device.device_kind, quick=options.quick)
    for case in [options.only] if options.only else CASES:
        sizes = replace(CASES[case], batch=1, steps=64) if options.quick else CASES[case]
        compare(case, sizes, options.quick, device.platform == "gpu", results)
    rows = [(r["case"], r["system"], r["ms"], r["gb_s"], r.get("ratio", "")) for r in results.records]
    print(table(("case", "system", "ms", "GB/s", "ratio"), rows), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
