"""The functions that recipes use: how they are written, and what they mean in NumPy.

The meanings are written down a second time here, from NumPy's functions and the rules in the documentation, so that
the operations of Tempo have something to be compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tempo import dtypes
from tempo.testing.syntax import Apply, show

Array = np.ndarray[Any, Any]
Meaning = Callable[..., Any]

INFIX = ("+", "-", "*", "/", "//", "%", "@", "&", "|", "^", "<", "<=", ">", ">=", "==", "!=")
PREFIX = {"negative": "-", "invert": "~"}


def show_application(application: Apply) -> str:
    """An application as source."""
    name = application.function
    arguments = [str(a) for a in application.arguments]
    attributes = dict(application.attributes)
    match name:
        case "space":
            return f"{arguments[0]}.space[{', '.join(map(_show_key, attributes['key']))}]"
        case "astype":
            return f'{arguments[0]}.astype("{application.dtype}")'
        case "take":
            return f"{arguments[0]}.take({arguments[1]}, {attributes['axis']})"
        case "top_k":
            return f"tp.top_k({arguments[0]}, {attributes['k']}, {attributes['axis']})[0]"
        case "full":
            shape, value = (show(attributes[key]) for key in ("shape", "value"))
            return f'tp.full({shape}, {value}, dtype="{application.dtype}")'
        case "arange" | "one_hot":
            size = show(attributes["size"])
            return f'tp.{name}({", ".join([*arguments, size])}, dtype="{application.dtype}")'
        case "einsum":
            return f'tp.einsum("{attributes["subscripts"]}", {", ".join(arguments)})'
        case "concatenate" | "stack":
            return f"tp.{name}([{', '.join(arguments)}], {attributes['axis']})"
    if name in INFIX:
        return f"({arguments[0]} {name} {arguments[1]})"
    if name in PREFIX:
        return f"({PREFIX[name]}{arguments[0]})"
    arguments += [f"{key}={show(value)}" for key, value in application.attributes]
    return f"tp.{name}({', '.join(arguments)})"


def _show_key(item: Any) -> str:
    if isinstance(item, tuple):
        return ":".join("" if end is None else str(end) for end in item)
    return str(item)


# -- meanings --------------------------------------------------------------------------------------------


def promote(a: str, b: str) -> str:
    """The common dtype of two: floats win over integers, integers over bools, the wider over the narrower."""
    order = ("bool", "int32", "int64", "bfloat16", "float32", "float64")
    return max(a, b, key=order.index)


def wide(dtype: str) -> str:
    """The dtype in which sums and functions of half precision are computed."""
    return "float32" if dtype == "bfloat16" else dtype


def meaning(application: Apply, arguments: list[Any], attributes: dict[str, Any]) -> Array:
    """The value of an application. Python numbers among the arguments are literals."""
    name, target = application.function, dtypes.as_dtype(application.dtype)
    with np.errstate(all="ignore"):
        if name in _COMPARISONS:
            arrays = [a for a in arguments if isinstance(a, np.ndarray)]
            common = arrays[0].dtype.name if len(arrays) == 1 else promote(*(a.dtype.name for a in arrays))
            operands = [np.asarray(a).astype(dtypes.as_dtype(common)) for a in arguments]
            return np.asarray(_COMPARISONS[name](*operands))
        if name in _SAME:
            operands = [np.asarray(a).astype(target) for a in arguments]
            return np.asarray(_SAME[name](*operands, **attributes)).astype(target)
        if name in _WIDE:
            computed = dtypes.as_dtype(wide(application.dtype))
            operands = [np.asarray(a).astype(computed) for a in arguments]
            return np.asarray(_WIDE[name](*operands, **attributes)).astype(target)
        return np.asarray(_OTHER[name](*arguments, **attributes)).astype(target)


def _gelu(x: Array) -> Array:
    return np.asarray(x * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2))))


def _logsumexp(x: Array, axis: Any) -> Array:
    if x.shape[axis] == 0:
        return np.full(np.sum(x, axis).shape, -np.inf)
    return np.asarray(np.logaddexp.reduce(x, axis))


def _softmax(x: Array, axis: int) -> Array:
    if x.shape[axis] == 0:
        return x
    powers = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis, keepdims=True))


def _extremum(function: Callable[..., Array]) -> Meaning:
    def reduced(x: Array, axis: Any, initial: float | None = None) -> Array:
        return function(x, axis) if initial is None else function(x, axis, initial=initial)

    return reduced


def _running(function: Callable[..., Array]) -> Meaning:
    def scanned(x: Array, axis: int, reverse: bool = False) -> Array:
        turned = np.flip(x, axis) if reverse else x
        result = function(turned, axis)
        return np.flip(result, axis) if reverse else result

    return scanned


def _linear_scan(a: Array, b: Array, axis: int, reverse: bool = False) -> Array:
    a, b = (np.moveaxis(x, axis, 0) for x in np.broadcast_arrays(a, b))
    result, state = np.zeros_like(b), np.zeros_like(b[0]) if len(b) else None
    for i in reversed(range(len(b))) if reverse else range(len(b)):
        state = a[i] * state + b[i]
        result[i] = state
    return np.moveaxis(result, 0, axis)


def _sort(x: Array, axis: int, descending: bool = False) -> Array:
    ordered = np.sort(x, axis, kind="stable")
    return np.flip(ordered, axis) if descending else ordered


def _space(x: Array, key: tuple[Any, ...]) -> Array:
    items = (slice(*item) if isinstance(item, tuple) else item for item in key)
    return np.asarray(x[tuple(items)])


def _scatter_add(x: Array, indices: Array, updates: Array, axis: int) -> Array:
    total = x.copy()
    key: Any = (slice(None),) * axis + (indices,)
    np.add.at(total, key, updates)
    return total


def _one_hot(x: Array, size: int) -> Array:
    return np.asarray(x[..., None] == np.arange(size))


def _convolution(x: Array, w: Array, stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1) -> Array:
    """Element by element."""
    rank = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *((padding, padding),) * rank))
    places = [(n - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    result = np.zeros((x.shape[0], w.shape[0], *places), x.dtype)
    per_group = w.shape[0] // groups
    for batch, output, *place in np.ndindex(*result.shape):
        first = output // per_group * w.shape[1]
        window = [
            slice(p * stride, p * stride + dilation * k, dilation) for p, k in zip(place, w.shape[2:], strict=True)
        ]
        seen = x[(batch, slice(first, first + w.shape[1]), *window)]
        result[(batch, output, *place)] = np.sum(seen * w[output])
    return result


_COMPARISONS: dict[str, Meaning] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}

# Computed in the result's dtype.
_SAME: dict[str, Meaning] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "//": np.floor_divide,
    "%": np.mod,
    "negative": np.negative,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "square": np.square,
    "reciprocal": lambda x: 1 / x,
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x, a_min, a_max: np.clip(x, a_min, a_max),
    "copy": lambda x: x,
    "stop_gradient": lambda x: x,
    "&": np.logical_and,
    "|": np.logical_or,
    "^": np.logical_xor,
    "invert": np.logical_not,
    "max": _extremum(np.max),
    "min": _extremum(np.min),
    "any": np.any,
    "all": np.all,
    "cummax": _running(np.maximum.accumulate),
    "cummin": _running(np.minimum.accumulate),
    "sort": _sort,
    "top_k": lambda x, k, axis: np.take(_sort(x, axis, True), range(k), axis),
    "reshape": lambda x, shape: x.reshape(shape),
    "transpose": lambda x, axes=None: np.transpose(x, axes),
    "broadcast_to": lambda x, shape: np.broadcast_to(x, shape),
    "expand_dims": np.expand_dims,
    "squeeze": np.squeeze,
    "flip": np.flip,
    "roll": np.roll,
    "pad": lambda x, pad_width: np.pad(x, pad_width),
    "repeat": np.repeat,
    "tile": np.tile,
    "concatenate": lambda *xs, axis: np.concatenate(xs, axis),
    "stack": lambda *xs, axis: np.stack(xs, axis),
    "space": _space,
}

# Half precision is computed in float32 and rounded once.
_WIDE: dict[str, Meaning] = {
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "softplus": lambda x: np.logaddexp(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": _gelu,
    "power": np.power,
    "logaddexp": np.logaddexp,
    "sum": np.sum,
    "prod": np.prod,
    "mean": np.mean,
    "var": np.var,
    "std": np.std,
    "logsumexp": _logsumexp,
    "softmax": _softmax,
    "log_softmax": lambda x, axis: np.log(_softmax(x, axis)),
    "cumsum": _running(np.cumsum),
    "cumprod": _running(np.cumprod),
    "linear_scan": _linear_scan,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "@": np.matmul,
    "dot": np.dot,
    "outer": np.outer,
    "einsum": lambda *xs, subscripts: np.einsum(subscripts, *xs),
}

# Operands of different dtypes, or none.
_OTHER: dict[str, Meaning] = {
    "where": lambda c, a, b: np.where(c, a, b),
    "astype": lambda x: x,
    "isfinite": np.isfinite,
    "isnan": np.isnan,
    "argmax": np.argmax,
    "argmin": np.argmin,
    "argsort": lambda x, axis: np.argsort(x, axis, kind="stable"),
    "take": lambda x, i, axis: np.take(x, i, axis),
    "take_along_axis": lambda x, i, axis: np.take_along_axis(x, i, axis),
    "scatter_add": _scatter_add,
    "one_hot": _one_hot,
    "arange": lambda size: np.arange(size),
    "full": lambda shape, value: np.full(shape, value),
    "eye": lambda size: np.eye(size),
}
