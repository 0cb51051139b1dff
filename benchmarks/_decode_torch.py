"""Decoding in PyTorch, written by hand: caches are allocated once, with room for the whole context.

``eager`` reads what is live of them with ``scaled_dot_product_attention``. ``compile`` is one graph for every position,
with a mask, in mode "reduce-overhead", that is in CUDA graphs. With a window the cache is a circle of just as many
positions. Queries, keys and values are one product, and so are the gate and what it gates.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from _decode_cells import PROMPT, Cell, Piece, is_ones, mixed, offset, scale, uniform
from _turns import Turns

from tempo.llm import Config
from tempo.llm.parameters import shapes

Tensor = torch.Tensor
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]

EIGHTHS = 8
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


# -- weights -----------------------------------------------------------------------------------------------------


def weights(config: Config, device: torch.device) -> dict[str, Tensor]:
    """The parameters by the names of ``tempo.llm``."""
    dtype = DTYPES[config.dtype.name]
    return {name: _weight(name, shape, n, dtype, device) for n, (name, shape) in enumerate(shapes(config).items())}


def _weight(name: str, shape: tuple[int, ...], number: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if is_ones(name):
        return torch.ones(shape, dtype=dtype, device=device)
    result = torch.empty(shape, dtype=dtype, device=device)
    flat, rows = result.view(-1), 2**24
    largest = np.float32(scale(shape)).item()
    # Integers of 64 bits, in pieces that take little room beside the result.
    for begin in range(0, flat.numel(), rows):
        part = flat[begin : begin + rows]
        index = (torch.arange(begin, begin + part.numel(), device=device) + offset(number)) & 0xFFFFFFFF
        part.copy_(uniform(mixed(index, lambda x: x & 0xFFFFFFFF).float(), largest))
    return result


# -- the decoder -------------------------------------------------------------------------------------------------


class Decoder(torch.nn.Module):
    """Weights and caches as buffers: what lies at the same address at every step."""

    def __init__(self, cell: Cell, made: Mapping[str, Tensor], slots: int, device: torch.device) -> None:
        super().__init__()
        self.config = config = cell.config
        self.slots = slots
        for name, tensor in made.items():
            self.register_buffer(_attribute(name), tensor)
        shape = (cell.batch, config.kv_heads, slots, config.head_size)
        for l in range(config.layers):
            for kind in ("keys", "values"):
                self.register_buffer(f"{kind}_{l}", torch.zeros(shape, dtype=DTYPES[config.dtype.name], device=device))
        if config.rope_theta is not None:
            size = config.head_size
            frequencies = config.rope_theta ** -(np.arange(0, size, 2) / size)
            self.register_buffer("frequencies", torch.tensor(frequencies, dtype=torch.float32, device=device))

    def weight(self, name: str) -> Tensor | None:
        found: Tensor | None = getattr(self, _attribute(name), None)
        return found

    def logits(self, tokens: Tensor, positions: Tensor, attend: Attend, last: bool = True) -> Tensor:
        """For tokens (batch, n): the logits after the last of them, (batch, vocabulary), or after all."""
        config = self.config
        batch, n = tokens.shape
        x = F.embedding(tokens, self.weight("embedding.weight"))
        cos = sin = None
        if config.rope_theta is None:
            x = x + F.embedding(positions, self.weight("positions.weight"))
        else:
            angle = positions[:, None].float() * self.frequencies
            cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for l in range(config.layers):
            normal = self.norm(x, f"layers.{l}.attention_norm")
            qkv = (
                self.linear(normal, f"layers.{l}.attention.qkv_proj")
                .view(batch, n, -1, config.head_size)
                .transpose(1, 2)
            )
            q, k, v = qkv.split([config.heads, config.kv_heads, config.kv_heads], dim=1)
            if cos is not None:
                q, k = _turned(q, cos, sin), _turned(k, cos, sin)
            mixed = attend(l, q, k, v).transpose(1, 2).reshape(batch, n, -1)
            x = x + self.linear(mixed, f"layers.{l}.attention.o_proj")
            up_proj = "gate_up_proj" if config.gated else "up_proj"
            y = self.linear(self.norm(x, f"layers.{l}.mlp_norm"), f"layers.{l}.mlp.{up_proj}")
            if config.gated:
                gate, up = y.chunk(2, dim=-1)
                y = F.silu(gate) * up
            else:
                y = F.gelu(y, approximate="tanh")
            x = x + self.linear(y, f"layers.{l}.mlp.down_proj")
        return F.linear(self.norm(x[:, -1] if last else x, "norm"), self.weight("embedding.weight"))

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias"))

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        if self.config.norm == "layer":
            return F.layer_norm(x, (self.config.width,), weight, bias, self.config.norm_epsilon)
        return F.rms_norm(x, (self.config.width,), weight, self.config.norm_epsilon)

    def caches(self, l: int) -> tuple[Tensor, Tensor]:
        return getattr(self, f"keys_{l}"), getattr(self, f"values_{l}")

    # Positions that Python knows: what is live is a slice.

    def attend_live(self, first: int) -> Attend:
        def attend(l: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            n = q.shape[2]
            slot, live = first % self.slots, min(first + n, self.slots)
            keys, values = self.caches(l)
            keys[:, :, slot : slot + n] = k
            values[:, :, slot : slot + n] = v
            grouped = self.config.heads != self.config.kv_heads
            return F.scaled_dot_product_attention(
                q, keys[:, :, :live], values[:, :, :live], is_causal=n > 1, enable_gqa=grouped
            )

        return attend

    def after(self, tokens: Tensor, first: int) -> Tensor:
        """The most likely tokens, (batch, 1), after tokens (batch, n) from a position on."""
        positions = torch.arange(first, first + tokens.shape[1], device=tokens.device)
        return self.logits(tokens, positions, self.attend_live(first)).float().argmax(-1, keepdim=True)

    # A position that only the device knows: the whole cache is read, with a mask.

    def attend_all(self, at: Tensor, function: Callable[..., Tensor]) -> Attend:
        slot = at % self.slots
        seen = torch.arange(self.slots, device=at.device) <= at

        def attend(l: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self.caches(l)
            keys.index_copy_(2, slot, k)
            values.index_copy_(2, slot, v)
            # The heads that share keys, as queries at the same position.
            grouped = q.reshape(q.shape[0], self.config.kv_heads, -1, self.config.head_size)
            return function(grouped, keys, values, seen).reshape(q.shape)

        return attend

    def after_one(self, token: Tensor, at: Tensor, function: Callable[..., Tensor]) -> Tensor:
        """The same for one token (batch, 1) at a position (1,)."""
        return self.logits(token, at, self.attend_all(at, function)).float().argmax(-1, keepdim=True)


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def _turned(x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    assert cos is not None and sin is not None
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


# -- attention with a mask, for the compiled step ----------------------------------------------------------------


def products(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Two products with a mask between them: what Inductor makes of them is often faster than a kernel."""
    scores = (q @ keys.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).to(q.dtype) @ values


