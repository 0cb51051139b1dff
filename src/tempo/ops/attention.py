"""Attention as one operation: what a contraction, a softmax of it and a second contraction are together.

No user writes it. ``passes/attention.py`` puts it in place of the operations it stands for, where a device has
something better for all of them than for one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tempo.dtypes import DType
from tempo.graph.node import Edge, Primitive, Shape
from tempo.ops.common import accumulate_in
from tempo.ops.contraction import subscript_terms

if TYPE_CHECKING:
    from tempo.backends.jax.padded import Jx, Padded

Array = np.ndarray[Any, Any]

# One axis of each kind: heads (which keys may do without), queries (likewise), steps, and the size of keys and values.
HEADS, QUERIES, STEPS, SIZE, OUT = "gmsde"


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
