"""Half precision is for storing values; sums of many of them are kept in single precision."""

from __future__ import annotations

import tempo as tp

FLOATS = (tp.bfloat16, tp.float16, tp.float32, tp.float64)


def floating(x: tp.RecurrentTensor) -> tp.RecurrentTensor:
    """x, in single precision if it is integers: what is made of them is none."""
    return x if x.dtype in FLOATS else x.astype(tp.float32)


def wide(x: tp.RecurrentTensor) -> tp.RecurrentTensor:
    """x in at least single precision."""
    return x if x.dtype == tp.float64 else x.astype(tp.float32)
