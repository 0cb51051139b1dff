"""Optimisers: what parameters become at the next step, from their gradients.

net = model.declare(prog)  # within prog.training(over=i)
gradients = tp.grad(loss, net.parameters())
optim.Adam(1e-3).update(net.parameters(), gradients)
"""

from tempo.optim.clipping import clip_by_global_norm, global_norm
from tempo.optim.optimisers import SGD, Adam, AdamW, Optimiser, RMSProp
from tempo.optim.schedules import cosine, linear, warmup

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Optimiser",
    "RMSProp",
    "clip_by_global_norm",
    "cosine",
    "global_norm",
    "linear",
    "warmup",
]
