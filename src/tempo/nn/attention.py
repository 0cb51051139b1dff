"""Self-attention over time: which steps a step sees is the slice of the keys and values that it reads."""

from __future__ import annotations

import math
from typing import Any

import tempo as tp
from tempo.nn.linear import Linear
from tempo.nn.mistakes import at_least, wrong
from tempo.nn.module import Module
from tempo.nn.precision import wide
from tempo.nn.rope import RoPE


class Attention(Module):
    """Causal attention with several heads along a dim t: shape (size,), kept.

    Step t sees the steps ``0, ..., t``; with ``window`` only the last so many of them (t among them), and with
    ``sinks`` the first so many steps as well. Query head n uses key and value head ``n // (heads / kv_heads)``.

    Parameters: those of q_proj, ``Linear(size, heads * head_size)``, k_proj and v_proj,
    ``Linear(size, kv_heads * head_size)``, and o_proj, ``Linear(heads * head_size, size)``. With ``fused``, the first
    three are qkv_proj, ``Linear(size, (heads + 2 * kv_heads) * head_size)``: one product in place of three, which for
    a few tokens at a time is faster. And those of ``q_norm`` and ``k_norm``, modules that queries and keys, (heads or
    kv_heads, head_size), go through before ``rope``, such as ``RMSNorm(head_size)``.
    """

    def __init__(
        self,
        size: int,
        heads: int,
        kv_heads: int | None = None,
        head_size: int | None = None,
        window: int | None = None,
        sinks: int = 0,
        rope: RoPE | None = None,
        scale: float | None = None,
        bias: bool = False,
        out_bias: bool | None = None,
        fused: bool = False,
        q_norm: Module | None = None,
        k_norm: Module | None = None,
    ) -> None:
        at_least(1, self, heads, "heads")
        for value, what in ((kv_heads, "heads of keys and values"), (head_size, "features of a head")):
            if value is not None:
                at_least(1, self, value, what)
        if head_size is None and size % heads:
            raise wrong(self, f"{size} features do not divide into {heads} heads", "give head_size=...")
        if kv_heads is not None and heads % kv_heads:
            raise wrong(self, f"{heads} heads do not divide into {kv_heads} groups", "kv_heads must divide heads")
        if window is not None:
            at_least(1, self, window, "steps in the window")  # a step sees itself
        at_least(0, self, sinks, "sinks")
        if sinks and window is None:
            raise wrong(self, f"{sinks} sinks without a window", "without window=... every step is seen anyway")
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.head_size = size // heads if head_size is None else head_size
        self.window = window
        self.sinks = sinks
        self.rope = rope
        self.scale = 1 / math.sqrt(self.head_size) if scale is None else scale
        self.fused = fused
        if fused:
            self.qkv_proj = Linear(size, (self.heads + 2 * self.kv_heads) * self.head_size, bias)
        else:
            self.q_proj = Linear(size, self.heads * self.head_size, bias)
            self.k_proj = Linear(size, self.kv_heads * self.head_size, bias)
            self.v_proj = Linear(size, self.kv_heads * self.head_size, bias)
        self.o_proj = Linear(self.heads * self.head_size, size, bias if out_bias is None else out_bias)
        self.q_norm: Any = q_norm
        self.k_norm: Any = k_norm

    def __call__(
        self, x: tp.RecurrentTensor, t: tp.Dim, start: tp.RecurrentTensor | None = None, position: Any = None
    ) -> tp.RecurrentTensor:
        """``start`` is the first step of the sequence, if that is padded on the left: steps before it are not seen, and
        what is computed for them means nothing. ``position`` is the step for RoPE, by default ``t - start``.
        """
        if x.ndim != 1:
            raise wrong(
                self, f"{x} has {x.ndim} axes, expected one of features", "sequences of a batch are a dim, not an axis"
            )
        if t not in x.domain:
            raise tp.errors.DomainError(
                f"Attention along {t}: {x} does not vary over it",
                places=[("here", tp.errors.user_line())],
                hint="give the dim of time: attention(x, t)",
            )
        if position is None:
            position = t if start is None else t.value - start
        return self.attend(x, *self.states(x, position), t, start, position)

    def states(self, x: tp.RecurrentTensor, position: Any) -> tuple[tp.RecurrentTensor, tp.RecurrentTensor]:
        """What other steps see of this one: its keys and its values, each (kv_heads, head_size)."""
        k, v = self._heads(x, "k"), self._heads(x, "v")
        if self.k_norm is not None:
            k = self.k_norm(k)
        return (k if self.rope is None else self.rope(k, position)), v

    def _heads(self, x: tp.RecurrentTensor, kind: str) -> tp.RecurrentTensor:
        """The queries, keys or values of a step: (heads or kv_heads, head_size)."""
        count = self.heads if kind == "q" else self.kv_heads
        if not self.fused:
            linear: Linear = getattr(self, f"{kind}_proj")
            return linear(x).reshape(count, self.head_size)
        together = self.qkv_proj(x).reshape(self.heads + 2 * self.kv_heads, self.head_size)
        first = {"q": 0, "k": self.heads, "v": self.heads + self.kv_heads}[kind]
        return together.space[first : first + count]

    def attend(
        self,
        x: tp.RecurrentTensor,
        k: tp.RecurrentTensor,
        v: tp.RecurrentTensor,
        t: tp.Dim,
        start: tp.RecurrentTensor | None = None,
        position: Any = None,
    ) -> tp.RecurrentTensor:
        """What step t sees of the keys and the values of all steps: a way to attend to more than ``states`` gives,
        such as the end of an earlier sequence."""
        q = self._heads(x, "q")
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.rope is not None:
            q = self.rope(q, t if position is None else position)
        ranges = self._ranges(t, start)
        keys, values = (tp.concatenate([_over(y, t, steps) for steps in ranges]) for y in (k, v))
        grouped = q.reshape(self.kv_heads, self.heads // self.kv_heads, self.head_size)
        scores = wide(tp.einsum("gqd,kgd->gqk", grouped, keys) * self.scale)
        if start is not None:
            # Finite, so that steps before the start, which see nothing, have a value, too.
            scores = tp.where(self._counts(t, start, ranges), scores, -1e30)
        mixed = tp.einsum("gqk,kgd->gqd", tp.softmax(scores).astype(values.dtype), values)
        return self.o_proj(mixed.reshape(self.heads * self.head_size))

    def _ranges(self, t: tp.Dim, start: tp.RecurrentTensor | None) -> list[slice]:
        """The steps that step t reads, as ranges that do not overlap."""
        # A sequence's first steps are only known when the program runs if its start is: then all are read.
        if self.window is None or (self.sinks and start is not None):
            return [slice(0, t + 1)]
        first = tp.max(0, t - self.window + 1)
        recent = slice(first, t + 1)
        return [slice(0, tp.min(self.sinks, first)), recent] if self.sinks else [recent]

    def _counts(self, t: tp.Dim, start: tp.RecurrentTensor, ranges: list[slice]) -> tp.RecurrentTensor:
        """Which of the steps read are seen by a sequence that starts at ``start``."""
        steps = tp.concatenate([tp.arange(steps.start, steps.stop) for steps in ranges])
        counts = steps >= start
        if self.window is not None and self.sinks:
            counts = counts & ((steps < start + self.sinks) | (steps > t.value - self.window))
        return counts


def _over(x: tp.RecurrentTensor, t: tp.Dim, steps: slice) -> tp.RecurrentTensor:
    """The values at these steps of t, stacked, and here in all other dims."""
    return x[tuple(steps if dim is t else dim for dim in x.domain)]
