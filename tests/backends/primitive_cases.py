"""One line per use of a primitive: operands and attributes, with sizes that may depend on the point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tempo import random as tempo_random
from tempo.graph.node import Primitive
from tempo.ops import (
    attention,
    contraction,
    convolution,
    creation,
    elementwise,
    gathering,
    indexing,
    reduction,
    scan,
    shaping,
    sorting,
)

Array = Any
Size = int | str
Point = dict[str, int]

bfloat16 = ml_dtypes.bfloat16
FLOATS = (np.float32, np.float64, bfloat16)
NUMBERS = (*FLOATS, np.float16, np.int32, np.int8, np.uint8)
ALL = (*NUMBERS, np.bool_)

# The attributes that hold sizes or places.
SIZED = ("shape", "sizes", "starts", "size", "count", "point", "expr")

# Where sizes are tried: each row is a point. The greatest of each is how long its axes are.
POINTS: list[Point] = [{"n": 3, "m": 2}, {"n": 1, "m": 4}, {"n": 5, "m": 4}, {"n": 2, "m": 1}]
EMPTY: Point = {"n": 0, "m": 0}


@dataclass(frozen=True)
class Operand:
    """An operand's shape, as sizes: numbers, or expressions of names such as "n" or "2*n"."""

    shape: tuple[Size, ...]
    dtype: Any = None  # where it is not the case's
    draw: Callable[[np.random.Generator, tuple[int, ...], Any, Point], Array] | None = None


@dataclass(frozen=True)
class Case:
    op: Primitive
    operands: tuple[Operand, ...] = ()
    attributes: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] = field(default_factory=dict)
    dtypes: tuple[Any, ...] = NUMBERS
    points: list[Point] | None = None
    empty: bool = True  # also where all sizes are 0
    together: bool = False  # try all sizes ragged at once only
    padded: tuple[Any, ...] = (np.float32, np.int32, np.bool_)  # the dtypes to try with padding, where legal
    label: str = ""

    def attributes_for(self, dtype: Any) -> dict[str, Any]:
        return dict(self.attributes(dtype) if callable(self.attributes) else self.attributes)

    @property
    def padded_dtypes(self) -> tuple[Any, ...]:
        return tuple(d for d in self.dtypes if d in self.padded) or self.dtypes[:1]

    @property
    def names(self) -> frozenset[str]:
        texts: list[str] = []

        def visit(value: Any) -> None:
            if isinstance(value, tuple):
                for v in value:
                    visit(v)
            elif isinstance(value, str):
                texts.append(value)

        visit(tuple(x.shape for x in self.operands))
        visit(tuple(v for k, v in self.attributes_for(self.dtypes[0]).items() if k in SIZED))
        known = {name for point in self.points or POINTS for name in point}
        return frozenset(name for name in known if any(name in text for text in texts))

    def at(self, ragged: frozenset[str]) -> list[Point]:
        """The points to try where only these names vary; the others are as great as they get."""
        points = list(self.points or POINTS)
        if self.empty and self.points is None:
            points.append(EMPTY)
        most = {name: max(p[name] for p in points) for name in points[0]}
        varied = [{**most, **{name: p[name] for name in ragged}} for p in points]
        return [p for n, p in enumerate(varied) if p not in varied[:n]]

    def ragged_sets(self) -> Iterator[frozenset[str]]:
        names = sorted(self.names)
        for count in range(len(names) if self.together and names else 1, len(names) + 1):
            yield from map(frozenset, itertools.combinations(names, count))

    def __str__(self) -> str:
        return self.label or f"{self.op.name} {[x.shape for x in self.operands]}"


