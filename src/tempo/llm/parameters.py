"""One name for each parameter of a decoder, whatever the architecture, and where checkpoints keep it.

The names are those that ``tempo.nn`` gives: a decoder whose attributes are called so has these parameters.

    embedding.weight                   (vocabulary, width)
    positions.weight                   (context, width)                  learned positions only
    layers.0.attention_norm.weight     (width,)
    layers.0.attention.qkv_proj.weight ((heads + 2 * kv_heads) * head_size, width)
    layers.0.attention.o_proj.weight   (width, heads * head_size)
    layers.0.attention.q_norm.weight   (head_size,)                      and k_norm, where queries and keys have norms
    layers.0.mlp_norm.weight           (width,)
    layers.0.mlp.gate_up_proj.weight   (2 * hidden, width)               gated MLPs only
    layers.0.mlp.up_proj.weight        (hidden, width)                   others
    layers.0.mlp.down_proj.weight      (width, hidden)
    norm.weight                        (width,)
    head.weight                        (vocabulary, width)               not where it is the embedding

Layer norms, and the ``_proj`` that the configuration says so of, also have a ``bias``, as long as their result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tempo.errors import ModelError
from tempo.llm.config import Config
from tempo.llm.files import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a checkpoint keeps a parameter: in the tensors ``names``, which are its rows one after the other."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    transposed: bool = False

    def read(self, stored: Mapping[str, Array]) -> Array:
        """The parameter: a view where it is one tensor, a new array where it is several."""
        parts = [stored[name].T if self.transposed else stored[name] for name in self.names]
        if len(parts) == 1:
            return parts[0]
        # NumPy knows no type for float16 and bfloat16 together; float32 holds both.
        mixed = len({part.dtype for part in parts}) > 1
        return np.concatenate([part.astype(np.float32) for part in parts] if mixed else parts)


def check_names(given: Mapping[str, Any], expected: Iterable[str]) -> None:
    """Raise an error unless these are the parameters of a decoder, by name."""
    # By their keys: to look for one in a mapping of weights would read it.
    there, wanted = dict.fromkeys(given), dict.fromkeys(expected)
    missing, others = [name for name in wanted if name not in there], [name for name in there if name not in wanted]
    if missing or others:
        said = [
            f"{what} {_some(names)}"
            for what, names in (("there is no", missing), ("nothing is called", others))
            if names
        ]
        raise ModelError(
            f"the parameters are not those of the configuration: {', '.join(said)}",
            hint="llm.load reads both from a directory; the names are listed in tempo/llm/parameters.py",
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def as_array(name: str, given: Mapping[str, Any], shape: Shape | None = None) -> Any:
    """A parameter as an array, NumPy's if it was no array, of a certain shape."""
    found = given[name]
    if not isinstance(found, np.ndarray | jax.Array):
        try:
            found = np.asarray(found)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ModelError(f"parameter {name} is no array of numbers: {error}") from error
    if shape is not None and found.shape != shape:
        raise ModelError(f"parameter {name} has shape {found.shape}, expected {shape}")
    return found


def shapes(config: Config) -> dict[str, Shape]:
    """The parameters of a decoder with their shapes."""
    found: dict[str, Shape] = {}

    def add(module: str, *shape: int, bias: bool = False) -> None:
        found[f"{module}.weight"] = shape
        if bias:
            found[f"{module}.bias"] = shape[:1]

    width, hidden = config.width, config.hidden
    queries, keys = config.heads * config.head_size, config.kv_heads * config.head_size
    centred = config.norm == "layer"

    add("embedding", config.vocabulary, width)
    if config.rope_theta is None:
        add("positions", config.context, width)
    for l in range(config.layers):
        add(f"layers.{l}.attention_norm", width, bias=centred)
        add(f"layers.{l}.attention.qkv_proj", queries + 2 * keys, width, bias=config.qkv_bias)
        add(f"layers.{l}.attention.o_proj", width, queries, bias=config.output_bias)
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            add(f"layers.{l}.attention.{name}", config.head_size, bias=centred)
        add(f"layers.{l}.mlp_norm", width, bias=centred)
        if config.gated:
            add(f"layers.{l}.mlp.gate_up_proj", 2 * hidden, width, bias=config.mlp_bias)
        else:
            add(f"layers.{l}.mlp.up_proj", hidden, width, bias=config.mlp_bias)
        add(f"layers.{l}.mlp.down_proj", width, hidden, bias=config.mlp_bias)
    add("norm", width, bias=centred)
    if not config.tied:
        add("head", config.vocabulary, width)
    return found


# What transformers calls the modules; * is the number of the layer.
_GPT2 = {
    "embedding": "transformer.wte",
    "positions": "transformer.wpe",
    "layers.*.attention_norm": "transformer.h.*.ln_1",
    "layers.*.attention.qkv_proj": "transformer.h.*.attn.c_attn",
    "layers.*.attention.o_proj": "transformer.h.*.attn.c_proj",
    "layers.*.mlp_norm": "transformer.h.*.ln_2",
    "layers.*.mlp.up_proj": "transformer.h.*.mlp.c_fc",
    "layers.*.mlp.down_proj": "transformer.h.*.mlp.c_proj",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
_LLAMA = {
    "embedding": "model.embed_tokens",
    "layers.*.attention_norm": "model.layers.*.input_layernorm",
    "layers.*.attention.qkv_proj": "model.layers.*.self_attn.{q,k,v}_proj",
    "layers.*.attention.o_proj": "model.layers.*.self_attn.o_proj",
    "layers.*.attention.q_norm": "model.layers.*.self_attn.q_norm",
    "layers.*.attention.k_norm": "model.layers.*.self_attn.k_norm",
    "layers.*.mlp_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.mlp.gate_up_proj": "model.layers.*.mlp.{gate,up}_proj",
    "layers.*.mlp.down_proj": "model.layers.*.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
_MODULES = {"gpt2": _GPT2, "llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA, "qwen3": _LLAMA}


def places(config: Config) -> dict[str, Place]:
    """Where a checkpoint keeps each parameter."""
    return {name: _place(config, name, shape) for name, shape in shapes(config).items()}


def expected(config: Config) -> dict[str, Shape]:
    """The tensors of a checkpoint with their shapes."""
    found = places(config).values()
    return {name: shape for place in found for name, shape in zip(place.names, place.shapes, strict=True)}


def _place(config: Config, name: str, shape: Shape) -> Place:
    module, kind = name.rsplit(".", 1)
    layer = "".join(re.findall(r"^layers\.(\d+)", module))
    stored = _MODULES[config.architecture][re.sub(r"^layers\.\d+", "layers.*", module)].replace("*", layer)
    before, _, rest = stored.partition("{")
    if not rest:
        # GPT-2 keeps matrices as (inputs, outputs).
        transposed = config.architecture == "gpt2" and module.endswith("_proj")
        return Place((f"{stored}.{kind}",), (shape[::-1] if transposed else shape,), transposed)
    parts, _, after = rest.partition("}")
    names = tuple(f"{before}{part}{after}.{kind}" for part in parts.split(","))
    return Place(names, tuple((rows, *shape[1:]) for rows in _rows(config, len(names))))


def _rows(config: Config, parts: int) -> tuple[int, ...]:
    """How long the tensors are that make one: queries, keys and values, or two halves of an MLP."""
    if parts == 2:
        return config.hidden, config.hidden
    return config.heads * config.head_size, *(2 * [config.kv_heads * config.head_size])
