"""Decoding in JAX, written by hand: caches of full length, an array per layer and kind, donated from step to step.

``step`` is started by Python for every token; ``loop`` has the loop over tokens in one XLA program. With a window the
cache is a circle of just as many positions. Queries, keys and values are one product, and so are the gate and what it
gates. Attention is cuDNN's where it takes the shapes, or else the faster of two ways to write two products.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _decode_cells import PROMPT, Cell, Piece, is_ones, mixed, offset, scale, uniform
from _turns import Turns
from common import program_bytes
from jax import lax

from tempo.llm import Config
from tempo.llm.parameters import shapes

Array = Any
Caches = list[tuple[Array, Array]]


# -- weights -----------------------------------------------------------------------------------------------------


def weights(config: Config) -> dict[str, Array]:
    """The parameters by the names of ``tempo.llm``, on the default device."""
    return {name: _weight(name, shape, n, config.dtype) for n, (name, shape) in enumerate(shapes(config).items())}


def _weight(name: str, shape: tuple[int, ...], number: int, dtype: Any) -> Array:
    if is_ones(name):
        return jnp.ones(shape, dtype)
    return _made(shape, np.uint32(offset(number)), dtype)


@functools.partial(jax.jit, static_argnums=(0, 2))
def _made(shape: tuple[int, ...], begin: Array, dtype: Any) -> Array:
    bits = mixed(lax.iota(jnp.uint32, math.prod(shape)) + begin, jnp.uint32)
    return uniform(bits.astype(jnp.float32), jnp.float32(scale(shape))).reshape(shape).astype(dtype)


def by_layer(config: Config) -> dict[str, Any]:
    """The same with a list of the parameters of each layer."""
    made = weights(config)
    layers = [
        {name.removeprefix(f"layers.{l}."): made.pop(name) for name in [*made] if name.startswith(f"layers.{l}.")}
        for l in range(config.layers)
    ]
    return {**made, "layers": layers}


# -- attention ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """From queries (batch, n, heads, size) at positions to (batch, n, heads * size), over a cache of a layout."""

    axis: int
    """Where the cache has its positions: (batch, positions, heads, size) or (batch, heads, positions, size)."""
    function: Callable[[Array, Array, Array, Array], Array]

    def shape(self, cell: Cell) -> tuple[int, ...]:
        heads, size = cell.config.kv_heads, cell.config.head_size
        return (cell.batch, cell.slots, heads, size) if self.axis == 1 else (cell.batch, heads, cell.slots, size)

    def caches(self, cell: Cell, layers: int) -> Caches:
        zeros = functools.partial(jnp.zeros, self.shape(cell), cell.config.dtype)
        return [(zeros(), zeros()) for _ in range(layers)]

    def write(self, cache: Array, new: Array, first: Array) -> Array:
        """``new``: (batch, n, heads, size)."""
        start = [0, 0, 0, 0]
        start[self.axis] = first % cache.shape[self.axis]
        return lax.dynamic_update_slice(cache, new if self.axis == 1 else jnp.swapaxes(new, 1, 2), start)


def products(layout: str, q: Array, keys: Array, values: Array, positions: Array) -> Array:
    """Two products with a mask between them, for XLA to choose how."""
    batch, n, heads, size = q.shape
    groups = keys.shape[layout.index("g")]
    grouped = q.reshape(batch, n, groups, heads // groups, size)
    scores = jnp.einsum(f"bnghd,{layout}->bghns", grouped, keys, preferred_element_type=jnp.float32)
    seen = jnp.arange(keys.shape[layout.index("s")]) <= positions[:, None]
    probable = jax.nn.softmax(jnp.where(seen, scores * size**-0.5, -1e30)).astype(q.dtype)
    return jnp.einsum(f"bghns,{layout}->bnghd", probable, values).reshape(batch, n, heads * size)


def cudnn(q: Array, keys: Array, values: Array, positions: Array) -> Array:
    """cuDNN's kernel, which reads no more of the cache than is live. It has half precision only."""
    batch, n, heads, size = q.shape
    if n > 1:
        return products("bsgd", q, keys, values, positions)
    live = jnp.broadcast_to(jnp.minimum(positions + 1, keys.shape[1]), (batch,)).astype(jnp.int32)
    found = jax.nn.dot_product_attention(q, keys, values, key_value_seq_lengths=live, implementation="cudnn")
    return found.reshape(batch, n, heads * size)


