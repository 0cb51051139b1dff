"""Products in a StableHLO program that a kernel of ours makes in place of XLA's.

Which form a product has is known when all of a program is lowered: where it is written down, a row is the value at one
point, and how many there are is the plan's to say. So it is here that products of a few rows with a large matrix, and
those of large matrices in single precision, are found, wherever they come from, and the call of a function takes their
place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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

LEAST_SIDE, LEAST_SUM = 513, 256
"""Of a product in single precision: with fewer rows or columns XLA's own kernels do well, and with shorter sums most of
the time goes to writing them."""
LEAST_WORK = 2**29
"""With fewer multiply-adds, to bring the numbers into two halves takes as long as is gained."""

EXACT = "[#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]"
DTYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32}
PRODUCTS: dict[str, Callable[[Array, Array], Array]] = {"few_rows": few_rows.product, "halves": halves.product}
"""Our kernels: ``x @ matrix.T`` of x and a matrix."""


@dataclass(frozen=True)
class Form:
    """A product as ``lax.dot_general`` makes it, of x with a matrix, or of a matrix with x."""

    kernel: str
    shapes: tuple[Shape, Shape]
    summed: tuple[Shape, Shape]
    """The axes of each that are summed over."""
    matrix: int
    """Which of both is the matrix."""
    dtype: str

    def __call__(self, *arrays: Array) -> Array:
        (x, rows), (matrix, columns) = (self._flat(arrays[n], n) for n in (1 - self.matrix, self.matrix))
        found = PRODUCTS[self.kernel](x, matrix)
        return found.reshape(*rows, *columns) if self.matrix else found.T.reshape(*columns, *rows)

    def _flat(self, array: Array, side: int) -> tuple[Array, Shape]:
        """An operand as a matrix whose rows are summed over, and its other axes."""
        axes = self.summed[side]
        array = jnp.moveaxis(array, axes, range(-len(axes), 0))
        own = array.shape[: array.ndim - len(axes)]
        return array.reshape(math.prod(own), -1), own

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
    """That of a product for one of our kernels."""
    left, right, made = (ir.RankedTensorType(x.type) for x in (*operation.operands, *operation.results))
    axes = stablehlo.DotDimensionNumbers(operation.attributes["dot_dimension_numbers"])
    dtype = str(left.element_type)
    if dtype not in DTYPES or not left.element_type == right.element_type == made.element_type:
        return None
    shapes = tuple(left.shape), tuple(right.shape)
    summed = tuple(axes.lhs_contracting_dimensions), tuple(axes.rhs_contracting_dimensions)
    length = math.prod(shapes[0][n] for n in summed[0])
    if axes.lhs_batching_dimensions or length == 0:
        return None
    sides = [math.prod(shape) // length for shape in shapes]
    if dtype == "f32":
        is_large = min(sides) >= LEAST_SIDE and length >= LEAST_SUM and math.prod(sides) * length >= LEAST_WORK
        return Form("halves", shapes, summed, 1, dtype) if is_large and is_exact(operation) else None
    matrix = int(sides[0] < sides[1])
    rank, count = len(shapes[matrix]), len(summed[matrix])
    # Each of its columns lies in memory in one piece.
    is_matrix = 0 < count < rank and summed[matrix] == tuple(range(rank - count, rank))
    is_worth_it = sides[1 - matrix] in ROWS and sides[matrix] * length >= LEAST_NUMBERS
    if not is_matrix or not is_worth_it or length % few_rows.SUMMED != 0:
        return None
    return Form("few_rows", shapes, summed, matrix, dtype)


def is_exact(product: Any) -> bool:
    """Whether the operands of a product in single precision may not be rounded to what matrix units know."""
    return str(product.attributes["precision_config"]) == EXACT if "precision_config" in product.attributes else False


def _insert(module: Any, form: Form, number: int) -> str:
    """Put the functions of a product into a program, by names that it has not got; the one to call."""
    source = form.program(module.context)
    new = {_name(one): f"tempo_{form.kernel}_{number}_{_name(one)}" for one in source.body.operations}
    for old, name in new.items():
        ir.SymbolTable.replace_all_symbol_uses(old, name, source.operation)
    for function in source.body.operations:
        function.attributes["sym_name"] = ir.StringAttr.get(new[_name(function)])
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        function.operation.clone(ip=ir.InsertionPoint(module.body))
    return new["main"]


def _name(function: Any) -> str:
    return str(ir.StringAttr(function.attributes["sym_name"]).value)