def library(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=seen[None, :].expand(q.shape[2], -1))


ATTENTIONS: dict[str, Callable[..., Tensor]] = {"products": products, "library": library}


SEARCHED_LAYERS, TIMES = 4, 3
Caches = list[tuple[Tensor, Tensor]]


def fastest_attention(cell: Cell, device: Any, turns: Turns) -> tuple[str, dict[str, Any]]:
    """The name of the faster in the middle of the context, compiled; milliseconds of both for a layer."""
    if device != "gpu":
        return "products", {}
    config = cell.config
    like = {"dtype": DTYPES[config.dtype.name], "device": _torch_device(device)}
    with turns.together():
        shape = (cell.batch, config.kv_heads, cell.slots, config.head_size)
        caches = [(torch.zeros(shape, **like), torch.zeros(shape, **like)) for _ in range(SEARCHED_LAYERS)]
        q = torch.ones(cell.batch, config.kv_heads, config.heads // config.kv_heads, config.head_size, **like)
        seen = torch.arange(cell.slots, device=like["device"]) <= cell.slots // 2
        compiled = {
            name: torch.compile(functools.partial(_of_layers, f), fullgraph=True) for name, f in ATTENTIONS.items()
        }
        for run in compiled.values():
            run(q, caches, seen)
    found: dict[str, Any] = {}
    with turns.alone():
        for name, run in compiled.items():
            for count in (3, 10):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(count):
                    run(q, caches, seen)
                torch.cuda.synchronize()
            found[name] = 1e3 * (time.perf_counter() - start) / count / (TIMES * SEARCHED_LAYERS)
    torch._dynamo.reset()
    return min(found, key=found.__getitem__), found


def _of_layers(function: Callable[..., Tensor], q: Tensor, caches: Caches, seen: Tensor) -> Tensor:
    """Several in a row: of one, starting it would take longer, and its caches might stay in a GPU's own memory."""
    for _ in range(TIMES):
        for keys, values in caches:
            q = q + function(q, keys, values, seen)
    return q


# -- the systems -------------------------------------------------------------------------------------------------


def _torch_device(name: Any) -> torch.device:
    return torch.device("cuda" if name == "gpu" else "cpu")


class TorchSystem:
    """What both have in common: weights, caches, the prompt's pass."""

    def __init__(self, cell: Cell, device: Any) -> None:
        self.cell = cell
        self.device = _torch_device(device)
        torch.backends.cuda.matmul.allow_tf32 = False
        if cell.quick:
            torch.set_num_threads(1)  # more would only wait for each other
        self.made = weights(cell.config, self.device)
        self.prompt = torch.tensor(cell.prompt, dtype=torch.int64, device=self.device)
        self.decoder: Any = None

    def build(self) -> None:
        self.decoder = Decoder(self.cell, self.made, self.cell.slots, self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def settle(self) -> None:
        """Nothing is compiled in the background."""

    def forget(self) -> None:
        self.decoder = None

    @torch.no_grad()
    def generate(self, count: int) -> np.ndarray[Any, Any]:
        tokens = [self.decoder.after(self.prompt, 0)]
        self.run(tokens, PROMPT, count - 1)
        return np.asarray(torch.cat(tokens, dim=1).cpu()).astype(np.int32)

    @torch.no_grad()
    def steps(self, first: int, count: int) -> float:
        """The seconds of some steps from a position on."""
        tokens = [self.prompt[:, :1].contiguous()]  # other strides would be compiled for again
        self.wait()
        start = time.perf_counter()
        self.run(tokens, first, count)
        self.wait()
        return time.perf_counter() - start

    def run(self, tokens: list[Tensor], first: int, count: int) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def figures(self) -> dict[str, Any]:
        return {"bytes_peak": torch.cuda.max_memory_allocated()} if self.device.type == "cuda" else {}


class EagerSystem(TorchSystem):
    def run(self, tokens: list[Tensor], first: int, count: int) -> None:
        for t in range(first, first + count):
            tokens.append(self.decoder.after(tokens[-1], t))

    @property
    def pieces(self) -> list[Piece]:
        """Steps take longer the more is live: the middle of each eighth of the context."""
        count = 2 if self.cell.quick else EIGHTHS
        cuts = [PROMPT + self.cell.new * n // count for n in range(count + 1)]
        middles = [(low + high) // 2 for low, high in pairwise(cuts)]
        return [Piece(t, high - t) for t, high in zip(middles, cuts[1:], strict=True)]

    @torch.no_grad()
    def lags(self, tokens: np.ndarray[Any, Any]) -> float:
        """By how much the logits of tokens (batch, n) after the prompt are behind the best ones, at most, in units of
        the logits' standard deviation: 0 where they are the same as ours, about 5 for any other."""
        text = torch.cat([self.prompt, torch.tensor(tokens, dtype=torch.int64, device=self.device)], dim=1)
        given = text[:, :-1]
        decoder = Decoder(self.cell, self.made, given.shape[1], self.device)
        positions = torch.arange(given.shape[1], device=self.device)
        logits = decoder.logits(given, positions, decoder.attend_live(0), last=False)[:, PROMPT - 1 :].float()
        chosen = logits.gather(2, text[:, PROMPT:, None])[..., 0]
        return float(((logits.amax(-1) - chosen) / logits.std(-1)).max())


class CompiledSystem(TorchSystem):
    def __init__(self, cell: Cell, device: Any, name: str, candidates: dict[str, Any]) -> None:
        super().__init__(cell, device)
        self.name, self.candidates = name, candidates

    def build(self) -> None:
        super().build()
        function = ATTENTIONS[self.name]
        decoder = self.decoder
        for tensor in decoder.buffers():
            # Graphs write into caches where they are, and are not given copies of weights.
            torch._dynamo.mark_static_address(tensor)
        step = functools.partial(decoder.after_one, function=function)
        # On a CPU, tiny models are only traced: compiling the C++ would take longer than everything else together.
        self.backend = "aot_eager" if self.cell.quick and self.device.type == "cpu" else "inductor"
        mode = "reduce-overhead" if self.backend == "inductor" else None
        self.step = torch.compile(step, backend=self.backend, mode=mode, fullgraph=True)

    def forget(self) -> None:
        super().forget()
        self.step = None
        torch._dynamo.reset()

    def run(self, tokens: list[Tensor], first: int, count: int) -> None:
        at = torch.tensor([first], device=self.device)
        for _ in range(count):
            torch.compiler.cudagraph_mark_step_begin()
            # What a graph gives back lies where it puts the next result, too.
            tokens.append(self.step(tokens[-1], at).clone())
            at = at + 1

    @property
    def pieces(self) -> list[Piece]:
        """The middle: a kernel may leave out what is not live of the cache, or read all of it."""
        half = self.cell.new // 2
        return [Piece(PROMPT + half, self.cell.new - half)]

    def figures(self) -> dict[str, Any]:
        found = {**super().figures(), "attention": self.name, "attention_ms": self.candidates}
        found["backend"] = self.backend
        return {**found, **self.graphs()}

    def graphs(self) -> dict[str, Any]:
        """Whether the step really is a CUDA graph: what Inductor has left out, and what the driver is given."""
        counters = torch._dynamo.utils.counters
        found: dict[str, Any] = {
            "cudagraph_skips": int(counters["inductor"]["cudagraph_skips"]),
            "graph_breaks": sum(counters["graph_break"].values()),
        }
        if self.device.type == "cuda":
            kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
            steps = 4
            with torch.profiler.profile(activities=kinds) as profile:
                self.steps(PROMPT, steps)
            calls = {event.key: event.count for event in profile.key_averages()}
            found["graphs_per_step"] = calls.get("cudaGraphLaunch", 0) / steps
            found["kernels_per_step"] = sum(n for key, n in calls.items() if "LaunchKernel" in key) / steps
        return found
