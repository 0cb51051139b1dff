"""Tempo: deep learning whose tensors depend on other time steps.

State what each tensor is at each step; Tempo decides when each value is computed, how many at once, where it is
stored and for how long.
"""

from tempo import errors, random
from tempo.autodiff import grad, value_and_grad
from tempo.declared import Dim, State
from tempo.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tempo.errors import TempoError
from tempo.given import Record, Result
from tempo.ops import *  # noqa: F403
from tempo.ops import __all__ as _functions
from tempo.ops.host import Spec, host, spec
from tempo.ops.jax_function import jax_function
from tempo.program import Program
from tempo.runtime.autotune import autotune
from tempo.schedule.plan import Plan
from tempo.tensor import RecurrentTensor

# isort: split
from tempo import nn, optim  # last: they are written in all of the above
from tempo.batching import batch, cell, fold, forest, parallel

__version__ = "0.1.0"

__all__ = [
    "Dim",
    "Plan",
    "Program",
    "Record",
    "RecurrentTensor",
    "Result",
    "Spec",
    "State",
    "TempoError",
    "autotune",
    "batch",
    "bfloat16",
    "bool_",
    "cell",
    "errors",
    "float16",
    "float32",
    "float64",
    "fold",
    "forest",
    "grad",
    "host",
    "int8",
    "int16",
    "int32",
    "int64",
    "jax_function",
    "nn",
    "optim",
    "parallel",
    "random",
    "spec",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "value_and_grad",
    *_functions,
]
