"""What a decoder looks like: one description for all architectures, read from a checkpoint's ``config.json``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any, Literal

import tempo as tp
from tempo.errors import ModelError
from tempo.llm.files import Fields, PathLike, read_fields
from tempo.nn import LinearScaling, Llama3Scaling, Scaling, YarnScaling

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_DTYPES = {"float32": tp.float32, "float16": tp.float16, "bfloat16": tp.bfloat16}
_FLOATS = f"take the checkpoint of the same model in {', '.join(_DTYPES)}"


@dataclass(frozen=True)
class Config:
    """A decoder: token embedding, ``layers`` times attention and MLP, each normalised first, a norm and the head."""

    architecture: str
    layers: int
    width: int
    """The size of the vector that goes from layer to layer."""
    heads: int
    kv_heads: int
    """Heads of keys and values; each serves ``heads / kv_heads`` heads of queries."""
    head_size: int
    hidden: int
    """The size of the vector within an MLP."""
    vocabulary: int
    context: int
    """The positions that the model was made for."""

    windows: tuple[int | None, ...]
    """Per layer, how many positions a position sees, itself among them; None for all before it."""
    norm: Literal["layer", "rms"]
    norm_epsilon: float
    activation: Activation
    gated: bool
    """Whether an MLP is ``down(activation(gate(x)) * up(x))``; otherwise ``down(activation(up(x)))``."""
    rope_theta: float | None
    """The base of rotary positions; None where positions are learned embeddings instead."""
    rope_scaling: Scaling | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    tied: bool
    """Whether the head is the token embedding."""

    dtype: Any
    """The dtype that the checkpoint is meant to be computed in; None for that of its weights."""
    beginning_of_text: int | None
    end_of_text: tuple[int, ...]
    """Tokens that end a generated text."""
    qk_norm: bool = False
    """Whether the queries and keys of each head are normalised, before their positions."""

    @staticmethod
    def load(directory: PathLike) -> Config:
        """The configuration of the checkpoint in a directory.

        Reads ``config.json``, as transformers 4 or 5 writes it, and ``generation_config.json`` if there is one, which
        has the last word on the tokens that end a text.
        """
        fields = read_fields(Path(directory) / "config.json")
        architecture = fields.text("model_type")
        if architecture not in _ARCHITECTURES:
            raise ModelError(
                f"'{fields.path}' describes a model of architecture '{architecture}', which is not supported",
                hint=f"the supported ones are {', '.join(_ARCHITECTURES)}",
            )
        if "quantization_config" in fields:
            raise ModelError(f"'{fields.path}' describes a quantised model, which is not supported", hint=_FLOATS)
        config = _ARCHITECTURES[architecture](fields)
        generation = Path(directory) / "generation_config.json"
        if generation.exists():
            config = replace(config, end_of_text=read_fields(generation).tokens("eos_token_id") or config.end_of_text)
        # A small model may still have the end of text of a large vocabulary: it never comes.
        ends = tuple(token for token in config.end_of_text if token < config.vocabulary)
        config = replace(config, end_of_text=ends)
        return config


def _gpt2(fields: Fields) -> Config:
    for name, needed in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        if fields.flag(name, needed) != needed:
            raise fields.unsupported(name, f"GPT-2 has {str(needed).lower()}")
    width, heads, layers = fields.size("n_embd"), fields.size("n_head"), fields.size("n_layer")
    return Config(
        architecture="gpt2",
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=_share(fields, "n_embd", "n_head"),
        hidden=fields.size("n_inner", 4 * width),
        vocabulary=fields.size("vocab_size"),
        context=fields.size("n_positions"),
        windows=(None,) * layers,
        norm="layer",
        norm_epsilon=fields.number("layer_norm_epsilon"),
        activation=_activation(fields, "activation_function"),
        gated=False,
        rope_theta=None,
        rope_scaling=None,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied=fields.flag("tie_word_embeddings", True),
        dtype=_dtype(fields),
        beginning_of_text=_beginning_of_text(fields),
        end_of_text=fields.tokens("eos_token_id"),
    )


def _llama(fields: Fields) -> Config:
    bias = fields.flag("attention_bias")
    return replace(_rotary(fields), qkv_bias=bias, output_bias=bias, mlp_bias=fields.flag("mlp_bias"))


def _mistral(fields: Fields) -> Config:
    config = _rotary(fields)
    return replace(config, windows=(_window(fields),) * config.layers)


def _qwen2(fields: Fields) -> Config:
    return _windowed(fields, replace(_rotary(fields), qkv_bias=True))


def _qwen3(fields: Fields) -> Config:
    bias = fields.flag("attention_bias")
    return _windowed(fields, replace(_rotary(fields, 128), qkv_bias=bias, output_bias=bias, qk_norm=True))


def _window(fields: Fields) -> int | None:
    # Without the field, transformers takes 4096; null means that there is no window.
    unlimited = "sliding_window" in fields.values and "sliding_window" not in fields
    return None if unlimited else fields.size("sliding_window", 4096)


def _windowed(fields: Fields, config: Config) -> Config:
    """With windows in those layers that Qwen has them in."""
    window = _window(fields) if fields.flag("use_sliding_window") else None
    if window is None:
        return config
    if "layer_types" in fields:
        kinds = fields.values["layer_types"]
        known = {"full_attention": None, "sliding_attention": window}
        if not isinstance(kinds, list) or len(kinds) != config.layers or any(k not in [*known] for k in kinds):
            raise fields.unexpected("layer_types", f"for each of {config.layers} layers one of {', '.join(known)}")
        return replace(config, windows=tuple(known[kind] for kind in kinds))
    first = fields.count("max_window_layers", 28)
    return replace(config, windows=tuple(window if l >= first else None for l in range(config.layers)))


_ARCHITECTURES: dict[str, Callable[[Fields], Config]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}


def _rotary(fields: Fields, head_size: int | None = None) -> Config:
    """What Llama and its relatives have in common. ``head_size`` is the architecture's, if it has one of its own."""
    heads, layers, context = (
        fields.size(name) for name in ("num_attention_heads", "num_hidden_layers", "max_position_embeddings")
    )
    kv_heads = fields.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.unexpected("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
    if "head_dim" in fields or head_size is None:
        head_size = (
            fields.size("head_dim") if "head_dim" in fields else _share(fields, "hidden_size", "num_attention_heads")
        )
    if head_size % 2:
        raise ModelError(f"'{fields.path}' has heads of size {head_size}: rotary positions need an even size")
    # transformers 5 writes rope_parameters; 4 writes rope_theta, and rope_scaling where there is one. Where somebody
    # has added that to what 5 wrote, it is what transformers takes.
    rope = fields.inside("rope_scaling" if "rope_scaling" in fields else "rope_parameters")
    return Config(
        architecture=fields.text("model_type"),
        layers=layers,
        width=fields.size("hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        hidden=fields.size("intermediate_size"),
        vocabulary=fields.size("vocab_size"),
        context=context,
        windows=(None,) * layers,
        norm="rms",
        norm_epsilon=fields.number("rms_norm_eps"),
        activation=_activation(fields, "hidden_act"),
        gated=True,
        rope_theta=(rope if "rope_theta" in rope else fields).number("rope_theta", 10000.0),
        rope_scaling=_rope_scaling(rope, fields),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        tied=fields.flag("tie_word_embeddings"),
        dtype=_dtype(fields),
        beginning_of_text=_beginning_of_text(fields),
        end_of_text=fields.tokens("eos_token_id"),
    )


def _rope_scaling(rope: Fields, fields: Fields) -> Scaling | None:
    for where in (rope, fields):
        if where.number("partial_rotary_factor", 1) != 1:
            raise where.unsupported("partial_rotary_factor", "rotary positions turn whole heads: 1.0")
    for name, value in rope.values.items():
        if isinstance(value, dict):
            raise rope.unsupported(name, "rotary positions are the same in all layers")
    name = "rope_type" if "rope_type" in rope else "type"
    kind = rope.text(name, "default")
    if kind not in _SCALINGS:
        raise rope.unsupported(name, f"the supported types are {', '.join(_SCALINGS)}")
    original = "original_max_position_embeddings"
    context = (fields if original in fields else rope).size(original, fields.size("max_position_embeddings"))
    return _SCALINGS[kind](rope, context, fields.size("max_position_embeddings"))


def _llama3(rope: Fields, original: int, _: int) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.unexpected("high_freq_factor", f"more than low_freq_factor, which is {low}")
    return Llama3Scaling(rope.number("factor"), low, high, original)


def _yarn(rope: Fields, original: int, context: int) -> YarnScaling:
    factor = rope.number("factor", context / original)
    amplitude = rope.number("attention_factor") if "attention_factor" in rope else None
    if amplitude is None and "mscale" in rope and "mscale_all_dim" in rope:
        above, below = (0.1 * rope.number(name) * log(max(factor, 1)) + 1 for name in ("mscale", "mscale_all_dim"))
        amplitude = above / below
    fast, slow = rope.number("beta_fast", 32), rope.number("beta_slow", 1)
    return YarnScaling(factor, original, fast, slow, amplitude, rope.flag("truncate", True))


# By type: what the fields of rotary positions say, the context that was trained with, and the one there is now.
_SCALINGS: dict[str, Callable[[Fields, int, int], Scaling | None]] = {
    "default": lambda rope, original, context: None,
    "linear": lambda rope, original, context: LinearScaling(rope.number("factor")),
    "llama3": _llama3,
    "yarn": _yarn,
}


def _share(fields: Fields, whole: str, parts: str) -> int:
    if fields.size(whole) % fields.size(parts):
        raise fields.unexpected(whole, f"a multiple of {parts}, which is {fields.size(parts)}")
    return fields.size(whole) // fields.size(parts)


def _activation(fields: Fields, name: str) -> Activation:
    if fields.text(name) not in _ACTIVATIONS:
        raise fields.unsupported(name, f"the supported functions are {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[fields.text(name)]


def _dtype(fields: Fields) -> Any:
    name = "dtype" if "dtype" in fields else "torch_dtype"
    if name not in fields:
        return None
    if fields.text(name) not in _DTYPES:
        raise fields.unsupported(name, _FLOATS)
    return _DTYPES[fields.text(name)]


def _beginning_of_text(fields: Fields) -> int | None:
    tokens = fields.tokens("bos_token_id")
    return tokens[0] if tokens else None
