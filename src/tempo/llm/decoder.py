"""Decoder-only transformers, as modules: what a token's logits are, given the tokens before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tempo as tp
from tempo import nn
from tempo.llm.config import Config

Tensor = tp.RecurrentTensor
States = tuple[Tensor, Tensor]
"""The keys and the values of a layer at every step."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": tp.gelu,
    "gelu_tanh": lambda x: tp.gelu(x, approximate=True),
    "silu": tp.silu,
    "relu": tp.relu,
}


class Decoder(nn.Module):
    """From tokens, over dims such as (b, t), to logits of shape (vocabulary,), float32."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        rope = None
        if config.rope_theta is None:
            self.positions = nn.Embedding(config.context, config.width)
        else:
            rope = nn.RoPE(config.head_size, config.rope_theta, config.rope_scaling)
        self.layers = [Layer(config, window, rope) for window in config.windows]
        self.norm = _norm(config, config.width)
        if not config.tied:
            self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def __call__(
        self,
        tokens: Tensor,
        t: tp.Dim,
        start: Tensor | None = None,
        past: Sequence[States] | None = None,
    ) -> tuple[Tensor, list[States]]:
        """The logits, and the keys and values of every layer.

        ``start`` is the first step that counts, for sequences that are padded on the left. ``past`` has the keys and
        values of the first steps of t, over a dim of their own; tokens are needed from there on.
        """
        position = t.value if start is None else t.value - start
        x = self.embedding(tokens)
        if self.config.rope_theta is None:
            # Padding has no position; any will do.
            x = x + self.positions(tp.maximum(position, 0))
        states = []
        for n, layer in enumerate(self.layers):
            x, own = layer(x, t, start, position, None if past is None else past[n])
            states.append(own)
        x = self.norm(x)
        logits = self.embedding.attend(x) if self.config.tied else self.head(x)
        return logits.astype(tp.float32), states


class Layer(nn.Module):
    """Attention and a feed-forward network, each on what is normalised, each added: shape (width,), kept."""

    def __init__(self, config: Config, window: int | None, rope: nn.RoPE | None) -> None:
        self.attention_norm = _norm(config, config.width)
        self.attention = nn.Attention(
            config.width,
            config.heads,
            config.kv_heads,
            config.head_size,
            window=window,
            rope=rope,
            bias=config.qkv_bias,
            out_bias=config.output_bias,
            fused=True,
            q_norm=_norm(config, config.head_size) if config.qk_norm else None,
            k_norm=_norm(config, config.head_size) if config.qk_norm else None,
        )
        self.mlp_norm = _norm(config, config.width)
        sizes, activation = (config.width, config.hidden, config.mlp_bias), ACTIVATIONS[config.activation]
        self.mlp = nn.SwiGLU(*sizes, activation, fused=True) if config.gated else FeedForward(*sizes, activation)

    def __call__(
        self, x: Tensor, t: tp.Dim, start: Tensor | None, position: Tensor, past: States | None
    ) -> tuple[Tensor, States]:
        normal = self.attention_norm(x)
        keys, values = self.attention.states(normal, position)
        if past is not None:
            keys, values = (_after(before, own, t) for before, own in zip(past, (keys, values), strict=True))
        x = x + self.attention.attend(normal, keys, values, t, start, position)
        return x + self.mlp(self.mlp_norm(x)), (keys, values)


class FeedForward(nn.Module):
    """``down(activation(up(x)))``: shape (size,), kept.

    Parameters: those of up_proj, ``Linear(size, hidden)``, and of down_proj, ``Linear(hidden, size)``.
    """

    def __init__(self, size: int, hidden: int, bias: bool, activation: Callable[[Tensor], Tensor]) -> None:
        self.activation = activation
        self.up_proj = nn.Linear(size, hidden, bias)
        self.down_proj = nn.Linear(hidden, size, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))


def _norm(config: Config, size: int) -> nn.LayerNorm | nn.RMSNorm:
    make = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return make(size, config.norm_epsilon)


def _after(before: Tensor, own: Tensor, t: tp.Dim) -> Tensor:
    """``before`` at the first steps of t, ``own`` at those that follow."""
    (steps,) = (d for d in before.domain if d not in own.domain)
    both = own.program.recurrent(f"{before.name}.and_after", own.shape, own.domain, own.dtype)
    both[t < steps.bound] = before[tuple(t if d is steps else d for d in before.domain)]
    both[tuple(own.domain)] = own
    return both