def draw(random: np.random.Generator, shape: tuple[int, ...], dtype: Any, point: Point) -> Array:
    """Few different values, so that there are ties."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    if dtype.kind == "u":
        return random.integers(0, 6, shape).astype(dtype)
    if dtype.kind == "i":
        return random.integers(-4, 5, shape).astype(dtype)
    return (random.integers(-8, 9, shape) / 4).astype(dtype)


def positive(random: np.random.Generator, shape: tuple[int, ...], dtype: Any, point: Point) -> Array:
    return (np.abs(draw(random, shape, dtype, point)) + (1 if np.dtype(dtype).kind in "iu" else 0.25)).astype(dtype)


def places(size: str) -> Callable[[np.random.Generator, tuple[int, ...], Any, Point], Array]:
    """Indices into an axis of this size, from either end."""

    def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: Any, point: Point) -> Array:
        count = eval(size, dict(point))
        low = 0 if np.dtype(dtype).kind == "u" else -count
        return random.integers(low, count, shape).astype(dtype) if np.prod(shape) else np.zeros(shape, dtype)

    return drawn


def x(*shape: Size) -> Operand:
    return Operand(shape)


def index(*shape: Size, into: str, dtype: Any = np.int32) -> Operand:
    return Operand(shape, dtype, places(into))


def _elementwise() -> Iterator[Case]:
    matrix, row = x("n", "m"), x("m")
    e = elementwise

    def binary(ops: list[Primitive], dtypes: tuple[Any, ...]) -> Iterator[Case]:
        for op in ops:
            yield Case(op, (matrix, row), dtypes=dtypes, together=True, padded=(np.float32,))

    def unary(ops: list[Primitive], dtypes: tuple[Any, ...], operand: Operand = matrix) -> Iterator[Case]:
        for op in ops:
            yield Case(op, (operand,), dtypes=dtypes, together=True, padded=(np.float32,))

    yield from binary([e.ADD, e.SUBTRACT, e.MULTIPLY, e.MINIMUM, e.MAXIMUM, e.FLOOR_DIVIDE, e.MOD], NUMBERS)
    yield from binary([e.EQUAL, e.NOT_EQUAL, e.LESS, e.LESS_EQUAL], ALL)
    yield from binary([e.LOGICAL_AND, e.LOGICAL_OR, e.LOGICAL_XOR], (np.bool_,))
    yield from binary([e.DIVIDE, e.LOGADDEXP], FLOATS)
    yield Case(e.POWER, (Operand(("n", "m"), draw=positive), Operand(("m",), draw=positive)), together=True)
    yield from unary([e.NEGATIVE, e.ABS, e.SIGN], NUMBERS)
    yield from unary([e.FLOOR, e.CEIL, e.ROUND, e.ISNAN], FLOATS)
    yield from unary([e.EXP, e.EXPM1, e.SIN, e.COS, e.TANH, e.ERF, e.SIGMOID], FLOATS)
    yield from unary([e.LOG, e.LOG1P, e.SQRT, e.RSQRT], FLOATS, Operand(("n", "m"), draw=positive))
    yield from unary([e.LOGICAL_NOT], (np.bool_,))
    yield from unary([e.COPY, e.STOP_GRADIENT], ALL)
    yield Case(e.WHERE, (Operand(("n", "m"), np.bool_), row, matrix), dtypes=ALL, together=True)
    for target in (np.float32, np.float64, bfloat16, np.float16, np.int32, np.uint8, np.bool_):
        # Negative floats have no place among unsigned integers.
        drawn = Operand(("n", "m"), draw=positive if target is np.uint8 else None)
        to = np.dtype(target)
        yield Case(e.CAST, (drawn,), {"dtype": to}, NUMBERS, together=True, padded=(np.float32,), label=f"cast to {to}")
    yield Case(e.CAST, (matrix,), {"dtype": np.dtype(np.float32)}, (np.bool_,), together=True, label="cast of bool")


def _creation() -> Iterator[Case]:
    c = creation
    one = (np.float32,)
    yield Case(c.CONSTANT, (), lambda dtype: {"value": np.array([[1, 0, 1]]).astype(dtype)}, ALL)
    yield Case(
        c.FULL, (), lambda dtype: {"shape": ("n", 2, "m"), "value": np.array(1).astype(dtype)}, ALL, together=True
    )
    yield Case(c.IOTA, (), lambda dtype: {"size": "n", "dtype": np.dtype(dtype)}, ALL)
    yield Case(c.INDEX_VALUE, (), {"expr": "3*n-1"}, one)
    yield Case(c.CONDITION_VALUE, (), {"condition": True}, one)
    yield Case(c.GRID, (), {"grid": np.arange(6, dtype=np.int32).reshape(2, 3)}, one, label="grid of numbers")
    yield Case(c.GRID, (), {"grid": np.array([[True, False]])}, one, label="grid of conditions")


def _shaping() -> Iterator[Case]:
    s = shaping
    reshapes: list[tuple[tuple[Size, ...], tuple[Size, ...]]] = [
        (("n", "m"), ("n", 1, "m")),
        (("n", "m"), ("n*m",)),
        (("n*m",), ("m", "n")),
        (("n", "m"), ("m", "n")),
        ((1, "n", 1, 1), ("n",)),
        (("n", 2, 3), ("n", 6)),
        (("n", 6), ("2*n", 3)),
        ((2, 3, "n", 4), (6, "4*n")),
        ((2, 3, "n", 4), (3, 2, "2*n", 2)),
        ((3, "n"), ("n", 3)),
        ((2, "n", "m", 2), (2, "n", "2*m")),
        ((2, "n", "m", 2), ("2*n", "m", 2)),
        # The same size, but this cannot be seen.
        (("n", "m", 2), ("n*1", 1, "m*1", 2)),
    ]
    for before, after in reshapes:
        label = f"reshape {before} to {after}"
        yield Case(s.RESHAPE, (x(*before),), {"shape": after}, (np.float32, np.bool_), label=label)
    few = (np.float32, bfloat16, np.bool_)
    yield Case(s.TRANSPOSE, (x("n", "m", 2),), {"axes": (2, 0, 1)}, few, together=True)
    yield Case(s.BROADCAST_TO, (x(1, "m"),), {"shape": (2, "n", "m")}, few)
    yield Case(s.BROADCAST_TO, (x(),), {"shape": ("n",)}, few)
    for axis in range(3):
        operands = [["n", "m", 2], ["n", "m", 2], ["n", "m", 2]]
        for operand, size in zip(operands, ("2*n", "m", "n+1"), strict=True):
            operand[axis] = size
        yield Case(s.CONCATENATE, tuple(x(*o) for o in operands), {"axis": axis}, (np.float32, np.int32, np.bool_))
    yield Case(s.CONCATENATE, (x(2), x("n"), x(3), x("m"), x("n")), {"axis": 0}, (np.float32,))
    for axes in ((0,), (1,), (0, 2), (0, 1, 2)):
        yield Case(s.FLIP, (x("n", "m", 2),), {"axes": axes}, (np.float32, np.int32, np.bool_), label=f"flip {axes}")


def _indexing() -> Iterator[Case]:
    few = (np.float32, np.int32, np.bool_)

    def cut(
        shape: tuple[Size, ...],
        starts: tuple[Size, ...],
        sizes: tuple[Size, ...],
        steps: tuple[int, ...],
        *points: Point,
    ) -> Iterator[Case]:
        label = f"{shape} from {starts}, {sizes}, by {steps}"
        attributes = {"starts": starts, "sizes": sizes, "steps": steps}
        yield Case(indexing.SLICE, (x(*shape),), attributes, few, list(points) or None, label=f"slice {label}")

        def placing(dtype: Any) -> dict[str, Any]:
            value = np.array(1).astype(dtype)
            return {"shape": shape, "starts": starts, "steps": steps, "value": value}

        yield Case(indexing.PLACE, (x(*sizes),), placing, few, list(points) or None, label=f"place {label}")

    yield from cut((6, "m"), (2, 0), (3, "m"), (1, 1))
    yield from cut(("n+3",), (1,), ("n",), (1,))
    yield from cut(("2*n+1",), (1,), ("n",), (2,))
    yield from cut((5,), (0,), ("n",), (1,))
    yield from cut((7, 3), ("n", 1), (2, 1), (1, 1))
    yield from cut((12, 3), ("n", 0), (3, 2), (3, 2))
    yield from cut(("n+m", "m"), ("m", 0), ("n", "m"), (1, 1))
    yield from cut(("n+m", 5), ("n", 0), ("m", "n"), (1, 1))
    yield from cut(("n+2*m+1",), ("n",), ("m",), (2,))
    # Starts that reach the end: nothing is known to be in range.
    ends = ({"t": 0}, {"t": 2}, {"t": 4}, {"t": 5})
    yield from cut((5,), ("t",), ("5-t",), (1,), *ends)
    yield from cut(("t+1",), ("t",), (1,), (1,), *ends)
    yield from cut((5, "t+1"), ("t-t", "t"), ("5-t", 1), (1, 1), *ends)


def _reduction() -> Iterator[Case]:
    r = reduction
    summed = (*FLOATS, np.float16, np.int32, np.int8)
    for axes in ((0,), (1, 2), (0, 1, 2)):
        operand, label = (x("n", "m", 2),), f" over {axes}"
        for op in (r.SUM, r.PROD):
            yield Case(op, operand, {"axes": axes}, summed, together=True, label=op.name + label)
        for op in (r.MAX, r.MIN):
            attributes = {"axes": axes, "initial": None}
            wide = (np.int64, np.uint32, np.uint64)  # whose ends are none of JAX's own integers
            yield Case(op, operand, attributes, (*ALL, *wide), empty=False, together=True, label=op.name + label)
        for op in (r.ANY, r.ALL):
            yield Case(op, operand, {"axes": axes}, (np.bool_,), together=True, label=op.name + label)
    for op in (r.MAX, r.MIN):

        def starting(dtype: Any) -> dict[str, Any]:
            return {"axes": (0,), "initial": np.array(1).astype(dtype)}

        yield Case(op, (x("n", "m"),), starting, ALL, together=True, label=f"{op.name} with initial")
    for op in (r.ARGMAX, r.ARGMIN):
        for axis in range(3):
            yield Case(
                op, (x("n", "m", 2),), {"axis": axis}, ALL, empty=False, together=True, label=f"{op.name} {axis}"
            )


def _scan() -> Iterator[Case]:
    s = scan
    dtypes = (*FLOATS, np.float16, np.int32)
    for axis, reverse in itertools.product((0, 1), (False, True)):
        attributes = {"axis": axis, "reverse": reverse}
        label = f" {axis}{' reverse' if reverse else ''}"
        for op in (s.CUMSUM, s.CUMPROD):
            yield Case(op, (x("n", "m"),), attributes, dtypes, together=True, label=op.name + label)
        for op in (s.CUMMAX, s.CUMMIN):
            yield Case(op, (x("n", "m"),), attributes, (*dtypes, np.bool_), together=True, label=op.name + label)
        yield Case(s.LINEAR_SCAN, (x("n", "m"),) * 2, attributes, dtypes, together=True, label=f"linear_scan{label}")
    factors = ((x("n", "m"), False), (x("n"), False), (x("m"), True), (x(), True))
    resets = ((), (Operand(("n",), np.bool_),), (Operand(("n", "m"), np.bool_),))
    for (factor, fixed), reset, reverse in itertools.product(factors, resets, (False, True)):
        shapes = [operand.shape for operand in (factor, *reset)]
        yield Case(
            s.LINEAR_RECURRENCE,
            (x("n", "m"), factor, *reset),
            {"fixed": fixed, "reverse": reverse},
            dtypes,
            empty=False,  # there is always a first step
            together=True,
            label=f"linear_recurrence {shapes}{' reverse' if reverse else ''}",
        )


def _contraction() -> Iterator[Case]:
    shapes = {"i": "n", "j": "m", "k": 3, "b": 2}
    for subscripts in (
        "ij,jk->ik",
        "ki,ij->jk",
        "bij,bjk->bik",
        "ij,ij->ij",
        "ij,ij->i",
        "ij,ij->",
        "i,j->ji",
        "i,->i",
        ",->",
        "kij,ib->bjk",
        "ijk,kb->ijb",
    ):
        left, right, _ = contraction.subscript_terms(subscripts)
        operands = tuple(x(*(shapes[letter] for letter in term)) for term in (left, right))
        yield Case(contraction.EINSUM, operands, {"subscripts": subscripts}, NUMBERS, label=f"einsum {subscripts}")


def _attention() -> Iterator[Case]:
    """The first steps are as many as the point says; the mask may leave out any."""
    for terms, queries, keys in (
        ("gmd,sgd,sge->gme", (2, 3, 4), ("n", 2, 4)),
        ("gd,gsd,gse->eg", (2, 4), (2, "n", 4)),
        ("d,sd,se->e", (4,), ("n", 4)),
    ):
        operands = x(*queries), x(*keys), x(*keys)
        attributes = {"terms": terms, "scale": 0.5, "fill": -1e30}
        yield Case(attention.ATTENTION, operands, attributes, (np.float32, bfloat16), label=f"attention {terms}")
        masked = (*operands, Operand(("n",), np.bool_))
        yield Case(attention.ATTENTION, masked, attributes, (np.float32,), label=f"masked attention {terms}")
    for window in (None, 3):
        queries, keys = x(7, 4, 8), x(7, 2, 8)
        attributes = {"scale": 0.5, "window": window}
        for op, operands in (
            (attention.ATTENTION_TO_PAST, (queries, keys, keys)),
            (attention.ATTENTION_TO_PAST_GRADIENT, (queries, keys, keys, queries)),
        ):
            yield Case(op, operands, attributes, (np.float32, bfloat16), label=f"{op.name} {window}")


def _gathering() -> Iterator[Case]:
    g = gathering
    few = (np.float32, bfloat16, np.int32)
    for axis, into in enumerate(("n", "m", "2")):
        shape: list[Size] = ["n", "m", 2]
        line = [*shape]
        line[axis] = "n+m"
        along = index(*line, into=into)
        yield Case(g.TAKE_ALONG_AXIS, (x(*shape), along), {"axis": axis}, few, empty=False, together=True)
        yield Case(
            g.SCATTER_ADD_ALONG_AXIS, (x(*shape), along, x(*line)), {"axis": axis}, few, empty=False, together=True
        )
        for indices in ((), ("m",)) if axis else (("n",), (2, "m")):
            at = index(*indices, into=into, dtype=np.uint8 if axis == 2 else np.int32)
            taken = (*shape[:axis], *indices, *shape[axis + 1 :])
            attributes = {"axis": axis}
            yield Case(g.TAKE, (x(*shape), at), attributes, (*few, np.bool_), empty=False, together=True)
            yield Case(g.SCATTER_ADD, (x(*shape), at, x(*taken)), attributes, few, empty=False, together=True)


def _sorting() -> Iterator[Case]:
    for axis, descending in itertools.product((0, 1), (False, True)):
        for count in (("n", "m")[axis], 1)[: 2 - axis]:
            attributes = {"axis": axis, "descending": descending, "count": count}
            label = f"argsort {axis} {count}{' descending' if descending else ''}"
            dtypes = (np.float32, bfloat16, np.int32, np.uint8, np.bool_)
            padded = dtypes if descending else (np.float32, np.int32, np.bool_)
            yield Case(
                sorting.ARGSORT, (x("n", "m"),), attributes, dtypes, empty=count != 1, padded=padded, label=label
            )


def _convolution() -> Iterator[Case]:
    plain = {"strides": (1,), "dilations": (1,), "groups": 1}
    dtypes = (np.float32, np.float64, bfloat16, np.int32)
    # Batch, channels and outputs may be padded.
    yield Case(convolution.CONVOLUTION, (x("n", "m", 6), x("m+1", "m", 3)), plain, dtypes, empty=False)
    strided = {"strides": (2,), "dilations": (3,), "groups": 2}
    yield Case(convolution.CONVOLUTION, (x("n", 4, 9), x(6, 2, 2)), strided, dtypes, empty=False)
    plane = {"strides": (2, 1), "dilations": (1, 2), "groups": 1}
    yield Case(convolution.CONVOLUTION, (x("n", "m", 6, 5), x(2, "m", 3, 2)), plane, dtypes, empty=False)


def _random() -> Iterator[Case]:
    seed = Operand((2,), np.uint32, lambda random, shape, dtype, point: random.integers(0, 2**32, shape, dtype))
    points = [{"t": 0, "s": 7}, {"t": 3, "s": 0}, {"t": 1000, "s": 2}]
    for shape, point in (((), ()), ((5,), ("t",)), ((2, 3), ("s", "t", 3))):

        def attributes(dtype: Any, shape: Any = shape, point: Any = point) -> dict[str, Any]:
            return {"stream": 17, "point": point, "shape": shape, "dtype": np.dtype(dtype)}

        words, label = (np.uint32, np.uint64), f"random_bits {shape} {point}"
        yield Case(tempo_random.RANDOM_BITS, (seed,), attributes, words, points, together=True, label=label)


CASES: list[Case] = [
    case
    for cases in (
        _elementwise,
        _creation,
        _shaping,
        _indexing,
        _reduction,
        _scan,
        _contraction,
        _attention,
        _gathering,
        _sorting,
        _convolution,
        _random,
    )
    for case in cases()
]
