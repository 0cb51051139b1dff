"""Losses at one point."""

from __future__ import annotations

import tempo as tp


def cross_entropy(logits: tp.RecurrentTensor, label: tp.RecurrentTensor) -> tp.RecurrentTensor:
    """``-log(softmax(logits)[label])`` without overflow: logits (..., classes), integers (...), result (...).

    In at least single precision.
    """
    wide = logits if logits.dtype == tp.float64 else logits.astype(tp.float32)
    chosen = tp.take_along_axis(wide, tp.expand_dims(label, -1), axis=-1)
    return tp.logsumexp(wide, axis=-1) - tp.squeeze(chosen, -1)
