"""One name for each parameter of a decoder, whatever the architecture, and where checkpoints keep it.

The names are those that ``tempo.nn`` gives: a decoder whose attributes are called so has these parameters.

    embedding.weight                   (vocabulary, width)
    positions.weight                   (context, width)                  learned positions only
    layers.0.attention_norm.weight     (width,)
    layers.0.attention.q_proj.weight   (heads * head_size, width)
    layers.0.attention.k_proj.weight   (kv_heads * head_size, width)
    layers.0.attention.v_proj.weight   (kv_heads * head_size, width)
    layers.0.attention.o_proj.weight   (width, heads * head_size)
    layers.0.mlp_norm.weight           (width,)
    layers.0.mlp.gate_proj.weight      (hidden, width)                   gated MLPs only
    layers.0.mlp.up_proj.weight        (hidden, width)
    layers.0.mlp.down_proj.weight      (width, hidden)
    norm.weight                        (width,)
    head.weight                        (vocabulary, width)               not where it is the embedding

Layer norms, and the ``_proj`` that the configuration says so of, also have a ``bias``, as long as their result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tempo.llm.config import Config
from tempo.llm.files import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """Where a checkpoint keeps a parameter: in the tensor ``name``, of this shape."""

    name: str
    shape: Shape
    columns: tuple[int, int] | None = None
    """From where to where on the last axis, if several parameters lie side by side in the tensor."""
    transposed: bool = False

    def view(self, stored: Array) -> Array:
        """The parameter in the stored tensor, without a copy."""
        part = stored if self.columns is None else stored[..., slice(*self.columns)]
        return part.T if self.transposed else part


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
        add(f"layers.{l}.attention.q_proj", queries, width, bias=config.qkv_bias)
        add(f"layers.{l}.attention.k_proj", keys, width, bias=config.qkv_bias)
        add(f"layers.{l}.attention.v_proj", keys, width, bias=config.qkv_bias)
        add(f"layers.{l}.attention.o_proj", width, queries, bias=config.output_bias)
        add(f"layers.{l}.mlp_norm", width, bias=centred)
        if config.gated:
            add(f"layers.{l}.mlp.gate_proj", hidden, width, bias=config.mlp_bias)
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
    "layers.*.attention.q_proj": "transformer.h.*.attn.c_attn",
    "layers.*.attention.k_proj": "transformer.h.*.attn.c_attn",
    "layers.*.attention.v_proj": "transformer.h.*.attn.c_attn",
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
    "layers.*.attention.q_proj": "model.layers.*.self_attn.q_proj",
    "layers.*.attention.k_proj": "model.layers.*.self_attn.k_proj",
    "layers.*.attention.v_proj": "model.layers.*.self_attn.v_proj",
    "layers.*.attention.o_proj": "model.layers.*.self_attn.o_proj",
    "layers.*.mlp_norm": "model.layers.*.post_attention_layernorm",
    "layers.*.mlp.gate_proj": "model.layers.*.mlp.gate_proj",
    "layers.*.mlp.up_proj": "model.layers.*.mlp.up_proj",
    "layers.*.mlp.down_proj": "model.layers.*.mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
_MODULES = {"gpt2": _GPT2, "llama": _LLAMA, "mistral": _LLAMA, "qwen2": _LLAMA}


def places(config: Config) -> dict[str, Place]:
    """Where a checkpoint keeps each parameter."""
    return {name: _place(config, name, shape) for name, shape in shapes(config).items()}


def expected(config: Config) -> dict[str, Shape]:
    """The tensors of a checkpoint with their shapes."""
    return {place.name: place.shape for place in places(config).values()}


def _place(config: Config, name: str, shape: Shape) -> Place:
    module, kind = name.rsplit(".", 1)
    layer = "".join(re.findall(r"^layers\.(\d+)", module))
    stored = _MODULES[config.architecture][re.sub(r"^layers\.\d+", "layers.*", module)].replace("*", layer)
    stored_name = f"{stored}.{kind}"
    # GPT-2 keeps matrices as (inputs, outputs), and those of queries, keys and values as one.
    if config.architecture != "gpt2" or not module.endswith("_proj"):
        return Place(stored_name, shape)
    turned = shape[::-1]
    if not stored.endswith("c_attn"):
        return Place(stored_name, turned, transposed=True)
    first = ("q_proj", "k_proj", "v_proj").index(module.rsplit(".", 1)[1]) * turned[-1]
    fused = turned[:-1] + (3 * turned[-1],)
    return Place(stored_name, fused, (first, first + turned[-1]), transposed=True)
