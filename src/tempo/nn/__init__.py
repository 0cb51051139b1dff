"""Layers and models, written in Tempo's public API alone.

A layer works at one point of the domain: batches and time are dims, a value's shape is (features,).
"""

from tempo.nn import init
from tempo.nn.attention import Attention
from tempo.nn.embedding import Embedding
from tempo.nn.linear import Linear
from tempo.nn.mlp import MLP, SwiGLU
from tempo.nn.module import Module, Parameter
from tempo.nn.norm import LayerNorm, RMSNorm
from tempo.nn.rope import Llama3Scaling, RoPE

__all__ = [
    "MLP",
    "Attention",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Llama3Scaling",
    "Module",
    "Parameter",
    "RMSNorm",
    "RoPE",
    "SwiGLU",
    "init",
]
