"""Products in a StableHLO program that a kernel of ours makes in place of XLA's.

Which form a product has is known when all of a program is lowered: where it is written down, a row is the value at one
point, and how many there are is the plan's to say. So it is here that products of a few rows with a large matrix are
found, wherever they come from, and the call of a function takes their place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from tempo.backends.jax.few_rows import SUMMED, product
from tempo.backends.jax.padded import outline

Array = Any
Shape = tuple[int, ...]

ROWS = range(2, 65)
"""A single row needs no matrix units; for more, a product is no longer a matter of reading the matrix alone."""
LEAST_NUMBERS = 2**21
"""A smaller matrix is read in less time than it takes to start a kernel."""
DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16}


@dataclass(frozen=True)
class Form:
    """A product as ``lax.dot_general`` makes it, of rows with a matrix, or of a matrix with rows."""

    shapes: tuple[Shape, Shape]
    summed: tuple[Shape, Shape]
    """The axes of each that are summed over; the last ones of the matrix."""
    matrix: int
    """Which of both is the matrix."""
    dtype: str

    def __call__(self, *arrays: Array) -> Array:
        x, matrix = arrays[1 - self.matrix], arrays[self.matrix]
        axes = self.summed[1 - self.matrix]
        count = len(axes)
        x = jnp.moveaxis(x, axes, range(-count, 0))
        rows, columns, length = x.shape[:-count], matrix.shape[:-count], math.prod(x.shape[-count:])
        found = product(x.reshape(-1, length), matrix.reshape(-1, length))
        return found.reshape(*rows, *columns) if self.matrix else found.T.reshape(*columns, *rows)

    def program(self, context: Any) -> Any:
        """It alone, as a StableHLO program for a GPU."""
        arrays = [outline(shape, DTYPES[self.dtype]) for shape in self.shapes]
        with jax.enable_x64(False):
            lowered = jax.jit(self.__call__).trace(*arrays).lower(lowering_platforms=("cuda",))
        file = BytesIO()
        lowered.compiler_ir("stablehlo").operation.write_bytecode(file)
        return ir.Module.parse(file.getvalue(), context)


def use_kernels(module: Any) -> None:
    """Put calls in place of the products of a StableHLO program that our kernel is faster for."""
    found: list[tuple[Any, Form]] = []

    def visit(one: Any) -> Any:
        if one.operation.name == "stablehlo.dot_general" and (form := form_of(one.operation)) is not None:
            found.append((one.operation, form))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    with module.context, ir.Location.unknown():
        names = {form: _insert(module, form, n) for n, form in enumerate(dict.fromkeys(form for _, form in found))}
        for operation, form in found:
            (result,) = operation.results
            callee: dict[str, Any] = {"callee": ir.FlatSymbolRefAttr.get(names[form])}
            before = ir.InsertionPoint(operation)
            call = ir.Operation.create("func.call", [result.type], list(operation.operands), callee, ip=before)
            result.replace_all_uses_with(call.results[0])
            operation.erase()


def form_of(operation: Any) -> Form | None:
    """That of a product of a few rows with a large matrix, each column of which lies in memory in one piece."""
    left, right, made = (ir.RankedTensorType(x.type) for x in (*operation.operands, *operation.results))
    axes = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    dtype = str(left.element_type)
    if dtype not in DTYPES or not left.element_type == right.element_type == made.element_type:
        return None
    shapes = tuple(left.shape), tuple(right.shape)
    summed = tuple(axes.lhs_contracting_dimensions), tuple(axes.rhs_contracting_dimensions)
    sizes = [math.prod(shape) for shape in shapes]
    matrix = int(sizes[0] < sizes[1])
    length = math.prod(shapes[0][n] for n in summed[0])
    rank, count = len(shapes[matrix]), len(summed[matrix])
    is_matrix = 0 < count < rank and summed[matrix] == tuple(range(rank - count, rank))
    if axes.lhs_batching_dimensions or not is_matrix or length == 0 or length % SUMMED != 0:
        return None
    is_worth_it = sizes[1 - matrix] // length in ROWS and sizes[matrix] >= LEAST_NUMBERS
    return Form(shapes, summed, matrix, dtype) if is_worth_it else None


def _insert(module: Any, form: Form, number: int) -> str:
    """Put the functions of a product into a program, by names that it has not got; the one to call."""
    source = form.program(module.context)
    new = {_name(one): f"tempo_few_rows_{number}_{_name(one)}" for one in source.body.operations}
    for old, name in new.items():
        ir.SymbolTable.replace_all_symbol_uses(old, name, source.operation)
    for function in source.body.operations:
        function.attributes["sym_name"] = ir.StringAttr.get(new[_name(function)])
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        function.operation.clone(ip=ir.InsertionPoint(module.body))
    return new["main"]


def _name(function: Any) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)