ATTENTIONS = {
    "products, positions inside": Attention(2, functools.partial(products, "bgsd")),
    "products, positions outside": Attention(1, functools.partial(products, "bsgd")),
    "cudnn": Attention(1, cudnn),
}


def fastest_attention(cell: Cell, turns: Turns) -> tuple[str, dict[str, Any]]:
    """The name of the fastest; milliseconds of a layer in the middle of the context, where there was something to find
    out. cuDNN's is taken wherever there is one: with 4 sequences or more whole models were faster with it, even where
    products alone take less time."""
    found: dict[str, Any] = {}
    with turns.together():
        try:
            _some_steps(cell, ATTENTIONS["cudnn"])
        except Exception as error:  # a kernel that does not take these shapes says so in many ways
            found["cudnn"] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        else:
            return "cudnn", {}
        others = {name: way for name, way in ATTENTIONS.items() if name != "cudnn"}
        compiled = {name: _some_steps(cell, way) for name, way in others.items()}
    with turns.alone():
        times = {name: _attention_ms(cell, ATTENTIONS[name], steps) for name, steps in compiled.items()}
    return min(times, key=times.__getitem__), times | found


# Caches of one layer might stay in a GPU's own memory, where products are faster than they are in a model.
SEARCHED_STEPS, SEARCHED_LAYERS = 10, 4


def _some_steps(cell: Cell, attention: Attention) -> Any:
    """A program of the attention of some layers at some steps, from caches and a query."""

    def run(caches: Caches, q: Array) -> tuple[Caches, Array]:
        def body(n: Array, carry: tuple[Caches, Array]) -> tuple[Caches, Array]:
            at = cell.context // 2 + n
            caches, q = carry
            changed = []
            for old in caches:
                new = q[:, :, : cell.config.kv_heads]
                keys, values = (attention.write(cache, new, at) for cache in old)
                q = q + attention.function(q, keys, values, at[None]).reshape(q.shape)
                changed.append((keys, values))
            return changed, q

        return lax.fori_loop(0, SEARCHED_STEPS, body, (caches, q))

    cache = jax.ShapeDtypeStruct(attention.shape(cell), cell.config.dtype)
    query = jax.ShapeDtypeStruct(_query_shape(cell), cell.config.dtype)
    return jax.jit(run, donate_argnums=0).lower([(cache, cache)] * SEARCHED_LAYERS, query).compile()


def _attention_ms(cell: Cell, attention: Attention, compiled: Any) -> float:
    """The milliseconds of a layer at a step."""
    q = jnp.ones(_query_shape(cell), cell.config.dtype)
    carry = jax.block_until_ready(compiled(attention.caches(cell, SEARCHED_LAYERS), q))
    start = time.perf_counter()
    jax.block_until_ready(compiled(*carry))
    return 1e3 * (time.perf_counter() - start) / SEARCHED_STEPS / SEARCHED_LAYERS


def _query_shape(cell: Cell) -> tuple[int, ...]:
    return cell.batch, 1, cell.config.heads, cell.config.head_size


# -- the decoder -------------------------------------------------------------------------------------------------


