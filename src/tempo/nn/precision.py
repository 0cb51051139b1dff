"""Half precision is for storing values; sums of many of them are kept in single precision."""

from __future__ import annotations

import tempo as tp


def wide(x: tp.RecurrentTensor) -> tp.RecurrentTensor:
    """x in at least single precision."""
    return x if x.dtype == tp.float64 else x.astype(tp.float32)
