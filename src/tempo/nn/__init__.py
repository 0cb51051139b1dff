"""Layers and models, written in Tempo's public API alone.

A layer works at one point of the domain: batches and time are dims, a value's shape is (features,).
"""

from tempo.nn import init
from tempo.nn.attention import Attention
from tempo.nn.conv import Conv1d, Conv2d
from tempo.nn.dropout import Dropout
from tempo.nn.embedding import Embedding
from tempo.nn.linear import Linear
from tempo.nn.loss import cross_entropy
from tempo.nn.mlp import MLP, SwiGLU
from tempo.nn.module import Module, Parameter
from tempo.nn.norm import LayerNorm, RMSNorm
from tempo.nn.recurrent import GRUCell, LSTMCell
from tempo.nn.rope import LinearScaling, Llama3Scaling, RoPE, Scaling, YarnScaling

__all__ = [
    "MLP",
    "Attention",
    "Conv1d",
    "Conv2d",
    "Dropout",
    "Embedding",
    "GRUCell",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "LinearScaling",
    "Llama3Scaling",
    "Module",
    "Parameter",
    "RMSNorm",
    "RoPE",
    "Scaling",
    "SwiGLU",
    "YarnScaling",
    "cross_entropy",
    "init",
]