def forward(
    config: Config, attention: Attention, params: Mapping[str, Any], caches: Caches, tokens: Array, first: Array
) -> tuple[Array, Caches]:
    """The most likely token after tokens (batch, n) at the positions from ``first`` on, and the caches with them."""
    batch, n = tokens.shape
    positions = first + jnp.arange(n)
    x = params["embedding.weight"][tokens]
    if config.rope_theta is None:
        x = x + params["positions.weight"][positions]
    changed = []
    for layer, (keys, values) in zip(params["layers"], caches, strict=True):
        normal = norm(config, x, layer, "attention_norm")
        qkv = linear(normal, layer, "attention.qkv_proj").reshape(batch, n, -1, config.head_size)
        q, k, v = jnp.split(qkv, [config.heads, config.heads + config.kv_heads], axis=2)
        if config.rope_theta is not None:
            q, k = turned(config, q, positions), turned(config, k, positions)
        keys, values = attention.write(keys, k, first), attention.write(values, v, first)
        x = x + linear(attention.function(q, keys, values, positions), layer, "attention.o_proj")
        x = x + mlp(config, norm(config, x, layer, "mlp_norm"), layer)
        changed.append((keys, values))
    logits = norm(config, x[:, -1], params, "norm") @ params["embedding.weight"].T
    return jnp.argmax(logits.astype(jnp.float32), -1).astype(jnp.int32), changed


def linear(x: Array, layer: Mapping[str, Array], name: str) -> Array:
    y = jnp.einsum("...i,oi->...o", x, layer[f"{name}.weight"])
    return y + layer[f"{name}.bias"] if f"{name}.bias" in layer else y


def norm(config: Config, x: Array, layer: Mapping[str, Array], name: str) -> Array:
    wide = x.astype(jnp.float32)
    if config.norm == "layer":
        wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + config.norm_epsilon)
    y = wide.astype(x.dtype) * layer[f"{name}.weight"]
    return y + layer[f"{name}.bias"] if config.norm == "layer" else y


def turned(config: Config, x: Array, positions: Array) -> Array:
    frequencies = config.rope_theta ** -(np.arange(0, config.head_size, 2) / config.head_size)  # type: ignore[operator]
    angle = positions[:, None, None].astype(jnp.float32) * frequencies.astype(np.float32)
    cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def mlp(config: Config, x: Array, layer: Mapping[str, Array]) -> Array:
    y = linear(x, layer, "mlp.gate_up_proj" if config.gated else "mlp.up_proj")
    if config.gated:
        gate, up = jnp.split(y, 2, axis=-1)
        y = jax.nn.silu(gate) * up
    else:
        y = jax.nn.gelu(y, approximate=True)
    return linear(y, layer, "mlp.down_proj")


# -- the systems -------------------------------------------------------------------------------------------------


class JaxSystem:
    """What both have in common: weights, caches, the prompt's pass."""

    def __init__(self, cell: Cell, device: Any, name: str, candidates: dict[str, Any]) -> None:
        self.cell = cell
        self.device = device
        self.name, self.candidates = name, candidates
        self.attention = ATTENTIONS[name]
        self.params = by_layer(cell.config)
        self.forward = functools.partial(forward, cell.config, self.attention)
        self.caches: Caches = []
        self.programs: dict[str, Any] = {}

    def shaped(self) -> Caches:
        one = jax.ShapeDtypeStruct(self.attention.shape(self.cell), self.cell.config.dtype)
        return [(one, one) for _ in range(self.cell.config.layers)]

    def compile(self, name: str, function: Callable[..., Any], donated: tuple[int, ...], *arguments: Any) -> None:
        self.programs[name] = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()

    def build(self) -> None:
        self.compile("prompt", self.forward, (1,), self.params, self.shaped(), self.cell.prompt, 0)

    def settle(self) -> None:
        """Nothing is compiled in the background."""

    def forget(self) -> None:
        self.programs.clear()
        jax.clear_caches()

    def prompted(self) -> Array:
        """The token after the prompt, which is in the caches then. What they had before is not seen."""
        caches = self.caches or self.attention.caches(self.cell, self.cell.config.layers)
        token, self.caches = self.programs["prompt"](self.params, caches, self.cell.prompt, 0)
        return token

    @property
    def pieces(self) -> list[Piece]:
        """The middle: a kernel may leave out what is not live of the cache, or read all of it."""
        half = self.cell.new // 2
        return [Piece(PROMPT + half, self.cell.new - half)]

    def figures(self) -> dict[str, Any]:
        most = max(map(program_bytes, self.programs.values()))
        found = {"attention": self.name, "attention_ms": self.candidates, "bytes_xla": most}
        stats = self.device.memory_stats() or {}
        return {**found, "bytes_peak": stats["peak_bytes_in_use"]} if "peak_bytes_in_use" in stats else found


