"""Products in a StableHLO program that kernels of ours make in place of XLA's.

Which form a product has is known when all of a program is lowered: where it is written down, a row is the value at one
point, and how many there are is the plan's to say. So it is here that products of a few rows with a large matrix, and
those of large matrices in single precision, are found, wherever they come from, and calls of functions take their
place.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from tempo.backends.jax import few_rows, halves
from tempo.backends.jax.padded import outline

Array = Any
Shape = tuple[int, ...]

ROWS = range(2, 65)
"""A single row needs no matrix units; for more, a product is no longer a matter of reading the matrix alone."""
LEAST_NUMBERS = 2**21
"""A smaller matrix is read in less time than it takes to start a kernel."""
HUGE = 2**27
"""Of a matrix with so many numbers even one row is multiplied by a kernel of ours, in the same time. XLA times its own
with copies of their operands, which is then the most memory that a program ever takes: one sequence of Llama-3.2-3B
took 7.40 GB while it was compiled, and takes 6.76."""

LEAST_SIDE, LEAST_SUM = 513, 256
"""Of a product in single precision: with fewer rows or columns XLA's own kernels do well, and with shorter sums most of
the time goes to writing them."""
LEAST_WORK = 2**29
"""With fewer multiply-adds, to bring the numbers into two halves takes as long as is gained."""
MOST_KEPT = 2**28
"""So many numbers, at most, are brought into halves before a loop that they stay the same in: the halves take as much
memory again."""

EXACT = "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"
HALVES = {"bf16": jnp.bfloat16, "f16": jnp.float16}


class Function(ABC):
    """A function of arrays that is put into programs."""

    name: str

    @property
    @abstractmethod
    def outlines(self) -> list[Any]:
        """Of its arguments."""

    @abstractmethod
    def __call__(self, *arrays: Array) -> Any: ...

    def program(self, context: Any) -> Any:
        """It alone, as a StableHLO program for a GPU."""
        with jax.enable_x64(False):
            # A function of its own, of which JAX keeps nothing.
            traced = jax.jit(lambda *arrays: self(*arrays)).trace(*self.outlines)
            lowered = traced.lower(lowering_platforms=("cuda",))
        file = BytesIO()
        lowered.compiler_ir("stablehlo").operation.write_bytecode(file)
        return ir.Module.parse(file.getvalue(), context)


@dataclass(frozen=True)
class Side:
    """An operand of a product: a matrix whose rows are summed over, when ``axes`` are its last ones."""

    shape: Shape
    axes: Shape

    @property
    def own(self) -> Shape:
        """The sizes of its other axes."""
        return tuple([size for n, size in enumerate(self.shape) if n not in self.axes])

    @property
    def summed(self) -> int:
        return math.prod(self.shape[n] for n in self.axes)

    def flat(self, array: Array) -> Array:
        moved = jnp.moveaxis(array, self.axes, range(-len(self.axes), 0))
        return moved.reshape(math.prod(self.own), self.summed)


@dataclass(frozen=True)
class FewRows(Function):
    """A product of rows with a matrix, or of a matrix with rows, in half precision."""

    sides: tuple[Side, Side]
    matrix: int
    """Which of both is the matrix."""
    dtype: str
    name = "few_rows"

    @property
    def outlines(self) -> list[Any]:
        return [outline(side.shape, HALVES[self.dtype]) for side in self.sides]

    def __call__(self, *arrays: Array, interpret: bool = False) -> Array:
        left, right = (side.flat(array) for side, array in zip(self.sides, arrays, strict=True))
        shape = (*self.sides[0].own, *self.sides[1].own)
        if self.matrix:
            return few_rows.product(left, right, interpret).reshape(shape)
        return few_rows.product(right, left, interpret).T.reshape(shape)


@dataclass(frozen=True)
class HalvesOf(Function):
    """An operand in single precision as two in half precision."""

    side: Side
    name = "halves_of"

    @property
    def outlines(self) -> list[Any]:
        return [outline(self.side.shape, jnp.float32)]

    def __call__(self, *arrays: Array) -> Any:
        return halves.halves_of(self.side.flat(*arrays))


@dataclass(frozen=True)
class Halved(Function):
    """A product in single precision, of the halves of its operands."""

    sides: tuple[Side, Side]
    name = "halves"

    @property
    def outlines(self) -> list[Any]:
        return [one for side in self.sides for one in jax.eval_shape(HalvesOf(side), *HalvesOf(side).outlines)]

    def __call__(self, *arrays: Array, interpret: bool = False) -> Array:
        count = len(halves.Halves._fields)
        both = halves.Halves(*arrays[:count]), halves.Halves(*arrays[count:])
        return halves.product_of(*both, interpret).reshape(*self.sides[0].own, *self.sides[1].own)


def use_kernels(module: Any) -> None:
    """Put calls in place of the products of a StableHLO program that our kernels are faster for."""
    found: list[tuple[Any, FewRows | Halved]] = []
    callers: dict[str, list[Any]] = {}
    """By the name of a function the calls of it."""

    def visit(one: Any) -> Any:
        operation = one.operation
        if operation.name == "stablehlo.dot_general" and (form := form_of(operation)) is not None:
            found.append((operation, form))
        elif operation.name == "func.call":
            callers.setdefault(ir.FlatSymbolRefAttr(operation.attributes["callee"]).value, []).append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    with module.context, ir.Location.unknown():
        calls = _Calls(module)
        kept = 0
        for operation, form in found:
            if isinstance(form, Halved):
                _inline(operation, callers)
                operands = []
                for side, operand in zip(form.sides, operation.operands, strict=True):
                    value, place = _before_loops(operand, operation)
                    count = 0 if place == operation else math.prod(side.shape)
                    if kept + count > MOST_KEPT:
                        value, place, count = operand, operation, 0
                    kept += count
                    operands += calls(HalvesOf(side), [value], place)
            else:
                operands = list(operation.operands)
            operation.results[0].replace_all_uses_with(calls(form, operands, operation)[0])
            operation.erase()


def form_of(operation: Any) -> FewRows | Halved | None:
    """That of a product for one of our kernels."""
    left, right, made = (ir.RankedTensorType(x.type) for x in (*operation.operands, *operation.results))
    axes = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    dtype = str(left.element_type)
    if axes.lhs_batching_dimensions or not left.element_type == right.element_type == made.element_type:
        return None
    summed = axes.lhs_contracting_dimensions, axes.rhs_contracting_dimensions
    both = Side(tuple(left.shape), tuple(summed[0])), Side(tuple(right.shape), tuple(summed[1]))
    length, counts = both[0].summed, [math.prod(side.own) for side in both]
    if dtype == "f32" and is_exact(operation):
        is_large = min(counts) >= LEAST_SIDE and length >= LEAST_SUM and math.prod(counts) * length >= LEAST_WORK
        return Halved(both) if is_large else None
    if dtype not in HALVES:
        return None
    matrix = int(counts[0] * length < counts[1] * length)
    rank, count = len(both[matrix].shape), len(both[matrix].axes)
    # Each of its columns lies in memory in one piece.
    is_matrix = 0 < count < rank and both[matrix].axes == tuple(range(rank - count, rank))
    rows, numbers = counts[1 - matrix], counts[matrix] * length
    is_worth_it = (rows in ROWS and numbers >= LEAST_NUMBERS) or (rows == 1 and numbers >= HUGE)
    return FewRows(both, matrix, dtype) if is_matrix and is_worth_it and length % few_rows.SUMMED == 0 else None


def is_exact(product: Any) -> bool:
    """Whether the operands of a product in single precision may not be rounded to what matrix units know."""
    return "precision_config" in product.attributes and str(product.attributes["precision_config"]) == EXACT


def _inline(operation: Any, callers: dict[str, list[Any]]) -> None:
    """Put the function in which an operation stands, as the bodies of loops are, in place of its call, if there is only
    one; and so on for the function in which that is."""
    while True:
        function = operation.parent
        while function.name != "func.func":
            function = function.parent
        if len(callers.get(_name(function), ())) != 1:
            return
        (call,) = callers.pop(_name(function))
        (block,) = function.regions[0].blocks
        *body, end = [one.operation for one in block.operations]
        for argument, operand in zip(block.arguments, call.operands, strict=True):
            argument.replace_all_uses_with(operand)
        for one in body:
            one.move_before(call)
        for result, value in zip(call.results, end.operands, strict=True):
            result.replace_all_uses_with(value)
        call.erase()
        function.erase()


def _before_loops(value: Any, place: Any) -> tuple[Any, Any]:
    """A value that stays the same in loops, as it is before them, and the outermost of these loops; otherwise it as it
    is at its ``place``."""
    while isinstance(value, ir.BlockArgument):
        loop = value.owner.owner.operation
        if loop.name != "stablehlo.while":
            break
        *_, end = loop.regions[1].blocks[0].operations
        if end.operands[value.arg_number] != value:
            break
        value, place = loop.operands[value.arg_number], loop
    return value, place


class _Calls:
    """Calls of functions, each of which is put into a program once."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.functions: dict[Function, tuple[str, list[Any]]] = {}
        """By which name, and the types of the results."""

    def __call__(self, function: Function, operands: Sequence[Any], place: Any) -> list[Any]:
        """The results of a call before an operation."""
        if function not in self.functions:
            self.functions[function] = self._insert(function)
        name, types = self.functions[function]
        callee: dict[str, Any] = {"callee": ir.FlatSymbolRefAttr.get(name)}
        call = ir.Operation.create("func.call", types, list(operands), callee, ip=ir.InsertionPoint(place))
        return list(call.results)

    def _insert(self, function: Function) -> tuple[str, list[Any]]:
        """Put a function, and what it calls, into the program, by names that it has not got."""
        module = self.module
        source = function.program(module.context)
        first = f"tempo_{function.name}_{len(self.functions)}"
        new = {_name(one): f"{first}_{_name(one)}" for one in source.body.operations}
        for old, name in new.items():
            ir.SymbolTable.replace_all_symbol_uses(old, name, source.operation)
        types: list[Any] = []
        for one in source.body.operations:
            if _name(one) == "main":
                types = list(ir.FunctionType(ir.TypeAttr(one.attributes["function_type"]).value).results)
            one.attributes["sym_name"] = ir.StringAttr.get(new[_name(one)])
            one.attributes["sym_visibility"] = ir.StringAttr.get("private")
            one.operation.clone(ip=ir.InsertionPoint(module.body))
        return new["main"], types


def _name(function: Any) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)
