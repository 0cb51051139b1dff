"""Recurrent tensors: what a user holds, indexes, computes with and defines by cases."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tempo import dtypes
from tempo.copying import PartOfProgram
from tempo.dtypes import DType, DTypeLike
from tempo.errors import DtypeError, ProgramError
from tempo.graph.node import (
    Domain,
    Edge,
    Node,
    Primitive,
    Shape,
    attribute_symbols,
    dims_of,
    shape_symbols,
    show_shape,
)
from tempo.graph.printing import show_attribute
from tempo.source import user_line
from tempo.symbolic import (
    Bound,
    Condition,
    Expr,
)
from tempo.symbolic import index as indices

if TYPE_CHECKING:
    from tempo.program import Program

TensorLike = Union["RecurrentTensor", np.ndarray, Expr, Condition, builtins.bool, int, float, Sequence[Any]]
ShapeLike = int | Expr | Sequence[int | Expr]


class _Open(threading.local):
    """The programs that this thread is writing, the innermost last."""

    def __init__(self) -> None:
        self.programs: list[Program] = []


being_written = _Open()


def current_program() -> Program:
    """The program of the innermost ``with tp.Program(...)``, in this thread."""
    if not being_written.programs:
        raise ProgramError(
            "no program is being written here",
            places=[("here", user_line())],
            hint="write this inside 'with tp.Program(\"name\") as prog:', or in a cell of a batched model, tp.cell",
        )
    return being_written.programs[-1]


class RecurrentTensor(PartOfProgram):
    """A value at every point of a domain, seen through a temporal index.

    ``x[...]`` indexes time, one index per dim of the domain; ``x.space[...]`` indexes inside a value, as
    NumPy does. Operators act point by point: domains join by union, shapes broadcast.
    """

    __slots__ = ("edge", "program")

    def __init__(self, program: Program, edge: Edge) -> None:
        self.program = program
        self.edge = edge

    # -- what it is -----------------------------------------------------------------------------

    @property
    def domain(self) -> Domain:
        """The dims it varies over, in the program's declaration order."""
        return self.edge.domain

    @property
    def shape(self) -> Shape:
        """The shape of its value at one point; sizes may be expressions such as ``t + 1``."""
        return self.edge.shape

    @property
    def dtype(self) -> DType:
        """The dtype of its values."""
        return self.edge.dtype

    @property
    def ndim(self) -> int:
        """How many axes its value has at one point; dims do not count."""
        return len(self.shape)

    @property
    def name(self) -> str:
        """The name a user gave, or the operation that made it."""
        return describe(self.edge.node.here())

    def __repr__(self) -> str:
        domain = ", ".join(d.name for d in self.domain)
        return f"<{self} over ({domain}), shape {show_shape(self.shape)}, {self.dtype.name}>"

    def __str__(self) -> str:
        return describe(self.edge)

    # -- time -----------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> RecurrentTensor:
        return RecurrentTensor(self.program, temporal.compose(self, temporal.parse_index(self, key)))

    def __setitem__(self, key: Any, value: TensorLike) -> None:
        temporal.define_case(self, key, value)

    def at(
        self,
        bounds: Mapping[Bound, int] | None = None,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        **point: int,
    ) -> Any:
        """The value at one point, computed by the reference interpreter: ``x.at(t=3)``.

        ``bounds`` and ``inputs`` are as for ``Program.evaluate``; only what this value needs must be given.
        """
        from tempo.reference import evaluate_at

        return evaluate_at(self, bounds or {}, inputs or {}, seed, point)

    # -- space ----------------------------------------------------------------------------------

    @property
    def space(self) -> Space:
        """NumPy indexing inside the value: ``x.space[..., 0]``, ``x.space[1:3]``."""
        return Space(self)

    @property
    def T(self) -> RecurrentTensor:  # noqa: N802
        """The value with its axes reversed."""
        return self.transpose()

    # -- misuse that would otherwise loop forever or fail obscurely -------------------------------

    def __bool__(self) -> builtins.bool:
        raise ProgramError(
            f"the truth value of tensor {self} is not known while the program is written",
            places=[("here", user_line()), (self.name, self.edge.node.source)],
            hint="use tp.where(condition, a, b) instead of if, & | ~ instead of and, or, not, "
            "tp.maximum and tp.minimum instead of max and min",
        )

    def __iter__(self) -> Any:
        raise ProgramError(
            f"tensor {self} cannot be iterated over",
            places=[("here", user_line())],
            hint="time: x[0:T] stacks all steps; inside a value: x.space[i] for each i",
        )

    def __len__(self) -> int:
        raise ProgramError(
            f"tensor {self} has no len()",
            places=[("here", user_line())],
            hint="use x.shape[0] for the value's first axis, the dim's bound for the number of steps",
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise ProgramError(
            f"tensor {self} has no values while the program is written",
            places=[("here", user_line())],
            hint="compute with tp functions (tp.stack makes one tensor of several); "
            "x.at(t=3) evaluates one point for debugging",
        )

    __float__ = __int__ = __array__

    def __format__(self, spec: str) -> str:
        try:
            return format(str(self), spec)
        except ValueError:  # as of a number
            self.__array__()
            raise

    def __array_ufunc__(self, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
        """``array + tensor`` arrives here as np.add; any other NumPy function is a mistake."""
        name = ufunc.__name__.replace("bitwise", "logical").replace("remainder", "mod")
        if name not in _SIGNS or method != "__call__" or options:
            raise _not_numpys(ufunc.__name__)
        return getattr(ops, name)(*operands)

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise _not_numpys(function.__name__)

    @property
    def next(self) -> RecurrentTensor:
        """What a state is at the next point: ``w.next = ...`` defines it. Only states have it."""
        raise self._not_a_state()

    @next.setter
    def next(self, value: TensorLike) -> None:
        raise self._not_a_state()

    def _not_a_state(self) -> ProgramError:
        return ProgramError(
            f"{self} is not a state: it has no next value",
            places=[("here", user_line()), (self.name, self.edge.node.source)],
            hint="declare it with prog.state(name, init, over=...); parameters are states "
            "where they are declared within 'with prog.training(over=...):'",
        )

    __hash__ = object.__hash__

    # -- operators ------------------------------------------------------------------------------

    def __add__(self, other: TensorLike) -> RecurrentTensor:
        return ops.add(self, other)

    def __radd__(self, other: TensorLike) -> RecurrentTensor:
        return ops.add(other, self)

    def __sub__(self, other: TensorLike) -> RecurrentTensor:
        return ops.subtract(self, other)

    def __rsub__(self, other: TensorLike) -> RecurrentTensor:
        return ops.subtract(other, self)

    def __mul__(self, other: TensorLike) -> RecurrentTensor:
        return ops.multiply(self, other)

    def __rmul__(self, other: TensorLike) -> RecurrentTensor:
        return ops.multiply(other, self)

    def __truediv__(self, other: TensorLike) -> RecurrentTensor:
        return ops.divide(self, other)

    def __rtruediv__(self, other: TensorLike) -> RecurrentTensor:
        return ops.divide(other, self)

    def __floordiv__(self, other: TensorLike) -> RecurrentTensor:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: TensorLike) -> RecurrentTensor:
        return ops.floor_divide(other, self)

    def __mod__(self, other: TensorLike) -> RecurrentTensor:
        return ops.mod(self, other)

    def __rmod__(self, other: TensorLike) -> RecurrentTensor:
        return ops.mod(other, self)

    def __pow__(self, other: TensorLike) -> RecurrentTensor:
        return ops.power(self, other)

    def __rpow__(self, other: TensorLike) -> RecurrentTensor:
        return ops.power(other, self)

    def __matmul__(self, other: TensorLike) -> RecurrentTensor:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: TensorLike) -> RecurrentTensor:
        return ops.matmul(other, self)

    def __neg__(self) -> RecurrentTensor:
        return ops.negative(self)

    def __pos__(self) -> RecurrentTensor:
        return self

    def __abs__(self) -> RecurrentTensor:
        return ops.abs(self)

    def __invert__(self) -> RecurrentTensor:
        return ops.logical_not(self)

    def __and__(self, other: TensorLike) -> RecurrentTensor:
        return ops.logical_and(self, other)

    __rand__ = __and__

    def __or__(self, other: TensorLike) -> RecurrentTensor:
        return ops.logical_or(self, other)

    __ror__ = __or__

    def __xor__(self, other: TensorLike) -> RecurrentTensor:
        return ops.logical_xor(self, other)

    __rxor__ = __xor__

    def __eq__(self, other: TensorLike) -> RecurrentTensor:  # type: ignore[override]
        result: RecurrentTensor = ops.equal(self, other)
        return result

    def __ne__(self, other: TensorLike) -> RecurrentTensor:  # type: ignore[override]
        result: RecurrentTensor = ops.not_equal(self, other)
        return result

    def __lt__(self, other: TensorLike) -> RecurrentTensor:
        return ops.less(self, other)

    def __le__(self, other: TensorLike) -> RecurrentTensor:
        return ops.less_equal(self, other)

    def __gt__(self, other: TensorLike) -> RecurrentTensor:
        return ops.greater(self, other)

    def __ge__(self, other: TensorLike) -> RecurrentTensor:
        return ops.greater_equal(self, other)

    # -- methods: NumPy's names -------------------------------------------------------------------

    def astype(self, dtype: DTypeLike) -> RecurrentTensor:
        """See `tempo.astype`."""
        return ops.astype(self, dtype)

    def sum(self, axis: Any = None, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.sum`."""
        return ops.sum(self, axis, keepdims)

    def prod(self, axis: Any = None, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.prod`."""
        return ops.prod(self, axis, keepdims)

    def mean(self, axis: Any = None, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.mean`."""
        return ops.mean(self, axis, keepdims)

    def var(self, axis: Any = None, ddof: int = 0, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.var`."""
        return ops.var(self, axis, ddof, keepdims)

    def std(self, axis: Any = None, ddof: int = 0, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.std`."""
        return ops.std(self, axis, ddof, keepdims)

    def max(self, axis: Any = None, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.max`."""
        result: RecurrentTensor = ops.max(self, axis=axis, keepdims=keepdims)
        return result

    def min(self, axis: Any = None, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.min`."""
        result: RecurrentTensor = ops.min(self, axis=axis, keepdims=keepdims)
        return result

    def any(self, axis: Any = None, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.any`."""
        return ops.any(self, axis, keepdims)

    def all(self, axis: Any = None, keepdims: builtins.bool = False) -> RecurrentTensor:
        """See `tempo.all`."""
        return ops.all(self, axis, keepdims)

    def argmax(self, axis: int | None = None) -> RecurrentTensor:
        """See `tempo.argmax`."""
        return ops.argmax(self, axis)

    def argmin(self, axis: int | None = None) -> RecurrentTensor:
        """See `tempo.argmin`."""
        return ops.argmin(self, axis)

    def cumsum(self, axis: int = 0) -> RecurrentTensor:
        """See `tempo.cumsum`."""
        return ops.cumsum(self, axis)

    def cumprod(self, axis: int = 0) -> RecurrentTensor:
        """See `tempo.cumprod`."""
        return ops.cumprod(self, axis)

    def reshape(self, *shape: Any) -> RecurrentTensor:
        """See `tempo.reshape`; sizes may be separate arguments: ``x.reshape(2, 3)``."""
        return ops.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> RecurrentTensor:
        """See `tempo.transpose`; axes may be separate arguments: ``x.transpose(1, 0)``."""
        return ops.transpose(self, axes[0] if len(axes) == 1 else (axes or None))

    def squeeze(self, axis: Any = None) -> RecurrentTensor:
        """See `tempo.squeeze`."""
        return ops.squeeze(self, axis)

    def flatten(self) -> RecurrentTensor:
        """The value with all of its axes in one."""
        return ops.reshape(self, -1)

    def take(self, indices: TensorLike, axis: int = 0) -> RecurrentTensor:
        """Elements of the first axis (by default) chosen by a tensor of integers: ``x[0:t].take(idx)``."""
        return ops.take(self, indices, axis)

    def clip(self, a_min: TensorLike | None = None, a_max: TensorLike | None = None) -> RecurrentTensor:
        """See `tempo.clip`."""
        return ops.clip(self, a_min, a_max)

    def dot(self, other: TensorLike) -> RecurrentTensor:
        """See `tempo.dot`."""
        return ops.dot(self, other)


class Space:
    """``x.space``: indexing inside the value."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: RecurrentTensor) -> None:
        self._tensor = tensor

    def __getitem__(self, key: Any) -> RecurrentTensor:
        return ops.index(self._tensor, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise ProgramError(
            f"{self._tensor}.space[...] = ...: a part of a value cannot be assigned",
            places=[("here", user_line()), (self._tensor.name, self._tensor.edge.node.source)],
            hint="define the whole value in one case, e.g. with tp.where, tp.concatenate or tp.scatter_add",
        )


# -- from values to tensors ---------------------------------------------------------------------------


def as_tensor(value: TensorLike, program: Program | None = None, dtype: DType | None = None) -> RecurrentTensor:
    """A tensor from a tensor, a number, an array, an index expression or a condition."""
    if isinstance(value, RecurrentTensor):
        if program is not None and value.program is not program:
            raise foreign(value, program)
        return value if dtype is None or value.dtype == dtype else ops.astype(value, dtype)
    program = program or program_of(value) or current_program()
    if isinstance(value, Expr):
        result: RecurrentTensor = ops.index_value(value, program=program)
        return result if dtype is None else ops.astype(result, dtype)
    if isinstance(value, Condition):
        result = ops.condition_value(value, program=program)
        return result if dtype is None else ops.astype(result, dtype)
    return ops.constant(value, dtype, program=program)


_SIGNS = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "mod": "%",
    "power": "**",
    "matmul": "@",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "logical_and": "&",
    "logical_or": "|",
    "logical_xor": "^",
}


def _not_numpys(function: str) -> ProgramError:
    return ProgramError(
        f"np.{function} does not work on the tensors of a program",
        places=[("here", user_line())],
        hint=f"use tp.{function}" if function in ops.__all__ else "compute with tp functions",
    )


def describe(edge: Edge) -> str:
    """A tensor as its user knows it: by its name, or by the operation that made it."""
    while edge.node.op.name == "cast" and edge.is_here and not edge.node.name:
        edge = edge.node.edges[0]  # mixed operands are cast behind the user's back
    node = edge.node
    if node.name:
        return str(edge)
    if not node.edges:
        given = node.attributes.values()
        values = [str(v.ravel()[0]) if getattr(v, "size", 0) == 1 else show_attribute(v) for v in given]
        return values[0] if len(values) == 1 else f"{node.op.name}({', '.join(values)})"
    plain = [e.node.name or not e.node.edges or e.node.op.name == "cast" for e in node.edges]
    operands = [describe(e) if known else "..." for e, known in zip(node.edges, plain, strict=True)]
    sign = _SIGNS.get(node.op.name)
    text = f" {sign} ".join(operands) if sign else f"{node.op.name}({', '.join(operands)})"
    return text if edge.is_here else f"({text})[{indices.show(edge.index)}]"


def program_of(value: object) -> Program | None:
    """The program that a dim, an expression or a condition was made in."""
    if isinstance(value, Expr | Condition):
        for symbol in value.symbols():
            owner: Program | None = getattr(symbol, "program", None)
            if owner is not None:
                return owner
    return None


def foreign(value: RecurrentTensor, program: Program) -> ProgramError:
    return ProgramError(
        f"tensor {value} belongs to program '{value.program.name}', not to '{program.name}'",
        places=[("here", user_line()), (value.name, value.edge.node.source)],
        hint="declare an input in this program and give it the other program's output",
    )


def is_weak(value: object) -> builtins.bool:
    """Python numbers, and arrays of the 64-bit types that NumPy picks when nobody chose: they take the
    width of the tensors they meet."""
    if isinstance(value, builtins.bool | int | float | list | tuple):
        return True
    return isinstance(value, np.ndarray | np.generic) and value.dtype in (
        dtypes.float64,
        dtypes.int64,
    )


def coerce(*values: TensorLike) -> tuple[RecurrentTensor, ...]:
    """Tensors of one common dtype from operands of any kind."""
    program = common_program(values)
    strong = [as_tensor(v, program).dtype for v in values if not is_weak(v)]
    weak = [as_array(v).ravel()[:1].tolist() or [0.0] for v in values if is_weak(v)]
    try:
        dtype = dtypes.promote_all(strong, [w[0] for w in weak])
    except DtypeError as error:
        tensors = [as_tensor(v, program) for v in values]
        places = [("here", user_line()), *((str(x), x.edge.node.source) for x in tensors)]
        raise DtypeError(error.message, places=places, hint=error.hint) from None
    return tuple(as_tensor(v, program, dtype) for v in values)


def common_program(values: Sequence[Any]) -> Program:
    owners = [v.program if isinstance(v, RecurrentTensor) else program_of(v) for v in values]
    return next((p for p in owners if p is not None), None) or current_program()


def apply(
    op: Primitive,
    operands: Sequence[RecurrentTensor],
    *,
    program: Program | None = None,
    domain: Domain = (),
    name: str = "",
    **attributes: Any,
) -> RecurrentTensor:
    """The tensor that an operation makes of its operands, over the union of their domains (and ``domain``)."""
    program = program or common_program(operands)
    for operand in operands:
        if operand.program is not program:
            raise foreign(operand, program)
    edges = tuple(operand.edge for operand in operands)
    assert op.infer is not None
    shape, dtype = op.infer(*edges, **attributes)
    used = frozenset(domain).union(*(edge.domain for edge in edges), attribute_symbols(tuple(attributes.values())))
    program.check_symbols(used)
    full_domain = dims_of(frozenset(used) | shape_symbols(shape))
    node = Node(op, edges, full_domain, shape, dtype, user_line(), attributes, name=name)
    return RecurrentTensor(program, node.here())


# Imported last: these build on the class above, and its methods are their spellings.
from tempo import ops, temporal  # noqa: E402
from tempo.ops.creation import as_array  # noqa: E402