class StepSystem(JaxSystem):
    """A call for every token."""

    def build(self) -> None:
        super().build()
        token = jax.ShapeDtypeStruct((self.cell.batch,), jnp.int32)
        at = jax.ShapeDtypeStruct((), jnp.int32)
        self.compile("step", self.step, (1, 3), self.params, self.shaped(), token, at)

    def step(self, params: Any, caches: Caches, token: Array, at: Array) -> Any:
        token, caches = self.forward(params, caches, token[:, None], at)
        return token, caches, at + 1

    def generate(self, count: int) -> np.ndarray[Any, Any]:
        tokens = [self.prompted()]
        at = jnp.int32(PROMPT)
        for _ in range(count - 1):
            token, self.caches, at = self.programs["step"](self.params, self.caches, tokens[-1], at)
            tokens.append(token)
        return np.stack(jax.device_get(tokens), axis=1)

    def steps(self, first: int, count: int) -> float:
        """The seconds of some steps from a position on."""
        token, at = jnp.zeros(self.cell.batch, jnp.int32), jnp.int32(first)
        jax.block_until_ready((token, at, self.caches))
        start = time.perf_counter()
        for _ in range(count):
            token, self.caches, at = self.programs["step"](self.params, self.caches, token, at)
        jax.block_until_ready(token)
        return time.perf_counter() - start


class LoopSystem(JaxSystem):
    """A call for the prompt and one for all tokens that follow."""

    def build(self) -> None:
        super().build()
        tokens = jax.ShapeDtypeStruct((self.cell.batch, self.cell.context), jnp.int32)
        self.compile("loop", self.loop, (1, 2), self.params, self.shaped(), tokens, 0, 1)

    def loop(self, params: Any, caches: Caches, tokens: Array, first: Array, stop: Array) -> Any:
        """The tokens at the positions after ``first`` up to ``stop``, each from the one before it."""

        def body(t: Array, carry: Any) -> Any:
            tokens, caches = carry
            token, caches = self.forward(params, caches, lax.dynamic_slice_in_dim(tokens, t, 1, 1), t)
            return lax.dynamic_update_slice_in_dim(tokens, token[:, None], t + 1, 1), caches

        return lax.fori_loop(first, stop, body, (tokens, caches))

    def generate(self, count: int) -> np.ndarray[Any, Any]:
        tokens = jnp.zeros((self.cell.batch, self.cell.context), jnp.int32).at[:, PROMPT].set(self.prompted())
        stop = PROMPT + count - 1
        tokens, self.caches = self.programs["loop"](self.params, self.caches, tokens, PROMPT, stop)
        return np.asarray(tokens)[:, PROMPT : PROMPT + count]

    def steps(self, first: int, count: int) -> float:
        tokens = jax.block_until_ready(jnp.zeros((self.cell.batch, self.cell.context), jnp.int32))
        start = time.perf_counter()
        tokens, self.caches = self.programs["loop"](self.params, self.caches, tokens, first, first + count)
        jax.block_until_ready(tokens)
        return time.perf_counter() - start


def bandwidth(size: int) -> float:
    """The bytes a second that copying so many bytes reads and writes, the best of several."""
    x = jnp.zeros(size // 4, jnp.float32)
    copy = jax.jit(jnp.add).lower(x, 1.0).compile()
    jax.block_until_ready(copy(x, 1.0))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(copy(x, 1.0))
        times.append(time.perf_counter() - start)
    return 2 * size / min(times)
