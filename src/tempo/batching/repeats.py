"""Calls of a cell with the same numbers, such as those for a word that occurs twice: one is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tempo.batching.columns import fitted, integers
from tempo.batching.trace import Trace


def first_calls(columns: Sequence[Any], is_value: Sequence[bool], trace: Trace) -> np.ndarray[Any, Any] | None:
    """Per call the first one that is the same: None if there are few such calls, or if arguments are not just integers,
    for which it costs little to find out."""
    count = len(columns[0]) if columns else 0
    if count < 2 or any(is_value) or any(kind.shape or kind.dtype.kind not in "iub" for kind in trace.arguments):
        return None
    codes = np.zeros(count, np.int64)
    for column, kind in zip(columns, trace.arguments, strict=True):
        own = fitted(integers(column), kind.dtype, trace.name).astype(np.int64)
        own -= own.min()
        codes = codes * (int(own.max()) + 1) + own
        if int(codes.max()) > 8 * count:
            _, codes = np.unique(codes, return_inverse=True)
    calls = np.arange(count)
    first = np.zeros(int(codes.max()) + 1, np.int64)
    first[codes[::-1]] = calls[::-1]  # of several that go to one place, the last one stays
    made = int(np.count_nonzero(first[codes] == calls))
    return first[codes] if made <= 0.75 * count else None
