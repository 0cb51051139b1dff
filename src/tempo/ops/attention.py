"""Attention as one operation: what a contraction, a softmax of it and a second contraction are together.

No user writes it. ``passes/attention.py`` puts it in place of the operations it stands for, where a device has
something better for all of them than for one after the other; ``passes/attention_to_past.py`` does so for all steps of
a dim at once, and for the gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tempo.dtypes import DType
from tempo.graph.node import Edge, Primitive, Shape, normal_size
from tempo.ops.common import accumulate_in
from tempo.ops.contraction import subscript_terms

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]

# One axis of each kind: heads (which keys may do without), queries (likewise), steps, and the size of keys and values.
HEADS, QUERIES, STEPS, SIZE, OUT = "gmsde"

# At many points with windows of their own, all of these are read once: to see that most of so many windows' steps do
# not count costs less than to copy a window for each point. (On a CPU, with a window of 64: 18.5 ms for 960 steps in
# place of 46, and 94 in place of 100 for 2,048.)
MOST_WINDOWS = 16
# For queries of so many points that have the same keys, and so many of these, there is a kernel in half precision.
LEAST_AT_ONCE = 512


def _infer(q: Edge, k: Edge, v: Edge, *seen: Edge, terms: str, scale: float, fill: float) -> tuple[Shape, DType]:
    *inputs, out = subscript_terms(terms)
    sizes = {c: n for edge, term in zip((q, k, v), inputs, strict=True) for c, n in zip(term, edge.shape, strict=True)}
    return tuple(sizes[c] for c in out), v.dtype


def _reference(q: Array, k: Array, v: Array, *seen: Array, terms: str, scale: float, fill: float) -> Array:
    of_q, of_k, of_v, out = subscript_terms(terms)
    scored = "".join(c for c in out if c != OUT) + STEPS
    scores = np.einsum(f"{of_q},{of_k}->{scored}", accumulate_in(q), accumulate_in(k)) * scale
    if seen:
        scores = np.where(seen[0], scores, fill)
    with np.errstate(all="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = powers / powers.sum(-1, keepdims=True)
    averages = np.einsum(f"{scored},{of_v}->{out}", weights, accumulate_in(v))
    return np.asarray(averages).astype(v.dtype)


def _jax(jx: Jx, q: Padded, k: Padded, v: Padded, *seen: Padded, terms: str, scale: float, fill: float) -> Any:
    from tempo.backends.jax.attention import Layout, attention

    of_q, of_k, of_v, out = subscript_terms(terms)
    length = jx.true(k.sizes[of_k.index(STEPS)])
    layout = Layout(scale, fill, of_k.startswith(HEADS), of_v.startswith(HEADS), v.settled)
    queries = _arranged(jx, q.array, of_q, HEADS + QUERIES + SIZE)
    caches = [x.array if HEADS in of else x.array[:, None] for x, of in ((k, of_k), (v, of_v))]
    mask = seen[0].array.reshape(-1) if seen else None
    averages = attention(queries, caches[0], caches[1], length, mask, layout)
    one = [n for n, c in enumerate(HEADS + QUERIES) if c not in out]
    kept = "".join(c for c in HEADS + QUERIES + OUT if c in out)
    return jx.np.transpose(jx.np.squeeze(averages, one), [kept.index(c) for c in out])


def _arranged(jx: Jx, array: Any, term: str, wanted: str) -> Any:
    """An array with its axes in another order, and axes of length one for those that it lacks."""
    array = jx.np.transpose(array, [term.index(c) for c in wanted if c in term])
    return jx.np.expand_dims(array, [n for n, c in enumerate(wanted) if c not in term])


ATTENTION = Primitive("attention", infer=_infer, reference=_reference, jax=_jax)


# -- all steps at once ---------------------------------------------------------------------------------------------

# Each step sees itself and those before it, or the last ``window`` of these: queries (steps, heads, size), keys and
# values (steps, groups, size); query head n has the keys of group ``n // (heads / groups)``.


def _weights(q: Array, k: Array, scale: float, window: int | None) -> Array:
    """(heads, steps, steps seen), of queries and keys (steps, heads, size)."""
    steps = np.arange(len(q))
    back = steps[:, None] - steps
    seen = (back >= 0) & (back < (len(q) if window is None else window))
    scores = np.where(seen, np.einsum("thd,shd->hts", q, k) * scale, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights: Array = powers / powers.sum(-1, keepdims=True)
    return weights


def _for_heads(x: Array, heads: int) -> Array:
    repeated: Array = np.repeat(accumulate_in(x), heads // x.shape[1], axis=1)
    return repeated


def _of_groups(x: Array, groups: int) -> Array:
    """What was computed for each head, summed over those of a group."""
    found: Array = x.reshape(len(x), groups, -1, x.shape[-1]).sum(2)
    return found


def _past_reference(q: Array, k: Array, v: Array, *, scale: float, window: int | None) -> Array:
    heads = q.shape[1]
    weights = _weights(accumulate_in(q), _for_heads(k, heads), scale, window)
    averages: Array = np.einsum("hts,shd->thd", weights, _for_heads(v, heads))
    return averages.astype(v.dtype)


def _past_gradient_reference(q: Array, k: Array, v: Array, g: Array, *, scale: float, window: int | None) -> Array:
    heads, groups = q.shape[1], k.shape[1]
    queries, keys, values = accumulate_in(q), _for_heads(k, heads), _for_heads(v, heads)
    weights = _weights(queries, keys, scale, window)
    flow = np.einsum("thd,shd->hts", accumulate_in(g), values)
    scores = scale * weights * (flow - (weights * flow).sum(-1, keepdims=True))
    of_q = np.einsum("hts,shd->thd", scores, keys)
    of_k = _of_groups(np.einsum("hts,thd->shd", scores, queries), groups)
    of_v = _of_groups(np.einsum("hts,thd->shd", weights, accumulate_in(g)), groups)
    return np.asarray(np.concatenate([of_q, of_k, of_v], axis=1)).astype(q.dtype)


def _past_jax(jx: Jx, q: Padded, k: Padded, v: Padded, *, scale: float, window: int | None) -> Any:
    from tempo.backends.jax.attention_to_past import attention_to_past

    return attention_to_past(q.array, k.array, v.array, scale, window)


def _past_gradient_jax(jx: Jx, q: Padded, k: Padded, v: Padded, g: Padded, *, scale: float, window: int | None) -> Any:
    from tempo.backends.jax.attention_to_past import gradients

    return jx.np.concatenate(gradients(q.array, k.array, v.array, g.array, scale, window), axis=1)


def _all_heads(q: Edge, k: Edge, *_: Edge, **__: Any) -> tuple[Shape, DType]:
    steps, heads, size = q.shape
    return (steps, normal_size(heads + 2 * k.shape[1]), size), q.dtype


ATTENTION_TO_PAST = Primitive(
    "attention_to_past", infer=lambda q, k, v, **_: (q.shape, q.dtype), reference=_past_reference, jax=_past_jax
)

ATTENTION_TO_PAST_GRADIENT = Primitive(
    "attention_to_past_gradient", infer=_all_heads, reference=_past_gradient_reference, jax=_past_gradient_jax
)
"""The gradients of queries, keys and values, for one of the averages: the heads of all three, one after the other."""
