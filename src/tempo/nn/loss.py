"""Losses at one point."""

from __future__ import annotations

import tempo as tp
from tempo.nn.precision import wide


def cross_entropy(logits: tp.RecurrentTensor, label: tp.RecurrentTensor) -> tp.RecurrentTensor:
    """``-log(softmax(logits)[label])`` without overflow: logits (..., classes), integers (...), result (...).

    In at least single precision.
    """
    logits = wide(logits)
    chosen = tp.take_along_axis(logits, tp.expand_dims(label, -1), axis=-1)
    return tp.logsumexp(logits, axis=-1) - tp.squeeze(chosen, -1)
